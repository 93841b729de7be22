// Quantizers on the device; as kernels.h: device pointers, nothing but CUDA's runtime, and every function starts
// kernels on the default stream and returns a cudaError_t (0: started). Matrices are row-major, rows are tokens.
#pragma once

#include <cstdint>

#include "attention/quantize_steps.h"

namespace qattn::gpu {

/// A matrix of f32 on the device.
struct DeviceMatrix {
  float* values;
  std::int64_t rows;
  std::int64_t columns;

  constexpr std::int64_t size() const { return rows * columns; }
};

/// Which elements share a scale (quant::GroupMap): group = row_base[row] + column_offset[column].
struct DeviceGroups {
  const std::int32_t* row_base;
  const std::int32_t* column_offset;
  std::int64_t groups;
  std::int64_t column_groups;  ///< 1: all elements of a row share a scale
};

/// One scale a group, and what elements meet: the scale or its reciprocal.
struct DeviceScales {
  std::uint32_t* amax;
  float* scales;
  float* factors;
};

/// x = RN(RN(value * descale) * factor), the first product and its rounding to f32 as a dump's reader does them in f64.
int decode_values(ElementType type, const void* codes, double descale, float factor, const DeviceMatrix& x);

/// The bits of each group's largest magnitude; NaN lies above Inf, so a NaN comes through. 0 for a group without
/// elements.
int find_largest(const DeviceMatrix& x, const DeviceGroups& groups, std::uint32_t* amax);

/// The scale and the factor of each group of x.
int find_scales(const DeviceMatrix& x, const DeviceGroups& groups, const ScaleSpec& spec, const DeviceScales& scales);

/// Codes of x, one element in one byte or two.
int quantize_values(const DeviceMatrix& x, const DeviceGroups& groups, bool multiply, const float* factors,
                    const Encoding& encoding, void* codes);

/// The same without a scale.
int cast_values(const DeviceMatrix& x, const Encoding& encoding, void* codes);

/// The scale of each row, of groups that do not depend on the column; and of each column.
int spread_row_scales(const DeviceGroups& groups, const float* scales, std::int64_t rows, float* row_scale);
int spread_column_scales(const DeviceGroups& groups, const float* scales, std::int64_t columns, float* column_scale);

/// x = RN(code * scale of the row or column), what the codes stand for; a missing scale is 1.
int dequantize_values(ElementType type, const void* codes, const float* row_scale, const float* column_scale,
                      const DeviceMatrix& x);

}  // namespace qattn::gpu
