// Q, K or V of a head on its way through operand preparation, in the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/device_group_map.h"
#include "attention/operands.h"
#include "attention/quantize.h"
#include "device.h"
#include "format/format.h"

namespace qattn::gpu {

/// How the device stores elements of this format. Throws Error(usage) that begins with `what` when it does not.
ElementType element_type(const format::Format& format, const std::string& what);

/// One head of a tensor as a file has it: element (i, j) is code i * columns + j, in element_bytes(format) bytes; its
/// value is RN(decoded * descale) in f64. The codes must outlive the object.
struct InputMatrix {
  const format::Format* format = nullptr;
  std::span<const std::byte> codes;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  double descale = 1.0;
};

/// Every member function that computes starts kernels on the default stream and returns; they may be called again.
class PreparedMatrix {
 public:
  /// Uploads the inputs, of which the first gets codes. The others are there for what they share with it: its scale,
  /// if `one_scale` says so (the rows of all follow each other then), or factors of channels. `factor` multiplies the
  /// values in f32. The spec is one that check_preparable() has let through.
  PreparedMatrix(const std::vector<InputMatrix>& inputs, bool one_scale, float factor,
                 const quant::QuantizerSpec& quantizer, const attention::OperandSpec& spec);

  /// The values in f32.
  void decode();
  /// Means over blocks of tokens of each input; block_rows = 0: one over all tokens.
  void find_means(std::int64_t block_rows);
  /// Subtracts what find_means() found.
  void subtract_means();
  /// Scales and codes. Throws Error(input) for a scale of zero where the recipe asks for that.
  void store();
  /// What the codes stand for: RN(code * scale), in memory of its own.
  DeviceMatrix dequantize();

  /// Values of all inputs, one after the other, as the last step left them; and of the first.
  DeviceMatrix all_values() const;
  DeviceMatrix values() const { return input_values(0); }
  /// Means of the first input [blocks, columns]; no values when there are none.
  DeviceMatrix means() const;
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  const void* codes() const { return codes_.data(); }
  const float* row_scale() const { return row_scale_.data<const float>(); }
  const float* column_scale() const { return column_scale_.data<const float>(); }

  /// Copies codes and scales out; waits for the kernels before.
  attention::Stored download() const;
  /// The means of the first input, which there must be.
  MatrixF download_means() const;

 private:
  struct Input {
    ElementType type;
    double descale;
    DeviceBuffer codes;
  };

  DeviceMatrix input_values(std::size_t input) const;
  float* input_means(std::size_t input) const;
  void allocate_scales(bool one_scale, const quant::QuantizerSpec& quantizer);
  void check_zero_scales() const;

  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::vector<Input> inputs_;
  float factor_ = 1.0f;
  const format::Format* format_ = nullptr;
  Encoding encoding_{};
  DeviceBuffer values_;  ///< [inputs, rows, columns]
  DeviceBuffer codes_;   ///< [rows, columns]
  DeviceBuffer dequantized_;

  std::int64_t mean_rows_ = 0;  ///< tokens that share a mean
  DeviceBuffer means_;          ///< [inputs, blocks, columns]

  std::optional<DeviceGroupMap> groups_;  ///< none: a cast
  bool rejects_zero_ = false;
  ScaleSpec scale_spec_{};
  DeviceBuffer amax_, scales_, factors_;
  DeviceBuffer row_scale_, column_scale_;  ///< one of them
};

}  // namespace qattn::gpu
