// The attention kernels of SageAttention 2.2.0 as one engine: what they have in common is code, what they differ in is
// a Form.
//
// A block of queries walks over tiles of keys. For each tile, with c = RN(sm_scale log2(e)) and dq = RN(q's scale times
// k's scale), all in f32 and each operation rounded to nearest-even:
//   1. s = q k as exact integers. X = s with gain g = RN(c dq), or, in the last `dequantized_tiles` tiles, X = RN(s dq)
//      with g = c. Keys that are out of sight have X = `hidden`.
//   2. Thread t of four owns the columns with column mod 8 div 2 = t; the row max is that of their
//      fma(max X, g, -offset), and of the max before.
//   3. rescale = ex2(old max - new max), P = ex2(fma(X, g, -max)).
//   4. The row sum grows by the tile's P, see Form; P is rounded to FP8 or FP16.
//   5. O grows by P V through the tensor core, either `in_place`, O = RN(O rescale) being its accumulator, or from zero
//      and then O = fma(O, rescale, partial sum).
// At the end `output` divides by the row sum and puts V's scale and mean back; lse2 = RN(lg2(row sum) + max).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/sage_lse.h"
#include "kernels/sage_quantize.h"
#include "mma/instruction.h"
#include "mma/tile.h"

namespace qattn::kernels::sage {

/// Row sums as the four threads of a row hold them; kernels whose threads share one sum use the first.
using ThreadSums = std::array<float, 4>;

/// Everything in which the kernels differ. Functions stand for one operation or a fixed short sequence of them.
struct Form {
  std::string_view grouping;  ///< the vector files' name for the tiles of the INT8 quantizer: "sm90", "sm89", ...
  quant::Tiling tiling;       ///< queries of a block, keys of a tile, and what the quantizer takes for a warp
  Int8Quantizer int8;
  bool smooth_k = true;
  /// Q is multiplied by sm_scale log2(e) before it is quantized, so that c is 1.
  bool scales_q = false;
  std::optional<Fp8Quantizer> v_fp8;  ///< absent: V is used in FP16
  bool centred_half_v = false;        ///< V - RN(mean), in the input's type, then FP16
  std::int64_t v_padding = 64;        ///< V's tokens are padded to a multiple of this

  const mma::Instruction* qk = nullptr;
  const mma::Instruction* pv = nullptr;
  const mma::Instruction* row_sum = nullptr;  ///< absent: `add_row` sums; else P times a column of ones
  const format::Format* p_format = nullptr;
  bool in_place = false;
  void (*rescale)(std::span<float> o, float factor) = nullptr;
  void (*rescale_add)(std::span<float> o, float factor, std::span<const float> partial) = nullptr;

  int dequantized_tiles = 1;
  float hidden = 0;  ///< X of keys out of sight
  float start = 0;   ///< the max before the first tile
  float offset = 0;  ///< P is 2^offset at the max, to fill its format
  /// Steps 2 and 3 but for ex2: one thread's max, and what P is the power of two of.
  float (*scaled_max)(float x, float gain, float offset) = nullptr;
  void (*exponents)(std::span<const float> x, std::span<const float> gain, float shift, std::span<float> y) = nullptr;
  void (*ex2)(std::span<const float> x, std::span<float> y) = nullptr;
  float (*rcp)(float x) = nullptr;
  float (*lg2)(float x) = nullptr;
  /// Rescales the sums and adds one tile's P, before P is rounded.
  void (*add_row)(std::span<const float> p, float rescale, ThreadSums& sums) = nullptr;
  float (*total)(const ThreadSums& sums) = nullptr;
  /// The output, before it is rounded to `type`: O of one element, the reciprocal of its row's sum, V's scale and mean.
  float (*output)(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type) = nullptr;
  DotOrder (*correction_order)(const format::Format& type, std::int64_t heads, std::int64_t q_tokens,
                               std::int64_t depth) = nullptr;
  const mma::Instruction* correction_instruction = nullptr;
  std::string prediction;  ///< why the result was not compared with a GPU; empty: it was
};

/// log2(e) as the library spells it.
inline constexpr float kLog2E = 1.44269504f;

// The steps that forms are made of.
/// fma(x, gain, -offset).
float fused_max(float x, float gain, float offset);
/// d = fma(d, rescale, ((p0 + p1) + p8) + p9) with the thread's columns of the first 16, then RN adds of the same sums.
void add_thread_sums(std::span<const float> p, float rescale, ThreadSums& sums);
/// (d0 + d1) + (d2 + d3).
float total_of_threads(const ThreadSums& sums);
/// Each thread's columns from left to right, then threads at distance 2, then 1; l = fma(l, rescale, sum).
void add_triton_sum(std::span<const float> p, float rescale, ThreadSums& sums);
float first_sum(const ThreadSums& sums);
/// O in FP16: RN16(O RN16(factor)).
void rescale_half(std::span<float> o, float factor);
/// RN(RN(o r) v_scale), and with the mean fma(RN(o r), v_scale, v_mean); flushed.
float scaled_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);
float scaled_smooth_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);
/// RN(o r), flushed or not.
float flushed_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);
float plain_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);
/// RN16(o r); with the mean RN(type(that) + v_mean).
float half_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);
float half_smooth_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format& type);

/// What the blocks of queries of one KV head read.
struct KvHead {
  std::int64_t tokens = 0;
  Int8Matrix k;
  std::vector<mma::Operand> k_tiles;   ///< one a tile, the last padded with zero keys
  std::optional<mma::Operand> v;       ///< [channels, tokens padded to whole tiles]; FP8 in stored order
  std::vector<float> v_scale, v_mean;  ///< one a channel, for Form::output
};

/// What the blocks of one query head read.
struct QHead {
  std::int64_t tokens = 0;
  Int8Matrix q;
};

/// Rows of the output: o [rows, channels] before its last rounding, lse in base 2.
struct Block {
  MatrixF o;
  std::vector<float> lse2;
};

/// The row of a block, counted from its first, whose stages are wanted; none without `stages`.
struct BlockTrace {
  std::int64_t row = 0;
  std::vector<Stage>* stages = nullptr;
};

/// One block of queries over all its tiles. `gain` is c, `type` the output's.
Block attend(const Form& form, const QHead& q, const KvHead& kv, std::int64_t block, bool is_causal, float gain,
             const format::Format& type, mma::Path path, const BlockTrace& trace);

/// Throws Error(input) when the call's tensors are none that the library takes.
void check(const Call& call);

/// The whole call, which has been checked.
Returned run(const Form& form, const Call& call, mma::Path path = mma::Path::fast);

}  // namespace qattn::kernels::sage
