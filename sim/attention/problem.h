// One head of an attention call, and which keys each query sees.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "format/format.h"
#include "tensor/matrix.h"

namespace qattn::attention {

/// Where the diagonal of a causal mask starts when there are more keys than queries or fewer: query i sees keys
/// j <= i (top_left) or j <= i + Nk - Nq (bottom_right).
enum class CausalAlign : std::uint8_t { top_left, bottom_right };

/// How an input stands in its file when it is stored quantized, one scale for all of it: value = code * scale.
struct InputCodes {
  const format::Format* format = nullptr;  ///< nullptr: not quantized
  double scale = 1;                        ///< an FP32 number
};

/// q [Nq, d], k [Nk, d], v [Nk, dv]: the values of the dump, exactly. `mask`, if there, is [Nq, Nk] and is added to the
/// scaled scores; -Inf hides a key.
struct Problem {
  MatrixD q;
  MatrixD k;
  MatrixD v;
  double sm_scale = 1.0;
  bool is_causal = false;
  CausalAlign causal_align = CausalAlign::top_left;
  std::optional<MatrixD> mask;
  /// The other query heads that share k and v, [Nq, d] each; read by recipes with query_heads = group alone, and may be
  /// empty for all others.
  std::vector<MatrixD> group_q = {};
  /// A recipe whose operand has this format and one scale takes the codes and the scale as they are: an input that is
  /// quantized already is not quantized again.
  InputCodes q_codes = {}, k_codes = {}, v_codes = {};

  /// Keys [0, n) are visible to query `row` as far as the causal mask goes; 0 when it sees none.
  std::int64_t visible_keys(std::int64_t row) const { return visible_keys(row, causal_align); }
  /// The same with the diagonal elsewhere.
  std::int64_t visible_keys(std::int64_t row, CausalAlign align) const;
};

/// Throws Error(input) when the shapes disagree or are empty.
void check_shapes(const Problem& problem);

}  // namespace qattn::attention
