#include "quant/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/random.h"

namespace qattn::quant {
namespace {

using format::Format;
using format::Rounding;
using format::Specials;

constexpr std::uint32_t kInfBits = 0x7F800000;

std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

bool is_integer(const Format& format) { return format.specials == Specials::integer; }

// A code is zero if it has none of these bits: without the sign bit where the format has a -0.
std::uint32_t zero_bits(const Format& format) {
  const bool has_negative_zero = format.specials != Specials::nan_neg_zero && !is_integer(format);
  const std::uint64_t sign = has_negative_zero ? 0 : format::sign_mask(format);
  return static_cast<std::uint32_t>(format::magnitude_mask(format) | sign);
}

// ---- amax ----------------------------------------------------------------------------------------------------------

// Magnitudes compare as their bits do, and NaN lies above Inf, so an integer maximum lets NaN through.
std::int32_t row_amax_bits(const float* x, std::int64_t n) {
  std::int32_t amax = 0;
  for (std::int64_t c = 0; c < n; ++c) amax = std::max(amax, static_cast<std::int32_t>(magnitude_bits(x[c])));
  return amax;
}

std::vector<std::int32_t> amax_bits(MatrixView<float> x, const GroupMap& groups) {
  std::vector<std::int32_t> amax(static_cast<std::size_t>(groups.groups()), 0);
  const auto offsets = groups.column_offsets();
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const float* row = x.row(r).data();
    std::int32_t* group = amax.data() + groups.row_base(r);
    if (groups.column_groups() == 1) {
      *group = std::max(*group, row_amax_bits(row, x.cols()));
      continue;
    }
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      std::int32_t& largest = group[offsets[static_cast<std::size_t>(c)]];
      largest = std::max(largest, static_cast<std::int32_t>(magnitude_bits(row[c])));
    }
  }
  return amax;
}

void count_nonfinite(MatrixView<float> x, QuantStats& stats) {
  const std::vector<std::int32_t> amax = amax_bits(x, GroupMap({}, x.rows(), x.cols()));
  if (amax[0] < static_cast<std::int32_t>(kInfBits)) return;
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      const std::uint32_t bits = magnitude_bits(x(r, c));
      if (bits < kInfBits) continue;
      ++(bits > kInfBits ? stats.nan_inputs : stats.inf_inputs);
      if (stats.first_bad_row < 0) {
        stats.first_bad_row = r;
        stats.first_bad_column = c;
      }
    }
  }
}

// ---- scales --------------------------------------------------------------------------------------------------------

// What elements are divided or multiplied by beside the scales that are kept.
struct Factors {
  std::vector<float> scales;
  std::vector<float> factors;
  bool multiply;
};

float range_of(const QuantizerSpec& spec) { return spec.range > 0 ? spec.range : quantization_range(*spec.format); }

std::vector<bool> groups_with_elements(const GroupMap& groups) {
  std::vector<bool> rows_used(static_cast<std::size_t>(groups.groups() / groups.column_groups()), false);
  if (groups.columns() > 0)
    for (std::int64_t r = 0; r < groups.rows(); ++r)
      rows_used[static_cast<std::size_t>(groups.row_base(r) / groups.column_groups())] = true;
  return rows_used;
}

float replace_zero_scale(const QuantizerSpec& spec, const GroupMap& groups, std::int64_t group, bool empty) {
  switch (spec.zero_scale) {
    case ZeroScale::one:
      return 1;
    case ZeroScale::epsilon:
      return epsilon_scale(*spec.scale_format);
    case ZeroScale::propagate:
      return 0;
    case ZeroScale::error:
      break;
  }
  if (empty) return 1;
  reject_zero_scale(groups, group);
}

Factors static_factors(const QuantizerSpec& spec, const GroupMap& groups) {
  const auto n = static_cast<std::size_t>(groups.groups());
  const float multiplier = *spec.static_multiplier;
  return {std::vector<float>(n, 1.0f / multiplier), std::vector<float>(n, multiplier), true};
}

// E8M0 cannot hold zero, so a zero is caught before the scale is rounded to its format, and once more after it.
Factors group_factors(const QuantizerSpec& spec, const GroupMap& groups, const std::vector<std::int32_t>& amax,
                      QuantStats& stats) {
  const std::vector<bool> used = groups_with_elements(groups);
  Factors result{std::vector<float>(amax.size()), std::vector<float>(amax.size()), spec.scaling == Scaling::reciprocal};
  for (std::size_t g = 0; g < amax.size(); ++g) {
    const float exact = spec.rule->scale(std::bit_cast<float>(amax[g]), range_of(spec));
    float scale = exact == 0 ? 0.0f : round_scale(exact, *spec.scale_format);
    float divisor = spec.unrounded_divisor ? exact : scale;
    if (scale == 0) {
      const bool empty = !used[g / static_cast<std::size_t>(groups.column_groups())];
      if (!empty) ++stats.zero_groups;
      scale = replace_zero_scale(spec, groups, static_cast<std::int64_t>(g), empty);
      if (spec.zero_scale != ZeroScale::propagate) divisor = scale;
    }
    result.scales[g] = scale;
    result.factors[g] = result.multiply ? 1.0f / divisor : divisor;
  }
  return result;
}

// ---- elements ------------------------------------------------------------------------------------------------------

struct Lost {
  std::int64_t saturated = 0;
  std::int64_t underflowed = 0;
};

// One row of elements, the factor of each, and where the codes go; random_bits is empty unless rounding is stochastic.
struct Row {
  std::span<const float> x;
  std::span<const float> factors;
  std::span<std::uint32_t> codes;
  std::span<const std::uint32_t> random_bits;
};

template <bool kMultiply>
float scaled(float x, float factor) {
  return kMultiply ? x * factor : x / factor;
}

// -limit, y or limit; NaN stays.
float clamp_symmetric(float y, float limit) { return y < -limit ? -limit : (y > limit ? limit : y); }

// |y| is at most 127 here, so that adding 1.5 * 2^23 rounds to an integer in f32; NaN must not come here.
template <Rounding kRounding>
std::int32_t to_integer(float y) {
  constexpr float kRoundingConstant = 0x1.8p23f;
  if constexpr (kRounding == Rounding::nearest_even)
    return static_cast<std::int32_t>((y + kRoundingConstant) - kRoundingConstant);
  else
    return static_cast<std::int32_t>(y + std::copysign(0.5f, y));
}

// The two integer roundings that published quantizers use, in a form that the compiler vectorises.
template <bool kMultiply, Rounding kRounding>
Lost integer_row(const Format& format, Rounding /*kRounding*/, const Row& row) {
  const float limit = quantization_range(format);
  const float threshold = saturation_threshold(format);
  const std::uint32_t mask = (1u << format.bits) - 1;
  std::uint32_t saturated = 0;
  std::uint32_t underflowed = 0;
  const std::size_t n = row.x.size();
  for (std::size_t c = 0; c < n; ++c) {
    const float x = row.x[c];
    const float y = scaled<kMultiply>(x, row.factors[c]);
    const std::int32_t value = to_integer<kRounding>(y == y ? clamp_symmetric(y, limit) : 0.0f);
    row.codes[c] = static_cast<std::uint32_t>(value) & mask;
    saturated += std::fabs(y) >= threshold ? 1u : 0u;
    underflowed += static_cast<std::uint32_t>(x != 0) & static_cast<std::uint32_t>(y == y) &
                   static_cast<std::uint32_t>(value == 0);
  }
  return {saturated, underflowed};
}

// Any format and rounding, through the format room's span conversion.
template <bool kMultiply>
Lost any_row(const Format& format, Rounding rounding, const Row& row) {
  const std::size_t n = row.x.size();
  std::vector<float> y(n);
  for (std::size_t c = 0; c < n; ++c) y[c] = scaled<kMultiply>(row.x[c], row.factors[c]);
  Lost lost;
  const float threshold = saturation_threshold(format);
  for (const float value : y) lost.saturated += std::fabs(value) >= threshold ? 1 : 0;
  if (is_integer(format))
    for (float& value : y) value = clamp_symmetric(value, quantization_range(format));
  format::encode_span(format, y, {.rounding = rounding}, row.codes, row.random_bits);
  const std::uint32_t zero_mask = zero_bits(format);
  for (std::size_t c = 0; c < n; ++c)
    lost.underflowed += row.x[c] != 0 && y[c] == y[c] && (row.codes[c] & zero_mask) == 0 ? 1 : 0;
  return lost;
}

using RowFunction = Lost (*)(const Format&, Rounding, const Row&);

template <bool kMultiply>
RowFunction row_function(const Format& format, Rounding rounding) {
  if (is_integer(format) && rounding == Rounding::nearest_even) return integer_row<kMultiply, Rounding::nearest_even>;
  if (is_integer(format) && rounding == Rounding::nearest_away) return integer_row<kMultiply, Rounding::nearest_away>;
  return any_row<kMultiply>;
}

void quantize_elements(MatrixView<float> x, const QuantizerSpec& spec, const Factors& factors, Quantized& result) {
  const RowFunction row_of = factors.multiply ? row_function<true>(*spec.format, spec.rounding)
                                              : row_function<false>(*spec.format, spec.rounding);
  const auto columns = static_cast<std::size_t>(x.cols());
  const auto offsets = result.groups.column_offsets();
  std::vector<float> row_factors(columns);
  std::vector<std::uint32_t> bits(spec.rounding == Rounding::stochastic ? columns : 0);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const float* factor = factors.factors.data() + result.groups.row_base(r);
    for (std::size_t c = 0; c < columns; ++c) row_factors[c] = factor[offsets[c]];
    for (std::size_t c = 0; c < bits.size(); ++c)
      bits[c] =
          static_cast<std::uint32_t>(random_bits(spec.seed, 0, static_cast<std::uint64_t>(r) * columns + c) >> 32);
    const Row row{{x.row(r).data(), columns}, row_factors, {result.codes.row(r).data(), columns}, bits};
    const Lost lost = row_of(*spec.format, spec.rounding, row);
    result.stats.saturated += lost.saturated;
    result.stats.underflowed += lost.underflowed;
  }
}

// ---- the spec ------------------------------------------------------------------------------------------------------

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorKind::usage, "quantizer: " + what); }

void check(const QuantizerSpec& spec) {
  const std::string format(spec.format->name);
  if (!spec.format->has_sign || spec.format->bits > 32)
    reject("format " + format + " cannot hold elements; choose a signed format of at most 32 bits");
  if (!(spec.range >= 0) || spec.range > quantization_range(*spec.format))
    reject("range " + std::to_string(spec.range) + " lies outside 0.." +
           std::to_string(quantization_range(*spec.format)) + ", the range of " + format);
  if (spec.static_multiplier && !(std::isfinite(*spec.static_multiplier) && *spec.static_multiplier > 0))
    reject("a static multiplier must be positive and finite");
  if (spec.static_multiplier && (spec.outer || spec.scale_format != &format::kFP32))
    reject("a static multiplier excludes outer scales and a scale format");
  if (spec.outer && (spec.scale_format == &format::kFP32 || spec.scale_format->specials == Specials::power_of_two))
    reject("outer scales need inner scales of a narrow format such as e4m3, not " +
           std::string(spec.scale_format->name));
}

struct OuterLevel {
  GroupMap groups;
  std::vector<float> scales;
  MatrixF divided;
};

OuterLevel outer_level(MatrixView<float> x, const QuantizerSpec& spec) {
  GroupSpec group_spec = spec.groups;
  group_spec.granularity = *spec.outer;
  OuterLevel level{GroupMap(group_spec, x.rows(), x.cols()), {}, MatrixF(x.rows(), x.cols())};
  const float span = static_cast<float>(format::max_finite(*spec.scale_format)) * range_of(spec);
  level.scales = group_amax(x, level.groups);
  for (float& scale : level.scales) {
    scale = scale / span;
    if (scale == 0) scale = 1;
  }
  for (std::int64_t r = 0; r < x.rows(); ++r)
    for (std::int64_t c = 0; c < x.cols(); ++c)
      level.divided(r, c) = x(r, c) / level.scales[static_cast<std::size_t>(level.groups.index(r, c))];
  return level;
}

Quantized quantize_inner(MatrixView<float> x, const QuantizerSpec& spec) {
  Quantized result{.format = spec.format,
                   .codes = MatrixCodes(x.rows(), x.cols()),
                   .groups = GroupMap(spec.groups, x.rows(), x.cols()),
                   .scales = {},
                   .scale_format = spec.scale_format,
                   .outer_groups = {},
                   .outer_scales = {},
                   .stats = {}};
  const std::vector<std::int32_t> amax = amax_bits(x, result.groups);
  Factors factors = spec.static_multiplier ? static_factors(spec, result.groups)
                                           : group_factors(spec, result.groups, amax, result.stats);
  quantize_elements(x, spec, factors, result);
  result.scales = std::move(factors.scales);
  return result;
}

struct MicroScaled {
  std::string_view name;
  const Format* format;
  Granularity block;
  const Format* scale_format;
  std::string_view rule;
};

constexpr std::array kMicroScaled{
    MicroScaled{"nvfp4", &format::kE2M1, Granularity::block_1x16, &format::kE4M3, "amax"},
    MicroScaled{"mxfp4", &format::kE2M1, Granularity::block_1x32, &format::kE8M0, "e8m0_floor"},
    MicroScaled{"mxfp6_e2m3", &format::kE2M3, Granularity::block_1x32, &format::kE8M0, "e8m0_floor"},
    MicroScaled{"mxfp6_e3m2", &format::kE3M2, Granularity::block_1x32, &format::kE8M0, "e8m0_floor"},
    MicroScaled{"mxfp8_e4m3", &format::kE4M3, Granularity::block_1x32, &format::kE8M0, "e8m0_floor"},
    MicroScaled{"mxfp8_e5m2", &format::kE5M2, Granularity::block_1x32, &format::kE8M0, "e8m0_floor"}};

}  // namespace

void QuantStats::merge(const QuantStats& other) {
  elements += other.elements;
  saturated += other.saturated;
  underflowed += other.underflowed;
  zero_groups += other.zero_groups;
  nan_inputs += other.nan_inputs;
  inf_inputs += other.inf_inputs;
  if (first_bad_row < 0) {
    first_bad_row = other.first_bad_row;
    first_bad_column = other.first_bad_column;
  }
}

QuantizerSpec micro_scaled(std::string_view wanted, Operand operand) {
  std::string known;
  for (const MicroScaled& entry : kMicroScaled) {
    if (entry.name == wanted) {
      QuantizerSpec spec;
      spec.format = entry.format;
      spec.groups = {.granularity = entry.block, .operand = operand};
      spec.rule = &find_scale_rule(entry.rule);
      spec.scale_format = entry.scale_format;
      return spec;
    }
    known += " " + std::string(entry.name);
  }
  throw Error(ErrorKind::usage, "unknown micro-scaled format '" + std::string(wanted) + "'; known:" + known);
}

void reject_zero_scale(const GroupMap& groups, std::int64_t group) {
  throw Error(ErrorKind::input, "scale group " + std::to_string(group) + " (" + describe_group(groups, group) +
                                    ") has a zero scale; choose the zero-scale policy one, epsilon or propagate");
}

std::vector<float> group_amax(MatrixView<float> x, const GroupMap& groups) {
  const std::vector<std::int32_t> bits = amax_bits(x, groups);
  std::vector<float> amax(bits.size());
  for (std::size_t g = 0; g < bits.size(); ++g) amax[g] = std::bit_cast<float>(bits[g]);
  return amax;
}

std::uint32_t encode_element(const Format& format, float y, Rounding rounding, std::uint32_t random_bits) {
  if (!is_integer(format))
    return static_cast<std::uint32_t>(format::encode(format, y, {.rounding = rounding}, random_bits));
  const float clamped = clamp_symmetric(y, quantization_range(format));
  if (rounding != Rounding::nearest_away)
    return static_cast<std::uint32_t>(format::encode(format, clamped, {.rounding = rounding}, random_bits));
  const float integer = std::trunc(clamped + std::copysign(0.5f, clamped));
  return static_cast<std::uint32_t>(format::encode(format, integer, {.rounding = Rounding::toward_zero}));
}

Quantized quantize(MatrixView<float> x, const QuantizerSpec& spec) {
  const FpEnvironment environment;
  check(spec);
  Quantized result;
  if (spec.outer) {
    OuterLevel outer = outer_level(x, spec);
    result = quantize_inner(outer.divided, spec);
    result.outer_groups = std::move(outer.groups);
    result.outer_scales = std::move(outer.scales);
  } else {
    result = quantize_inner(x, spec);
  }
  result.stats.elements = x.size();
  count_nonfinite(x, result.stats);
  return result;
}

MatrixF dequantize(const Quantized& quantized) {
  const FpEnvironment environment;
  const std::int64_t rows = quantized.codes.rows();
  const std::int64_t columns = quantized.codes.cols();
  MatrixF values(rows, columns);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = values.row(r).data();
    const auto n = static_cast<std::size_t>(columns);
    format::decode_span(*quantized.format, {quantized.codes.row(r).data(), n}, {row, n});
    for (std::int64_t c = 0; c < columns; ++c) row[c] *= quantized.scale(r, c);
    if (quantized.outer_scales.empty()) continue;
    for (std::int64_t c = 0; c < columns; ++c) row[c] *= quantized.outer_scale(r, c);
  }
  return values;
}

Matrix<std::int8_t> integer_codes(const Quantized& quantized) {
  if (!is_integer(*quantized.format) || quantized.format->bits > 8)
    throw Error(ErrorKind::internal,
                "integer_codes: format " + std::string(quantized.format->name) + " is no integer of at most 8 bits");
  const int unused = 32 - quantized.format->bits;
  Matrix<std::int8_t> codes(quantized.codes.rows(), quantized.codes.cols());
  for (std::int64_t i = 0; i < codes.size(); ++i) {
    const std::uint32_t code = quantized.codes.data()[i];
    codes.data()[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(code << unused) >> unused);
  }
  return codes;
}

std::vector<std::uint32_t> scale_codes(const Quantized& quantized) {
  std::vector<std::uint32_t> codes;
  codes.reserve(quantized.scales.size());
  for (const float scale : quantized.scales) codes.push_back(scale_code(scale, *quantized.scale_format));
  return codes;
}

}  // namespace qattn::quant
