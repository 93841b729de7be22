// Counter-based operands and digests of results, on the device.
#include <cuda_runtime.h>

#include "kernels.h"

namespace qattn::gpu {
namespace {

using std::uint64_t;

__device__ void store_code(void* codes, int bytes, std::size_t index, uint64_t code) {
  switch (bytes) {
    case 1:
      static_cast<std::uint8_t*>(codes)[index] = static_cast<std::uint8_t>(code);
      break;
    case 2:
      static_cast<std::uint16_t*>(codes)[index] = static_cast<std::uint16_t>(code);
      break;
    case 4:
      static_cast<std::uint32_t*>(codes)[index] = static_cast<std::uint32_t>(code);
      break;
    default:
      static_cast<uint64_t*>(codes)[index] = code;
  }
}

__device__ uint64_t load_code(const void* codes, int bytes, std::size_t index) {
  switch (bytes) {
    case 1:
      return static_cast<const std::uint8_t*>(codes)[index];
    case 2:
      return static_cast<const std::uint16_t*>(codes)[index];
    case 4:
      return static_cast<const std::uint32_t*>(codes)[index];
    default:
      return static_cast<const uint64_t*>(codes)[index];
  }
}

/// One block a tile. A and B have 64 rows each.
__global__ void operand_kernel(TileRange range, int bytes, int side, void* codes) {
  const uint64_t tile = range.first_tile + blockIdx.x;
  const uint64_t key = mma::operand_key(range.seed, range.family, tile, side);
  const int k = range.recipe.k, count = mma::kTileRows * k;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const uint64_t code = mma::operand_code(range.recipe, range.family, tile, side, key, i / k, i % k);
    store_code(codes, bytes, static_cast<std::size_t>(blockIdx.x) * count + i, code);
  }
}

__global__ void accumulator_kernel(TileRange range, int operand_bytes, int bytes, const void* a, const void* b,
                                   void* c) {
  const uint64_t tile = range.first_tile + blockIdx.x;
  const uint64_t key = mma::operand_key(range.seed, range.family, tile, 2);
  const std::size_t first_row = static_cast<std::size_t>(blockIdx.x) * mma::kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < mma::kTileOutputs; i += static_cast<int>(blockDim.x)) {
    const int row = i / mma::kTileColumns, column = i % mma::kTileColumns;
    const uint64_t a0 = load_code(a, operand_bytes, (first_row + row) * range.recipe.k);
    const uint64_t b0 = load_code(b, operand_bytes, (first_row + column) * range.recipe.k);
    const uint64_t code = mma::accumulator_code(range.recipe, range.family, tile, key, row, column, a0, b0);
    store_code(c, bytes, static_cast<std::size_t>(blockIdx.x) * mma::kTileOutputs + i, code);
  }
}

__global__ void digest_kernel(const void* d, int bytes, uint64_t first_tile, unsigned long long* sum) {
  uint64_t own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < mma::kTileOutputs; i += static_cast<int>(blockDim.x)) {
    const uint64_t code = load_code(d, bytes, static_cast<std::size_t>(blockIdx.x) * mma::kTileOutputs + i);
    const uint64_t index = (first_tile + blockIdx.x) * mma::kTileOutputs + static_cast<uint64_t>(i);
    own += mix64(mix64(index) ^ code);
  }
  atomicAdd(sum, own);
}

static_assert(mma::kTileRows == mma::kTileColumns, "A and B of a tile have equally many rows");

}  // namespace

int generate_tiles(const TileRange& range, int operand_bytes, int accumulator_bytes, void* a, void* b, void* c) {
  operand_kernel<<<range.tiles, 256>>>(range, operand_bytes, 0, a);
  operand_kernel<<<range.tiles, 256>>>(range, operand_bytes, 1, b);
  accumulator_kernel<<<range.tiles, 256>>>(range, operand_bytes, accumulator_bytes, a, b, c);
  return cudaGetLastError();
}

int digest_tiles(const void* d, int result_bytes, uint64_t first_tile, int tiles, unsigned long long* sum) {
  digest_kernel<<<tiles, 256>>>(d, result_bytes, first_tile, sum);
  return cudaGetLastError();
}

}  // namespace qattn::gpu
