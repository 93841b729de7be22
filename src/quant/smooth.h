// Smoothing: taking the mean over tokens out of K, Q or V before quantization, and the term that puts it back.
#pragma once

#include <cstdint>

#include "format/format.h"
#include "tensor/matrix.h"

namespace qattn::quant {

/// Which tokens share a mean, and what is rounded on the way.
struct SmoothSpec {
  /// 0: one mean over all tokens (K, V); else one for each block of so many tokens (Q: SageAttention2 takes its query
  /// block, SageAttention3 takes 128). The last block may be ragged; its mean is over the tokens it has.
  std::int64_t block_rows = 0;
  /// Means are rounded to this format after FP32 (the published kernels keep K's mean in the input's type).
  const format::Format* mean_format = &format::kFP32;
  /// x - mean, rounded to f32, is rounded once more to this format (SageAttention's Triton per-thread quantizer: the
  /// input's type; its CUDA per-warp quantizer: FP32).
  const format::Format* result_format = &format::kFP32;
};

struct Smoothed {
  MatrixF centred;  ///< [tokens, channels], RN(x - mean)
  MatrixF means;    ///< [blocks, channels]; one row when block_rows is 0
};

/// Means over tokens: for each block and channel, the f64 sum in token order, divided by the number of tokens in f64,
/// rounded to f32. No tokens: no rows, or one row of NaN when block_rows is 0.
MatrixF token_means(MatrixView<float> x, std::int64_t block_rows = 0);

/// Subtracts the means. K: S changes by a constant in each row, which softmax ignores. Q: S lacks mean_correction().
/// V: O lacks the mean, because the rows of P sum to 1.
Smoothed smooth(MatrixView<float> x, const SmoothSpec& spec = {});

/// [blocks, keys]: the row q_mean_i . k_j that every score of query block i lacks after Q was smoothed
/// (SageAttention2, equation 2: k is the smoothed K; its Algorithm 1: the dequantized one). Products are exact in f64,
/// summed in f64 in channel order, and the sum is rounded once to `result_format`.
MatrixF mean_correction(MatrixView<float> q_means, MatrixView<float> k,
                        const format::Format& result_format = format::kFP32);

}  // namespace qattn::quant
