// What a number format is: one constexpr entry each, and the list of all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace qattn::format {

/// How the code space treats Inf, NaN and the sign.
enum class Specials : std::uint8_t {
  ieee,           ///< all-ones exponent holds Inf and NaN (FP16, BF16, FP32, E5M2, ...)
  nan_all_ones,   ///< no Inf; only exponent and mantissa all ones is NaN (E4M3 "fn"; OCP FP8 specification)
  nan_neg_zero,   ///< no Inf, no -0; the code of -0 is NaN (AMD's "fnuz" forms)
  finite,         ///< every code is a finite number (E2M1, E3M2, E2M3; OCP MX specification)
  power_of_two,   ///< E8M0: unsigned 2^(code - bias), all ones is NaN (OCP MX specification)
  integer,        ///< two's complement, no specials
};

/// One number format. A code is held in the low `bits` bits of an unsigned integer.
/// A float's value is (-1)^s * 2^(e - bias) * 1.m (subnormal: 2^(1 - bias) * 0.m).
struct Format {
  std::string_view name;        ///< the short name that recipes and the command line use, e.g. "e4m3"
  std::string_view dtype;       ///< the name that files use, e.g. "float8_e4m3fn" (ml_dtypes, safetensors); may be empty
  std::string_view alias;       ///< one more accepted spelling, or empty
  int bits;                     ///< width of a code
  int exponent_bits;
  int mantissa_bits;            ///< stored mantissa bits; for integers the magnitude bits
  int bias;
  bool has_sign;
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

/// Every format, in the order in which they are listed to users.
std::span<const Format* const> formats();

/// The format with this name, dtype name or alias. Throws Error(usage) that lists the names.
const Format& find(std::string_view name);

/// The same, or nullptr.
const Format* find_or_null(std::string_view name);

}  // namespace qattn::format
