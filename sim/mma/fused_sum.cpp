// Alignment, summation and rounding in integers.
#include "mma/fused_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fp_environment.h"

namespace qattn::mma {
namespace {

/// The code of an infinity of an `ieee` format.
std::uint64_t infinity(const format::Format& format, bool negative) {
  const std::uint64_t magnitude = ((std::uint64_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
  return magnitude | (std::uint64_t{negative} << (format.bits - 1));
}

/// magnitude / 2^shift rounded to an integer; a negative shift multiplies.
UInt128 round_shift(UInt128 magnitude, int shift, Rounding rounding) {
  const UInt128 kept = scale_down(magnitude, -shift);
  if (shift <= 0 || shift > 127 || rounding == Rounding::toward_zero) return kept;
  const UInt128 rest = magnitude - (kept << shift);
  const UInt128 half = UInt128{1} << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
}

}  // namespace

void SpecialValues::add(const Unpacked& x) {
  nan |= x.kind == Unpacked::Class::nan;
  if (x.kind != Unpacked::Class::infinite) return;
  (x.negative ? negative_infinity : positive_infinity) = true;
}

void SpecialValues::add_product(const Unpacked& x, const Unpacked& y) {
  using Class = Unpacked::Class;
  if (x.kind == Class::finite && y.kind == Class::finite) return;
  if (x.kind == Class::nan || y.kind == Class::nan || x.is_zero() || y.is_zero()) {
    nan = true;
  } else {
    (x.negative != y.negative ? negative_infinity : positive_infinity) = true;
  }
}

std::uint64_t special_result(const SpecialValues& special, const format::Format& format, std::uint64_t nan_code) {
  return special.result_is_nan() ? nan_code : infinity(format, special.negative_infinity);
}

std::uint64_t nvidia_nan(const format::Format& format) { return (std::uint64_t{1} << (format.bits - 1)) - 1; }

Term as_term(const Unpacked& x) { return {x.negative, false, x.exponent, x.fraction_bits, x.significand}; }

Term product(const Unpacked& x, const Unpacked& y) {
  return {x.negative != y.negative, false, x.exponent + y.exponent, x.fraction_bits + y.fraction_bits,
          x.significand * y.significand};
}

std::uint64_t round_to(const format::Format& format, int mantissa_bits, Rounding rounding, bool negative,
                       UInt128 magnitude, int exponent) {
  if (magnitude == 0) return 0;
  const int smallest = 1 - format.bias;
  const int leading = std::max(bit_width(magnitude) - 1 + exponent, smallest);
  // In units of the last kept place; the leading bit of a normal number carries into the exponent field.
  const UInt128 kept = round_shift(magnitude, leading - mantissa_bits - exponent, rounding);
  const int spare = format.mantissa_bits - mantissa_bits;
  const std::uint64_t largest = infinity(format, false);
  if (leading > format.bias) return infinity(format, negative);
  const std::uint64_t code = (static_cast<std::uint64_t>(leading - smallest) << format.mantissa_bits) +
                             (static_cast<std::uint64_t>(kept) << spare);
  if (code == 0) return 0;
  return std::min(code, largest) | (std::uint64_t{negative} << (format.bits - 1));
}

int largest_exponent(const std::vector<Term>& terms, int floor) {
  for (const Term& term : terms) {
    if (term.significand != 0 || term.always_aligns) floor = std::max(floor, term.exponent);
  }
  return floor;
}

Int128 align(const Term& term, int e_max, int fraction_bits) {
  const int shift = term.exponent - e_max + fraction_bits - term.fraction_bits;
  const Int128 magnitude = term.significand == 0 ? 0 : static_cast<Int128>(scale_down(term.significand, shift));
  return term.negative ? -magnitude : magnitude;
}

double to_double(const Term& term) {
  const double magnitude = std::ldexp(static_cast<double>(term.significand), term.exponent - term.fraction_bits);
  return term.negative ? -magnitude : magnitude;
}

std::uint64_t fuse(const Fusion& fusion, const format::Format& output, const std::vector<Term>& terms,
                   TraceStep* step) {
  const int e_max = largest_exponent(terms, fusion.exponent_floor);
  Int128 sum = 0;
  for (const Term& term : terms) sum += align(term, e_max, fusion.fraction_bits);
  const auto magnitude = static_cast<UInt128>(sum < 0 ? -sum : sum);
  const std::uint64_t code =
      round_to(output, fusion.mantissa_bits, fusion.rounding, sum < 0, magnitude, e_max - fusion.fraction_bits);
  if (step != nullptr) {
    const auto scaled = [&](Int128 x) { return std::ldexp(static_cast<double>(x), e_max - fusion.fraction_bits); };
    step->e_max = e_max;
    step->fraction_bits = fusion.fraction_bits;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      step->terms[i].value = to_double(terms[i]);
      step->terms[i].exponent = terms[i].exponent;
      step->terms[i].aligned = scaled(align(terms[i], e_max, fusion.fraction_bits));
      step->sum_before += step->terms[i].value;
    }
    step->sum_after = scaled(sum);
    step->output = code;
  }
  return code;
}

std::uint64_t rounded_add(const format::Format& format, std::uint64_t x, std::uint64_t y) {
  SpecialValues special;
  const Unpacked ux = unpack(format, x);
  const Unpacked uy = unpack(format, y);
  special.add(ux);
  special.add(uy);
  if (special.any()) return special_result(special, format, nvidia_nan(format));
  const FpEnvironment environment;
  if (format.bits == 32) {
    const auto as_float = [](std::uint64_t code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code)); };
    return std::bit_cast<std::uint32_t>(as_float(x) + as_float(y));
  }
  // f16 sums are exact in units of 2^-24; IEEE's rule keeps the sign of a sum of two zeros.
  if (ux.is_zero() && uy.is_zero()) return x & y;
  const Int128 sum = align(as_term(ux), 0, 24) + align(as_term(uy), 0, 24);
  return round_to(format, format.mantissa_bits, Rounding::nearest_even, sum < 0,
                  static_cast<UInt128>(sum < 0 ? -sum : sum), -24);
}

}  // namespace qattn::mma
