// What a number format is: one constexpr entry each, and the list of all of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace qattn::format {

/// How the code space treats Inf, NaN and the sign.
enum class Specials : std::uint8_t {
  ieee,          ///< all-ones exponent holds Inf and NaN (FP16, BF16, FP32, E5M2, ...)
  nan_all_ones,  ///< no Inf; only exponent and mantissa all ones is NaN (E4M3 "fn"; OCP FP8 specification)
  nan_neg_zero,  ///< no Inf, no -0; the code of -0 is NaN (AMD's "fnuz" forms)
  finite,        ///< every code is a finite number (E2M1, E3M2, E2M3; OCP MX specification)
  power_of_two,  ///< E8M0: unsigned 2^(code - bias), all ones is NaN (OCP MX specification)
  integer,       ///< two's complement, no specials
};

/// One number format. A code is held in the low `bits` bits of an unsigned integer: sign, exponent e, mantissa m from
/// the top down, right-aligned. A float's value is (-1)^s * 2^(e - bias) * 1.m (subnormal: 2^(1 - bias) * 0.m).
struct Format {
  std::string_view name;   ///< the short name that recipes and the command line use, e.g. "e4m3"
  std::string_view dtype;  ///< the name that files use, e.g. "float8_e4m3fn" (ml_dtypes, safetensors); may be empty
  std::string_view alias;  ///< one more accepted spelling, or empty
  int bits;                ///< width of a code as it is stored
  int exponent_bits;
  int mantissa_bits;  ///< stored mantissa bits; for integers the magnitude bits
  int bias;
  bool has_sign;  ///< without one, a stored bit above the exponent is ignored
  Specials specials;
};

inline constexpr Format kFP64{"fp64", "float64", "f64", 64, 11, 52, 1023, true, Specials::ieee};
inline constexpr Format kFP32{"fp32", "float32", "f32", 32, 8, 23, 127, true, Specials::ieee};
inline constexpr Format kTF32{"tf32", "", "", 19, 8, 10, 127, true, Specials::ieee};
inline constexpr Format kE8M13{"e8m13", "", "fp22", 22, 8, 13, 127, true, Specials::ieee};
inline constexpr Format kFP16{"fp16", "float16", "f16", 16, 5, 10, 15, true, Specials::ieee};
inline constexpr Format kBF16{"bf16", "bfloat16", "", 16, 8, 7, 127, true, Specials::ieee};
inline constexpr Format kE5M2{"e5m2", "float8_e5m2", "", 8, 5, 2, 15, true, Specials::ieee};
inline constexpr Format kE4M3{"e4m3", "float8_e4m3fn", "e4m3fn", 8, 4, 3, 7, true, Specials::nan_all_ones};
inline constexpr Format kE5M2Fnuz{"e5m2fnuz", "float8_e5m2fnuz", "", 8, 5, 2, 16, true, Specials::nan_neg_zero};
inline constexpr Format kE4M3Fnuz{"e4m3fnuz", "float8_e4m3fnuz", "", 8, 4, 3, 8, true, Specials::nan_neg_zero};
inline constexpr Format kE3M2{"e3m2", "float6_e3m2fn", "e3m2fn", 6, 3, 2, 3, true, Specials::finite};
inline constexpr Format kE2M3{"e2m3", "float6_e2m3fn", "e2m3fn", 6, 2, 3, 1, true, Specials::finite};
inline constexpr Format kE2M1{"e2m1", "float4_e2m1fn", "e2m1fn", 4, 2, 1, 1, true, Specials::finite};
inline constexpr Format kE8M0{"e8m0", "float8_e8m0fnu", "ue8m0", 8, 8, 0, 127, false, Specials::power_of_two};
/// NVIDIA's scale format: E4M3 with the sign ignored (PTX ISA, block scaling).
inline constexpr Format kUE4M3{"ue4m3", "", "", 8, 4, 3, 7, false, Specials::nan_all_ones};
inline constexpr Format kInt8{"int8", "int8", "s8", 8, 0, 7, 0, true, Specials::integer};
inline constexpr Format kInt4{"int4", "int4", "s4", 4, 0, 3, 0, true, Specials::integer};

/// Every format, in the order in which they are listed to users. Adding one: its entry above, and its address here.
inline constexpr std::array kFormats{&kFP64,     &kFP32, &kTF32, &kE8M13, &kFP16, &kBF16,  &kE5M2, &kE4M3, &kE5M2Fnuz,
                                     &kE4M3Fnuz, &kE3M2, &kE2M3, &kE2M1,  &kE8M0, &kUE4M3, &kInt8, &kInt4};

/// kFormats as a span.
std::span<const Format* const> formats();

/// The format with this name, dtype name or alias. Throws Error(usage) that lists the names.
const Format& find(std::string_view name);

/// The same, or nullptr.
const Format* find_or_null(std::string_view name);

/// Bytes that one unpacked code takes in memory and in files: the smallest of 1, 2, 4, 8 that holds it.
constexpr int element_bytes(const Format& format) {
  return format.bits <= 8 ? 1 : format.bits <= 16 ? 2 : format.bits <= 32 ? 4 : 8;
}

/// Whether the format has a NaN, an infinity, subnormals.
constexpr bool has_nan(const Format& format) {
  return format.specials != Specials::finite && format.specials != Specials::integer;
}
constexpr bool has_inf(const Format& format) { return format.specials == Specials::ieee; }
constexpr bool has_subnormals(const Format& format) {
  return format.specials != Specials::power_of_two && format.specials != Specials::integer;
}

/// The bits of a code that carry its value (without the sign bit): exponent and mantissa.
constexpr std::uint64_t magnitude_mask(const Format& format) {
  return (std::uint64_t{1} << (format.exponent_bits + format.mantissa_bits)) - 1;
}

/// The sign bit's mask, 0 without one. For integers: the top bit of the two's complement.
constexpr std::uint64_t sign_mask(const Format& format) { return format.has_sign ? magnitude_mask(format) + 1 : 0; }

/// The code of the largest finite number.
constexpr std::uint64_t max_finite_code(const Format& format) {
  switch (format.specials) {
    case Specials::ieee:
      return magnitude_mask(format) - (std::uint64_t{1} << format.mantissa_bits);
    case Specials::nan_all_ones:
    case Specials::power_of_two:
      return magnitude_mask(format) - 1;
    default:
      return magnitude_mask(format);
  }
}

/// The code of the smallest positive normal number; of 2^-bias for E8M0, of 1 for integers.
constexpr std::uint64_t min_normal_code(const Format& format) {
  if (format.specials == Specials::power_of_two) return 0;
  return format.specials == Specials::integer ? 1 : std::uint64_t{1} << format.mantissa_bits;
}

/// The code of the smallest positive number: the smallest subnormal, or min_normal_code() where there is none.
constexpr std::uint64_t min_positive_code(const Format& format) {
  return format.specials == Specials::power_of_two ? 0 : 1;
}

/// The canonical NaN, which encode() returns for every NaN: positive with the top mantissa bit alone set for `ieee`
/// (0x7FC00000, 0x7E00, 0x7E, ...; a GPU's own cast may return another one, see sim/scalar), 0x7F for E4M3, the code
/// of -0 for the fnuz forms, 0xFF for E8M0. Throws Error(internal) where the format has no NaN.
std::uint64_t nan_code(const Format& format);

/// The code of an infinity. Throws Error(internal) where the format has none.
std::uint64_t inf_code(const Format& format, bool negative = false);

/// What a code is. Bits that the format does not have are ignored.
bool is_nan(const Format& format, std::uint64_t code);
bool is_inf(const Format& format, std::uint64_t code);
bool is_negative(const Format& format, std::uint64_t code);  ///< the sign bit; also on -0 and on a NaN with that sign

/// The position of a code that is not NaN among the format's numbers: strictly increasing with the value, neighbours
/// differ by 1, both zeros are 0 (E8M0: 2^-bias is 0), infinities stand beside the largest finite numbers. The
/// difference of two ordinals is their distance in units in the last place.
std::int64_t ordinal(const Format& format, std::uint64_t code);

}  // namespace qattn::format
