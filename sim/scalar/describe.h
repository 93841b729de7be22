// One result under the magnifying glass: what `qattn scalar FUNCTION X` shows.
#pragma once

#include <cstdint>
#include <optional>

#include "scalar/function.h"

namespace qattn::scalar {

/// A segment of MUFU's table: y is c0 + c1 w + c2 w^2 in fixed point (scalar/mufu.h gives each function's scales).
struct Segment {
  Mufu mufu;
  std::uint32_t argument;  ///< the binary32 code that the instruction was given
  std::uint32_t index;
  int segments;  ///< in the table
  std::uint32_t w;
  int w_bits;
  std::int32_t c0, c1, c2, bias;
};

struct Description {
  const Function* function;
  std::uint32_t x, y;  ///< codes
  double x_value, y_value;
  /// The exact value rounded once to the result's format, nearest-even, as a code of `output`; Inf or the format's
  /// largest number beyond its range. Absent where the function has no value (NaN).
  std::optional<std::uint32_t> correctly_rounded;
  double exact;  ///< the double nearest to the exact value or one beside it; NaN where there is none
  /// y - exact in units in the last place of the result's format at the exact value; absent unless both are finite.
  std::optional<double> ulps;
  std::optional<Segment> segment;  ///< absent where no table was used (special ranges too)
};

/// Evaluates and explains function(x), x a code of function.input. The exact value comes from multiple precision, not
/// from libm.
Description describe(const Function& function, std::uint32_t x);

/// The segment that an instruction uses for an argument.
std::optional<Segment> find_segment(Mufu mufu, std::uint32_t argument);

}  // namespace qattn::scalar
