// The special-function unit (MUFU) of sm_90a as integers: EX2, RCP, LG2, RSQ, SQRT, TANH, on binary32 codes.
//
// These are the bare instructions, what the .ftz forms of PTX become. Each gave an H200's bits for all 2^32 inputs
// (digests: data/vectors/scalar_digests.h5). Common to all: NaN gives the code 0x7FFFFFFF; a subnormal input counts as
// a zero of its sign (but for TANH); a result below 2^-126 becomes a zero; no result is rounded, every one is a
// quadratic in fixed point, truncated after a bias was added. No floating-point operation takes part, so that no
// rounding mode or flush-to-zero flag of the caller matters.
#pragma once

#include <bit>
#include <cstdint>

#include "scalar/mufu_tables.h"

namespace qattn::scalar {

inline constexpr std::uint32_t kNaN = 0x7FFFFFFF;  ///< the code of every NaN that MUFU returns
inline constexpr std::uint32_t kInf = 0x7F800000;
inline constexpr std::uint32_t kSign = 0x80000000;

constexpr bool is_nan(std::uint32_t x) { return (x & ~kSign) > kInf; }
/// A zero or a subnormal, of either sign.
constexpr bool is_tiny(std::uint32_t x) { return (x & kInf) == 0; }

/// The square of w (`bits` wide) as MUFU forms it: only the partial products w_i w_j (i > j, column i+j+1) and w_i
/// (column 2i) in columns >= 2 bits - 15 are kept, without the carry of the dropped ones; 15 bits remain.
template <int bits>
constexpr std::int64_t truncated_square(std::uint32_t w) {
  constexpr int lowest_column = 2 * bits - 15;
  std::uint32_t sum = 0;
  for (int i = (lowest_column + 1) / 2; i < bits; ++i) {
    if ((w >> i & 1) == 0) continue;
    const std::uint32_t below_i = w & ((1u << i) - 1);
    sum += (below_i >> (lowest_column - 1 - i)) + (1u << (2 * i - lowest_column));
  }
  return sum;
}

/// Where an argument falls in a function's table: the segment, and the offset w inside it.
struct MufuPoint {
  std::uint32_t segment;
  std::uint32_t w;
};

namespace detail {

/// The segment's quadratic c0 2^c0_shift + c1 w + c2_scale c2 sq(w) + bias.
template <int w_bits, int c0_shift, int c2_scale, int segments>
constexpr std::int64_t quadratic(const MufuTable<segments>& table, MufuPoint point) {
  const std::int64_t c0 = table.c0[point.segment], c1 = table.c1[point.segment], c2 = table.c2[point.segment];
  return (c0 << c0_shift) + c1 * point.w + c2_scale * c2 * truncated_square<w_bits>(point.w) + table.bias;
}

constexpr int exponent_of(std::uint32_t x) { return static_cast<int>(x >> 23 & 0xFF) - 127; }

/// The code of significand 2^(exponent - 23), for a significand of 24 bits and a normal result.
constexpr std::uint32_t assemble(std::int64_t significand, int exponent) {
  return (static_cast<std::uint32_t>(exponent + 126) << 23) + static_cast<std::uint32_t>(significand);
}

/// The code of magnitude 2^unit with its significand truncated to 24 bits; the value is in the normal range.
constexpr std::uint32_t truncate(std::uint64_t magnitude, int unit) {
  if (magnitude == 0) return 0;
  const int top = 63 - std::countl_zero(magnitude);
  const std::uint64_t significand = top >= 23 ? magnitude >> (top - 23) : magnitude << (23 - top);
  return assemble(static_cast<std::int64_t>(significand), top + unit);
}

/// x as EX2 splits it, floor plus fraction in units 2^-23, for |x| < 128. The truncated fraction of a negative x is
/// complemented, not negated: one unit too low, unless it is 0.
struct Ex2Split {
  int whole;
  std::uint32_t fraction;
};

constexpr Ex2Split split_ex2(std::uint32_t x) {
  const int exponent = exponent_of(x);
  const std::uint32_t significand = (x & 0x7FFFFF) | 0x800000;
  std::uint32_t fixed = 0;
  if (exponent >= 0) {
    fixed = significand << exponent;
  } else if (exponent > -24) {
    fixed = significand >> -exponent;
  }
  const int whole = static_cast<int>(fixed >> 23);
  const std::uint32_t fraction = fixed & 0x7FFFFF;
  if ((x & kSign) == 0) return {whole, fraction};
  if (fraction == 0) return {-whole, 0};
  return {-whole - 1, 0x7FFFFF - fraction};
}

}  // namespace detail

/// EX2: 64 segments of the fraction. For |x| < 128.
constexpr MufuPoint ex2_point(std::uint32_t x) {
  const std::uint32_t fraction = detail::split_ex2(x).fraction;
  return {fraction >> 17, fraction & 0x1FFFF};
}
/// RCP: 128 segments of the mantissa. For normal x, as all below.
constexpr MufuPoint rcp_point(std::uint32_t x) { return {x >> 16 & 0x7F, x & 0xFFFF}; }
/// LG2: 64 segments of the mantissa.
constexpr MufuPoint lg2_point(std::uint32_t x) { return {x >> 17 & 0x3F, x & 0x1FFFF}; }
/// RSQ and SQRT: 64 segments of the mantissa for an even exponent, then 64 for an odd one.
constexpr MufuPoint root_point(std::uint32_t x) {
  const auto odd = static_cast<std::uint32_t>(detail::exponent_of(x) & 1);
  return {odd << 6 | (x >> 17 & 0x3F), x & 0x1FFFF};
}
/// TANH: 2^kTanhBits segments in each octave of 2^-8 <= |x| < 8, then the next 17 mantissa bits.
constexpr MufuPoint tanh_point(std::uint32_t x) {
  const auto octave = static_cast<std::size_t>(detail::exponent_of(x) + 8);
  const int bits = kTanhBits[octave];
  const std::uint32_t mantissa = x & 0x7FFFFF;
  return {static_cast<std::uint32_t>(kTanhOffset[octave]) + (mantissa >> (23 - bits)),
          mantissa >> (6 - bits) & 0x1FFFF};
}

/// EX2: 2^x. |x| >= 128 gives +Inf or +0, |x| < 2^-23 gives 1. The table is an argument for GPUs, which keep it in
/// memory of their own.
constexpr std::uint32_t mufu_ex2(std::uint32_t x, const MufuTable<64>& table) {
  if (is_nan(x)) return kNaN;
  if (detail::exponent_of(x) >= 7) return (x & kSign) != 0 ? 0 : kInf;
  const int whole = detail::split_ex2(x).whole;
  if (whole <= -127) return 0;
  return detail::assemble(detail::quadratic<17, 13, 1>(table, ex2_point(x)) >> 15, whole);
}
constexpr std::uint32_t mufu_ex2(std::uint32_t x) { return mufu_ex2(x, kEx2Table); }

/// RCP: 1/x. Zeros and subnormals give Inf, |x| > 2^126 gives 0, both with the sign of x.
constexpr std::uint32_t mufu_rcp(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  const std::uint32_t sign = x & kSign;
  if (is_tiny(x)) return sign | kInf;
  // In units 2^-24 and in (2^23, 2^24]; 2^24, of a power of two, carries into the exponent.
  const std::int64_t significand = detail::quadratic<16, 13, 1>(kRcpTable, rcp_point(x)) >> 15;
  const int exponent = -1 - detail::exponent_of(x);
  if (exponent + (significand >> 24) < -126) return sign;
  return sign | detail::assemble(significand, exponent);
}

/// LG2: log2(x). Zeros and subnormals of either sign give -Inf, other negative x NaN, x = 1 exactly +0.
constexpr std::uint32_t mufu_lg2(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return kSign | kInf;
  if ((x & kSign) != 0) return kNaN;
  if (x == kInf) return kInf;
  if (x == 0x3F800000) return 0;
  const std::int64_t value =
      detail::exponent_of(x) * (std::int64_t{1} << 38) + detail::quadratic<17, 12, 2>(kLg2Table, lg2_point(x));
  const std::int64_t fixed = value >> 2;  // units 2^-36
  if (fixed < 0) return kSign | detail::truncate(static_cast<std::uint64_t>(-fixed - 1), -36);
  return detail::truncate(static_cast<std::uint64_t>(fixed), -36);
}

/// RSQ: 1/sqrt(x). Zeros and subnormals give Inf of their sign, other negative x NaN; a power of 4 is exact.
constexpr std::uint32_t mufu_rsqrt(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return (x & kSign) | kInf;
  if ((x & kSign) != 0) return kNaN;
  if (x == kInf) return 0;
  const int exponent = detail::exponent_of(x), half = exponent >> 1;
  if ((exponent & 1) == 0 && (x & 0x7FFFFF) == 0) return static_cast<std::uint32_t>(127 - half) << 23;
  return detail::assemble(detail::quadratic<17, 14, 4>(kRsqTable, root_point(x)) >> 16, -1 - half);
}

/// SQRT: sqrt(x), with tables of its own (no product with RSQ). Zeros and subnormals give zero of their sign, other
/// negative x NaN.
constexpr std::uint32_t mufu_sqrt(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return x & kSign;
  if ((x & kSign) != 0) return kNaN;
  if (x == kInf) return kInf;
  const int exponent = detail::exponent_of(x);
  const MufuPoint point = root_point(x);
  const std::int64_t significand = (exponent & 1) == 0 ? detail::quadratic<17, 15, 2>(kSqrtTable, point) >> 17
                                                       : detail::quadratic<17, 14, 1>(kSqrtTable, point) >> 16;
  return detail::assemble(significand, exponent >> 1);
}

/// TANH: tanh(x), odd. |x| < 2^-8 is returned as it is (subnormals and -0 too), |x| >= 8 gives +-1.
constexpr std::uint32_t mufu_tanh(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  const std::uint32_t sign = x & kSign;
  const int exponent = detail::exponent_of(x);
  if (exponent < -8) return x;
  if (exponent >= 3) return sign | 0x3F800000;
  const std::int64_t value = detail::quadratic<17, 17, 4>(kTanhTable, tanh_point(x));
  return sign | detail::truncate(static_cast<std::uint64_t>(value), -41);
}

inline float mufu_ex2(float x) { return std::bit_cast<float>(mufu_ex2(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_rcp(float x) { return std::bit_cast<float>(mufu_rcp(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_lg2(float x) { return std::bit_cast<float>(mufu_lg2(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_rsqrt(float x) { return std::bit_cast<float>(mufu_rsqrt(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_sqrt(float x) { return std::bit_cast<float>(mufu_sqrt(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_tanh(float x) { return std::bit_cast<float>(mufu_tanh(std::bit_cast<std::uint32_t>(x))); }

}  // namespace qattn::scalar
