// format/encode.h for floats, rounding to nearest even, in 32-bit integers, for the CPU and for the GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "format/encode.h"
#include "format/format.h"

namespace qattn::emulator {

/// A format of at most 32 bits and an overflow policy, as kernels take them; not E8M0.
struct Encoding {
  int exponent_bits = 0, mantissa_bits = 0, bias = 0;
  bool integer = false;
  bool no_negative_zero = false;
  std::uint32_t sign_mask = 0;
  std::uint32_t max_code = 0;       ///< of the largest finite number
  std::uint32_t nan_code = 0;       ///< 0 where there is none
  std::uint32_t overflow_code = 0;  ///< without a sign
  bool overflow_is_nan = false;     ///< which has no sign
};

inline Encoding make_encoding(const format::Format& format, format::Overflow overflow) {
  using format::Specials;
  Encoding e;
  e.exponent_bits = format.exponent_bits;
  e.mantissa_bits = format.mantissa_bits;
  e.bias = format.bias;
  e.integer = format.specials == Specials::integer;
  e.no_negative_zero = format.specials == Specials::nan_neg_zero;
  e.sign_mask = static_cast<std::uint32_t>(format::sign_mask(format));
  e.max_code = static_cast<std::uint32_t>(format::max_finite_code(format));
  if (format::has_nan(format)) e.nan_code = static_cast<std::uint32_t>(format::nan_code(format));
  e.overflow_code = e.max_code;
  if (overflow == format::Overflow::inf_or_nan && format::has_inf(format)) {
    e.overflow_code = static_cast<std::uint32_t>(format::inf_code(format));
  } else if (overflow == format::Overflow::inf_or_nan && format::has_nan(format)) {
    e.overflow_code = e.nan_code;
    e.overflow_is_nan = true;
  }
  return e;
}

/// format::encode() with nearest_even, `overflow` as make_encoding() was told, subnormals kept.
QATTN_HOST_DEVICE inline std::uint32_t encode(const Encoding& e, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool negative = bits >> 31 != 0;
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return e.nan_code;
  if (e.integer) {
    constexpr float kToInteger = 0x1.8p23f;
    const auto high = static_cast<float>(e.max_code), low = -high - 1.0f;
    const float bounded = x > high ? high : (x < low ? low : x);
    const std::uint32_t code =
        std::bit_cast<std::uint32_t>(bounded + kToInteger) - std::bit_cast<std::uint32_t>(kToInteger);
    return code & (e.sign_mask | e.max_code);
  }
  const int field = static_cast<int>(bits >> 23 & 0xFF);
  const std::uint32_t significand = (bits & 0x7FFFFF) | (field == 0 ? 0 : 0x800000);
  const int exponent = (field == 0 ? 1 : field) - 127, least = 1 - e.bias;
  const int below = exponent < least ? least - exponent : 0;
  const int shift = 23 - e.mantissa_bits + (below > 25 ? 25 : below);
  std::uint32_t kept = shift > 25 ? 0 : significand >> shift;
  if (shift > 0 && shift <= 25) {
    const std::uint32_t rest = significand - (kept << shift), half = 1u << (shift - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  }
  const auto octaves = static_cast<std::uint32_t>(exponent + below - least);
  const std::uint32_t magnitude = (octaves << e.mantissa_bits) + kept;
  const std::uint32_t sign = negative ? e.sign_mask : 0;
  if (magnitude > e.max_code) return e.overflow_is_nan ? e.overflow_code : sign | e.overflow_code;
  return magnitude == 0 && e.no_negative_zero ? 0 : sign | magnitude;
}

/// format::decode_float().
QATTN_HOST_DEVICE inline float decode(const Encoding& e, std::uint32_t code) {
  constexpr std::uint32_t kNaN = 0x7FC00000;
  const std::uint32_t magnitude = e.integer ? code & e.max_code : code & (e.sign_mask - 1);
  const bool negative = (code & e.sign_mask) != 0;
  if (e.integer) {
    const int value = static_cast<int>(magnitude) - (negative ? static_cast<int>(e.sign_mask) : 0);
    return static_cast<float>(value);
  }
  if (e.no_negative_zero && negative && magnitude == 0) return std::bit_cast<float>(kNaN);
  if (magnitude > e.max_code) {
    const bool infinite = !e.no_negative_zero && e.nan_code > e.max_code + 1 && magnitude == e.max_code + 1;
    return std::bit_cast<float>(infinite ? (negative ? 0xFF800000u : 0x7F800000u) : kNaN);
  }
  const std::uint32_t sign = negative ? 0x80000000u : 0;
  if (e.exponent_bits == 8) return std::bit_cast<float>(sign | magnitude << (23 - e.mantissa_bits));
  const auto field = static_cast<int>(magnitude >> e.mantissa_bits);
  const std::uint32_t mantissa = magnitude & ((1u << e.mantissa_bits) - 1);
  const std::uint32_t significand = mantissa | (field == 0 ? 0 : 1u << e.mantissa_bits);
  const int exponent = (field == 0 ? 1 : field) - e.bias - e.mantissa_bits;
  const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  const float value = static_cast<float>(significand) * scale;
  return negative ? -value : value;
}

/// The value next to x in the format.
QATTN_HOST_DEVICE inline float rounded(const Encoding& e, float x) { return decode(e, encode(e, x)); }

}  // namespace qattn::emulator
