// Counter-based operands and digests of results, on the device; as kernels.h.
#pragma once

#include <cstdint>

#include "mma/operand_families.h"

namespace qattn::gpu {

/// Which tiles of the counter-based operands (mma/operand_families.h).
struct TileRange {
  mma::OperandRecipe recipe;
  mma::OperandFamily family;
  std::uint64_t seed;
  std::uint64_t first_tile;
  int tiles;
};

/// Fills the inputs of a batch of 64 x 64 tiles.
int generate_tiles(const TileRange& range, int operand_bytes, int accumulator_bytes, void* a, void* b, void* c);

/// Adds every output's digest term (mma/digest.h) to *sum.
int digest_tiles(const void* d, int result_bytes, std::uint64_t first_tile, int tiles, unsigned long long* sum);

}  // namespace qattn::gpu
