// Digests of all 2^32 results of a function (file formats, section 8): a comparison with hardware on every input that
// fits in 2 KB.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "scalar/function.h"

namespace qattn::scalar {

inline constexpr int kDigestBlocks = 256;
inline constexpr std::uint64_t kDigestBlockInputs = std::uint64_t{1} << 24;

/// One sum for each block of 2^24 consecutive input codes, by the codes' top byte.
using Digest = std::array<std::uint64_t, kDigestBlocks>;

/// The sum modulo 2^64 of mix64(x << 32 | y) over a block. Throws Error(usage) for a function whose input has fewer
/// than 32 bits: its inputs are listed in a vector file instead.
std::uint64_t digest_block(const Function& function, int block);

/// All 256 blocks on `threads` threads (0: as many as the machine has). `progress` is called with the number of blocks
/// done after each, from any thread but never at the same time. The sums have no order: threads do not matter.
Digest digest(const Function& function, int threads = 0, const std::function<void(int)>& progress = {});

/// The blocks in which two digests differ, ascending. Block b holds the inputs b << 24 ... ((b + 1) << 24) - 1. Throws
/// Error(input) unless there are 256 sums.
std::vector<int> differing_blocks(std::span<const std::uint64_t> recorded, const Digest& computed);

}  // namespace qattn::scalar
