// Seeded test matrices.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "tensor/matrix.h"

namespace matrices {

inline double uniform(std::uint64_t seed, std::int64_t index) {
  return 2 * qattn::random_unit(seed, 0, static_cast<std::uint64_t>(index)) - 1;
}

/// Uniform in (-1, 1).
inline qattn::MatrixF plain(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  qattn::MatrixF x(rows, columns);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(uniform(seed, i));
  return x;
}

/// Magnitudes over `binades` powers of two below 1, one element in 16 an exact small multiple of 1/8, one in 16 zero.
inline qattn::MatrixF wide(std::int64_t rows, std::int64_t columns, std::uint64_t seed, int binades) {
  qattn::MatrixF x = plain(rows, columns, seed);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::uint64_t bits = qattn::random_bits(seed, 1, static_cast<std::uint64_t>(i));
    float& value = x.data()[i];
    value = std::ldexp(value, -static_cast<int>((bits >> 32) % static_cast<std::uint64_t>(binades)));
    if (bits % 16 == 0) value = static_cast<float>(static_cast<int>(bits >> 8 & 255) - 128) / 8;
    if (bits % 16 == 1) value = 0;
  }
  return x;
}

/// Integers in [-bound, bound].
inline qattn::MatrixF integers(std::int64_t rows, std::int64_t columns, std::uint64_t seed, int bound) {
  qattn::MatrixF x = plain(rows, columns, seed);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = std::round(x.data()[i] * static_cast<float>(bound));
  return x;
}

}  // namespace matrices
