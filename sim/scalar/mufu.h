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

namespace detail {

/// The segment's quadratic c0 2^c0_shift + c1 w + c2_scale c2 sq(w) + bias of a table.
template <int w_bits, int c0_shift, int c2_scale, int segments>
constexpr std::int64_t quadratic(const MufuTable<segments>& table, std::uint32_t segment, std::uint32_t w) {
  const std::int64_t c0 = table.c0[segment], c1 = table.c1[segment], c2 = table.c2[segment];
  return (c0 << c0_shift) + c1 * w + c2_scale * c2 * truncated_square<w_bits>(w) + table.bias;
}

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

}  // namespace detail

/// EX2: 2^x. |x| >= 128 gives +Inf or +0, |x| < 2^-23 gives 1.
constexpr std::uint32_t mufu_ex2(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  const bool negative = (x & kSign) != 0;
  const int exponent = static_cast<int>(x >> 23 & 0xFF) - 127;
  if (exponent >= 7) return negative ? 0 : kInf;
  // |x| in fixed point with 23 fraction bits, truncated.
  const std::uint32_t significand = (x & 0x7FFFFF) | 0x800000;
  std::uint32_t fixed = 0;
  if (exponent >= 0)
    fixed = significand << exponent;
  else if (exponent > -24)
    fixed = significand >> -exponent;
  int n = static_cast<int>(fixed >> 23);
  std::uint32_t fraction = fixed & 0x7FFFFF;
  if (negative) {
    // The fraction is complemented, not negated: one unit of 2^-23 too low.
    n = fraction != 0 ? -n - 1 : -n;
    fraction = fraction != 0 ? 0x7FFFFF - fraction : 0;
  }
  if (n <= -127) return 0;
  const std::int64_t value = detail::quadratic<17, 13, 1>(kEx2Table, fraction >> 17, fraction & 0x1FFFF);
  return detail::assemble(value >> 15, n);
}

/// RCP: 1/x. Zeros and subnormals give Inf, |x| > 2^126 gives 0, both with the sign of x.
constexpr std::uint32_t mufu_rcp(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  const std::uint32_t sign = x & kSign;
  if (is_tiny(x)) return sign | kInf;
  const std::int64_t value = detail::quadratic<16, 13, 1>(kRcpTable, x >> 16 & 0x7F, x & 0xFFFF) >> 15;
  // value is in units 2^-24 and in (2^23, 2^24]; 2^24, of a power of two, carries into the exponent.
  const int exponent = -1 - (static_cast<int>(x >> 23 & 0xFF) - 127);
  if (exponent + (value >> 24) < -126) return sign;
  return sign | detail::assemble(value, exponent);
}

/// LG2: log2(x). Zeros and subnormals of either sign give -Inf, other negative x NaN, x = 1 exactly +0.
constexpr std::uint32_t mufu_lg2(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return kSign | kInf;
  if (x & kSign) return kNaN;
  if (x == kInf) return kInf;
  if (x == 0x3F800000) return 0;
  const std::int64_t exponent = static_cast<std::int64_t>(x >> 23) - 127;
  const std::int64_t value =
      exponent * (std::int64_t{1} << 38) + detail::quadratic<17, 12, 2>(kLg2Table, x >> 17 & 0x3F, x & 0x1FFFF);
  const std::int64_t fixed = value >> 2;  // units 2^-36
  const bool negative = fixed < 0;
  return (negative ? kSign : 0) | detail::truncate(static_cast<std::uint64_t>(negative ? -fixed - 1 : fixed), -36);
}

/// RSQ: 1/sqrt(x). Zeros and subnormals give Inf of their sign, other negative x NaN; a power of 4 is exact.
constexpr std::uint32_t mufu_rsqrt(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return (x & kSign) | kInf;
  if (x & kSign) return kNaN;
  if (x == kInf) return 0;
  const int exponent = static_cast<int>(x >> 23) - 127;
  const int half = exponent >> 1;
  const std::uint32_t segment = static_cast<std::uint32_t>(exponent & 1) << 6 | (x >> 17 & 0x3F);
  if ((exponent & 1) == 0 && (x & 0x7FFFFF) == 0) return static_cast<std::uint32_t>(127 - half) << 23;
  const std::int64_t value = detail::quadratic<17, 14, 4>(kRsqTable, segment, x & 0x1FFFF) >> 16;
  return detail::assemble(value, -1 - half);
}

/// SQRT: sqrt(x), with tables of its own (no product with RSQ). Zeros and subnormals give zero of their sign, other
/// negative x NaN.
constexpr std::uint32_t mufu_sqrt(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  if (is_tiny(x)) return x & kSign;
  if (x & kSign) return kNaN;
  if (x == kInf) return kInf;
  const int exponent = static_cast<int>(x >> 23) - 127;
  const std::uint32_t mantissa = x >> 17 & 0x3F, w = x & 0x1FFFF;
  const std::int64_t value = (exponent & 1) == 0 ? detail::quadratic<17, 15, 2>(kSqrtTable, mantissa, w) >> 17
                                                 : detail::quadratic<17, 14, 1>(kSqrtTable, 64 + mantissa, w) >> 16;
  return detail::assemble(value, exponent >> 1);
}

/// TANH: tanh(x), odd. |x| < 2^-8 is returned as it is (subnormals and -0 too), |x| >= 8 gives +-1.
constexpr std::uint32_t mufu_tanh(std::uint32_t x) {
  if (is_nan(x)) return kNaN;
  const std::uint32_t sign = x & kSign, magnitude = x & ~kSign;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -8) return x;
  if (exponent >= 3) return sign | 0x3F800000;
  const auto octave = static_cast<std::size_t>(exponent + 8);
  const int bits = kTanhBits[octave];
  const std::uint32_t mantissa = x & 0x7FFFFF;
  const std::uint32_t segment = static_cast<std::uint32_t>(kTanhOffset[octave]) + (mantissa >> (23 - bits));
  const std::uint32_t w = mantissa >> (6 - bits) & 0x1FFFF;
  const std::int64_t value = detail::quadratic<17, 17, 4>(kTanhTable, segment, w);
  return sign | detail::truncate(static_cast<std::uint64_t>(value), -41);
}

inline float mufu_ex2(float x) { return std::bit_cast<float>(mufu_ex2(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_rcp(float x) { return std::bit_cast<float>(mufu_rcp(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_lg2(float x) { return std::bit_cast<float>(mufu_lg2(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_rsqrt(float x) { return std::bit_cast<float>(mufu_rsqrt(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_sqrt(float x) { return std::bit_cast<float>(mufu_sqrt(std::bit_cast<std::uint32_t>(x))); }
inline float mufu_tanh(float x) { return std::bit_cast<float>(mufu_tanh(std::bit_cast<std::uint32_t>(x))); }

}  // namespace qattn::scalar
