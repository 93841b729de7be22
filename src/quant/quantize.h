// Quantizing a matrix: groups, scale rule and element rounding together, with counts of what was lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "format/encode.h"
#include "format/format.h"
#include "quant/groups.h"
#include "quant/scale.h"
#include "tensor/matrix.h"

namespace qattn::quant {

/// How y is made from an element x and its group's scale, in f32, each operation rounded to nearest-even.
enum class Scaling : std::uint8_t {
  divide,      ///< y = RN(x / scale)
  reciprocal,  ///< y = RN(x * RN(1 / scale))
};

/// A quantizer; every policy is a field. Elements are clamped symmetrically to quantization_range(*format).
struct QuantizerSpec {
  const format::Format* format = &format::kInt8;
  GroupSpec groups;
  const ScaleRule* rule = &find_scale_rule("amax");
  /// The code magnitude that amax is mapped to, e.g. 2.25 or 4.5 for V (SageAttention2++); 0: quantization_range.
  float range = 0;
  /// Scales are rounded to this format before use (NVFP4: E4M3, MX: E8M0).
  const format::Format* scale_format = &format::kFP32;
  /// Divide elements by the scale before it is rounded to scale_format (SageAttention3's quantizer of P).
  bool unrounded_divisor = false;
  Scaling scaling = Scaling::divide;
  /// Integers with nearest_away follow the published Triton quantizer: trunc(RN(y + copysign(0.5, y))).
  format::Rounding rounding = format::Rounding::nearest_even;
  ZeroScale zero_scale = ZeroScale::one;
  /// No statistics are taken: y = RN(x * m) and every scale is RN(1 / m), e.g. 448 or 127 for P in [0, 1].
  std::optional<float> static_multiplier = std::nullopt;
  /// A second, coarser level of f32 scales: outer = RN(amax / RN(largest scale * range)) over these groups (1 where
  /// that is zero); x becomes RN(x / outer) before everything else. per_tensor: NVFP4's global scale; per_token on a
  /// tile of P: SageAttention3's two-level P.
  std::optional<Granularity> outer = std::nullopt;
  /// Stochastic rounding takes its bits from this seed and the element's position.
  std::uint64_t seed = 0;
};

/// The quantizer of a micro-scaled format: "nvfp4" (1x16, E4M3 scale), "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2",
/// "mxfp8_e4m3", "mxfp8_e5m2" (1x32, E8M0 scale by the OCP rule). Throws Error(usage) that lists the names.
QuantizerSpec micro_scaled(std::string_view name, Operand operand);

/// What quantizing lost. Counts are of elements unless they say groups.
struct QuantStats {
  std::int64_t elements = 0;
  std::int64_t saturated = 0;    ///< |y| at least half a step above the largest code
  std::int64_t underflowed = 0;  ///< nonzero, but the code is zero
  std::int64_t zero_groups = 0;  ///< groups with elements whose scale came out as zero, before the policy
  std::int64_t nan_inputs = 0;
  std::int64_t inf_inputs = 0;
  /// The first NaN or Inf of the input in row-major order; -1 when there is none.
  std::int64_t first_bad_row = -1;
  std::int64_t first_bad_column = -1;

  /// Adds the counts of another matrix; first_bad stays this one's if it has one.
  void merge(const QuantStats& other);
};

struct Quantized {
  const format::Format* format = nullptr;
  MatrixCodes codes;  ///< [rows, columns]; integers are two's complement in the low bits
  GroupMap groups;
  std::vector<float> scales;  ///< one a group; groups without elements have the scale of amax = 0
  const format::Format* scale_format = nullptr;
  GroupMap outer_groups;            ///< default-constructed without a second level
  std::vector<float> outer_scales;  ///< one an outer group; empty without a second level
  QuantStats stats;

  float scale(std::int64_t row, std::int64_t column) const {
    return scales[static_cast<std::size_t>(groups.index(row, column))];
  }
  /// 1 without a second level.
  float outer_scale(std::int64_t row, std::int64_t column) const {
    return outer_scales.empty() ? 1.0f : outer_scales[static_cast<std::size_t>(outer_groups.index(row, column))];
  }
};

/// Quantizes x. A NaN in a group makes its scale NaN, and an Inf makes it Inf (NaN where the scale format has no Inf):
/// codes are then NaN for formats that have one and 0 for those that do not, and the group dequantizes to NaN; the
/// elements are counted and the first is located. Throws Error(usage) for a spec that contradicts itself.
Quantized quantize(MatrixView<float> x, const QuantizerSpec& spec);

/// The values that the codes stand for: RN(code * scale), then RN(that * outer scale).
MatrixF dequantize(const Quantized& quantized);

/// The codes of an integer format as numbers. Throws Error(internal) for another format.
Matrix<std::int8_t> integer_codes(const Quantized& quantized);

/// The scales as codes of the scale format, e.g. for a block-scaled instruction.
std::vector<std::uint32_t> scale_codes(const Quantized& quantized);

/// The code of one scaled element y: the definition that quantize() follows for every element.
/// `random_bits` is used by stochastic rounding alone.
std::uint32_t encode_element(const format::Format& format, float y, format::Rounding rounding,
                             std::uint32_t random_bits = 0);

/// Throws the Error(input) of ZeroScale::error, which names the group and its elements.
[[noreturn]] void reject_zero_scale(const GroupMap& groups, std::int64_t group);

/// The largest magnitude of each group of x, 0 for a group without elements; NaN (or Inf) where the group has one.
std::vector<float> group_amax(MatrixView<float> x, const GroupMap& groups);

}  // namespace qattn::quant
