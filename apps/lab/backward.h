// The gradients of one key/value head's group under recipes: the unit of work of every --backward.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attention/gradient.h"
#include "lab/dump_set.h"
#include "lab/measurement.h"
#include "metric/accuracy.h"

namespace qattn::lab {

/// What a measurement is of, in the order of rows. A forward one has the first alone.
inline constexpr std::array<std::string_view, 4> kOutputs = {"o", "dq", "dk", "dv"};

/// One output of one head against its reference. `head` is a query head for o and dq, a key/value head for dk and dv.
struct Measured {
  std::size_t output = 0;  ///< index into kOutputs
  std::int64_t head = 0;
  metric::Accuracy accuracy;
};

/// Every (call, batch, key/value head) with a selected query head, in the order of pieces_of(); `head` is the group's
/// first query head, selected or not.
std::vector<Piece> groups_of(const DumpSet& dumps);

/// (output, head) of all that a group gives, in the order of GroupMeasurement::measure(): o and dq of each selected
/// query head, then dk and dv of the key/value head.
std::vector<std::pair<std::size_t, std::int64_t>> group_outputs(const SelectedCall& call, const Piece& group);

/// The upstream gradient of a query head, [tokens, head_dim]: the call's `do`, else N(0, 1), a function of seed, call's
/// path, batch and head alone, rounded to the format of q.
MatrixD upstream_gradient(const DumpSet& dumps, const SelectedCall& call, std::int64_t batch, std::int64_t head,
                          std::uint64_t seed);

/// Measures recipes on one group, which is read once; the exact gradients are computed once. dk and dv are sums over
/// all query heads of the group, those that are not selected too.
class GroupMeasurement {
 public:
  GroupMeasurement(const DumpSet& dumps, const Piece& group, std::uint64_t seed);

  /// The recipe's outputs against `reference`'s, or against the exact ones. Heads that are exceptions of a recipe run
  /// their exception_recipe forward and backward, and give dk and dv their share of it.
  std::vector<Measured> measure(const attention::Recipe& recipe, const attention::Recipe* reference = nullptr);

  /// The first NaN or Inf of the inputs, upstream gradients included; empty when all are finite.
  std::string first_bad_input() const;

 private:
  /// One sequence of the group: a problem and an upstream gradient a query head.
  struct Part {
    std::vector<attention::Problem> heads;
    std::vector<MatrixD> upstream;
    std::int64_t first_row = 0, first_key = 0;
  };

  attention::Gradients gradients_of(const Part& part, const attention::Recipe& recipe) const;
  const attention::Gradients& reference_gradients(std::size_t part, const attention::Recipe* reference);

  const SelectedCall& selected_;
  const io::AttentionCall& call_;
  Piece group_;
  std::vector<Part> parts_;
  std::map<std::pair<std::size_t, std::string>, attention::Gradients> references_;
};

}  // namespace qattn::lab
