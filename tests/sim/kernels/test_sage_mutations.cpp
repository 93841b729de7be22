// What the recordings decide: SageAttention's replay with one ingredient changed at a time must contradict them, and
// where it does not, that is said.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/elementary.h"
#include "format/encode.h"
#include "kernels/sage.h"
#include "mma/oracle.h"
#include "scalar/ptx.h"
#include "scalar/span.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

using sage::Form;
using sage::ThreadSums;

// ---- steps as no kernel has them

void rounded_ex2(std::span<const float> x, std::span<float> y) { elementary::exp2_float(x, y); }
float rounded_rcp(float x) { return 1.0f / x; }
float rounded_lg2(float x) { return static_cast<float>(elementary::log2(static_cast<double>(x))); }
float unit_lg2(float x) { return scalar::mufu_lg2(x); }
float library_log2(float x) { return std::bit_cast<float>(scalar::cuda::log2f(std::bit_cast<std::uint32_t>(x))); }

float unfused_max(float x, float gain, float offset) { return x * gain - offset; }
void unfused_exponents(std::span<const float> x, std::span<const float> gain, float shift, std::span<float> y) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * gain[i] + shift;
}
void unfused_rescale_add(std::span<float> o, float factor, std::span<const float> partial) {
  for (std::size_t i = 0; i < o.size(); ++i) o[i] = o[i] * factor + partial[i];
}
void rescale_to_half(std::span<float> o, float factor) {
  for (float& x : o) x = format::decode_float(format::kFP16, format::encode(format::kFP16, x * factor, {}));
}

/// add_thread_sums() with its choices open: the first addition fused or not, (a + b) + (c + d) or in a row.
template <bool fused, bool pairs>
void sums_like(std::span<const float> p, float rescale, ThreadSums& sums) {
  for (std::size_t first = 0; first < p.size(); first += 16) {
    for (std::size_t t = 0; t < sums.size(); ++t) {
      const float* x = p.data() + first + 2 * t;
      const float sum = pairs ? (x[0] + x[1]) + (x[8] + x[9]) : ((x[0] + x[1]) + x[8]) + x[9];
      if (first > 0) {
        sums[t] += sum;
      } else {
        sums[t] = fused ? std::fma(sums[t], rescale, sum) : sums[t] * rescale + sum;
      }
    }
  }
}

/// Each element added by itself.
void sums_of_elements(std::span<const float> p, float rescale, ThreadSums& sums) {
  for (std::size_t t = 0; t < sums.size(); ++t) sums[t] *= rescale;
  for (std::size_t i = 0; i < p.size(); ++i) sums[i % 8 / 2] += p[i];
}

void sums_of_rounded_p(std::span<const float> p, float rescale, ThreadSums& sums) {
  std::vector<float> rounded(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    rounded[i] = format::decode_float(format::kE4M3, format::encode(format::kE4M3, p[i], {}));
  }
  sage::add_thread_sums(rounded, rescale, sums);
}

float total_far_first(const ThreadSums& sums) { return (sums[0] + sums[2]) + (sums[1] + sums[3]); }

/// add_triton_sum() with its choices open: columns in pairs or in a row, which threads meet first, the last addition.
template <bool pairs, bool far_first, bool fused>
void triton_like(std::span<const float> p, float rescale, ThreadSums& sums) {
  ThreadSums own{};
  for (std::size_t first = 0; first < p.size(); first += 8) {
    for (std::size_t t = 0; t < own.size(); ++t) {
      const float a = p[first + 2 * t], b = p[first + 2 * t + 1];
      own[t] = pairs ? own[t] + (a + b) : (own[t] + a) + b;
    }
  }
  const float sum = far_first ? total_far_first(own) : sage::total_of_threads(own);
  sums[0] = fused ? std::fma(sums[0], rescale, sum) : sums[0] * rescale + sum;
}

float v_scale_first(float o, float r, float v_scale, float, const format::Format&) { return o * v_scale * r; }
float reciprocal_times_scale(float o, float r, float v_scale, float, const format::Format&) {
  return o * (r * v_scale);
}
float unfused_mean(float o, float r, float v_scale, float v_mean, const format::Format&) {
  return o * r * v_scale + v_mean;
}
float unrounded_half(float o, float r, float, float, const format::Format&) { return o * r; }

float unfused_epsilon(float amax) { return amax * (1.0f / 127.0f) + 1e-7f; }
float no_epsilon(float amax) { return amax * (1.0f / 127.0f); }
float divided_scale(float amax) { return amax / 127.0f; }
float divided_scale_epsilon(float amax) { return amax / 127.0f + 1e-7f; }
float scale_itself(float, float scale) { return scale; }
float rounded_range_over_amax(float amax, float) { return 127.0f / amax; }
std::int32_t divided_code(float x, float scale) {
  const float y = x / scale;
  return static_cast<std::int32_t>(y + (y >= 0 ? 0.5f : -0.5f));
}
std::int32_t fused_code(float x, float factor) {
  return static_cast<std::int32_t>(std::fma(x, factor, x * factor >= 0 ? 0.5f : -0.5f));
}
std::int32_t even_code(float x, float factor) {
  return static_cast<std::int8_t>(
      scalar::cast_s8(scalar::IntegerRounding::rni, std::bit_cast<std::uint32_t>(x * factor)));
}
std::int32_t away_code(float x, float factor) {
  const float y = x * factor;
  return static_cast<std::int32_t>(y + (y >= 0 ? 0.5f : -0.5f));
}
float true_division(float x, float y) { return x / y; }
float sum_in_order(std::span<const float> stored) {
  float sum = 0;
  for (const float x : stored) sum += x;
  return sum;
}

sage::DotOrder tensor_core_order(const format::Format&, std::int64_t, std::int64_t, std::int64_t) { return {}; }
template <int lanes>
sage::DotOrder runs_order(const format::Format&, std::int64_t, std::int64_t, std::int64_t) {
  return {sage::DotOrder::Kind::runs, lanes};
}
sage::DotOrder strided_order(const format::Format&, std::int64_t, std::int64_t, std::int64_t) {
  return {sage::DotOrder::Kind::strided, 16};
}

/// An instruction of the table with another adder.
mma::Instruction changed(const char* name, int fraction_bits, int mantissa_bits, mma::Rounding rounding) {
  mma::Instruction x = mma::find_instruction(name);
  x.fusion.fraction_bits = fraction_bits;
  x.fusion.mantissa_bits = mantissa_bits;
  x.fusion.rounding = rounding;
  return x;
}

constexpr mma::Rounding kRz = mma::Rounding::toward_zero, kRne = mma::Rounding::nearest_even;
constexpr const char* kWgmma = "sm90.wgmma.m64nNk32.f32.e4m3.e4m3";
constexpr const char* kMmaFp8 = "sm90.mma.m16n8k32.f32.e4m3.e4m3";
constexpr const char* kMmaFp8Half = "sm90.mma.m16n8k32.f16.e4m3.e4m3";
constexpr const char* kMma = "sm90.mma.m16n8k16.f32.f16.f16";
constexpr const char* kMmaHalf = "sm90.mma.m16n8k16.f16.f16.f16";

const mma::Instruction kWgmma12 = changed(kWgmma, 12, 13, kRz), kWgmma14 = changed(kWgmma, 14, 13, kRz);
const mma::Instruction kWgmmaWide = changed(kWgmma, 13, 23, kRz);
const mma::Instruction kFp8F22 = changed(kMmaFp8, 22, 23, kRz), kFp8F24 = changed(kMmaFp8, 24, 23, kRz);
const mma::Instruction kFp8F26 = changed(kMmaFp8, 26, 23, kRz);
const mma::Instruction kFp8Half24 = changed(kMmaFp8Half, 24, 10, kRne), kFp8Half13 = changed(kMmaFp8Half, 13, 10, kRne);
const mma::Instruction kMma24 = changed(kMma, 24, 23, kRz), kMma26 = changed(kMma, 26, 23, kRz);
const mma::Instruction kMmaNearest = changed(kMma, 25, 23, kRne);
const mma::Instruction kMmaHalf24 = changed(kMmaHalf, 24, 10, kRne), kMmaHalf26 = changed(kMmaHalf, 26, 10, kRne);
/// Hopper's FP8 mma.sync with C among the products, as the FP16 instructions have it.
const mma::Instruction kFp8Chain = [] {
  mma::Instruction x = mma::find_instruction(kMmaFp8);
  x.kind = mma::Kind::fused_dot;
  return x;
}();
const mma::Instruction& ada() { return mma::find_instruction("sm89.mma.m16n8k32.f32.e4m3.e4m3"); }

/// One change of one ingredient.
struct Mutation {
  std::string what;
  void (*change)(Form& form);
  std::string recording;  ///< which is looked at: input and kernel
  std::string output;     ///< and where: "o", "lse", or the last part of a quantized operand's name
};

/// Each shows in the recording that it names.
const std::vector<Mutation> kDecided = {
    {"12 fraction bits", [](Form& f) { f.pv = &kWgmma12; }, "c2 sm90_fp8_per_thread", "o"},
    {"14 fraction bits", [](Form& f) { f.pv = &kWgmma14; }, "c2 sm90_fp8_per_thread", "o"},
    {"accumulator kept at 23 bits", [](Form& f) { f.pv = &kWgmmaWide; }, "c2 sm90_fp8_per_thread", "o"},
    {"ex2 correctly rounded", [](Form& f) { f.ex2 = rounded_ex2; }, "c0 sm90_fp8_per_thread", "o"},
    {"rcp correctly rounded", [](Form& f) { f.rcp = rounded_rcp; }, "c4 sm90_fp8_per_thread", "o"},
    {"lg2 correctly rounded", [](Form& f) { f.lg2 = rounded_lg2; }, "c2 sm90_fp8_per_thread", "lse"},
    {"lg2 of libdevice", [](Form& f) { f.lg2 = library_log2; }, "c2 sm90_fp8_per_thread", "lse"},
    {"O's rescaling not fused", [](Form& f) { f.rescale_add = unfused_rescale_add; }, "c0 sm90_fp8_per_thread", "o"},
    {"row sum's rescaling not fused", [](Form& f) { f.add_row = sums_like<false, false>; }, "c4 sm90_fp8_per_thread",
     "o"},
    {"exponents not fused", [](Form& f) { f.exponents = unfused_exponents; }, "c4 sm90_fp8_per_thread", "o"},
    {"row max not fused", [](Form& f) { f.scaled_max = unfused_max; }, "c0 sm90_fp8_per_thread", "o"},
    {"nothing fused",
     [](Form& f) {
       f.rescale_add = unfused_rescale_add;
       f.add_row = sums_like<false, false>;
       f.exponents = unfused_exponents;
       f.scaled_max = unfused_max;
     },
     "c0 sm90_fp8_per_thread", "o"},
    {"row sum (a + b) + (c + d)", [](Form& f) { f.add_row = sums_like<true, true>; }, "c4 sm90_fp8_per_thread", "o"},
    {"row sum element by element", [](Form& f) { f.add_row = sums_of_elements; }, "c4 sm90_fp8_per_thread", "o"},
    {"row sum of rounded P", [](Form& f) { f.add_row = sums_of_rounded_p; }, "c2 sm90_fp8_per_thread", "o"},
    {"threads at distance 2 first", [](Form& f) { f.total = total_far_first; }, "c4 sm90_fp8_per_thread", "o"},
    {"V's scale before the reciprocal", [](Form& f) { f.output = v_scale_first; }, "c2 sm90_fp8_per_thread", "o"},
    {"reciprocal times V's scale first", [](Form& f) { f.output = reciprocal_times_scale; }, "c2 sm90_fp8_per_thread",
     "o"},
    {"no tile dequantized first", [](Form& f) { f.dequantized_tiles = 0; }, "c2 sm90_fp8_per_thread", "o"},
    {"two tiles dequantized first", [](Form& f) { f.dequantized_tiles = 2; }, "c0 sm90_fp8_per_thread", "o"},
    {"every tile dequantized first", [](Form& f) { f.dequantized_tiles = 1000; }, "c0 sm90_fp8_per_thread", "o"},
    {"offset log2(448)", [](Form& f) { f.offset = 8.8073549f; }, "c2 sm90_fp8_per_thread", "o"},
    {"no offset", [](Form& f) { f.offset = 0; }, "c2 sm90_fp8_per_thread", "o"},
    {"FP22 accumulator", [](Form& f) { f.pv = &ada(); }, "c2 sm89_fp8_per_thread_fp32", "o"},
    {"FP22 accumulator", [](Form& f) { f.pv = &ada(); }, "c0 sm89_fp8_per_thread_fp32+fp32", "o"},
    {"C inside the first dot product", [](Form& f) { f.pv = &kFp8Chain; }, "c0 sm89_fp8_per_thread_fp32", "o"},
    {"FP16: 13 fraction bits", [](Form& f) { f.pv = &kFp8Half13; }, "c0 sm89_fp8_per_thread_fp32+fp16", "o"},
    {"FP32 in place of the buffer", [](Form& f) { f.in_place = true; }, "c0 sm89_fp8_per_thread_fp32+fp32", "o"},
    {"a buffer in place of FP32", [](Form& f) { f.in_place = false; }, "c0 sm89_fp8_per_thread_fp32", "o"},
    {"FP32 in place of FP16", [](Form& f) { f.pv = mma::find_instruction_or_null(kMmaFp8); },
     "c0 sm89_fp8_per_thread_fp32+fp16", "o"},
    {"buffer's rescaling not fused", [](Form& f) { f.rescale_add = unfused_rescale_add; },
     "c0 sm89_fp8_per_thread_fp32+fp32", "o"},
    {"buffer's rescaling not fused", [](Form& f) { f.rescale_add = unfused_rescale_add; },
     "c0 sm89_fp8_per_thread_fp32+fp16", "o"},
    {"one tile dequantized first", [](Form& f) { f.dequantized_tiles = 1; }, "c2 sm89_fp8_per_thread_fp32", "o"},
    {"three tiles dequantized first", [](Form& f) { f.dequantized_tiles = 3; }, "c0 sm89_fp8_per_thread_fp32", "o"},
    {"row sum (a + b) + (c + d)", [](Form& f) { f.add_row = sums_like<true, true>; }, "c0 sm89_fp8_per_thread_fp32",
     "o"},
    {"threads at distance 2 first", [](Form& f) { f.total = total_far_first; }, "c2 sm89_fp8_per_thread_fp32", "o"},
    {"V's mean not fused", [](Form& f) { f.output = unfused_mean; }, "c0 sm89_fp8_per_thread_fp32_smoothv", "o"},
    {"24 fraction bits", [](Form& f) { f.pv = &kMma24; }, "c2 sm80_f16_per_thread_fp32", "o"},
    {"26 fraction bits", [](Form& f) { f.pv = &kMma26; }, "c2 sm80_f16_per_thread_fp32", "o"},
    {"nearest in place of truncation", [](Form& f) { f.pv = &kMmaNearest; }, "c2 sm80_f16_per_thread_fp32", "o"},
    {"row sum: 24 fraction bits", [](Form& f) { f.row_sum = &kMma24; }, "c3 sm80_f16_per_thread_fp32", "lse"},
    {"row sum in f32",
     [](Form& f) {
       f.row_sum = nullptr;
       f.add_row = sage::add_thread_sums;
       f.total = sage::total_of_threads;
     },
     "c2 sm80_f16_per_thread_fp32", "o"},
    {"FP16: 24 fraction bits", [](Form& f) { f.pv = &kMmaHalf24; }, "c2 sm80_f16_per_thread_fp16", "o"},
    {"FP16: 26 fraction bits", [](Form& f) { f.pv = &kMmaHalf26; }, "c2 sm80_f16_per_thread_fp16", "o"},
    {"FP16: the factor stays f32", [](Form& f) { f.rescale = rescale_to_half; }, "c2 sm80_f16_per_thread_fp16", "o"},
    {"FP16: the output is not rounded to FP16 first", [](Form& f) { f.output = unrounded_half; },
     "c3 sm80_f16_per_thread_fp16", "o"},
    {"buffered in place of FP16", [](Form& f) { f.in_place = false; }, "c2 sm80_f16_per_thread_fp16", "o"},
    {"FP16 in place of the buffer",
     [](Form& f) {
       f.in_place = true;
       f.rescale = sage::rescale_half;
     },
     "c2 sm80_f16_per_thread_fp16+fp32", "o"},
    {"buffer's rescaling not fused", [](Form& f) { f.rescale_add = unfused_rescale_add; },
     "c0 sm80_f16_per_thread_fp16+fp32", "o"},
    {"FP32 partial sums", [](Form& f) { f.pv = mma::find_instruction_or_null(kMma); },
     "c2 sm80_f16_per_thread_fp16+fp32", "o"},
    {"q groups of 32 rows", [](Form& f) { f.tiling = quant::kSm89Tiling; }, "c3 sm80_f16_per_thread_fp16+fp32", "o"},
    {"exponents not fused", [](Form& f) { f.exponents = unfused_exponents; }, "c0 sm80_f16_per_thread_fp32", "o"},
    {"one tile dequantized first", [](Form& f) { f.dequantized_tiles = 1; }, "c0 sm80_f16_per_thread_fp32", "o"},
    {"ex2 correctly rounded", [](Form& f) { f.ex2 = rounded_ex2; }, "c2 sm80_f16_per_thread_fp32", "o"},
    {"scale fused into the exponent", [](Form& f) { f.dequantized_tiles = 0; }, "c2 triton_f16", "o"},
    {"columns added in pairs", [](Form& f) { f.add_row = triton_like<true, true, true>; }, "c4 triton_f16", "o"},
    {"threads at distance 1 first", [](Form& f) { f.add_row = triton_like<false, false, true>; }, "c3 triton_f16", "o"},
    {"row sum's rescaling not fused", [](Form& f) { f.add_row = triton_like<false, true, false>; }, "c4 triton_f16",
     "o"},
    {"O's rescaling not fused", [](Form& f) { f.rescale_add = unfused_rescale_add; }, "c0 triton_f16", "o"},
    {"FP32 partial sums", [](Form& f) { f.pv = mma::find_instruction_or_null(kMma); }, "c2 triton_f16", "o"},
    {"FP16: 24 fraction bits", [](Form& f) { f.pv = &kMmaHalf24; }, "c2 triton_f16", "o"},
    {"FP16: 26 fraction bits", [](Form& f) { f.pv = &kMmaHalf26; }, "c0 triton_f16", "o"},
    {"log2 by MUFU", [](Form& f) { f.lg2 = unit_lg2; }, "c2 triton_f16", "lse"},
    {"log2 correctly rounded", [](Form& f) { f.lg2 = rounded_lg2; }, "c2 triton_f16", "lse"},
    {"ex2 correctly rounded", [](Form& f) { f.ex2 = rounded_ex2; }, "c2 triton_f16", "o"},
    {"rcp correctly rounded", [](Form& f) { f.rcp = rounded_rcp; }, "c4 triton_f16", "o"},
    {"per_thread: epsilon not fused", [](Form& f) { f.int8.scale = unfused_epsilon; }, "c2 sm90_fp8_per_thread",
     "q_scale"},
    {"per_thread: no epsilon", [](Form& f) { f.int8.scale = no_epsilon; }, "c2 sm90_fp8_per_thread", "q_scale"},
    {"per_thread: amax / 127 + epsilon", [](Form& f) { f.int8.scale = divided_scale_epsilon; },
     "c2 sm90_fp8_per_thread", "q_scale"},
    {"per_thread: k - mean in f32", [](Form& f) { f.int8.rounds_centred = false; }, "c2 sm90_fp8_per_thread", "k_int8"},
    {"per_warp: amax / 127", [](Form& f) { f.int8.scale = divided_scale; }, "c3 sm90_fp8_per_warp", "q_scale"},
    {"per_warp: 127 / amax", [](Form& f) { f.int8.factor = rounded_range_over_amax; }, "c3 sm90_fp8_per_warp",
     "q_int8"},
    {"per_warp: k - mean rounded", [](Form& f) { f.int8.rounds_centred = true; }, "c2 sm90_fp8_per_warp", "k_int8"},
    {"per_warp: no least amax", [](Form& f) { f.int8.least_amax = 0; }, "c2 sm90_fp8_per_warp", "q_scale"},
    {"per_block: division by the scale",
     [](Form& f) {
       f.int8.factor = scale_itself;
       f.int8.code = divided_code;
     },
     "c3 triton_f16", "o"},
    {"per_block: amax / 127", [](Form& f) { f.int8.scale = divided_scale; }, "c4 triton_f16", "o"},
    {"per_block: epsilon", [](Form& f) { f.int8.scale = sage::kTritonPerThread.scale; }, "c2 triton_f16", "o"},
    {"per_block: k - mean in f32", [](Form& f) { f.int8.rounds_centred = false; }, "c2 triton_f16", "o"},
    {"V: true divisions", [](Form& f) { f.v_fp8->divide = true_division; }, "c2 sm90_fp8_per_thread", "v_scale"},
    {"V: true divisions", [](Form& f) { f.v_fp8->divide = true_division; }, "c2 sm90_fp8_per_thread", "v_fp8"},
    {"V: 448 in place of 2.25", [](Form& f) { f.v_fp8->scale_max = 448; }, "c0 sm89_fp8_per_thread_fp32+fp16",
     "v_scale"},
    {"V: the mean's sum in token order", [](Form& f) { f.v_fp8->sum = sum_in_order; },
     "c0 sm89_fp8_per_thread_fp32_smoothv", "vm"},
    {"4 runs", [](Form& f) { f.correction_order = runs_order<4>; }, "c4 sm90_fp8_per_thread", "lse"},
    {"16 runs", [](Form& f) { f.correction_order = runs_order<16>; }, "c4 sm90_fp8_per_thread", "lse"},
    {"32 runs", [](Form& f) { f.correction_order = runs_order<32>; }, "c3 sm90_fp8_per_thread", "lse"},
    {"strided lanes", [](Form& f) { f.correction_order = strided_order; }, "c4 sm90_fp8_per_thread", "lse"},
};

/// No recording shows these, for the reason that stands above each.
const std::vector<Mutation> kUndecided = {
    // O has 11 bits. The partial sums of the FP8 mma.sync are right to 25, so that a few fraction bits more or less
    // vanish in the rounding; the recorded instructions decide them (tests/sim/mma).
    {"FP32: 22 fraction bits", [](Form& f) { f.pv = &kFp8F22; }, "c0 c2 c3 sm89_fp8_per_thread_fp32", "o"},
    {"FP32: 24 fraction bits", [](Form& f) { f.pv = &kFp8F24; }, "c0 c2 c3 sm89_fp8_per_thread_fp32", "o"},
    {"FP32: 26 fraction bits", [](Form& f) { f.pv = &kFp8F26; }, "c0 c2 c3 sm89_fp8_per_thread_fp32", "o"},
    {"FP16: 24 fraction bits", [](Form& f) { f.pv = &kFp8Half24; }, "c0 c3 sm89_fp8_per_thread_fp32+fp16", "o"},
    // P is rounded to FP16 and at most 1, so that 26 bits lose of a sum of 16 no more than 25; 24 do.
    {"row sum: 26 fraction bits", [](Form& f) { f.row_sum = &kMma26; }, "c0 c2 c3 sm80_f16_per_thread_fp32", "lse"},
    // An ulp of the reciprocal moves one output in 10,000; sm90 and Triton, which have c4, show it.
    {"rcp correctly rounded", [](Form& f) { f.rcp = rounded_rcp; }, "c0 c2 c3 sm80_f16_per_thread_fp32", "o"},
    // The roundings differ at ties alone, and x over a scale of amax / 127 never is one.
    {"per_thread: codes to nearest even", [](Form& f) { f.int8.code = even_code; }, "c0 c2 c3 sm90_fp8_per_thread",
     "q_int8"},
    {"per_block: codes to nearest even", [](Form& f) { f.int8.code = even_code; }, "c0 c2 c3 c4 triton_f16", "o"},
    {"per_warp: codes away from zero", [](Form& f) { f.int8.code = away_code; }, "c0 c2 c3 sm90_fp8_per_warp",
     "q_int8"},
    // The forms of the division differ near ties. The per-block quantizer, compiled by the same Triton, shows that
    // it multiplies by the reciprocal; that the addition is not fused rests on the source.
    {"per_thread: division by the scale",
     [](Form& f) {
       f.int8.factor = scale_itself;
       f.int8.code = divided_code;
     },
     "c0 c2 c3 sm90_fp8_per_thread", "q_int8"},
    {"per_thread: division by the scale",
     [](Form& f) {
       f.int8.factor = scale_itself;
       f.int8.code = divided_code;
     },
     "c4 sm90_fp8_per_thread", "o"},
    {"per_thread: code fused", [](Form& f) { f.int8.code = fused_code; }, "c0 c2 c3 sm90_fp8_per_thread", "q_int8"},
    {"per_block: code fused", [](Form& f) { f.int8.code = fused_code; }, "c0 c2 c3 c4 triton_f16", "o"},
    // The sum is rounded to BF16 before it is added, and of 1,332 rows none lies so near to a tie. The rules for the
    // shapes come from 880 recorded ones, which are not in the tree.
    {"tensor core in place of runs", [](Form& f) { f.correction_order = tensor_core_order; }, "c3 sm90_fp8_per_thread",
     "lse"},
    {"4 runs in place of 16", [](Form& f) { f.correction_order = runs_order<4>; }, "c3 sm90_fp8_per_thread", "lse"},
};

const std::map<std::string, std::string> kFileOf{{"c0", "kernel_vectors_1.h5"},
                                                 {"c2", "kernel_vectors_1.h5"},
                                                 {"c3", "kernel_vectors_2.h5"},
                                                 {"c4", "kernel_vectors_3.h5"}};

/// A recorded kernel with its input's quantized operands.
struct Recording {
  Trial trial;
  io::Tensors tensors;
};

const Recording& recording(const std::string& name) {
  static std::map<std::string, Recording> all;
  if (all.empty()) {
    for (const auto& [input, file] : kFileOf) {
      const io::Tensors quantized = io::VectorReader(kVectors + file).recorded(input).tensors;
      for (Trial& trial : trials(file, "", input)) {
        io::Tensors tensors = quantized;
        tensors.insert(trial.recorded.begin(), trial.recorded.end());
        const std::string key = trial.name.substr(trial.name.find(' ') + 1);
        all[key] = {std::move(trial), std::move(tensors)};
      }
    }
  }
  return all.at(name);
}

/// Elements that contradict the recordings, "c0 c2 triton_f16" standing for two.
std::int64_t count(const Mutation& mutation) {
  const std::size_t kernel = mutation.recording.find_last_of(' ');
  std::int64_t different = 0;
  for (std::size_t at = 0; at < kernel; at += 3) {
    const Recording& recorded = recording(mutation.recording.substr(at, 2) + mutation.recording.substr(kernel));
    Form form = sage::form_of(recorded.trial.kernel, recorded.trial.call);
    mutation.change(form);
    const Returned returned = sage::run(form, recorded.trial.call);
    for (const auto& [tensor, ours] : returned.tensors) {
      if (tensor.substr(tensor.find_last_of('/') + 1) == mutation.output) {
        different += mismatches(returned, recorded.tensors, tensor);
      }
    }
  }
  return different;
}

// ---- the same again through the trace: P V and what follows by an independent, slow adder

/// The codes of one recorded row of head 0's O, from the P and row sum in its trace, with the adder mutated.
class TracedRow {
 public:
  TracedRow(const Recording& recorded, std::int64_t row)
      : form_(sage::form_of(recorded.trial.kernel, recorded.trial.call)) {
    Call call = recorded.trial.call;
    trace_.row = row;
    call.trace = &trace_;
    returned_ = sage::run(form_, call);
    tiles_ = (call.kv_tokens() + form_.tiling.k_block - 1) / form_.tiling.k_block;
  }

  std::vector<std::uint64_t> codes(mma::Mutation mutation) const {
    const format::Format& type = *returned_.tensors.at("o").format;
    const std::string v = "quantized/" + std::string(form_.v_fp8->name);
    const Tensor &values = returned_.tensors.at(v + "/v_fp8"), &scales = returned_.tensors.at(v + "/v_scale");
    std::vector<std::uint64_t> result;
    for (std::int64_t channel = 0; channel < returned_.tensors.at("o").shape[3]; ++channel) {
      const float o = accumulate(values, channel, mutation) * scalar::mufu_rcp(stage("row sum").at(0));
      const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(scales.code(channel)));
      result.push_back(format::encode(type, o * scale, {}));
    }
    return result;
  }

 private:
  const std::vector<float>& stage(const std::string& name) const {
    return std::ranges::find(trace_.stages, name, &Stage::name)->values;
  }

  float accumulate(const Tensor& v, std::int64_t channel, mma::Mutation mutation) const {
    const mma::Instruction& x = *form_.pv;
    float o = 0;
    for (std::int64_t tile = 0; tile < tiles_; ++tile) {
      const std::string prefix = "tile " + std::to_string(tile) + " ";
      const std::vector<float>& p = stage(prefix + "rounded P, in V's order");
      const float rescale = stage(prefix + "rescale").at(0);
      if (form_.in_place) o *= rescale;
      std::uint64_t chain = form_.in_place ? std::bit_cast<std::uint32_t>(o) : 0;
      for (std::int64_t first = 0; first < form_.tiling.k_block; first += x.k) {
        std::vector<std::uint64_t> a, b;
        for (std::int64_t k = first; k < first + x.k; ++k) {
          a.push_back(format::encode(format::kE4M3, p[static_cast<std::size_t>(k)], {}));
          b.push_back(v.code(channel * v.shape[3] + tile * form_.tiling.k_block + k));
        }
        chain = mma::oracle_dot(x, {a, b, chain}, mutation);
      }
      const float partial = format::decode_float(*x.d, chain);
      o = form_.in_place ? partial : std::fma(o, rescale, partial);
    }
    return o;
  }

  Form form_;
  RowTrace trace_;
  Returned returned_;
  std::int64_t tiles_ = 0;
};

/// Elements of `rows` rows of head 0 that differ from the recording.
std::int64_t traced_differences(const std::string& name, mma::Mutation mutation, std::int64_t rows) {
  static std::map<std::pair<std::string, std::int64_t>, TracedRow> traced;
  const Recording& recorded = recording(name);
  const Tensor& o = recorded.tensors.at("o");
  std::int64_t different = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto found = traced.try_emplace({name, row}, recorded, row).first;
    const std::vector<std::uint64_t> codes = found->second.codes(mutation);
    for (std::size_t c = 0; c < codes.size(); ++c) {
      different += codes[c] != o.code(row * o.shape[3] + static_cast<std::int64_t>(c)) ? 1 : 0;
    }
  }
  return different;
}

constexpr std::int64_t kTracedRows = 6;

/// What a few recorded rows decide about the adder, by the rules of tests/sim/mma: everything about FP22; of Hopper's
/// FP8 mma.sync into FP16 the order of its two passes and their rounding.
const std::map<std::string, std::vector<mma::Mutation>> kAdderMutations{
    {"c0 sm90_fp8_per_thread",
     {mma::Mutation::one_bit_less, mma::Mutation::one_bit_more, mma::Mutation::normalised_product,
      mma::Mutation::nearest_cut, mma::Mutation::nearest_output, mma::Mutation::halved_groups,
      mma::Mutation::accumulator_unaligned, mma::Mutation::accumulator_late, mma::Mutation::full_mantissa}},
    {"c0 sm89_fp8_per_thread_fp32+fp16",
     {mma::Mutation::truncated_output, mma::Mutation::halved_groups, mma::Mutation::doubled_group,
      mma::Mutation::halves_in_order, mma::Mutation::swapped_halves, mma::Mutation::accumulator_late,
      mma::Mutation::accumulator_inside, mma::Mutation::flushed_operands}},
    {"c0 sm89_fp8_per_thread_fp32", {}}};

}  // namespace

TEST_CASE("table of SageAttention's mutations", "[.][table]") {
  for (const Mutation& mutation : kDecided) {
    std::printf("%-50s %-40s %-8s %lld\n", mutation.what.c_str(), mutation.recording.c_str(), mutation.output.c_str(),
                static_cast<long long>(count(mutation)));
  }
  for (const auto& [name, adders] : kAdderMutations) {
    for (const mma::Mutation mutation : adders) {
      std::printf("%-50s %-40s o        %lld of 384\n", std::string(mma::mutation_name(mutation)).c_str(), name.c_str(),
                  static_cast<long long>(traced_differences(name, mutation, kTracedRows)));
    }
  }
}

TEST_CASE("SageAttention: each ingredient, changed alone, contradicts a recording") {
  for (const Mutation& mutation : kDecided) {
    INFO(mutation.what << ", " << mutation.recording << ", " << mutation.output);
    CHECK(count(mutation) > 0);
  }
}

TEST_CASE("SageAttention: recorded rows follow from their traces by an independent adder, and by no other") {
  for (const auto& [name, adders] : kAdderMutations) {
    INFO(name);
    CHECK(traced_differences(name, mma::Mutation::none, kTracedRows) == 0);
    for (const mma::Mutation mutation : adders) {
      INFO(mma::mutation_name(mutation));
      CHECK(traced_differences(name, mutation, kTracedRows) > 0);
    }
  }
}

TEST_CASE("SageAttention: what the recordings do not decide") {
  for (const Mutation& mutation : kUndecided) {
    INFO(mutation.what << ", " << mutation.recording << ", " << mutation.output);
    CHECK(count(mutation) == 0);
  }
}

}  // namespace qattn::kernels
