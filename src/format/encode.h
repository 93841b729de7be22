// Numbers to codes and back. Every policy is an argument: nothing about a conversion is implied.
#pragma once

#include <cstdint>
#include <span>

#include "format/format.h"

namespace qattn::format {

enum class Rounding : std::uint8_t {
  nearest_even,  ///< ties to the even code; E8M0 has no even significand, its ties go up (IEEE 754-2019, 4.3.1)
  nearest_away,  ///< ties away from zero
  toward_zero,
  up,          ///< toward +Inf
  down,        ///< toward -Inf
  stochastic,  ///< away from zero with probability equal to the discarded fraction, decided by `random_bits`
};

enum class Overflow : std::uint8_t {
  saturate,    ///< to the largest finite magnitude (Inf too)
  inf_or_nan,  ///< to Inf, or to NaN where the format has no Inf; a format with neither saturates
};

enum class Subnormals : std::uint8_t {
  keep,
  flush,  ///< a result that is subnormal after rounding becomes zero of its sign, in every rounding mode
};

/// A complete conversion policy.
///
/// x is rounded as if the exponent had no upper end; the conversion overflows when that result is larger in magnitude
/// than the largest finite number. So, with `inf_or_nan`:
/// - finite x overflows to Inf (or NaN) from half a unit beyond the largest finite number on when rounding to nearest
///   (E4M3: 464 ties to 448, the next float gives NaN; E5M2: 61440 ties to Inf), as in IEEE 754 and in ml_dtypes;
/// - `toward_zero`, and `up` below or `down` above zero, never overflow: they give the largest finite magnitude, as in
///   IEEE 754, in formats without Inf too;
/// - an infinite x gives Inf (or NaN) under every rounding.
/// With `saturate` every overflow and every infinite x gives the largest finite magnitude of its sign.
///
/// Negative x in a format without sign (UE4M3, E8M0) is below the range: `saturate` gives the smallest code (0 for
/// UE4M3, 2^-127 for E8M0), `inf_or_nan` NaN. -0 is 0.
/// E8M0 has no zero: 0 gives 2^-127 with `saturate` and NaN with `inf_or_nan` (as ml_dtypes); positive x below 2^-127
/// gives 2^-127 under every policy. Its nearest is nearest in value: 1.5 ties to 2, 3 ties to 4.
/// Integers round to an integer and clamp to the two's complement range, -128..127 and -8..7, under either overflow
/// policy; a quantizer that wants a symmetric range clamps before. `flush` means nothing to E8M0 and to integers.
struct Policy {
  Rounding rounding = Rounding::nearest_even;
  Overflow overflow = Overflow::saturate;
  Subnormals subnormals = Subnormals::keep;
};

/// The code of x in `format` under `policy`. Works on integers only, so the result does not depend on the caller's
/// rounding mode or flush-to-zero flags. NaN, of either sign, gives the format's nan_code(); a format without NaN
/// gives zero. -0 keeps its sign where the format has -0. `random_bits` is used by stochastic rounding alone: 32
/// uniform bits; the magnitude is rounded up if they are below the top 32 bits of the discarded fraction.
std::uint64_t encode(const Format& format, double x, const Policy& policy, std::uint32_t random_bits = 0);
std::uint64_t encode(const Format& format, float x, const Policy& policy, std::uint32_t random_bits = 0);

/// The exact value of a code (every format here fits a double). Bits above `format.bits` are ignored, and so is the
/// sign of UE4M3. Every NaN code gives the same positive quiet NaN. Works on integers only.
double decode(const Format& format, std::uint64_t code);

/// decode() as a float; exact for every format but fp64, where it throws Error(internal).
float decode_float(const Format& format, std::uint64_t code);

/// encode() of each element, the same bits faster. `random_bits` has one element for each of x when rounding is
/// stochastic and is not read otherwise. Throws Error(internal) when the sizes differ or a code takes more than 32
/// bits.
void encode_span(const Format& format, std::span<const float> x, const Policy& policy, std::span<std::uint32_t> codes,
                 std::span<const std::uint32_t> random_bits = {});

/// decode_float() of each code, the same bits faster. Throws Error(internal) when the sizes differ or for fp64.
void decode_span(const Format& format, std::span<const std::uint32_t> codes, std::span<float> values);

/// The values of all 2^bits codes of a format of at most 16 bits, by code; throws Error(internal) for a wider one.
/// Built once; lives until the program ends.
std::span<const float> decode_table(const Format& format);

/// The largest finite magnitude, exactly; of integers the largest positive number.
double max_finite(const Format& format);

/// The smallest positive normal number, and the smallest positive number. Where the format has no subnormals the two
/// agree: 2^-127 for E8M0, 1 for integers.
double min_normal(const Format& format);
double min_subnormal(const Format& format);

}  // namespace qattn::format
