// Means, and dot products with means, in the order in which the CPU adds: a sum in f64 is one thread's, from the first
// term to the last.
#include <cuda_runtime.h>

#include "attention/launch.cuh"
#include "attention/smooth.h"

namespace qattn::gpu {
namespace {

using std::int64_t;

/// Blocks of this kernel take few columns each, so that the few sums of a long matrix spread over the GPU.
constexpr int kMeanThreads = 32;

/// A thread to a mean: blockIdx.x is the block of tokens, of which there may be more than a grid has in y.
__global__ void token_means_kernel(DeviceMatrix x, int64_t block_rows, float* means) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= x.columns) return;
  const int64_t block = blockIdx.x;
  const int64_t first = block * block_rows;
  const int64_t end = min(first + block_rows, x.rows);
  double sum = 0.0;
#pragma unroll 16
  for (int64_t row = first; row < end; ++row) {
    sum = add(sum, static_cast<double>(x.values[row * x.columns + column]));
  }
  means[block * x.columns + column] = to_float(divide(sum, static_cast<double>(end - first)));
}

__global__ void subtract_kernel(DeviceMatrix x, int64_t block_rows, const float* means) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    const int64_t block = i / x.columns / block_rows;
    x.values[i] = add(x.values[i], -means[block * x.columns + i % x.columns]);
  }
}

/// a . b over `count` channels.
__device__ double dot(const float* a, const float* b, int64_t count) {
  double sum = 0.0;
  for (int64_t c = 0; c < count; ++c) {
    sum = add(sum, multiply(static_cast<double>(a[c]), static_cast<double>(b[c])));
  }
  return sum;
}

__global__ void mean_scores_kernel(DeviceMatrix q, const float* k_mean, double* scores) {
  for (int64_t row = first_index(); row < q.rows; row += index_stride()) {
    scores[row] = dot(q.values + row * q.columns, k_mean, q.columns);
  }
}

__global__ void correction_kernel(DeviceMatrix q_means, DeviceMatrix k, ElementType rounded_to, float* correction) {
  const int64_t count = q_means.rows * k.rows;
  for (int64_t i = first_index(); i < count; i += index_stride()) {
    const float* mean = q_means.values + i / k.rows * k.columns;
    correction[i] = rounded(rounded_to, dot(mean, k.values + i % k.rows * k.columns, k.columns));
  }
}

}  // namespace

int find_token_means(const DeviceMatrix& x, int64_t block_rows, float* means) {
  const dim3 grid(static_cast<unsigned>((x.rows + block_rows - 1) / block_rows),
                  static_cast<unsigned>((x.columns + kMeanThreads - 1) / kMeanThreads));
  token_means_kernel<<<grid, kMeanThreads>>>(x, block_rows, means);
  return cudaGetLastError();
}

int subtract_means(const DeviceMatrix& x, int64_t block_rows, const float* means) {
  subtract_kernel<<<blocks_for(x.size()), kThreads>>>(x, block_rows, means);
  return cudaGetLastError();
}

int find_mean_scores(const DeviceMatrix& q, const float* k_mean, double* scores) {
  mean_scores_kernel<<<blocks_for(q.rows), kThreads>>>(q, k_mean, scores);
  return cudaGetLastError();
}

int find_correction(const DeviceMatrix& q_means, const DeviceMatrix& k, ElementType rounded_to, float* correction) {
  correction_kernel<<<blocks_for(q_means.rows * k.rows), kThreads>>>(q_means, k, rounded_to, correction);
  return cudaGetLastError();
}

}  // namespace qattn::gpu
