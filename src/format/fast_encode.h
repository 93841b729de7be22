// The fast twin of encode(float): 32-bit integers, constants worked out once a format and policy, almost no branches.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "format/encode.h"

namespace qattn::format {

/// Whether FastEncoder knows the conversion: signed floats of at most 22 mantissa bits and integers of at most 8 bits,
/// every rounding but stochastic.
constexpr bool has_fast_encoder(const Format& format, Rounding rounding) {
  const bool narrow =
      format.specials == Specials::integer ? format.bits <= 8 : format.exponent_bits <= 8 && format.mantissa_bits <= 22;
  return format.has_sign && narrow && rounding != Rounding::stochastic;
}

/// encode(format, x, {rounding, overflow, subnormals}) for float x, the same bits. Only where has_fast_encoder().
template <Rounding rounding>
class FastEncoder {
 public:
  FastEncoder(const Format& format, Overflow overflow, Subnormals subnormals)
      : is_integer_(format.specials == Specials::integer),
        mantissa_bits_(is_integer_ ? kIntegerBits : format.mantissa_bits),
        least_exponent_(kBias + (is_integer_ ? kIntegerBits : 1 - format.bias)),
        sign_(static_cast<std::uint32_t>(sign_mask(format))),
        mask_(static_cast<std::uint32_t>(sign_mask(format) | magnitude_mask(format))),
        max_finite_(static_cast<std::uint32_t>(max_finite_code(format))),
        least_kept_(subnormals == Subnormals::flush && has_subnormals(format)
                        ? static_cast<std::uint32_t>(min_normal_code(format))
                        : 0),
        has_negative_zero_(format.specials != Specials::nan_neg_zero) {
    const Policy policy{rounding, overflow, subnormals};
    for (std::uint32_t negative : {0u, 1u}) {
      overflowed_[negative] = plain(format, negative << 31 | kLargest, policy);
      infinite_[negative] = plain(format, negative << 31 | kInf, policy);
    }
    nan_ = plain(format, kInf + 1, policy);
  }

  std::uint32_t operator()(float x) const {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t negative = bits >> 31;
    const std::uint32_t absolute = bits & (kInf | kMantissa);
    if (absolute >= kInf) return absolute == kInf ? infinite_[negative] : nan_;
    const std::uint32_t magnitude = round(absolute, negative);
    if (is_integer_) return twos_complement(magnitude, negative);
    if (magnitude > max_finite_) return overflowed_[negative];
    const std::uint32_t kept = magnitude < least_kept_ ? 0 : magnitude;
    return kept | (negative != 0 && (kept != 0 || has_negative_zero_) ? sign_ : 0);
  }

 private:
  static constexpr int kBias = 127;
  /// Integers are the subnormals of a float with steps of 1 below 2^kIntegerBits; larger x is beyond their range.
  static constexpr int kIntegerBits = 8;
  static constexpr std::uint32_t kMantissa = 0x7FFFFF;
  static constexpr std::uint32_t kInf = 0x7F800000;
  static constexpr std::uint32_t kLargest = kInf - 1;  ///< FLT_MAX; overflows wherever a finite x does

  static std::uint32_t plain(const Format& format, std::uint32_t x, const Policy& policy) {
    return static_cast<std::uint32_t>(encode(format, std::bit_cast<float>(x), policy));
  }

  /// The magnitude's code with an unbounded exponent. A float's own exponent field can be at most 254 and the shift is
  /// held at 25, where the kept bits are 0 and what is cut off is below one half, as it is for every larger shift.
  std::uint32_t round(std::uint32_t absolute, std::uint32_t negative) const {
    const int field = static_cast<int>(absolute >> 23);
    const std::uint32_t significand = (absolute & kMantissa) | (field != 0 ? kMantissa + 1 : 0);
    const int exponent = std::max(field, 1);
    const int target = std::max(exponent, least_exponent_);
    const int shift = std::min(23 - mantissa_bits_ + target - exponent, 25);
    const std::uint32_t rounded = (significand + increment(significand, shift, negative)) >> shift;
    return (static_cast<std::uint32_t>(target - least_exponent_) << mantissa_bits_) + rounded;
  }

  /// What to add before the cut so that the cut rounds.
  static std::uint32_t increment(std::uint32_t significand, int shift, std::uint32_t negative) {
    const std::uint32_t half = std::uint32_t{1} << (shift - 1);
    const std::uint32_t all = (half - 1) | half;
    if constexpr (rounding == Rounding::nearest_even) return half - 1 + (significand >> shift & 1);
    if constexpr (rounding == Rounding::nearest_away) return half;
    if constexpr (rounding == Rounding::up) return negative != 0 ? 0 : all;
    if constexpr (rounding == Rounding::down) return negative != 0 ? all : 0;
    return 0;
  }

  std::uint32_t twos_complement(std::uint32_t magnitude, std::uint32_t negative) const {
    const std::uint32_t clamped = std::min(magnitude, max_finite_ + negative);
    return (negative != 0 ? ~clamped + 1 : clamped) & mask_;
  }

  bool is_integer_;
  int mantissa_bits_;
  int least_exponent_;
  std::uint32_t sign_, mask_, max_finite_, least_kept_, nan_;
  std::uint32_t overflowed_[2], infinite_[2];
  bool has_negative_zero_;
};

}  // namespace qattn::format
