// The quantizers of SageAttention 2.2.0 (thu-ml/SageAttention d1a57a5), operation by operation: its Triton and its
// CUDA kernels, which round differently. All arithmetic is f32, each operation rounded to nearest-even; the CUDA
// kernels are built with --use_fast_math, so that theirs also flushes subnormals and divides by MUFU's reciprocal.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quant/groups.h"
#include "tensor/matrix.h"

namespace qattn::kernels::sage {

/// x / y as --use_fast_math makes it, x rcp(y).
float fast_divide(float x, float y);

/// How a group of Q's or K's elements becomes INT8: with its largest magnitude amax, the stored scale is scale(amax)
/// and an element's code is code(x, factor(amax, scale)).
struct Int8Quantizer {
  quant::Granularity granularity;  ///< per_thread, per_warp (of K: per_block) or per_block
  bool rounds_centred;             ///< k - mean is rounded to the input's type (PyTorch made it), else kept in f32
  bool flushes;                    ///< elements are read with .ftz
  float least_amax;                ///< the search for amax starts here
  float (*scale)(float amax);
  float (*factor)(float amax, float scale);
  std::int32_t (*code)(float x, float factor);
};

/// quant_per_thread.py: scale fma(amax, RN(1/127), 1e-7), code trunc(x rcp(scale) + 0.5 with x's sign).
extern const Int8Quantizer kTritonPerThread;
/// quant_per_block.py: scale RN(amax RN(1/127)), no epsilon (a group of zeros has scale 0 and codes 0); code as above.
extern const Int8Quantizer kTritonPerBlock;
/// fused.cu: amax at least 1e-7, scale amax rcp(127), code the nearest integer to x (127 rcp(amax)).
extern const Int8Quantizer kCudaPerWarp;
extern const Int8Quantizer kCudaPerBlock;

/// [tokens, channels] as INT8.
struct Int8Matrix {
  MatrixCodes codes;          ///< two's complement in the low 8 bits
  quant::GroupMap groups;     ///< of the tokens padded to whole blocks; one column
  std::vector<float> scales;  ///< one a group, those of padding too
};

/// Quantizes `x`, the rows of `operand` (Q or K) for a kernel with these tiles.
Int8Matrix quantize_int8(MatrixView<float> x, const Int8Quantizer& quantizer, quant::Operand operand,
                         const quant::Tiling& tiling);

/// How V becomes FP8 (E4M3), one scale a channel.
struct Fp8Quantizer {
  std::string_view name;  ///< of the vector files' groups: "v448", "v225", "v448_smooth"
  float scale_max;        ///< what the largest magnitude is mapped to
  bool smooth;            ///< the channel's mean is taken out first
  float (*divide)(float x, float y);
  /// The sum of a channel's tokens in stored order.
  float (*sum)(std::span<const float> stored);
};

extern const Fp8Quantizer kV448, kV225, kV448Smooth;

/// V's stored order: inside 16 tokens, position p holds token kStoredToken[p], so that the P that a thread has from QK
/// is the operand that it needs for PV.
inline constexpr int kStoredToken[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

/// Sum of a block of 256 threads: thread t adds elements 8t .. 8t + 7 (and those 2048 further on, ...) from zero in
/// order; then lanes at distances 16, 8, 4, 2, 1 inside each warp, then the warps' sums in the same way.
float block_sum(std::span<const float> stored);

/// [channels, tokens padded with zeros], in stored order.
struct Fp8Matrix {
  MatrixCodes codes;
  std::vector<float> scales;  ///< one a channel
  std::vector<float> means;   ///< one a channel; empty unless smooth
};

/// Quantizes v [tokens, channels], padded to `padded_tokens` (a multiple of 16). Statistics are over the tokens padded
/// to a multiple of 16 with zeros. A channel of zeros has scale 0 and the NaN code everywhere, padding too, because 0
/// is multiplied by an infinite reciprocal; with `smooth` so has a channel that equals its mean.
Fp8Matrix quantize_fp8(MatrixView<float> v, std::int64_t padded_tokens, const Fp8Quantizer& quantizer);

}  // namespace qattn::kernels::sage
