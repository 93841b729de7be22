// The cvt instructions between binary32 and narrower formats, one element, on codes. Integer operations only: no
// rounding mode or flush-to-zero flag of the caller matters. Subnormal inputs are never flushed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "format/format.h"
#include "scalar/mufu.h"

namespace qattn::scalar {

/// One conversion of a binary32 code into a float format, as data.
struct CastSpec {
  int mantissa_bits;
  int min_exponent;        ///< of the smallest normal number
  int sign_bit;            ///< where the sign goes
  int shift = 0;           ///< the code stands this far up in the result (TF32 in its 32-bit register: 13)
  bool round_nearest;      ///< to nearest even, else truncated
  bool relu;               ///< a negative input, -0 and -Inf too, gives 0
  std::uint32_t max_code;  ///< of the largest finite number
  std::uint32_t overflow;  ///< the code of a finite input beyond max_code
  std::uint32_t infinite;  ///< the code of +-Inf, without its sign
  std::uint32_t nan;       ///< the result for every NaN, whatever its sign
};

enum class Relu : bool { no, yes };
enum class Cast : std::uint8_t {
  rn,            ///< nearest even, overflow to Inf
  rz,            ///< truncation; a finite input stays finite
  rn_satfinite,  ///< nearest even, clamped to the largest finite number, Inf too
  rz_satfinite,
};

/// The cvt into `to`, a float format with a sign. NaN gives all ones below the sign bit; that is the largest finite
/// number where the format has no NaN (PTX ISA, cvt: E2M1, E2M3, E3M2). A format without Inf has satfinite forms only.
constexpr CastSpec cast_spec(const format::Format& to, Cast cast, Relu relu = Relu::no) {
  const bool satfinite = cast == Cast::rn_satfinite || cast == Cast::rz_satfinite;
  const auto magnitudes = (std::uint32_t{1} << (to.bits - 1)) - 1;
  CastSpec spec{};
  spec.mantissa_bits = to.mantissa_bits;
  spec.min_exponent = 1 - to.bias;
  spec.sign_bit = to.bits - 1;
  spec.round_nearest = cast == Cast::rn || cast == Cast::rn_satfinite;
  spec.relu = relu == Relu::yes;
  spec.max_code = static_cast<std::uint32_t>(format::max_finite_code(to));
  spec.infinite = satfinite ? spec.max_code : spec.max_code + 1;
  spec.overflow = cast == Cast::rn ? spec.infinite : spec.max_code;
  spec.nan = magnitudes;
  return spec;
}

/// The cvt into TF32, which stays in a 32-bit register with 13 zero bits below, also those of the NaN 0x7FFFE000.
constexpr CastSpec tf32_spec(Cast cast, Relu relu = Relu::no) {
  CastSpec spec = cast_spec(format::kTF32, cast, relu);
  spec.shift = 13;
  spec.nan <<= 13;
  return spec;
}

/// The conversion. Codes below max_code are rounded on the significand, so that a carry moves into the exponent.
constexpr std::uint32_t cast(const CastSpec& spec, std::uint32_t x) {
  if (is_nan(x)) return spec.nan;
  const std::uint32_t sign = x >> 31, magnitude = x & ~kSign;
  if (spec.relu && sign != 0) return 0;
  const int field = static_cast<int>(magnitude >> 23);
  const std::uint32_t significand = (magnitude & 0x7FFFFF) | (field != 0 ? 0x800000 : 0);
  const int exponent = std::max(field, 1) - 127 - spec.min_exponent;  // above the smallest normal's
  const int dropped = std::min(23 - spec.mantissa_bits + std::max(-exponent, 0), 25);
  std::uint32_t kept = significand >> dropped;
  if (spec.round_nearest) kept = (significand + (1u << (dropped - 1)) - 1 + (kept & 1)) >> dropped;
  std::uint32_t code = kept + (static_cast<std::uint32_t>(std::max(exponent, 0)) << spec.mantissa_bits);
  if (code > spec.max_code) code = spec.overflow;
  if (magnitude == kInf) code = spec.infinite;
  return (code | sign << spec.sign_bit) << spec.shift;
}

/// cvt.rna.tf32.f32: ties away, by integer addition; can become Inf. NaN keeps its sign and the top of its payload, and
/// becomes Inf when the payload was in the low 13 bits only.
constexpr std::uint32_t cast_rna_tf32(std::uint32_t x) {
  return (x & ~kSign) < kInf ? (x + 0x1000) & 0xFFFFE000 : x & 0xFFFFE000;
}
/// With satfinite an Inf becomes the largest finite TF32, because one unit is taken from whatever has the largest
/// exponent field; from a NaN too.
constexpr std::uint32_t cast_rna_satfinite_tf32(std::uint32_t x) {
  const std::uint32_t rounded = cast_rna_tf32(x);
  return (rounded & kInf) == kInf ? rounded - 0x2000 : rounded;
}

enum class IntegerRounding : std::uint8_t { rni, rzi, rmi, rpi };

/// cvt.<rounding>.s8.f32: rounded to an integer (nearest even, toward zero, down, up), then clamped to [-128, 127]; the
/// low 8 bits. NaN gives 0.
constexpr std::uint32_t cast_s8(IntegerRounding rounding, std::uint32_t x) {
  if (is_nan(x)) return 0;
  const bool negative = (x & kSign) != 0;
  const std::uint32_t magnitude = x & ~kSign;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent >= 8) return negative ? 0x80 : 0x7F;
  const std::uint32_t significand = exponent >= -126 ? (magnitude & 0x7FFFFF) | 0x800000 : magnitude;
  const int dropped = std::min(23 - exponent, 25);
  std::uint32_t whole = significand >> dropped;
  const std::uint32_t rest = significand - (whole << dropped), half = 1u << (dropped - 1);
  const bool away = rounding == IntegerRounding::rmi ? negative : rounding == IntegerRounding::rpi && !negative;
  if (rounding == IntegerRounding::rni && (rest > half || (rest == half && (whole & 1) != 0))) ++whole;
  if (away && rest != 0) ++whole;
  whole = std::min(whole, negative ? 128u : 127u);
  return (negative ? 0 - whole : whole) & 0xFF;
}

/// cvt.<rz | rp>{.satfinite}.ue8m0x2.f32: the exponent field of |x| (the sign is dropped), code c meaning 2^(c - 127).
/// rz truncates; rp takes the next power of two when |x| is none and above 2^-127. What lies below 2^-127, zero too,
/// gives code 0. NaN gives 0xFF; overflow 0xFF, with satfinite 0xFE. (PTX ISA, cvt; cuda_fp8.hpp of CUDA 13.0.)
constexpr std::uint32_t cast_ue8m0(bool round_up, bool satfinite, std::uint32_t x) {
  const std::uint32_t magnitude = x & ~kSign;
  if (magnitude > kInf) return 0xFF;
  std::uint32_t code = magnitude >> 23;
  if (round_up && magnitude > 0x400000 && (magnitude & 0x7FFFFF) != 0) ++code;
  return std::min(code, satfinite ? 0xFEu : 0xFFu);
}

}  // namespace qattn::scalar
