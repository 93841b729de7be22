// The mathematical functions themselves, in multiple precision: what a result is compared with. Private to the room.
#pragma once

#include "format/format.h"
#include "scalar/function.h"

namespace qattn::scalar {

/// The value of the reference function at x, rounded to odd: truncated to a double, whose last bit is then set unless
/// that was exact. Rounding it once more to any format of at most 51 significant bits is as good as rounding the exact
/// value. IEEE 754's conventions at zeros and infinities; NaN where the function has no value. Magnitudes beyond
/// 2^+-1000 stand as 2^+-1000.
double exact_to_odd(Reference reference, double x);

/// (y - exact) in units in the last place of `format` at the exact value (1 for integers; below the smallest normal
/// number its own). NaN where the function has no finite value; y must be finite.
double ulps_from_exact(Reference reference, double x, const format::Format& format, double y);

/// The unit in the last place of a format at a finite number: 2^(max(exponent, smallest normal's) - mantissa bits).
double ulp_at(const format::Format& format, double value);

}  // namespace qattn::scalar
