// The scales of quant/scale.h and quant/quantize.h that P's quantizers use, for the CPU and for the GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "emulator/bits.h"
#include "emulator/encoding.h"

namespace qattn::emulator {

enum class ScaleRule : std::uint8_t { amax, reciprocal, triton_eps, e8m0_floor, e8m0_ceil, e8m0_nearest };
enum class ScaleFormat : std::uint8_t { fp32, e4m3, e8m0 };

namespace detail {

/// A positive finite float as significand * 2^exponent with 24 significant bits.
struct Parts {
  std::uint32_t significand = 0;
  int exponent = 0;
};

QATTN_HOST_DEVICE inline Parts parts_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const int field = static_cast<int>(bits >> 23);
  if (field != 0) return {(bits & 0x7FFFFF) | 0x800000, field};
  const int shift = leading_zeros(bits) - 8;
  return {bits << shift, 1 - shift};
}

/// 2^exponent for exponents in [-127, 127].
QATTN_HOST_DEVICE inline float float_power(int exponent) {
  return std::bit_cast<float>(exponent == -127 ? 0x00400000u : static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// The e8m0 rules: the quotient's exponent, and what its significands add.
QATTN_HOST_DEVICE inline float power_of_two_rule(ScaleRule rule, float amax, float range) {
  if (amax == 0.0f) return 0.0f;
  if (!(amax <= 0x1.FFFFFEp127f)) return std::bit_cast<float>(0x7FC00000u);
  const Parts a = parts_of(amax), r = parts_of(range);
  int exponent = a.exponent - r.exponent;
  if (rule == ScaleRule::e8m0_ceil) exponent += a.significand > r.significand ? 1 : 0;
  if (rule == ScaleRule::e8m0_nearest) {
    if (a.significand >= r.significand) {
      exponent += 2 * a.significand >= 3 * r.significand ? 1 : 0;
    } else {
      exponent -= 4 * a.significand >= 3 * r.significand ? 0 : 1;
    }
  }
  return float_power(exponent < -127 ? -127 : (exponent > 127 ? 127 : exponent));
}

/// A positive number to the nearest power of two, halfway upward.
QATTN_HOST_DEVICE inline float round_to_power(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (bits >= 0x7F800000) return std::bit_cast<float>(0x7FC00000u);
  int exponent = static_cast<int>(bits >> 23) - 127;
  if (exponent == -127) return float_power((bits & 0x7FFFFF) >= 0x600000 ? -126 : -127);
  exponent += (bits & 0x7FFFFF) >= 0x400000 ? 1 : 0;
  return float_power(exponent > 127 ? 127 : exponent);
}

}  // namespace detail

/// A rule's scale; `amax` is NaN or not negative.
QATTN_HOST_DEVICE inline float scale_of(ScaleRule rule, float amax, float range) {
  switch (rule) {
    case ScaleRule::amax:
      return amax / range;
    case ScaleRule::reciprocal:
      return amax * (1.0f / range);
    case ScaleRule::triton_eps:
      return std::fma(amax, 1.0f / range, 1e-7f);
    default:
      return detail::power_of_two_rule(rule, amax, range);
  }
}

/// quant::round_scale() of a scale that is not negative.
QATTN_HOST_DEVICE inline float round_scale(ScaleFormat format, float scale) {
  if (format == ScaleFormat::fp32) return scale;
  if (format == ScaleFormat::e8m0) return detail::round_to_power(scale);
  // make_encoding() of E4M3 with saturation.
  const Encoding e4m3{4, 3, 7, false, false, 0x80, 0x7E, 0x7F, 0x7E, false};
  if (!(scale <= 0x1.FFFFFEp127f)) return std::bit_cast<float>(0x7FC00000u);
  return decode(e4m3, encode(e4m3, scale));
}

}  // namespace qattn::emulator
