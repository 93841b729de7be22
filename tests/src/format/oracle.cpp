// The oracle's arithmetic and its table of special cases, written from the documents and from encode.h's comments.
#include "oracle.h"

#include <algorithm>
#include <cmath>

namespace qattn::format::oracle {
namespace {

/// significand * 2^exponent.
Exact scaled(std::uint64_t significand, int exponent) { return Exact(significand) << (exponent + kScale); }

/// Least positive magnitude that is not subnormal; zero where the format has no subnormals.
Exact smallest_normal(const Format& format) {
  const bool floating = format.specials != Specials::integer && format.specials != Specials::power_of_two;
  return floating ? scaled(1, 1 - format.bias) : Exact(0);
}

/// A NaN in each format that has one, as literals: sign'exponent'mantissa.
bool canonical_nan(const Format& format, std::uint64_t& code) {
  if (format.specials == Specials::finite || format.specials == Specials::integer) return false;
  if (format.name == "fp64") code = 0x7FF8'0000'0000'0000;
  if (format.name == "fp32") code = 0b0'11111111'10000000000000000000000;
  if (format.name == "tf32") code = 0b0'11111111'1000000000;
  if (format.name == "e8m13") code = 0b0'11111111'1000000000000;
  if (format.name == "fp16") code = 0b0'11111'1000000000;
  if (format.name == "bf16") code = 0b0'11111111'1000000;
  if (format.name == "e5m2") code = 0b0'11111'10;
  if (format.name == "e4m3" || format.name == "ue4m3") code = 0b0'1111'111;
  if (format.name == "e5m2fnuz" || format.name == "e4m3fnuz") code = 0b1000'0000;
  if (format.name == "e8m0") code = 0b1111'1111;
  return true;
}

std::uint64_t largest(const Format& format, bool negative) {
  return code_at(format, negative, magnitudes(format, negative) - 1);
}

std::uint64_t out_of_range(const Format& format, bool negative, const Policy& policy) {
  std::uint64_t code = 0;
  if (policy.overflow == Overflow::saturate || !canonical_nan(format, code)) return largest(format, negative);
  // The code after the largest finite one is the infinity of the IEEE forms.
  return format.specials == Specials::ieee ? largest(format, negative) + 1 : code;
}

/// What an unsigned format makes of x <= 0 that it does not hold.
std::uint64_t below_range(const Format& format, const Policy& policy) {
  std::uint64_t code = 0;
  canonical_nan(format, code);
  return policy.overflow == Overflow::saturate ? 0 : code;
}

bool goes_outward(bool negative, const Place& where, const Policy& policy, std::uint32_t random_bits) {
  if (where.exact) return false;
  switch (policy.rounding) {
    case Rounding::nearest_even:
      return where.against_half > 0 || (where.against_half == 0 && !where.even);
    case Rounding::nearest_away:
      return where.against_half >= 0;
    case Rounding::toward_zero:
      return false;
    case Rounding::up:
      return !negative;
    case Rounding::down:
      return negative;
    case Rounding::stochastic:
      return random_bits < where.fraction;
  }
  return false;
}

}  // namespace

Exact exact_magnitude(double x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(x), &exponent);
  return scaled(static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53);
}

Exact magnitude_at(const Format& format, std::uint64_t index) {
  if (format.specials == Specials::integer) return scaled(index, 0);
  if (format.specials == Specials::power_of_two) return scaled(1, static_cast<int>(index) - format.bias);
  const std::uint64_t binade = std::uint64_t{1} << format.mantissa_bits;
  const std::uint64_t exponent = index / binade;
  const std::uint64_t mantissa = index % binade;
  if (exponent == 0) return scaled(mantissa, 1 - format.bias - format.mantissa_bits);
  return scaled(binade + mantissa, static_cast<int>(exponent) - format.bias - format.mantissa_bits);
}

std::uint64_t code_at(const Format& format, bool negative, std::uint64_t index) {
  if (!negative) return index;
  if (format.specials == Specials::integer) return index == 0 ? 0 : (std::uint64_t{1} << format.bits) - index;
  if (index == 0 && format.specials == Specials::nan_neg_zero) return 0;
  return index + (std::uint64_t{1} << (format.bits - 1));
}

double to_double(const Exact& magnitude) {
  if (magnitude == 0) return 0;
  const int shift = std::max(static_cast<int>(msb(magnitude)) - 52, 0);
  return std::ldexp(static_cast<double>(static_cast<std::uint64_t>(magnitude >> shift)), shift - kScale);
}

std::uint64_t magnitudes(const Format& format, bool negative) {
  const std::uint64_t binade = std::uint64_t{1} << format.mantissa_bits;
  const std::uint64_t all = binade << format.exponent_bits;
  switch (format.specials) {
    case Specials::ieee:  // a whole binade is Inf and NaN
      return all - binade;
    case Specials::nan_all_ones:
    case Specials::power_of_two:
      return all - 1;
    case Specials::nan_neg_zero:
    case Specials::finite:
      return all;
    case Specials::integer:  // one more below zero
      return all + (negative ? 1 : 0);
  }
  return 0;
}

Exact midpoint_after(const Format& format, std::uint64_t index) {
  return (magnitude_at(format, index) + magnitude_at(format, index + 1)) / 2;
}

Place place(const Format& format, bool negative, const Exact& magnitude) {
  Place where;
  if (magnitude < magnitude_at(format, 0)) {
    where.below_all = true;
    where.exact = false;
    return where;
  }
  std::uint64_t above = magnitudes(format, negative);
  const std::uint64_t count = above;
  while (above - where.lower > 1) {
    const std::uint64_t middle = where.lower + (above - where.lower) / 2;
    (magnitude_at(format, middle) <= magnitude ? where.lower : above) = middle;
  }
  const Exact lower = magnitude_at(format, where.lower);
  const Exact gap = magnitude_at(format, where.lower + 1) - lower;
  const Exact rest = magnitude - lower;
  where.exact = rest == 0;
  where.beyond_next = where.lower + 1 == count && rest >= gap;
  where.against_half = (rest * 2).compare(gap);
  where.even = lower / gap % 2 == 0;
  if (!where.beyond_next) where.fraction = static_cast<std::uint32_t>((rest << 32) / gap);
  return where;
}

std::uint64_t choose(const Format& format, bool negative, bool zero, const Place& where, const Policy& policy,
                     std::uint32_t random_bits) {
  if (!format.has_sign) {
    if (zero ? format.specials == Specials::power_of_two : negative) return below_range(format, policy);
    negative = false;
  }
  if (where.below_all) return 0;
  const bool inward =
      policy.rounding == Rounding::toward_zero || policy.rounding == (negative ? Rounding::up : Rounding::down);
  if (where.beyond_next) return inward ? largest(format, negative) : out_of_range(format, negative, policy);
  std::uint64_t index = where.lower + (goes_outward(negative, where, policy, random_bits) ? 1 : 0);
  if (index >= magnitudes(format, negative)) return out_of_range(format, negative, policy);
  if (policy.subnormals == Subnormals::flush && magnitude_at(format, index) < smallest_normal(format)) index = 0;
  return code_at(format, negative, index);
}

std::uint64_t encode(const Format& format, double x, const Policy& policy, std::uint32_t random_bits) {
  std::uint64_t nan = 0;
  if (std::isnan(x)) return canonical_nan(format, nan) ? nan : 0;
  const bool negative = std::signbit(x);
  if (std::isinf(x)) {
    return negative && !format.has_sign ? below_range(format, policy) : out_of_range(format, negative, policy);
  }
  const Exact magnitude = exact_magnitude(x);
  return choose(format, negative, magnitude == 0, place(format, negative && format.has_sign, magnitude), policy,
                random_bits);
}

std::vector<Policy> deterministic_policies() {
  std::vector<Policy> policies;
  for (const Rounding rounding :
       {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero, Rounding::up, Rounding::down}) {
    for (const Overflow overflow : {Overflow::saturate, Overflow::inf_or_nan}) {
      for (const Subnormals subnormals : {Subnormals::keep, Subnormals::flush}) {
        policies.push_back({rounding, overflow, subnormals});
      }
    }
  }
  return policies;
}

std::vector<Policy> all_policies() {
  std::vector<Policy> policies = deterministic_policies();
  for (int i = 0; i < 4; ++i) {
    policies.push_back(policies[static_cast<std::size_t>(i)]);
    policies.back().rounding = Rounding::stochastic;
  }
  return policies;
}

}  // namespace qattn::format::oracle
