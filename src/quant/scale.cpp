#include "quant/scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "format/encode.h"

namespace qattn::quant {
namespace {

float amax_rule(float amax, float range) { return amax / range; }

float reciprocal_rule(float amax, float range) { return amax * (1.0f / range); }

float triton_eps_rule(float amax, float range) { return std::fma(amax, 1.0f / range, 1e-7f); }

// 2^exponent(amax, range), both as significand in [1/2, 1) and exponent, kept in E8M0's range.
template <class Exponent>
float power_of_two(float amax, float range, Exponent exponent) {
  if (amax == 0) return 0;
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  int amax_exponent = 0;
  int range_exponent = 0;
  const double amax_significand = std::frexp(static_cast<double>(amax), &amax_exponent);
  const double range_significand = std::frexp(static_cast<double>(range), &range_exponent);
  const int e = amax_exponent - range_exponent + exponent(amax_significand, range_significand);
  return std::ldexp(1.0f, std::clamp(e, -127, 127));
}

// OCP MX 1.0, section 6.3: the largest power of two in amax over the largest power of two in the element format.
float e8m0_floor_rule(float amax, float range) {
  return power_of_two(amax, range, [](double, double) { return 0; });
}

// The smallest power of two with which nothing saturates.
float e8m0_ceil_rule(float amax, float range) {
  return power_of_two(amax, range, [](double a, double r) { return a > r ? 1 : 0; });
}

// amax / range to the nearest power of two, halfway (1.5 times one) upward. The quotient of the significands lies in
// (1/2, 2); the products below are exact.
float e8m0_nearest_rule(float amax, float range) {
  return power_of_two(amax, range, [](double a, double r) {
    if (a >= r) return a >= 1.5 * r ? 1 : 0;
    return 2 * a >= 1.5 * r ? 0 : -1;
  });
}

constexpr std::array kRules{
    ScaleRule{"amax", "amax / range", "SageAttention, SageAttention2 (the papers' quantizer)", amax_rule},
    ScaleRule{"reciprocal", "amax * RN(1 / range)", "SageAttention 2.2.0 Triton per-block kernel; FastVideo NVFP4",
              reciprocal_rule},
    ScaleRule{"triton_eps", "fma(amax, RN(1 / range), 1e-7)", "SageAttention 2.2.0 Triton per-thread kernel, measured",
              triton_eps_rule},
    ScaleRule{"e8m0_floor", "2^(floor(log2 amax) - floor(log2 range))", "OCP MX 1.0, section 6.3", e8m0_floor_rule},
    ScaleRule{"e8m0_ceil", "2^ceil(log2(amax / range))", "the smallest that does not saturate", e8m0_ceil_rule},
    ScaleRule{"e8m0_nearest", "amax / range to the nearest power of two", "E8M0's own rounding, halfway upward",
              e8m0_nearest_rule}};

constexpr std::array<std::string_view, 4> kZeroScaleNames{"one", "epsilon", "propagate", "error"};

}  // namespace

std::span<const ScaleRule> scale_rules() { return kRules; }

const ScaleRule& find_scale_rule(std::string_view wanted) {
  std::string known;
  for (const ScaleRule& rule : kRules) {
    if (rule.name == wanted) return rule;
    known += " " + std::string(rule.name);
  }
  throw Error(ErrorKind::usage, "unknown scale rule '" + std::string(wanted) + "'; known:" + known);
}

float quantization_range(const format::Format& format) {
  if (format.specials == format::Specials::integer) return static_cast<float>((1 << format.mantissa_bits) - 1);
  return static_cast<float>(format::max_finite(format));
}

float saturation_threshold(const format::Format& format) {
  const float range = quantization_range(format);
  if (format.specials == format::Specials::integer) return range + 0.5f;
  return range + std::ldexp(0.5f, std::ilogb(range) - format.mantissa_bits);
}

std::string_view name(ZeroScale policy) { return kZeroScaleNames[static_cast<std::size_t>(policy)]; }

ZeroScale find_zero_scale(std::string_view wanted) {
  for (std::size_t i = 0; i < kZeroScaleNames.size(); ++i)
    if (kZeroScaleNames[i] == wanted) return static_cast<ZeroScale>(i);
  throw Error(ErrorKind::usage,
              "unknown zero-scale policy '" + std::string(wanted) + "'; known: one epsilon propagate error");
}

float round_scale(float scale, const format::Format& scale_format) {
  return format::decode_float(scale_format, scale_code(scale, scale_format));
}

std::uint32_t scale_code(float scale, const format::Format& scale_format) {
  const format::Policy policy{.overflow =
                                  std::isfinite(scale) ? format::Overflow::saturate : format::Overflow::inf_or_nan};
  return static_cast<std::uint32_t>(format::encode(scale_format, scale, policy));
}

float epsilon_scale(const format::Format& scale_format) {
  if (&scale_format == &format::kFP32) return 1e-7f;
  return static_cast<float>(format::min_subnormal(scale_format));
}

}  // namespace qattn::quant
