// Counter-based random bits: a number depends on (seed, stream, index) alone, so that order and threads do not matter.
#pragma once

#include <cstdint>

namespace qattn {

/// splitmix64's output step (Steele, Lea, Flood 2014): a bijection on 64-bit integers. It is also the mix of the
/// digests that section 8 of the file formats defines.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// 64 uniform bits for element `index` of `stream` under `seed`.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return mix64(mix64(mix64(seed) ^ stream) ^ index);
}

/// A double uniform in (0, 1): the centre of one of 2^52 equal cells, so never 0 or 1.
constexpr double random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return (static_cast<double>(random_bits(seed, stream, index) >> 12) + 0.5) * 0x1p-52;
}

}  // namespace qattn
