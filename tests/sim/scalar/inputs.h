// Inputs that decide, and a plain evaluation over them, for the tests of this room.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace qattn::scalar {

inline std::uint32_t code(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float number(std::uint32_t x) { return std::bit_cast<float>(x); }

/// `count` codes for every one of the 2^16 upper halves: both ends, the middle, and random ones.
inline std::vector<std::uint32_t> spread_codes(int count) {
  constexpr std::uint32_t fixed[] = {0x0000, 0xFFFF, 0x8000, 0x0001, 0x7FFF, 0x8001};
  std::vector<std::uint32_t> codes;
  codes.reserve(static_cast<std::size_t>(count) << 16);
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (int i = 0; i < count; ++i) {
      const auto random = static_cast<std::uint32_t>(random_bits(6, upper, static_cast<std::uint64_t>(i))) & 0xFFFF;
      codes.push_back(upper << 16 | (i < 6 ? fixed[i] : random));
    }
  }
  return codes;
}

}  // namespace qattn::scalar
