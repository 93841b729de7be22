// Byte order: files are little-endian unless they say otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace qattn::io {

/// The integer in the first `size` (at most 8) bytes, zero-extended.
inline std::uint64_t load_little_endian(const std::byte* bytes, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

/// Turns big-endian elements of `size` bytes into little-endian ones, or back.
inline void reverse_each(std::vector<std::byte>& bytes, std::size_t size) {
  for (auto first = bytes.begin(); bytes.end() - first >= static_cast<std::ptrdiff_t>(size);) {
    const auto last = first + static_cast<std::ptrdiff_t>(size);
    std::reverse(first, last);
    first = last;
  }
}

}  // namespace qattn::io
