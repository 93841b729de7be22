// The log-sum-exp that a kernel returns: which of the conventions in use it follows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qattn::lab {

/// What a kernel may mean by its lse, log(sum over keys of exp(score)).
struct LseConvention {
  bool base2 = false;         ///< log2 in place of the natural logarithm
  bool without_mean = false;  ///< of the scores of the smoothed K, which lack sm_scale * q . mean(K)
  double p_scale = 1;         ///< the sum is of P times this: its logarithm is in the lse

  bool operator==(const LseConvention&) const = default;
};

/// What a convention makes of a row's natural logarithm and its mean_shift (LseRows).
double expected_lse(double natural, double mean_shift, const LseConvention& convention);

/// "base e", "base 2 without the K-mean shift, with log2 of the P scale 448".
std::string describe(const LseConvention& convention);

/// What a user demands: "e" or "2", then ",no-mean" and ",p-scale" in any order. A convention that is demanded with
/// p-scale has p_scale 0 here, which any scale of P satisfies. Throws Error(usage) for anything else.
LseConvention parse_lse_convention(std::string_view text);

/// One head's lse, [rows] each. A row that sees no key has the reference -Inf.
struct LseRows {
  std::vector<double> recorded;
  std::vector<double> reference;   ///< float64, natural logarithm
  std::vector<double> emulated;    ///< the recipe's own, likewise; empty when there is none
  std::vector<double> mean_shift;  ///< sm_scale * q . mean(K)
};

/// How well a convention fits one head.
struct LseFit {
  LseConvention convention;
  double max_error = 0;  ///< in the lse's own units; Inf where a recorded row is NaN, or infinite without reason
  std::int64_t worst_row = 0;
  std::int64_t misfits = 0;  ///< rows beyond the tolerance
  bool to_recipe = false;    ///< the fit is with the recipe's own lse, and that with float64 is worse
};

/// Every convention against the head, in order of plainness. `p_scales` are those worth trying besides 1. A recorded
/// value may also be off by one unit of fp32 in its last place, which large ones cannot resolve. Rows that see no key
/// may be -Inf or +Inf.
std::vector<LseFit> fit_lse(const LseRows& rows, std::span<const double> p_scales, double tolerance);

/// The fit that speaks for the head: the first without misfits; else the plainest, unless another is ten times nearer.
const LseFit& best_fit(std::span<const LseFit> fits);

/// Whether `convention` is one that the user demands.
bool satisfies(const LseConvention& convention, const LseConvention& demanded);

}  // namespace qattn::lab
