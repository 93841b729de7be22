// One-dimensional launches: a thread takes every index_stride()-th item from first_index() on.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace qattn::gpu {

inline constexpr int kThreads = 256;

/// Blocks of kThreads threads for `count` items, at least one and no more than keep a large GPU busy.
inline unsigned blocks_for(std::int64_t count) {
  constexpr std::int64_t kMost = 4096;
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, kMost));
}

__device__ inline std::int64_t first_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t index_stride() { return std::int64_t{gridDim.x} * blockDim.x; }

}  // namespace qattn::gpu
