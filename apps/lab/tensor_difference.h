// Two tensors of codes side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/report.h"
#include "tensor/tensor.h"

namespace qattn::lab {

struct TensorDifference {
  std::uint64_t elements = 0;
  std::uint64_t mismatches = 0;
  /// Largest distance in units in the last place of the format, counted over its ordered numbers, so across zero too;
  /// NaN against a number is the largest integer.
  std::uint64_t max_ulp = 0;
  struct First {
    std::vector<std::int64_t> index;
    std::uint64_t recorded = 0, computed = 0;
  };
  std::optional<First> first;
};

/// Whether a difference of element `index` counts: both codes are given.
using Counts = std::function<bool(std::int64_t index, std::uint64_t recorded, std::uint64_t computed)>;

/// Compares codes, NaN codes included: the same NaN is a match. Without `counts` every difference counts. Throws
/// Error(internal) when format or shape differ.
TensorDifference difference(const Tensor& recorded, const Tensor& computed, const Counts& counts = nullptr);

/// Whether two codes are more than `allowed` units in the last place apart; the same code never is, NaN included.
bool ulp_beyond(const format::Format& format, std::uint64_t recorded, std::uint64_t computed, std::uint64_t allowed);

/// Element `index` of a shape, dimension by dimension.
std::vector<std::int64_t> unflatten(std::int64_t index, const std::vector<std::int64_t>& shape);

/// "0x3C01 (1.0009765625)".
std::string code_text(const format::Format& format, std::uint64_t code);

/// {"index", "recorded", "computed"} of the first difference, or null.
Json first_json(const TensorDifference& difference);
/// "element [0, 1, 5, 3]: recorded 0x3C01 (1.00098), computed 0x3C00 (1)"; empty without a difference.
std::string first_text(const TensorDifference& difference, const format::Format& format);

}  // namespace qattn::lab
