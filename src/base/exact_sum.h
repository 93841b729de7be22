// A sum of doubles without rounding: order, threads and shards cannot change it.
#pragma once

#include <array>
#include <cstdint>

#include "base/byte_stream.h"

namespace qattn {

/// Accumulates finite doubles exactly in a fixed-point number that spans every exponent a double can have. Words of
/// 32 bits are kept in 64-bit lanes, so that carries need to be resolved only once in 2,000 additions.
class ExactSum {
 public:
  /// Adds x. Throws Error(internal) for NaN and Inf, which callers count and locate instead.
  void add(double x);
  /// Adds all that `other` holds.
  void merge(const ExactSum& other);
  /// The sum, rounded once to nearest-even (overflow gives Inf).
  double value() const;
  bool operator==(const ExactSum& other) const;

  /// The sum itself, nothing rounded; equal sums give equal bytes. load() throws Error(input) for bytes that save()
  /// does not make.
  void save(ByteWriter& bytes) const;
  static ExactSum load(ByteReader& bytes);

 private:
  // Lane i holds multiples of 2^(32 i - 1074). The largest double needs 2,098 bits; three more words take the carries
  // of any number of additions that can happen.
  static constexpr int kLanes = 69;
  static constexpr int kMaxPending = 2000;
  void resolve_carries();
  bool make_positive();

  std::array<std::int64_t, kLanes> lanes_{};
  int pending_ = 0;
};

}  // namespace qattn
