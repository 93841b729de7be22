// 128-bit integers: every aligned sum of the models fits them.
#pragma once

#include <bit>
#include <cstdint>

namespace qattn::mma {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

constexpr int bit_width(UInt128 x) {
  const auto high = static_cast<std::uint64_t>(x >> 64);
  return high != 0 ? 64 + std::bit_width(high) : std::bit_width(static_cast<std::uint64_t>(x));
}

/// floor(x * 2^shift) for any shift; the caller knows that a left shift fits.
constexpr UInt128 scale_down(UInt128 x, int shift) {
  if (shift >= 0) return x << shift;
  return shift <= -128 ? UInt128{0} : x >> -shift;
}

}  // namespace qattn::mma
