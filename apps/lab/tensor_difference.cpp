#include "lab/tensor_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "format/encode.h"
#include "mma/replay.h"

namespace qattn::lab {

std::vector<std::int64_t> unflatten(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    place[d] = index % shape[d];
    index /= shape[d];
  }
  return place;
}

TensorDifference difference(const Tensor& recorded, const Tensor& computed, const Counts& counts) {
  if (recorded.format != computed.format || recorded.shape != computed.shape) {
    throw Error(ErrorKind::internal,
                fmt::format("recorded {} [{}] beside computed {} [{}]", recorded.format->name,
                            fmt::join(recorded.shape, ", "), computed.format->name, fmt::join(computed.shape, ", ")));
  }
  TensorDifference result;
  const std::int64_t size = recorded.elements();
  result.elements = static_cast<std::uint64_t>(size);
  if (recorded.codes == computed.codes) return result;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint64_t want = recorded.code(i), have = computed.code(i);
    if (want == have || (counts && !counts(i, want, have))) continue;
    ++result.mismatches;
    result.max_ulp = std::max(result.max_ulp, mma::ulp_distance(*recorded.format, want, have));
    if (!result.first) result.first = {unflatten(i, recorded.shape), want, have};
  }
  return result;
}

bool ulp_beyond(const format::Format& format, std::uint64_t recorded, std::uint64_t computed, std::uint64_t allowed) {
  return recorded != computed && mma::ulp_distance(format, recorded, computed) > allowed;
}

std::string code_text(const format::Format& format, std::uint64_t code) {
  return fmt::format("0x{:0{}X} ({:.9g})", code, (format.bits + 3) / 4, format::decode(format, code));
}

Json first_json(const TensorDifference& difference) {
  if (!difference.first) return nullptr;
  return {{"index", difference.first->index},
          {"recorded", fmt::format("0x{:X}", difference.first->recorded)},
          {"computed", fmt::format("0x{:X}", difference.first->computed)}};
}

std::string first_text(const TensorDifference& difference, const format::Format& format) {
  if (!difference.first) return "";
  return fmt::format("element [{}]: recorded {}, computed {}", fmt::join(difference.first->index, ", "),
                     code_text(format, difference.first->recorded), code_text(format, difference.first->computed));
}

}  // namespace qattn::lab
