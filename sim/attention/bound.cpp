// Every step of a sum is monotone in the magnitude of its terms (cutting toward zero shrinks them, rounding keeps their
// order), so the sum of the largest codes, with every rounding done on exact sums, bounds all others.
#include "attention/bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/contraction.h"
#include "base/elementary.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "mma/tile.h"
#include "quant/quantize.h"

namespace qattn::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};
/// Above every result of the three exponentials for arguments up to 0, relative to 1.
constexpr double kExp2Excess = 1.0 + 0x1p-13;

double nearest(const format::Format& format, double x) {
  const double largest = format::max_finite(format);
  return x >= largest ? largest : format::decode(format, format::encode(format, x, kToNearest));
}

/// The largest code magnitude that quantizing with a scale from the largest element leaves.
double largest_code(const OperandSpec& spec) {
  const format::Format& format = *spec.format;
  if (!spec.scaled()) return format::max_finite(format);
  const double most =
      spec.integer() ? static_cast<double>(quant::quantization_range(format)) : format::max_finite(format);
  const bool keeps_range =
      spec.scale_format == &format::kFP32 && spec.scale_rule != "e8m0_floor" && spec.scale_rule != "e8m0_nearest";
  if (spec.range == 0.0F || !keeps_range) return most;
  // The scale is rounded, so that the quotient of the largest element may exceed the range by two ulps.
  const double quotient = static_cast<double>(spec.range) * (1.0 + 0x1p-22);
  return std::min(most, spec.integer() ? std::nearbyint(quotient) : nearest(format, quotient));
}

double largest_p(const Recipe& recipe) {
  const double weight = recipe.p_normalized ? 1.0 : kExp2Excess * elementary::exp2(recipe.rescale_threshold);
  const format::Format& format = *recipe.p.format;
  const double scaled = weight * resolved_p_scale(recipe);
  if (recipe.p.row_scaled()) return largest_code(recipe.p);
  if (!recipe.p.integer()) return nearest(format, scaled);
  return std::min(static_cast<double>(quant::quantization_range(format)), std::nearbyint(scaled));
}

/// The sum of `terms` products of the largest codes, rounded to FP16 after every step.
double rounded_sum(const SumBound& bound, std::int64_t step) {
  double sum = 0.0;
  for (std::int64_t done = 0; done < bound.terms && sum < kInfinity; done += step) {
    const auto count = static_cast<double>(std::min(step, bound.terms - done));
    const double next = format::decode(
        format::kFP16, format::encode(format::kFP16, sum + count * bound.left * bound.right, kToNearest));
    if (next == sum) return sum;  // too small to move it, for ever
    sum = next;
  }
  return sum;
}

/// Whether the instruction returns Inf for the largest codes.
bool instruction_overflows(const mma::Instruction& instruction, const SumBound& bound) {
  const auto code = [](const format::Format& format, double x) {
    return static_cast<std::uint32_t>(format::encode(format, x, format::Policy{}));
  };
  const MatrixCodes a = MatrixCodes::Constant(1, bound.terms, code(*instruction.a, bound.left));
  const MatrixCodes b = MatrixCodes::Constant(1, bound.terms, code(*instruction.b, bound.right));
  MatrixCodes d = MatrixCodes::Zero(1, 1);
  mma::multiply_accumulate(instruction, mma::Operand(instruction, mma::Side::a, a),
                           mma::Operand(instruction, mma::Side::b, b), d);
  return !std::isfinite(format::decode(*instruction.d, d(0, 0)));
}

std::optional<SumBound> bound_of(SumBound bound, const Accumulator& accumulator) {
  using Verdict = SumBound::Verdict;
  if (accumulator.kind == Accumulator::Kind::integer) {
    bound.largest = static_cast<double>(bound.terms) * bound.left * bound.right;
    bound.limit = std::ldexp(1.0, 31) - 1.0;
    bound.verdict = bound.largest <= bound.limit ? Verdict::cannot_overflow : Verdict::overflows;
    return bound;
  }
  bound.largest = rounded_sum(bound, accumulator.instruction->k);
  bound.limit = format::max_finite(format::kFP16);
  bound.verdict = bound.largest <= bound.limit                             ? Verdict::cannot_overflow
                  : instruction_overflows(*accumulator.instruction, bound) ? Verdict::overflows
                                                                           : Verdict::not_decided;
  return bound;
}

/// An accumulator with something to prove.
bool narrow(const Accumulator& accumulator) {
  return accumulator.kind == Accumulator::Kind::integer ||
         (accumulator.kind == Accumulator::Kind::instruction && accumulator.instruction->d == &format::kFP16);
}

}  // namespace

std::optional<SumBound> pv_bound(const Recipe& recipe, std::int64_t keys) {
  const FpEnvironment environment;
  const Accumulator accumulator = resolve_accumulator(recipe.accumulator, recipe.p, recipe.v);
  if (!narrow(accumulator)) return std::nullopt;
  SumBound bound{"P V", largest_p(recipe), largest_code(recipe.v)};
  const bool integer = accumulator.kind == Accumulator::Kind::integer;
  if (integer || recipe.promotion < 0) {
    bound.terms = recipe.k_block;
  } else {
    bound.terms = recipe.promotion == 0 ? keys : recipe.promotion * accumulator.step();
  }
  return bound_of(bound, accumulator);
}

std::optional<SumBound> qk_bound(const Recipe& recipe, std::int64_t head_dim) {
  const FpEnvironment environment;
  const Accumulator accumulator = resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k);
  if (!narrow(accumulator)) return std::nullopt;
  return bound_of({"Q K^T", largest_code(recipe.q), largest_code(recipe.k), head_dim}, accumulator);
}

std::int64_t provable_keys(const Recipe& recipe) {
  std::int64_t below = 0, above = std::int64_t{1} << 20;
  const auto proved = [&](std::int64_t keys) {
    const std::optional<SumBound> bound = pv_bound(recipe, keys);
    return !bound || bound->verdict == SumBound::Verdict::cannot_overflow;
  };
  if (proved(above)) return above;
  while (above - below > 1) {
    const std::int64_t middle = below + (above - below) / 2;
    (proved(middle) ? below : above) = middle;
  }
  return below;
}

std::string describe(const std::optional<SumBound>& bound) {
  if (!bound) return "";
  const std::string sums =
      fmt::format("{}: {} sums of {} products of at most {} x {}", bound->product,
                  bound->limit > 65504.0 ? "32-bit" : "FP16", bound->terms, bound->left, bound->right);
  switch (bound->verdict) {
    case SumBound::Verdict::cannot_overflow:
      return fmt::format("{}: at most {:.17g}, below {:.17g}: cannot overflow", sums, bound->largest, bound->limit);
    case SumBound::Verdict::overflows:
      return fmt::format("{}: can exceed {:.17g}: overflows for the largest codes", sums, bound->limit);
    case SumBound::Verdict::not_decided:
      break;
  }
  return fmt::format("{}: the bound exceeds {:.17g}, but the largest codes do not overflow: not decided", sums,
                     bound->limit);
}

std::string bound_text(const Recipe& recipe) {
  constexpr std::int64_t kChannels = 128, kKeys = 65536;
  std::string text = describe(qk_bound(recipe, kChannels));
  if (const std::string pv = describe(pv_bound(recipe, kKeys)); !pv.empty()) text += (text.empty() ? "" : "; ") + pv;
  if (recipe.promotion == 0 && pv_bound(recipe, 1) && provable_keys(recipe) < kKeys) {
    text += fmt::format(" (proved for {} keys)", provable_keys(recipe));
  }
  return text;
}

}  // namespace qattn::attention
