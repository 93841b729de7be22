// The verdict on the log-sum-exp of a call: one convention for all heads, what a tolerance is worth, and what a wrong
// lse looks like.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "lab/dump_set.h"
#include "lab/lse_convention.h"
#include "lab/measurement.h"

namespace qattn::lab {

/// The lse of one head. Its fits are those of fit_lse() with the options' scales and tolerance.
struct LseHead {
  Piece piece;
  LseRows rows;
  std::vector<LseFit> fits;
  double recipe_error = 0;  ///< the largest distance of the recipe's lse from float64
  bool o_passed = true;
};

struct LseOptions {
  std::vector<double> p_scales;  ///< worth trying besides 1
  double tolerance = 1e-4;
  std::optional<LseConvention> demanded;
  std::string recipe;  ///< its name, for people
  /// The sequences of a head, read when something is wrong.
  std::function<std::vector<HeadProblem>(const Piece&)> problems;
};

struct LseVerdict {
  bool passed = false;
  LseFit fit;                ///< with the convention that the heads of the call follow
  LseConvention convention;  ///< the head's own
  std::string detail;        ///< why it failed
  std::string diagnosis;     ///< a short name, or empty
};

/// One verdict for each head of a call. A head passes when the convention that most heads follow (or the one demanded)
/// fits it, and the tolerance is worth something: zeros, the lse plus one, or a convention that differs by more than
/// 0.01 somewhere would not pass as well.
std::vector<LseVerdict> judge_lse(std::span<const LseHead> heads, const LseOptions& options);

/// A mistake that explains a wrong lse.
struct LseFinding {
  std::string name;    ///< "LSE all zeros", "LSE in base 10", "LSE of another head", ...
  std::string detail;  ///< one sentence
};

/// What the lse of heads[head] looks like, in some convention; nothing if no known mistake explains all of its rows.
std::optional<LseFinding> diagnose_lse(std::span<const LseHead> heads, std::size_t head, const LseOptions& options);

}  // namespace qattn::lab
