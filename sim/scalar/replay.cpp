#include "scalar/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace qattn::scalar {
namespace {

/// The code's place among the format's numbers, 0 for zero.
std::int64_t rank(const format::Format& format, std::uint32_t code) {
  const auto sign = static_cast<std::int64_t>(format::sign_mask(format));
  const auto magnitude = static_cast<std::int64_t>(code & format::magnitude_mask(format));
  const bool negative = (static_cast<std::int64_t>(code) & sign) != 0;
  if (format.specials == format::Specials::integer) return negative ? magnitude - sign : magnitude;
  return negative ? -magnitude : magnitude;
}

}  // namespace

double code_distance(const format::Format& format, std::uint32_t a, std::uint32_t b) {
  const bool nan_a = format::is_nan(format, a), nan_b = format::is_nan(format, b);
  if (nan_a || nan_b) return nan_a && nan_b ? 0.0 : std::numeric_limits<double>::infinity();
  return static_cast<double>(std::abs(rank(format, a) - rank(format, b)));
}

Replay replay(const Function& function, std::span<const std::uint32_t> x, std::span<const std::uint32_t> recorded) {
  if (x.size() != recorded.size()) {
    throw Error(ErrorKind::input, "replay of " + std::string(function.name) + ": x has " + std::to_string(x.size()) +
                                      " elements, y " + std::to_string(recorded.size()));
  }
  Replay result;
  result.elements = x.size();
  std::array<std::uint32_t, 4096> computed;
  for (std::size_t start = 0; start < x.size(); start += computed.size()) {
    const std::size_t count = std::min(computed.size(), x.size() - start);
    function.span(x.subspan(start, count), std::span(computed).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (computed[i] == recorded[start + i]) continue;
      ++result.mismatches;
      result.max_ulp = std::max(result.max_ulp, code_distance(*function.output, computed[i], recorded[start + i]));
      if (!result.first) result.first = {start + i, x[start + i], recorded[start + i], computed[i]};
    }
  }
  return result;
}

}  // namespace qattn::scalar
