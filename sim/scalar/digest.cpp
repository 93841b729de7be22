#include "scalar/digest.h"

#include <numeric>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "scalar/blocks.h"

namespace qattn::scalar {

std::uint64_t digest_block(const Function& function, int block) {
  if (function.input_bits() != 32) {
    throw Error(ErrorKind::usage, "digest of " + std::string(function.name) + ": its input has " +
                                      std::to_string(function.input_bits()) + " bits, digests need 32");
  }
  constexpr std::size_t run = 4096;  // both arrays stay in the first-level cache
  std::array<std::uint32_t, run> x, y;
  const auto first = static_cast<std::uint32_t>(block) << 24;
  std::uint64_t sum = 0;
  for (std::uint32_t offset = 0; offset < kDigestBlockInputs; offset += run) {
    std::iota(x.begin(), x.end(), first + offset);
    function.span(x, y);
    for (std::size_t i = 0; i < run; ++i) sum += mix64(std::uint64_t{x[i]} << 32 | y[i]);
  }
  return sum;
}

Digest digest(const Function& function, int threads, const std::function<void(int)>& progress) {
  Digest sums{};
  const auto sum = [&](int block) { sums[static_cast<std::size_t>(block)] = digest_block(function, block); };
  for_each_block(threads, sum, progress);
  return sums;
}

std::vector<int> differing_blocks(std::span<const std::uint64_t> recorded, const Digest& computed) {
  if (recorded.size() != computed.size()) {
    throw Error(ErrorKind::input, "digest: expected 256 sums, found " + std::to_string(recorded.size()));
  }
  std::vector<int> blocks;
  for (int block = 0; block < kDigestBlocks; ++block) {
    const auto i = static_cast<std::size_t>(block);
    if (recorded[i] != computed[i]) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace qattn::scalar
