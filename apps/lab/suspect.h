// A wrong head as the diagnosis looks at it: some tens of its rows, and the explanations offered for them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/recipe.h"
#include "lab/checked_head.h"
#include "lab/diagnosis.h"
#include "lab/dump_set.h"

namespace qattn::lab {

/// Rows and channels whose error is more than three times what the recipe's own output makes plausible there.
struct WrongParts {
  std::vector<std::int64_t> rows, channels;
};
WrongParts wrong_parts(const MatrixD& output, const MatrixD& reference, const MatrixD& emulated);

/// "rows 64 to 127", "channel 5", "rows 3, 11, ... 251 (every 8th)", "17 rows between 4 and 90".
std::string describe_indices(std::string_view what, const std::vector<std::int64_t>& indices, std::int64_t offset = 0);

/// `known_wrong`: the head is wrong, and what explains it best is sought. `hidden`: it is within its limits, and an
/// explanation has to stand out of the recipe's own errors (hidden_mistake()).
///
/// The sample: up to 28 wrong rows and 8 others, spread evenly; 64 of all rows for `hidden`. Of a packed call the
/// sequence with the largest error.
class Suspect {
 public:
  enum class Search : std::uint8_t { known_wrong, hidden };

  Suspect(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe,
          Search search = Search::known_wrong);

  bool hidden() const { return search_ == Search::hidden; }
  const DumpSet& dumps() const { return dumps_; }
  const CheckedHead& head() const { return head_; }
  const attention::Recipe& recipe() const { return recipe_; }
  const io::AttentionCall& call() const { return *dumps_.calls()[head_.piece.call].call; }
  const attention::Problem& problem() const { return part_->problem; }
  std::int64_t first_row() const { return part_->first_row; }  ///< of the sequence, in a packed call
  bool packed() const { return head_.parts.size() > 1; }
  std::int64_t channels() const { return head_.channels(); }

  const MatrixD& whole_output() const { return output_; }        ///< the sequence's rows, all of them
  const MatrixD& whole_reference() const { return reference_; }  ///< likewise
  const MatrixD& whole_emulated() const { return emulated_; }    ///< likewise, the recipe's output
  const WrongParts& wrong() const { return wrong_; }
  /// Nine rows of ten are wrong, or no row stands out.
  bool all_rows_wrong() const;
  bool all_channels_wrong() const;

  const std::vector<std::int64_t>& rows() const { return rows_; }  ///< sampled, ascending
  bool is_wrong(std::size_t sampled) const { return sampled_wrong_[sampled]; }
  const MatrixD& output() const { return sampled_output_; }  ///< [sampled rows, channels]
  const MatrixD& reference() const { return sampled_reference_; }

  /// Float64 attention for rows of another head of the call, [rows, channels]; kept heads are read once.
  MatrixD rows_of_head(std::int64_t batch, std::int64_t q_head, const std::vector<std::int64_t>& rows);
  const attention::Problem& problem_of_head(std::int64_t batch, std::int64_t q_head);

  /// What `candidate` (like output()) leaves unexplained, over the size of the outputs. What the recipe loses on these
  /// rows may be taken as lost by the kernel too.
  double residual(const MatrixD& candidate) const;
  /// What a change of the output after the kernel's own arithmetic gives: `change` of some values of o, [sampled rows,
  /// channels], is tried on float64's and on the recipe's; the candidate that leaves less.
  MatrixD changed(const std::function<MatrixD(const MatrixD& whole)>& change) const;
  /// Offers an explanation. A later one has to be better by a fifth (hidden: a twentieth) to displace an earlier,
  /// plainer one.
  void offer(const MatrixD& candidate, std::string_view name, const std::function<std::string()>& detail);
  /// The best explanation, if it is good enough.
  std::optional<Finding> verdict() const;

 private:
  /// Whether the output's error points where the candidate lies and the recipe's does not.
  bool stands_out(const MatrixD& candidate) const;
  /// The largest share, of either sign, that the error of a related recipe has in the direction of `candidate`, whose
  /// square is given.
  double related_share(const MatrixD& candidate, double square) const;
  /// The sum of squares between output and candidate, over that between output and reference.
  double left_over(const MatrixD& candidate) const;

  const DumpSet& dumps_;
  const CheckedHead& head_;
  const attention::Recipe& recipe_;
  const Search search_;
  const HeadProblem* part_ = nullptr;
  MatrixD output_, reference_, emulated_;
  WrongParts wrong_;
  std::vector<std::int64_t> rows_;
  std::vector<bool> sampled_wrong_;
  MatrixD sampled_output_, sampled_reference_, sampled_loss_;
  std::vector<MatrixD> related_losses_;  ///< the same of the recipe's relatives
  std::map<std::pair<std::int64_t, std::int64_t>, attention::Problem> others_;
  double unexplained_ = 0;  ///< residual of the reference itself
  double noise_ = 0;        ///< residual of the recipe's own output against the reference
  std::optional<Finding> best_;
};

/// Float64 attention for some rows, each with its own number of visible keys (0: o = 0), given the scores
/// [rows, keys] in natural units; keys beyond are not looked at.
MatrixD attend(const MatrixD& scores, const std::vector<std::int64_t>& visible, const MatrixD& v,
               std::int64_t channels);

/// sm_scale q . k + mask for some rows of a problem and all keys; the causal mask is not applied.
MatrixD scores_of(const attention::Problem& problem, const std::vector<std::int64_t>& rows, bool with_mask = true);

/// Explanations that need the outputs alone: zeros, copies, permutations, factors, other heads, other layouts.
void suspect_outputs(Suspect& suspect);
/// Explanations in the scores: masks, tiles, scale groups, the softmax scale, a missing division.
void suspect_scores(Suspect& suspect);

}  // namespace qattn::lab
