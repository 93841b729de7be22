// Numbers to codes and back. Every policy is an argument: nothing about a conversion is implied.
#pragma once

#include <cstdint>

#include "format/format.h"

namespace qattn::format {

enum class Rounding : std::uint8_t {
  nearest_even,
  nearest_away,  ///< ties away from zero
  toward_zero,
  up,            ///< toward +Inf
  down,          ///< toward -Inf
  stochastic,    ///< up with probability equal to the discarded fraction, decided by `random_bits`
};

enum class Overflow : std::uint8_t {
  saturate,    ///< to the largest finite magnitude (Inf too)
  inf_or_nan,  ///< to Inf, or to NaN where the format has no Inf; a format with neither saturates
};

enum class Subnormals : std::uint8_t { keep, flush };

/// A complete conversion policy.
struct Policy {
  Rounding rounding = Rounding::nearest_even;
  Overflow overflow = Overflow::saturate;
  Subnormals subnormals = Subnormals::keep;
};

/// The code of x in `format` under `policy`. Works on integers only, so the result does not depend on the caller's
/// rounding mode or flush-to-zero flags. NaN gives the format's canonical NaN (positive quiet for `ieee`); a format
/// without NaN gives zero. `random_bits` is used by stochastic rounding alone: 32 uniform bits, compared with the
/// top 32 bits of the discarded fraction.
std::uint64_t encode(const Format& format, double x, const Policy& policy, std::uint32_t random_bits = 0);
std::uint64_t encode(const Format& format, float x, const Policy& policy, std::uint32_t random_bits = 0);

/// The exact value of a code (every format here fits a double). Bits above `format.bits` are ignored.
double decode(const Format& format, std::uint64_t code);

/// decode() as a float; exact for every format but fp64, where it throws Error(internal).
float decode_float(const Format& format, std::uint64_t code);

/// The largest finite magnitude, exactly.
double max_finite(const Format& format);

}  // namespace qattn::format
