// Small arithmetic that the replays share.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "scalar/ptx.h"

namespace qattn::kernels {

inline std::uint32_t f32_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float f32_value(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// A function on codes (scalar/ptx.h) as one on floats.
inline float on_code(std::uint32_t (*function)(std::uint32_t), float x) { return f32_value(function(f32_bits(x))); }
/// log2f of CUDA's library, libdevice's and Triton's too.
inline float library_log2(float x) { return on_code(scalar::cuda::log2f, x); }

/// What FTZ makes of an operand or a result: a subnormal becomes zero of its sign.
inline float flush_subnormal(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// n / step rounded up, for positive numbers, and the multiple of `step` that this makes.
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t step) { return (n + step - 1) / step; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return ceil_div(n, step) * step; }

}  // namespace qattn::kernels
