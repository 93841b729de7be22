// From the largest magnitude of a group to its scale: the rules of the papers, of published kernels and of the OCP
// micro-scaling specification, and what to do with a scale of zero.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/format.h"

namespace qattn::quant {

/// A scale rule. `scale(amax, range)` is computed in f32, every rounding to nearest-even; `amax` is the group's largest
/// magnitude, `range` the largest code magnitude that it is mapped to. NaN gives NaN.
struct ScaleRule {
  std::string_view name;
  std::string_view formula;
  std::string_view source;
  float (*scale)(float amax, float range);
};

/// Every rule: "amax", "reciprocal", "triton_eps", "e8m0_floor", "e8m0_ceil", "e8m0_nearest". The e8m0 rules return a
/// power of two in [2^-127, 2^127], or zero for amax = 0, or NaN for amax = Inf.
std::span<const ScaleRule> scale_rules();
/// The rule with this name. Throws Error(usage) that lists the names.
const ScaleRule& find_scale_rule(std::string_view name);

/// The range that a format is quantized to: 127 (INT8), 7 (INT4), else its largest finite number (448, 57344, 6, ...).
float quantization_range(const format::Format& format);

/// |x / scale| from here on counts as saturated: half a step above the largest code in use.
float saturation_threshold(const format::Format& format);

/// What replaces a scale that came out as zero (a group of zeros, or an amax so small that its scale underflows).
enum class ZeroScale : std::uint8_t {
  one,        ///< scale 1, codes 0
  epsilon,    ///< 1e-7 (FP32 scales, as the published INT8 quantizers have) or the scale format's smallest number
  propagate,  ///< scale 0: 0 / 0 = NaN, as the published FP8 kernels do; a format without NaN gets code 0
  error,      ///< throw Error(input) that names the group
};

/// "one", "epsilon", "propagate", "error".
std::string_view name(ZeroScale policy);
/// The policy with this name. Throws Error(usage) that lists the names.
ZeroScale find_zero_scale(std::string_view name);

/// `scale` as the scale format holds it: to nearest-even, saturating; a scale that is not finite becomes NaN where the
/// format has no Inf. FP32 returns it unchanged.
float round_scale(float scale, const format::Format& scale_format);
/// The code of a scale that the format holds exactly.
std::uint32_t scale_code(float scale, const format::Format& scale_format);
/// The value that ZeroScale::epsilon puts in place of zero.
float epsilon_scale(const format::Format& scale_format);

}  // namespace qattn::quant
