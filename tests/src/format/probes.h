// The inputs where conversions go wrong: every number of a format, every midpoint, and their neighbours.
#pragma once

#include <vector>

#include "format/format.h"

namespace qattn::format {

struct Probes {
  std::vector<double> doubles;
  std::vector<float> floats;
};

/// For formats of at most 16 bits every number and every midpoint of both signs, also the midpoint and the number just
/// beyond the largest finite one; for wider formats those at the ends, around powers of two and a seeded sample. Each
/// with the two neighbouring doubles, and the two (or three) nearest floats.
Probes probes(const Format& format);

/// Zeros, infinities, NaNs quiet and signalling of both signs, the ends of float's and double's ranges.
Probes special_probes();

}  // namespace qattn::format
