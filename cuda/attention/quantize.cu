// Quantizing on the device: largest magnitudes, scales, codes.
#include <cuda_runtime.h>

#include "attention/launch.cuh"
#include "attention/quantize.h"

namespace qattn::gpu {
namespace {

using std::int64_t;
using std::uint32_t;

__global__ void decode_kernel(ElementType type, const void* codes, double descale, float factor, DeviceMatrix x) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    x.values[i] = multiply(to_float(multiply(decode(type, codes, i), descale)), factor);
  }
}

/// Magnitudes compare as their bits do.
__device__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

/// Groups that do not depend on the column: a warp to a row.
__global__ void row_amax_kernel(DeviceMatrix x, DeviceGroups groups, uint32_t* amax) {
  const int64_t warps = index_stride() / warpSize;
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  for (int64_t row = first_index() / warpSize; row < x.rows; row += warps) {
    uint32_t largest = 0;
    for (int64_t c = lane; c < x.columns; c += warpSize) {
      largest = max(largest, magnitude_bits(x.values[row * x.columns + c]));
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (lane == 0) atomicMax(amax + groups.row_base[row], largest);
  }
}

constexpr int kRowsOfThread = 32;

/// Groups of any form: a thread to the part of a column that lies in kRowsOfThread rows. Rows lie along the grid's x,
/// which alone takes more than 65,535 blocks.
__global__ void column_amax_kernel(DeviceMatrix x, DeviceGroups groups, uint32_t* amax) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= x.columns) return;
  const int64_t first = int64_t{blockIdx.x} * kRowsOfThread;
  const int64_t end = min(first + kRowsOfThread, x.rows);
  uint32_t* const column_amax = amax + groups.column_offset[column];
  uint32_t largest = 0;
  for (int64_t row = first; row < end; ++row) {
    largest = max(largest, magnitude_bits(x.values[row * x.columns + column]));
    const bool group_ends = row + 1 == end || groups.row_base[row + 1] != groups.row_base[row];
    if (!group_ends) continue;
    atomicMax(column_amax + groups.row_base[row], largest);
    largest = 0;
  }
}

__global__ void scale_kernel(ScaleSpec spec, int64_t groups, DeviceScales scales) {
  for (int64_t g = first_index(); g < groups; g += index_stride()) {
    scales.scales[g] = scale_of(spec, __uint_as_float(scales.amax[g]));
    scales.factors[g] = factor_of(spec, scales.scales[g]);
  }
}

__device__ void store_code(const Encoding& encoding, void* codes, int64_t i, uint32_t code) {
  const bool two_bytes = encoding.type == ElementType::fp16 || encoding.type == ElementType::bf16;
  if (two_bytes) {
    static_cast<std::uint16_t*>(codes)[i] = static_cast<std::uint16_t>(code);
  } else {
    static_cast<std::uint8_t*>(codes)[i] = static_cast<std::uint8_t>(code);
  }
}

__global__ void quantize_kernel(DeviceMatrix x, DeviceGroups groups, bool by_multiplication, const float* factors,
                                Encoding encoding, void* codes) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    const float factor = factors[groups.row_base[i / x.columns] + groups.column_offset[i % x.columns]];
    store_code(encoding, codes, i, encode(encoding, scaled(by_multiplication, x.values[i], factor)));
  }
}

__global__ void cast_kernel(DeviceMatrix x, Encoding encoding, void* codes) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    store_code(encoding, codes, i, encode(encoding, x.values[i]));
  }
}

/// target[i] = scales[part[i] + offset[0]]: the scale of a line is that of its first element.
__global__ void spread_kernel(const float* scales, const std::int32_t* part, const std::int32_t* offset, int64_t count,
                              float* target) {
  for (int64_t i = first_index(); i < count; i += index_stride()) target[i] = scales[part[i] + offset[0]];
}

__global__ void dequantize_kernel(ElementType type, const void* codes, const float* row_scale,
                                  const float* column_scale, DeviceMatrix x) {
  for (int64_t i = first_index(); i < x.size(); i += index_stride()) {
    float value = to_float(decode(type, codes, i));
    if (row_scale != nullptr) value = multiply(value, row_scale[i / x.columns]);
    if (column_scale != nullptr) value = multiply(value, column_scale[i % x.columns]);
    x.values[i] = value;
  }
}

}  // namespace

int decode_values(ElementType type, const void* codes, double descale, float factor, const DeviceMatrix& x) {
  decode_kernel<<<blocks_for(x.size()), kThreads>>>(type, codes, descale, factor, x);
  return cudaGetLastError();
}

int find_largest(const DeviceMatrix& x, const DeviceGroups& groups, uint32_t* amax) {
  const cudaError_t cleared = cudaMemsetAsync(amax, 0, static_cast<std::size_t>(groups.groups) * sizeof(uint32_t));
  if (cleared != cudaSuccess) return cleared;
  if (groups.column_groups == 1) {
    row_amax_kernel<<<blocks_for(x.rows * 32), kThreads>>>(x, groups, amax);
  } else {
    const dim3 grid(static_cast<unsigned>((x.rows + kRowsOfThread - 1) / kRowsOfThread),
                    static_cast<unsigned>((x.columns + kThreads - 1) / kThreads));
    column_amax_kernel<<<grid, kThreads>>>(x, groups, amax);
  }
  return cudaGetLastError();
}

int find_scales(const DeviceMatrix& x, const DeviceGroups& groups, const ScaleSpec& spec, const DeviceScales& scales) {
  const int found = find_largest(x, groups, scales.amax);
  if (found != cudaSuccess) return found;
  scale_kernel<<<blocks_for(groups.groups), kThreads>>>(spec, groups.groups, scales);
  return cudaGetLastError();
}

int quantize_values(const DeviceMatrix& x, const DeviceGroups& groups, bool multiply, const float* factors,
                    const Encoding& encoding, void* codes) {
  quantize_kernel<<<blocks_for(x.size()), kThreads>>>(x, groups, multiply, factors, encoding, codes);
  return cudaGetLastError();
}

int cast_values(const DeviceMatrix& x, const Encoding& encoding, void* codes) {
  cast_kernel<<<blocks_for(x.size()), kThreads>>>(x, encoding, codes);
  return cudaGetLastError();
}

int spread_row_scales(const DeviceGroups& groups, const float* scales, int64_t rows, float* row_scale) {
  spread_kernel<<<blocks_for(rows), kThreads>>>(scales, groups.row_base, groups.column_offset, rows, row_scale);
  return cudaGetLastError();
}

int spread_column_scales(const DeviceGroups& groups, const float* scales, int64_t columns, float* column_scale) {
  spread_kernel<<<blocks_for(columns), kThreads>>>(scales, groups.column_offset, groups.row_base, columns,
                                                   column_scale);
  return cudaGetLastError();
}

int dequantize_values(ElementType type, const void* codes, const float* row_scale, const float* column_scale,
                      const DeviceMatrix& x) {
  dequantize_kernel<<<blocks_for(x.size()), kThreads>>>(type, codes, row_scale, column_scale, x);
  return cudaGetLastError();
}

}  // namespace qattn::gpu
