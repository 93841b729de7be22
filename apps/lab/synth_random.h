// Normally distributed numbers with the same bits on every machine.
#pragma once

#include <cstdint>

namespace qattn::lab {

/// A number of the standard normal distribution that depends on (seed, stream, index) alone. Marsaglia's polar method
/// (SIAM Review 6, 1964) on base/random.h's bits: attempt a = 0, 1, ... for the pair p = index / 2 takes
/// u = 2 random_unit(seed, stream, 256 p + 2 a) - 1 and v likewise from 2 a + 1, and is rejected unless
/// s = RN(RN(u u) + RN(v v)) < 1. The even index gets u, the odd one v, times sqrt(-2 log(s) / s); log is
/// base/elementary.h's, every operation is rounded to nearest. `index` < 2^56. Needs the default floating-point
/// environment.
double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace qattn::lab
