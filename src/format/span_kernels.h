// What the SIMD kernels of span.cpp need to know of a conversion, worked out once a call.
#pragma once

#include <bit>
#include <cstdint>

#include "format/encode.h"

namespace qattn::format {

/// Conversion to nearest-even into a narrow signed float, by the adder: x + 2^(e + 23 - m), where e is x's exponent and
/// m the format's mantissa bits, rounds x to units of 2^(e - m), and the sum's low bits are x's rounded significand.
struct NarrowEncoder {
  int mantissa_bits;
  int sign_shift;           ///< from a float's sign to the format's
  std::int32_t least_bits;  ///< the smallest normal number as float bits: smaller x have its exponent
  std::int32_t bound_bits;  ///< twice the power of two of the largest finite number: larger x overflow as it does
  std::int32_t sign_code;
  std::int32_t overflow;        ///< of finite and infinite x: the largest finite code, or Inf or NaN just above it
  std::int32_t largest_number;  ///< the largest code that is not NaN; NaN has no sign
  std::int32_t nan;

  /// Whether the conversion has this form. Exponents of at most 5 bits keep every intermediate result a normal float.
  static bool fits(const Format& format, const Policy& policy) {
    const bool narrow = format.has_sign && format.exponent_bits >= 1 && format.exponent_bits <= 5;
    const bool regular = format.specials == Specials::ieee || format.specials == Specials::nan_all_ones ||
                         format.specials == Specials::finite;
    return narrow && regular && policy.rounding == Rounding::nearest_even && policy.subnormals == Subnormals::keep;
  }

  NarrowEncoder(const Format& format, const Policy& policy)
      : mantissa_bits(format.mantissa_bits),
        sign_shift(32 - format.bits),
        least_bits((1 - format.bias + 127) << 23),
        sign_code(static_cast<std::int32_t>(sign_mask(format))) {
    const auto code = [&](float x) { return static_cast<std::int32_t>(encode(format, x, policy)); };
    const int top_field = static_cast<int>(max_finite_code(format) >> format.mantissa_bits);
    bound_bits = (top_field + 1 - format.bias + 127) << 23;
    overflow = code(std::bit_cast<float>(bound_bits));
    largest_number = static_cast<std::int32_t>(max_finite_code(format)) + (has_inf(format) ? 1 : 0);
    nan = code(std::bit_cast<float>(0x7FC00000));
  }
};

/// Exact values of the codes of a narrow signed float.
struct NarrowDecoder {
  int mantissa_bits;
  int sign_shift;
  std::int32_t magnitude_mask;
  std::int32_t smallest_normal;  ///< code
  std::int32_t largest_finite;   ///< code
  std::int32_t infinite;         ///< code; -1 where there is none
  std::int32_t rebias;           ///< what the exponent field gains, in float bits
  float unit;                    ///< the smallest subnormal number

  static bool fits(const Format& format) {
    const bool regular = format.specials == Specials::ieee || format.specials == Specials::nan_all_ones ||
                         format.specials == Specials::finite;
    return format.has_sign && format.exponent_bits >= 1 && format.exponent_bits <= 5 && regular;
  }

  explicit NarrowDecoder(const Format& format)
      : mantissa_bits(format.mantissa_bits),
        sign_shift(32 - format.bits),
        magnitude_mask(static_cast<std::int32_t>(format::magnitude_mask(format))),
        smallest_normal(static_cast<std::int32_t>(min_normal_code(format))),
        largest_finite(static_cast<std::int32_t>(max_finite_code(format))),
        infinite(has_inf(format) ? largest_finite + 1 : -1),
        rebias((127 - format.bias) << 23),
        unit(decode_float(format, 1)) {}
};

}  // namespace qattn::format
