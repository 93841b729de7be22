// Recorded inputs and results of a function against ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "scalar/function.h"

namespace qattn::scalar {

/// The outcome of a replay. Codes are compared, NaN codes included.
struct Replay {
  struct Mismatch {
    std::size_t index;
    std::uint32_t x, recorded, computed;
  };

  std::uint64_t elements = 0;
  std::uint64_t mismatches = 0;
  double max_ulp = 0;  ///< largest code_distance()
  std::optional<Mismatch> first;
};

/// Evaluates the function for every x and compares with what was recorded. Throws Error(input) when the spans differ in
/// length.
Replay replay(const Function& function, std::span<const std::uint32_t> x, std::span<const std::uint32_t> recorded);

/// How many representable numbers apart two codes of a format are (-0 and +0 are the same number); 0 for two NaNs, Inf
/// for a NaN and a number.
double code_distance(const format::Format& format, std::uint32_t a, std::uint32_t b);

}  // namespace qattn::scalar
