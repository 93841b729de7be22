// The calls of one or more dumps that a command works on, head by head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "io/dump.h"
#include "metric/accuracy.h"

namespace qattn::lab {

/// Query heads [first, last).
struct HeadRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// "A:B", "A:", ":B" or "A" (that head alone). Throws Error(usage) for anything else or an empty range.
HeadRange parse_heads(const std::string& text);

/// What to work on, as the command line gives it.
struct DumpSelection {
  std::vector<std::string> inputs;  ///< files, and folders of them
  std::string calls;                ///< ECMAScript regular expression, searched for in a call's path; empty: all
  std::optional<HeadRange> heads;
};

/// One call of the set.
struct SelectedCall {
  std::size_t file = 0;  ///< index into DumpSet::files()
  const io::AttentionCall* call = nullptr;
  std::string label;  ///< the call's path, with its file's name before it when two files have the same path
  std::int64_t first_head = 0, last_head = 0;
};

/// One independent attention problem of a head: the whole head, or one of a packed call's sequences.
struct HeadProblem {
  attention::Problem problem;
  std::int64_t first_row = 0;  ///< where its queries start among the call's tokens
  std::int64_t first_key = 0;  ///< where its keys start
};

/// Opens all dumps of a selection. Throws Error(usage) when the filters leave nothing.
class DumpSet {
 public:
  explicit DumpSet(const DumpSelection& selection);

  const std::vector<SelectedCall>& calls() const { return calls_; }
  const std::vector<std::string>& files() const { return files_; }
  std::int64_t heads() const;  ///< (batch, head) pairs of all calls

  /// Query head `head` of `batch`, decoded, with its key/value head; `with_group`: and the other query heads of that.
  std::vector<HeadProblem> read(const SelectedCall& call, std::int64_t batch, std::int64_t head,
                                bool with_group = false) const;

  /// One head of "q", "k" or "v" (k and v: a key/value head), [tokens, head_dim], an 8-bit dump's descale applied.
  MatrixD read_tensor(const SelectedCall& call, const std::string& dataset, std::int64_t batch,
                      std::int64_t head) const;

  /// How read_tensor()'s values stand in the file, where that is in a format of at most 8 bits.
  attention::InputCodes input_codes(const SelectedCall& call, const std::string& dataset, std::int64_t batch,
                                    std::int64_t head) const;

  /// One head of any dataset of the call as the file has it: [tokens, head_dim], or [tokens] of "lse".
  Tensor read_codes(const SelectedCall& call, const std::string& dataset, std::int64_t batch, std::int64_t head) const;

  /// Element [batch, kv_head] of "q_descale", "k_descale" or "v_descale"; 1 when the call has none.
  double descale(const SelectedCall& call, const std::string& dataset, std::int64_t batch, std::int64_t kv_head) const;

 private:
  std::vector<std::string> files_;
  std::vector<io::DumpReader> readers_;
  std::vector<SelectedCall> calls_;
};

/// The first NaN or Inf of each of q, k and v, as "q[token 9, channel 0] is Inf, v[token 3, channel 5] is NaN", and the
/// first NaN or +Inf of an additive mask, as "mask[row 2, column 4] is NaN"; empty when there is none. Tokens are the
/// call's.
std::string bad_inputs(const HeadProblem& part);

/// bad_inputs() of the first part that has any.
std::string first_bad_input(const std::vector<HeadProblem>& head);

}  // namespace qattn::lab
