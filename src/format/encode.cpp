// The plain conversions: unpack, round an exact integer once, pack. One element, any format, any policy.
#include "format/encode.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"

namespace qattn::format {
namespace {

enum class Kind : std::uint8_t { zero, finite, infinite, nan };

/// A source number. A finite one is (-1)^negative * significand * 2^(exponent - 63) with the top bit of significand
/// set, so that `exponent` is floor(log2 |x|).
struct Unpacked {
  Kind kind = Kind::zero;
  bool negative = false;
  int exponent = 0;
  std::uint64_t significand = 0;
};

/// Unpacks a code of one of the `ieee` formats with the given widths.
Unpacked unpack(std::uint64_t code, int exponent_bits, int mantissa_bits) {
  const int all_ones = (1 << exponent_bits) - 1;
  const int field = static_cast<int>(code >> mantissa_bits) & all_ones;
  const std::uint64_t mantissa = code & ((std::uint64_t{1} << mantissa_bits) - 1);
  Unpacked result;
  result.negative = (code >> (exponent_bits + mantissa_bits) & 1) != 0;
  if (field == all_ones) {
    result.kind = mantissa == 0 ? Kind::infinite : Kind::nan;
    return result;
  }
  const std::uint64_t significand = field == 0 ? mantissa : mantissa | std::uint64_t{1} << mantissa_bits;
  if (significand == 0) return result;
  const int leading = std::countl_zero(significand);
  result.kind = Kind::finite;
  result.significand = significand << leading;
  result.exponent = std::max(field, 1) - all_ones / 2 + 63 - mantissa_bits - leading;
  return result;
}

Unpacked unpack(double x) { return unpack(std::bit_cast<std::uint64_t>(x), 11, 52); }
Unpacked unpack(float x) { return unpack(std::bit_cast<std::uint32_t>(x), 8, 23); }

/// significand * 2^-shift cut to an integer, and what was cut off as a fraction of 2^64. The lowest bit of `fraction`
/// stands for all bits below it too (a sticky bit): that keeps every comparison with 0 and with one half exact.
struct Split {
  std::uint64_t kept;
  std::uint64_t fraction;
};

Split split(std::uint64_t significand, int shift) {
  if (shift < 64) return {significand >> shift, significand << (64 - shift)};
  const int below = shift - 64;
  if (below >= 64) return {0, 1};
  const std::uint64_t fraction = significand >> below;
  const bool sticky = (fraction << below) != significand;
  return {0, fraction | (sticky ? 1u : 0u)};
}

/// Whether the magnitude goes up to the next code. `odd`: whether the code below is the odd one.
bool rounds_up(Rounding rounding, bool negative, bool odd, std::uint64_t fraction, std::uint32_t random_bits) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
  switch (rounding) {
    case Rounding::nearest_even:
      return fraction > kHalf || (fraction == kHalf && odd);
    case Rounding::nearest_away:
      return fraction >= kHalf;
    case Rounding::toward_zero:
      return false;
    case Rounding::up:
      return !negative && fraction != 0;
    case Rounding::down:
      return negative && fraction != 0;
    case Rounding::stochastic:
      return random_bits < fraction >> 32;
  }
  throw Error(ErrorKind::internal, "encode: the rounding mode is not one of the enumeration");
}

/// significand * 2^-shift as an integer, rounded.
std::uint64_t round_to_integer(const Unpacked& x, int shift, Rounding rounding, std::uint32_t random_bits) {
  const Split s = split(x.significand, shift);
  return s.kept + (rounds_up(rounding, x.negative, (s.kept & 1) != 0, s.fraction, random_bits) ? 1 : 0);
}

/// The code of x = +-Inf.
std::uint64_t encode_infinity(const Format& format, bool negative, const Policy& policy) {
  if (policy.overflow == Overflow::saturate || !has_nan(format)) {
    return (negative ? sign_mask(format) : 0) | max_finite_code(format);
  }
  return has_inf(format) ? inf_code(format, negative) : nan_code(format);
}

/// The code of a finite x whose rounding is beyond the largest finite number: there too, when the rounding points
/// toward zero.
std::uint64_t encode_overflow(const Format& format, bool negative, Policy policy) {
  const Rounding inward = negative ? Rounding::up : Rounding::down;
  if (policy.rounding == Rounding::toward_zero || policy.rounding == inward) policy.overflow = Overflow::saturate;
  return encode_infinity(format, negative, policy);
}

std::uint64_t encode_float(const Format& format, const Unpacked& x, const Policy& policy, std::uint32_t random_bits) {
  if (x.kind == Kind::infinite) return encode_infinity(format, x.negative, policy);
  std::uint64_t magnitude = 0;
  if (x.kind == Kind::finite) {
    const int least = 1 - format.bias;
    const int exponent = std::max(x.exponent, least);
    const int shift = 63 - format.mantissa_bits + exponent - x.exponent;
    // Codes are consecutive: a carry out of the mantissa moves on to the next exponent by itself.
    magnitude = (static_cast<std::uint64_t>(exponent - least) << format.mantissa_bits) +
                round_to_integer(x, shift, policy.rounding, random_bits);
  }
  if (magnitude > max_finite_code(format)) return encode_overflow(format, x.negative, policy);
  if (policy.subnormals == Subnormals::flush && magnitude < min_normal_code(format)) magnitude = 0;
  const bool drop_sign = magnitude == 0 && format.specials == Specials::nan_neg_zero;
  return x.negative && !drop_sign ? sign_mask(format) | magnitude : magnitude;
}

/// E8M0 of x > 0.
std::uint64_t encode_power_of_two(const Format& format, const Unpacked& x, const Policy& policy,
                                  std::uint32_t random_bits) {
  if (x.kind == Kind::infinite) return encode_infinity(format, false, policy);
  if (x.exponent < -format.bias) return 0;
  // The significand is cut to 1, which is odd: a tie goes up.
  const std::uint64_t significand = round_to_integer(x, 63, policy.rounding, random_bits);
  const std::uint64_t code = static_cast<std::uint64_t>(x.exponent + format.bias) + significand - 1;
  return code > max_finite_code(format) ? encode_overflow(format, false, policy) : code;
}

std::uint64_t encode_integer(const Format& format, const Unpacked& x, const Policy& policy, std::uint32_t random_bits) {
  const std::uint64_t limit = max_finite_code(format) + (x.negative ? 1 : 0);
  std::uint64_t magnitude = 0;
  if (x.kind == Kind::infinite || (x.kind == Kind::finite && x.exponent > format.mantissa_bits)) {
    magnitude = limit;
  } else if (x.kind == Kind::finite) {
    magnitude = round_to_integer(x, 63 - x.exponent, policy.rounding, random_bits);
  }
  magnitude = std::min(magnitude, limit);
  return (x.negative ? ~magnitude + 1 : magnitude) & (sign_mask(format) | magnitude_mask(format));
}

std::uint64_t encode_unpacked(const Format& format, Unpacked x, const Policy& policy, std::uint32_t random_bits) {
  if (x.kind == Kind::nan) return has_nan(format) ? nan_code(format) : 0;
  if (!format.has_sign) {
    const bool zero = x.kind == Kind::zero;
    const bool below_range = zero ? format.specials == Specials::power_of_two : x.negative;
    if (below_range) return policy.overflow == Overflow::saturate ? 0 : nan_code(format);
    x.negative = false;
  }
  if (format.specials == Specials::integer) return encode_integer(format, x, policy, random_bits);
  if (format.specials == Specials::power_of_two) return encode_power_of_two(format, x, policy, random_bits);
  return encode_float(format, x, policy, random_bits);
}

/// (-1)^negative * magnitude * 2^exponent as a double, for values that are normal in a double or zero.
double assemble(bool negative, std::uint64_t magnitude, int exponent) {
  std::uint64_t code = negative ? sign_mask(kFP64) : 0;
  if (magnitude != 0) {
    const int leading = std::countl_zero(magnitude);
    // The top bit lands on the exponent field and adds 1 to it.
    const auto field = static_cast<std::uint64_t>(63 - leading + exponent + kFP64.bias - 1);
    code += (field << kFP64.mantissa_bits) + (magnitude << leading >> 11);
  }
  return std::bit_cast<double>(code);
}

}  // namespace

std::uint64_t encode(const Format& format, double x, const Policy& policy, std::uint32_t random_bits) {
  return encode_unpacked(format, unpack(x), policy, random_bits);
}

std::uint64_t encode(const Format& format, float x, const Policy& policy, std::uint32_t random_bits) {
  return encode_unpacked(format, unpack(x), policy, random_bits);
}

double decode(const Format& format, std::uint64_t code) {
  const std::uint64_t magnitude = code & magnitude_mask(format);
  const bool negative = is_negative(format, code);
  if (is_nan(format, code)) return std::bit_cast<double>(nan_code(kFP64));
  if (is_inf(format, code)) return std::bit_cast<double>(inf_code(kFP64, negative));
  if (format.bits == 64) return std::bit_cast<double>(code);
  if (format.specials == Specials::power_of_two) return assemble(false, 1, static_cast<int>(magnitude) - format.bias);
  if (format.specials == Specials::integer) {
    return assemble(negative, negative ? sign_mask(format) - magnitude : magnitude, 0);
  }
  const std::uint64_t mantissa = magnitude & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  const int field = static_cast<int>(magnitude >> format.mantissa_bits);
  const std::uint64_t significand = field == 0 ? mantissa : mantissa | std::uint64_t{1} << format.mantissa_bits;
  return assemble(negative, significand, std::max(field, 1) - format.bias - format.mantissa_bits);
}

float decode_float(const Format& format, std::uint64_t code) {
  if (format.bits > 32) {
    throw Error(ErrorKind::internal, "decode_float: '" + std::string(format.name) + "' does not fit a float");
  }
  const std::uint64_t bits = encode(kFP32, decode(format, code), {.overflow = Overflow::inf_or_nan});
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

double max_finite(const Format& format) { return decode(format, max_finite_code(format)); }
double min_normal(const Format& format) { return decode(format, min_normal_code(format)); }
double min_subnormal(const Format& format) { return decode(format, min_positive_code(format)); }

}  // namespace qattn::format
