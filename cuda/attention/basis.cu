// Rotation and balance.
#include <cuda_runtime.h>

#include "attention/basis.h"
#include "attention/launch.cuh"
#include "base/random.h"

namespace qattn::gpu {
namespace {

using std::int64_t;
using std::uint32_t;

constexpr int kRotateThreads = 64;

/// A block to a row, which lies in shared memory. Stages are as the CPU's: pairs at distance 1, 2, 4, ...
__global__ void rotate_kernel(DeviceMatrix x, std::uint64_t seed, double factor) {
  extern __shared__ double row[];
  float* const values = x.values + int64_t{blockIdx.x} * x.columns;
  const int columns = static_cast<int>(x.columns);
  const int thread = static_cast<int>(threadIdx.x);
  for (int c = thread; c < columns; c += kRotateThreads) {
    const double value = static_cast<double>(values[c]);
    row[c] = random_bits(seed, 0, static_cast<std::uint64_t>(c)) >> 63 != 0 ? -value : value;
  }
  __syncthreads();
  for (int distance = 1; distance < columns; distance *= 2) {
    for (int pair = thread; pair < columns / 2; pair += kRotateThreads) {
      const int i = pair / distance * 2 * distance + pair % distance;
      const double a = row[i], b = row[i + distance];
      row[i] = add(a, b);
      row[i + distance] = add(a, -b);
    }
    __syncthreads();
  }
  for (int c = thread; c < columns; c += kRotateThreads) values[c] = to_float(multiply(row[c], factor));
}

/// Positive and finite.
__device__ bool usable(uint32_t magnitude) { return magnitude > 0 && magnitude < 0x7F800000u; }

__global__ void balance_kernel(const uint32_t* q_amax, const uint32_t* k_amax, int64_t channels, float* factors) {
  for (int64_t c = first_index(); c < channels; c += index_stride()) {
    const double q = static_cast<double>(__uint_as_float(q_amax[c]));
    const double k = static_cast<double>(__uint_as_float(k_amax[c]));
    factors[c] = usable(q_amax[c]) && usable(k_amax[c]) ? to_float(__dsqrt_rn(divide(q, k))) : 1.0f;
  }
}

__global__ void channels_kernel(bool by_multiplication, DeviceMatrix x, const float* factors) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    x.values[i] = scaled(by_multiplication, x.values[i], factors[i % x.columns]);
  }
}

}  // namespace

int rotate_rows(const DeviceMatrix& x, std::uint64_t seed, double factor) {
  const std::size_t shared = static_cast<std::size_t>(x.columns) * sizeof(double);
  rotate_kernel<<<static_cast<unsigned>(x.rows), kRotateThreads, shared>>>(x, seed, factor);
  return cudaGetLastError();
}

int find_balance(const uint32_t* q_amax, const uint32_t* k_amax, int64_t channels, float* factors) {
  balance_kernel<<<blocks_for(channels), kThreads>>>(q_amax, k_amax, channels, factors);
  return cudaGetLastError();
}

int divide_channels(const DeviceMatrix& x, const float* factors) {
  channels_kernel<<<blocks_for(x.size()), kThreads>>>(false, x, factors);
  return cudaGetLastError();
}

int multiply_channels(const DeviceMatrix& x, const float* factors) {
  channels_kernel<<<blocks_for(x.size()), kThreads>>>(true, x, factors);
  return cudaGetLastError();
}

}  // namespace qattn::gpu
