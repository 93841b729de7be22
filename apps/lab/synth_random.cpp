// Marsaglia's polar method on counted random bits.
#include "lab/synth_random.h"

#include <cmath>

#include "base/elementary.h"
#include "base/random.h"

namespace qattn::lab {

double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  // An attempt fails with probability 1 - pi/4; the 128 that a pair has are never used up.
  for (std::uint64_t counter = index / 2 * 256;; counter += 2) {
    const double u = 2.0 * random_unit(seed, stream, counter) - 1.0;
    const double v = 2.0 * random_unit(seed, stream, counter + 1) - 1.0;
    // Neither is 0: random_unit is the centre of a cell.
    const double s = u * u + v * v;
    if (s >= 1.0) continue;
    return (index % 2 == 0 ? u : v) * std::sqrt(-2.0 * elementary::log(s) / s);
  }
}

}  // namespace qattn::lab
