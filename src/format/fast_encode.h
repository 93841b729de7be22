// The fast twin of encode(float): 32-bit integers, constants worked out once a format and policy, no branches.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "format/encode.h"

namespace qattn::format {

/// Whether FastEncoder knows the conversion: signed floats of at most 8 exponent and 22 mantissa bits and integers of
/// at most 8 bits, every rounding but stochastic.
constexpr bool has_fast_encoder(const Format& format, Rounding rounding) {
  const bool narrow =
      format.specials == Specials::integer ? format.bits <= 8 : format.exponent_bits <= 8 && format.mantissa_bits <= 22;
  return format.has_sign && narrow && rounding != Rounding::stochastic;
}

/// encode(format, x, {rounding, overflow, subnormals}) for float x, the same bits. Only where has_fast_encoder().
/// About 40 integer operations, none of them data-dependent, so a loop over it vectorises where the target has
/// shifts by variable counts.
template <Rounding rounding>
class FastEncoder {
 public:
  FastEncoder(const Format& format, Overflow overflow, Subnormals subnormals) {
    const bool integer = format.specials == Specials::integer;
    mantissa_bits_ = integer ? kIntegerBits : format.mantissa_bits;
    least_exponent_ = kBias + (integer ? kIntegerBits : 1 - format.bias);
    code_mask_ = narrow(sign_mask(format) | magnitude_mask(format));
    if (subnormals == Subnormals::flush && has_subnormals(format)) least_kept_ = narrow(min_normal_code(format));
    if (format.specials == Specials::nan_neg_zero) no_zero_ = narrow(sign_mask(format));
    const Policy policy{rounding, overflow, subnormals};
    nan_ = plain(format, kInf + 1, policy);
    positive_ = side(format, 0, policy);
    negative_ = side(format, 1, policy);
    if (integer) ++negative_.max_finite;
    negative_.flip = integer ? code_mask_ : narrow(sign_mask(format));
    negative_.add = integer ? 1 : 0;
  }

  std::uint32_t operator()(float x) const {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t negative = mask(bits >> 31 != 0);
    const std::uint32_t absolute = bits & (kInf | kMantissa);
    const std::uint32_t magnitude = round(absolute, negative);
    const std::uint32_t kept = magnitude & mask(magnitude >= least_kept_);
    std::uint32_t code = ((kept ^ (negative_.flip & negative)) + (negative_.add & negative)) & code_mask_;
    code &= mask(code != no_zero_);
    const std::uint32_t most = select(negative, negative_.max_finite, positive_.max_finite);
    code = select(mask(magnitude > most), select(negative, negative_.overflow, positive_.overflow), code);
    code = select(mask(absolute == kInf), select(negative, negative_.infinite, positive_.infinite), code);
    return select(mask(absolute > kInf), nan_, code);
  }

 private:
  static constexpr int kBias = 127;
  static constexpr std::uint32_t kMantissa = 0x7FFFFF;
  static constexpr std::uint32_t kInf = 0x7F800000;
  static constexpr std::uint32_t kLargest = kInf - 1;  ///< FLT_MAX; overflows wherever a finite x does
  /// Integers are the subnormals of a float with steps of 1 below 2^kIntegerBits; larger x is beyond their range.
  static constexpr int kIntegerBits = 8;

  /// What depends on the sign of x. `flip` and `add` make a magnitude's code that of the negative number.
  struct Side {
    std::uint32_t max_finite = 0, overflow = 0, infinite = 0, flip = 0, add = 0;
  };

  /// Choices as masks: GCC makes branches of the conditional operator here and then does not vectorise.
  static std::uint32_t mask(bool condition) { return ~std::uint32_t{condition} + 1; }
  static std::uint32_t select(std::uint32_t mask, std::uint32_t yes, std::uint32_t no) {
    return (yes & mask) | (no & ~mask);
  }

  static std::uint32_t narrow(std::uint64_t code) { return static_cast<std::uint32_t>(code); }
  static std::uint32_t plain(const Format& format, std::uint32_t x, const Policy& policy) {
    return narrow(encode(format, std::bit_cast<float>(x), policy));
  }

  static Side side(const Format& format, std::uint32_t sign, const Policy& policy) {
    return {narrow(max_finite_code(format)), plain(format, sign << 31 | kLargest, policy),
            plain(format, sign << 31 | kInf, policy)};
  }

  /// The magnitude's code with an unbounded exponent. The shift is held at 25, where the kept bits are 0 and what is
  /// cut off is below one half, as it is for every larger shift.
  std::uint32_t round(std::uint32_t absolute, std::uint32_t negative) const {
    const int field = static_cast<int>(absolute >> 23);
    const std::uint32_t significand = (absolute & kMantissa) | (mask(field != 0) & (kMantissa + 1));
    const int exponent = std::max(field, 1);
    const int target = std::max(exponent, least_exponent_);
    const int shift = std::min(23 - mantissa_bits_ + target - exponent, 25);
    const std::uint32_t rounded = (significand + increment(significand, shift, negative)) >> shift;
    return (static_cast<std::uint32_t>(target - least_exponent_) << mantissa_bits_) + rounded;
  }

  /// What to add before the cut so that the cut rounds.
  static std::uint32_t increment(std::uint32_t significand, int shift, std::uint32_t negative) {
    const std::uint32_t all = (std::uint32_t{1} << shift) - 1;
    if constexpr (rounding == Rounding::nearest_even) return (all >> 1) + (significand >> shift & 1);
    if constexpr (rounding == Rounding::nearest_away) return (all >> 1) + 1;
    if constexpr (rounding == Rounding::up) return all & ~negative;
    if constexpr (rounding == Rounding::down) return all & negative;
    return 0;
  }

  int mantissa_bits_ = 0;
  int least_exponent_ = 0;
  std::uint32_t code_mask_ = 0;
  std::uint32_t least_kept_ = 0;               ///< smaller magnitudes are flushed
  std::uint32_t no_zero_ = ~std::uint32_t{0};  ///< the code of -0 where the format has no -0
  std::uint32_t nan_ = 0;
  Side positive_, negative_;
};

}  // namespace qattn::format
