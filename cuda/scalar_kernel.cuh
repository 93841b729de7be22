// One function over many inputs: results, or their digest.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/random.h"
#include "kernels.h"

namespace qattn::gpu {

template <class Function>
__global__ void scalar_kernel(ScalarBatch batch) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  unsigned long long sum = 0;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < batch.count;
       i += stride) {
    const std::uint32_t x = batch.x != nullptr ? batch.x[i] : batch.first + static_cast<std::uint32_t>(i);
    const std::uint32_t y = Function::apply(x);
    if (batch.y != nullptr) batch.y[i] = y;
    sum += mix64(static_cast<std::uint64_t>(x) << 32 | y);
  }
  if (batch.sum != nullptr) atomicAdd(batch.sum, sum);
}

template <class Function>
int run_scalar(const ScalarBatch& batch) {
  scalar_kernel<Function><<<1056, 256>>>(batch);
  return cudaGetLastError();
}

}  // namespace qattn::gpu
