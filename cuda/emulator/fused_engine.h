// The fused dot product of mma/fused_dot.h in 32-bit integers, for the CPU and for the GPU: a group of products aligned
// to its largest exponent, cut, summed with the accumulator and rounded once. Kinds: fused_dot and interleaved_dot.
//
// Zeros, NaN and Inf are told by exponents that no sum of ordinary ones reaches, so that the sums need no branch: a
// product with a zero is far below every alignment, and one with a NaN or Inf is far above.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "emulator/bits.h"
#include "format/format.h"
#include "mma/unpacked.h"

namespace qattn::emulator {

inline constexpr int kZeroExponent = -3000;
inline constexpr int kSpecialExponent = 8000;
/// Products and accumulators from here on are NaN or Inf.
inline constexpr int kSpecialFrom = 1000;

/// One operand element as the adder takes it: sign * magnitude * 2^(exponent - fraction bits). NaN has magnitude 0 and
/// Inf 1, both the exponent kSpecialExponent.
struct Element {
  int magnitude = 0;
  int exponent = kZeroExponent;
  int sign = 1;
};

/// An instruction's numbers, as kernels take them.
struct FusedEngine {
  int depth = 1;           ///< K of the instruction
  int group = 1;           ///< products summed at once
  int fraction_bits = 0;   ///< F
  int exponent_floor = 0;  ///< e_max is never below it
  int mantissa_bits = 23;  ///< kept in an f32 result
  int product_shift = 0;   ///< F less the fraction bits of a product
  bool half = false;       ///< the accumulator is f16, rounded to nearest even; else f32, rounded toward zero
  bool interleaved = false;
};

/// The element in 32 bits: exponent, sign, 15 bits of magnitude; and back.
QATTN_HOST_DEVICE constexpr std::uint32_t packed(const Element& x) {
  return static_cast<std::uint32_t>(x.exponent) << 16 | (x.sign < 0 ? 0x8000u : 0u) |
         static_cast<std::uint32_t>(x.magnitude);
}
QATTN_HOST_DEVICE constexpr Element unpacked(std::uint32_t word) {
  return {static_cast<int>(word & 0x7FFF), static_cast<int>(word) >> 16, (word & 0x8000) != 0 ? -1 : 1};
}
/// packed(Element{}), what pads a tile.
inline constexpr std::uint32_t kPackedZero = packed(Element{});

/// The element of a block whose scale is a power of two, or NaN.
QATTN_HOST_DEVICE inline Element times_power(Element x, float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  if (bits > 0x7F800000) return {0, kSpecialExponent, 1};
  // 2^-127 alone is a subnormal.
  if (x.magnitude != 0 && x.exponent < kSpecialFrom) x.exponent += static_cast<int>(bits >> 23) - 127;
  return x;
}

/// An operand's code. `through_fp16`: converted to FP16 first, as interleaved instructions do.
QATTN_HOST_DEVICE constexpr Element element_of(const format::Format& format, std::uint32_t code, bool through_fp16) {
  const mma::Unpacked x = mma::unpack(format, code);
  const int sign = x.negative ? -1 : 1;
  if (x.kind == mma::Unpacked::Class::nan) return {0, kSpecialExponent, 1};
  if (x.kind == mma::Unpacked::Class::infinite) return {1, kSpecialExponent, sign};
  if (x.significand == 0) return {0, kZeroExponent, sign};
  Element element{static_cast<int>(x.significand), x.exponent, sign};
  // mma::as_fp16(), which counts bits by std::bit_width: 0 on the device.
  while (through_fp16 && element.magnitude >> x.fraction_bits == 0 && element.exponent > 1 - format::kFP16.bias) {
    element.magnitude *= 2;
    --element.exponent;
  }
  return element;
}

namespace detail {

/// x >> shift, 0 from 32 on; shift >= 0.
QATTN_HOST_DEVICE inline std::uint32_t shift_right(std::uint32_t x, int shift) {
#ifdef __CUDA_ARCH__
  std::uint32_t y = 0;
  asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(shift));  // PTX clamps the shift
  return y;
#else
  return shift > 31 ? 0 : x >> shift;
#endif
}

/// The code of magnitude * 2^unit in f16, rounded to nearest even. magnitude is neither 0 nor above 2^40.
QATTN_HOST_DEVICE inline std::uint32_t round_to_half(std::uint64_t magnitude, int unit) {
  const int top = 63 - leading_zeros(magnitude) + unit;
  const int leading = top < -14 ? -14 : top;
  const int shift = leading - 10 - unit;
  if (leading > 15) return 0x7C00;
  std::uint64_t kept = shift <= 0 ? magnitude << -shift : (shift > 63 ? 0 : magnitude >> shift);
  if (shift > 0 && shift < 63) {
    const std::uint64_t rest = magnitude - (kept << shift), half = std::uint64_t{1} << (shift - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  }
  const std::uint32_t code = (static_cast<std::uint32_t>(leading + 14) << 10) + static_cast<std::uint32_t>(kept);
  return code > 0x7C00 ? 0x7C00 : code;
}

/// The code of magnitude * 2^unit in f32, of which `mantissa_bits` are kept, rounded toward zero; overflow gives Inf.
QATTN_HOST_DEVICE inline std::uint32_t cut_to_float(std::uint64_t magnitude, int unit, int mantissa_bits) {
  const int top = 63 - leading_zeros(magnitude) + unit;
  const int leading = top < -126 ? -126 : top;
  const int shift = leading - 23 - unit;
  if (leading > 127) return 0x7F800000;
  const std::uint64_t kept = shift <= 0 ? magnitude << -shift : (shift > 63 ? 0 : magnitude >> shift);
  const std::uint32_t code = (static_cast<std::uint32_t>(leading + 126) << 23) + static_cast<std::uint32_t>(kept);
  return code & (~std::uint32_t{0} << (23 - mantissa_bits));
}

}  // namespace detail

/// The accumulator's code as a summand with 10 (f16) or 23 (f32) fraction bits.
QATTN_HOST_DEVICE inline Element accumulator_element(const FusedEngine& engine, std::uint32_t code) {
  const int mantissa_bits = engine.half ? 10 : 23, largest = engine.half ? 31 : 255;
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const int field = static_cast<int>(code >> mantissa_bits) & largest;
  const int sign = (code >> (engine.half ? 15 : 31) & 1) != 0 ? -1 : 1;
  if (field == largest) return {mantissa == 0 ? 1 : 0, kSpecialExponent, sign};
  const std::uint32_t magnitude = mantissa | (field == 0 ? 0 : 1u << mantissa_bits);
  if (magnitude == 0) return {0, kZeroExponent, sign};
  return {static_cast<int>(magnitude), (field == 0 ? 1 : field) - largest / 2, sign};
}

/// Where a group's alignment starts, before its products are seen.
QATTN_HOST_DEVICE inline int first_exponent(const FusedEngine& engine, const Element& c) {
  return c.exponent > engine.exponent_floor ? c.exponent : engine.exponent_floor;
}

/// One product cut to units of 2^(e_max - F), with its sign. `a_magnitude` is A's, shifted up by product_shift.
QATTN_HOST_DEVICE inline int aligned_product(int a_magnitude, int b_magnitude, int shift, int sign) {
  const auto product = static_cast<std::uint32_t>(a_magnitude) * static_cast<std::uint32_t>(b_magnitude);
  return static_cast<int>(detail::shift_right(product, shift)) * sign;
}

/// The group's result from the sum of its aligned products and the accumulator; nothing of them is NaN or Inf.
QATTN_HOST_DEVICE inline std::uint32_t finish_group(const FusedEngine& engine, std::int64_t products, int e_max,
                                                    const Element& c) {
  const int shift = e_max - c.exponent - engine.fraction_bits + (engine.half ? 10 : 23);
  const auto magnitude_c = static_cast<std::uint32_t>(c.magnitude);
  const std::uint32_t aligned = shift <= 0 ? magnitude_c << -shift : detail::shift_right(magnitude_c, shift);
  const std::int64_t sum = products + static_cast<std::int64_t>(aligned) * c.sign;
  if (sum == 0) return 0;
  const auto magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const int unit = e_max - engine.fraction_bits;
  if (engine.half) {
    const std::uint32_t code = detail::round_to_half(magnitude, unit);
    return code == 0 ? 0 : code | (sum < 0 ? 0x8000u : 0u);
  }
  std::uint32_t code = 0;
  const auto low = static_cast<std::uint32_t>(magnitude);
  const int zeros = detail::leading_zeros(low);
  const int exponent = 31 - zeros + unit;
  if (magnitude >> 32 == 0 && exponent >= -126 && exponent <= 127) {
    code = (static_cast<std::uint32_t>(exponent + 126) << 23) + ((low << zeros) >> 8);
    code &= ~std::uint32_t{0} << (23 - engine.mantissa_bits);
  } else {
    code = detail::cut_to_float(magnitude, unit, engine.mantissa_bits);
  }
  return code == 0 ? 0 : code | (sum < 0 ? 0x80000000u : 0u);
}

/// What NaN and Inf among a sum's terms make of it.
struct Specials {
  bool nan = false;
  bool positive = false;
  bool negative = false;

  QATTN_HOST_DEVICE void add(int exponent, bool is_infinite, int sign) {
    if (exponent < kSpecialFrom) return;
    nan |= !is_infinite;
    positive |= is_infinite && sign > 0;
    negative |= is_infinite && sign < 0;
  }
  /// A product is Inf when an Inf meets anything but NaN and zero.
  QATTN_HOST_DEVICE void add_product(const Element& a, const Element& b) {
    add(a.exponent + b.exponent, a.magnitude != 0 && b.magnitude != 0, a.sign * b.sign);
  }
  QATTN_HOST_DEVICE std::uint32_t code(bool half) const {
    if (nan || (positive && negative)) return half ? 0x7FFF : 0x7FFFFFFF;
    return half ? (negative ? 0xFC00 : 0x7C00) : (negative ? 0xFF800000 : 0x7F800000);
  }
};

/// The rounded addition that ends an interleaved instruction; codes of the accumulator's format.
QATTN_HOST_DEVICE inline std::uint32_t add_rounded(const FusedEngine& engine, std::uint32_t x, std::uint32_t y) {
  const Element a = accumulator_element(engine, x), b = accumulator_element(engine, y);
  Specials specials;
  specials.add(a.exponent, a.magnitude != 0, a.sign);
  specials.add(b.exponent, b.magnitude != 0, b.sign);
  if (a.exponent >= kSpecialFrom || b.exponent >= kSpecialFrom) return specials.code(engine.half);
  if (!engine.half) return std::bit_cast<std::uint32_t>(std::bit_cast<float>(x) + std::bit_cast<float>(y));
  // Sums are exact in units of 2^-24; that of two zeros keeps a common sign.
  if (a.magnitude == 0 && b.magnitude == 0) return x & y;
  const auto units = [](const Element& e) {
    return e.magnitude == 0 ? std::int64_t{0} : (static_cast<std::int64_t>(e.magnitude) << (e.exponent + 14)) * e.sign;
  };
  const std::int64_t sum = units(a) + units(b);
  if (sum == 0) return 0;
  return detail::round_to_half(static_cast<std::uint64_t>(sum < 0 ? -sum : sum), -24) | (sum < 0 ? 0x8000u : 0u);
}

/// One group, plainly: `engine.group` elements each of A and B, and the accumulator's code. Kernels keep the elements
/// in registers, and take the same steps.
QATTN_HOST_DEVICE inline std::uint32_t fused_group(const FusedEngine& engine, const Element* a, const Element* b,
                                                   std::uint32_t code) {
  const Element c = accumulator_element(engine, code);
  int e_max = first_exponent(engine, c);
  for (int i = 0; i < engine.group; ++i) e_max = std::max(e_max, a[i].exponent + b[i].exponent);
  if (e_max >= kSpecialFrom) {
    Specials specials;
    specials.add(c.exponent, c.magnitude != 0, c.sign);
    for (int i = 0; i < engine.group; ++i) specials.add_product(a[i], b[i]);
    return specials.code(engine.half);
  }
  std::int64_t sum = 0;
  for (int i = 0; i < engine.group; ++i) {
    sum += aligned_product(a[i].magnitude << engine.product_shift, b[i].magnitude,
                           e_max - a[i].exponent - b[i].exponent, a[i].sign * b[i].sign);
  }
  return finish_group(engine, sum, e_max, c);
}

/// An element of a scaled group dot with its group's scale: value * 2 of E2M1, and significand and exponent of the
/// scale, kZeroExponent for zero and kSpecialExponent for NaN; in 32 bits, and back.
struct ScaledElement {
  int value = 0;
  int scale = 0;
  int exponent = kZeroExponent;
};

QATTN_HOST_DEVICE constexpr std::uint32_t packed(const ScaledElement& x) {
  return static_cast<std::uint32_t>(x.exponent) << 16 | static_cast<std::uint32_t>(x.scale) << 8 |
         (static_cast<std::uint32_t>(x.value) & 0xFF);
}
QATTN_HOST_DEVICE constexpr ScaledElement scaled_unpacked(std::uint32_t word) {
  const int value = static_cast<int>(word & 0xFF);
  return {value < 128 ? value : value - 256, static_cast<int>(word >> 8 & 0xFF), static_cast<int>(word) >> 16};
}
inline constexpr std::uint32_t kPackedZeroGroup = packed(ScaledElement{});

/// E2M1's value times 2.
QATTN_HOST_DEVICE constexpr int doubled_e2m1(std::uint32_t code) {
  const int mantissa = static_cast<int>(code & 1), field = static_cast<int>(code >> 1 & 3);
  const int magnitude = field == 0 ? mantissa : (2 + mantissa) << (field - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

/// An E2M1 code with its group's scale: a positive number of a format with `fraction_bits`, which is E4M3 (3), or
/// E8M0 (0), or NaN.
QATTN_HOST_DEVICE inline ScaledElement scaled_element(float scale, int fraction_bits, std::uint32_t code) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  const int value = doubled_e2m1(code), field = static_cast<int>(bits >> 23);
  if (bits > 0x7F800000) return {value, 1, kSpecialExponent};
  if (bits == 0) return {value, 0, kZeroExponent};
  if (fraction_bits == 0) return {value, 1, field - 127};
  // E4M3's smallest exponent is -6; its subnormals keep it.
  const int below = field - 127 < -6 ? -6 - (field - 127) : 0;
  return {value, static_cast<int>(((bits & 0x7FFFFF) | 0x800000) >> (23 - fraction_bits + below)), field - 127 + below};
}

/// Products that one group of a scaled group dot sums exactly.
inline constexpr int kScaledGroup = 16;

/// A group's exact sum of products (in units of 1/4) with its scales, in units of 2^(e_max - F). `exponent` is that of
/// both scales together, `scales` the product of their significands.
QATTN_HOST_DEVICE inline std::int64_t aligned_group(const FusedEngine& engine, int sum, int scales, int exponent,
                                                    int e_max) {
  const int shift = engine.product_shift - (e_max - exponent);
  const auto magnitude = static_cast<std::int64_t>(sum < 0 ? -sum : sum) * scales;
  const std::int64_t aligned = shift >= 0 ? magnitude << shift : (shift < -63 ? 0 : magnitude >> -shift);
  return sum < 0 ? -aligned : aligned;
}

/// A scaled group dot's result from its aligned groups and the accumulator, in f32; nothing of them is NaN or Inf.
QATTN_HOST_DEVICE inline std::uint32_t finish_groups(const FusedEngine& engine, std::int64_t groups, int e_max,
                                                     const Element& c) {
  const int shift = engine.fraction_bits - 23 - (e_max - c.exponent);
  const auto magnitude_c = static_cast<std::int64_t>(c.magnitude);
  const std::int64_t aligned = shift >= 0 ? magnitude_c << shift : (shift < -63 ? 0 : magnitude_c >> -shift);
  const std::int64_t sum = groups + aligned * c.sign;
  if (sum == 0) return 0;
  const auto magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const std::uint32_t code = detail::cut_to_float(magnitude, e_max - engine.fraction_bits, engine.mantissa_bits);
  return code == 0 ? 0 : code | (sum < 0 ? 0x80000000u : 0u);
}

/// One instruction of a scaled group dot, plainly: `engine.depth` elements of A and B, and the accumulator's code.
QATTN_HOST_DEVICE inline std::uint32_t grouped_instruction(const FusedEngine& engine, const ScaledElement* a,
                                                           const ScaledElement* b, std::uint32_t code) {
  const Element c = accumulator_element(engine, code);
  int e_max = first_exponent(engine, c);
  for (int k = 0; k < engine.depth; k += kScaledGroup) e_max = std::max(e_max, a[k].exponent + b[k].exponent);
  if (e_max >= kSpecialFrom) {
    Specials specials;
    specials.add(c.exponent, c.magnitude != 0, c.sign);
    for (int k = 0; k < engine.depth; k += kScaledGroup) specials.add(a[k].exponent + b[k].exponent, false, 1);
    return specials.code(engine.half);
  }
  std::int64_t groups = 0;
  for (int k = 0; k < engine.depth; k += kScaledGroup) {
    int sum = 0;
    for (int i = k; i < k + kScaledGroup; ++i) sum += a[i].value * b[i].value;
    groups += aligned_group(engine, sum, a[k].scale * b[k].scale, a[k].exponent + b[k].exponent, e_max);
  }
  return finish_groups(engine, groups, e_max, c);
}

/// Where element k of an instruction stands when its groups lie one behind the other: those with k mod 4 in {0, 1}
/// come first in an interleaved one.
QATTN_HOST_DEVICE constexpr int group_position(const FusedEngine& engine, int k) {
  if (!engine.interleaved) return k;
  const int base = k - k % engine.depth, i = k % engine.depth;
  return base + ((i & 2) != 0 ? engine.depth / 2 : 0) + (i >> 2) * 2 + (i & 1);
}

/// One instruction: `engine.depth` elements of A and B, in the order of group_position().
QATTN_HOST_DEVICE inline std::uint32_t fused_instruction(const FusedEngine& engine, const Element* a, const Element* b,
                                                         std::uint32_t c) {
  std::uint32_t sum = engine.interleaved ? 0 : c;
  for (int k = 0; k < engine.depth; k += engine.group) sum = fused_group(engine, a + k, b + k, sum);
  return engine.interleaved ? add_rounded(engine, sum, c) : sum;
}

}  // namespace qattn::emulator
