#include "attention/prepared_matrix.h"

#include <algorithm>

#include "attention/smooth.h"
#include "base/error.h"

namespace qattn::gpu {
namespace {

using format::Format;

struct NamedType {
  const Format* format;
  ElementType type;
};

constexpr NamedType kTypes[] = {{&format::kFP64, ElementType::fp64}, {&format::kFP32, ElementType::fp32},
                                {&format::kFP16, ElementType::fp16}, {&format::kBF16, ElementType::bf16},
                                {&format::kE4M3, ElementType::e4m3}, {&format::kE5M2, ElementType::e5m2},
                                {&format::kInt8, ElementType::int8}, {&format::kInt4, ElementType::int4}};

struct NamedFormula {
  std::string_view rule;
  ScaleFormula formula;
};

constexpr NamedFormula kFormulas[] = {
    {"amax", ScaleFormula::amax}, {"reciprocal", ScaleFormula::reciprocal}, {"triton_eps", ScaleFormula::triton_eps}};

Encoding encoding_of(const Format& format, format::Rounding rounding) {
  Encoding encoding{};
  encoding.type = element_type(format, "codes");
  encoding.half_away = rounding == format::Rounding::nearest_away;
  encoding.limit = quant::quantization_range(format);
  encoding.mask = static_cast<std::uint32_t>(format::sign_mask(format) | format::magnitude_mask(format));
  encoding.nan = format::has_nan(format) ? static_cast<std::uint32_t>(format::nan_code(format)) : 0;
  return encoding;
}

ScaleFormula formula_of(const quant::ScaleRule& rule) {
  for (const NamedFormula& entry : kFormulas) {
    if (entry.rule == rule.name) return entry.formula;
  }
  throw Error(ErrorKind::usage,
              "the GPU has no scale rule " + std::string(rule.name) + "; it has amax, reciprocal and triton_eps");
}

float zero_replacement(quant::ZeroScale policy) {
  if (policy == quant::ZeroScale::one) return 1.0f;
  return policy == quant::ZeroScale::epsilon ? quant::epsilon_scale(format::kFP32) : 0.0f;
}

}  // namespace

ElementType element_type(const Format& format, const std::string& what) {
  for (const NamedType& entry : kTypes) {
    if (entry.format == &format) return entry.type;
  }
  throw Error(ErrorKind::usage, what + ": the GPU's kernels have no format " + std::string(format.name));
}

PreparedMatrix::PreparedMatrix(const std::vector<InputMatrix>& inputs, bool one_scale, float factor,
                               const quant::QuantizerSpec& quantizer, const attention::OperandSpec& spec)
    : rows_(inputs.front().rows),
      columns_(inputs.front().columns),
      factor_(factor),
      format_(spec.format),
      encoding_(encoding_of(*spec.format, quantizer.rounding)) {
  for (const InputMatrix& input : inputs) {
    inputs_.push_back({element_type(*input.format, "a tensor of the dump"), input.descale, DeviceBuffer(input.codes)});
  }
  const std::int64_t size = rows_ * columns_;
  values_ = allocate<float>(size * static_cast<std::int64_t>(inputs_.size()));
  codes_ = allocate<std::byte>(size * format::element_bytes(*format_));
  if (spec.scaled()) allocate_scales(one_scale, quantizer);
}

void PreparedMatrix::allocate_scales(bool one_scale, const quant::QuantizerSpec& quantizer) {
  const std::int64_t rows = one_scale ? all_values().rows : rows_;
  const quant::GroupMap& map = groups_.emplace(quant::GroupMap(quantizer.groups, rows, columns_)).map();
  rejects_zero_ = quantizer.zero_scale == quant::ZeroScale::error;
  const float range = quantizer.range > 0 ? quantizer.range : quant::quantization_range(*format_);
  scale_spec_ = {formula_of(*quantizer.rule), range, zero_replacement(quantizer.zero_scale),
                 quantizer.scaling == quant::Scaling::reciprocal};
  amax_ = allocate<std::uint32_t>(map.groups());
  scales_ = allocate<float>(map.groups());
  factors_ = allocate<float>(map.groups());
  // V's scale is one of a column, as long as it does not vary along the keys.
  const bool by_row = quantizer.groups.operand != quant::Operand::v || (map.column_groups() == 1 && map.groups() > 1);
  (by_row ? row_scale_ : column_scale_) = allocate<float>(by_row ? rows_ : columns_);
}

DeviceMatrix PreparedMatrix::all_values() const {
  return {values_.data<float>(), rows_ * static_cast<std::int64_t>(inputs_.size()), columns_};
}

DeviceMatrix PreparedMatrix::input_values(std::size_t input) const {
  return {values_.data<float>() + static_cast<std::int64_t>(input) * rows_ * columns_, rows_, columns_};
}

DeviceMatrix PreparedMatrix::means() const {
  const std::int64_t blocks = mean_rows_ == 0 ? 0 : (rows_ + mean_rows_ - 1) / mean_rows_;
  return {means_.data<float>(), blocks, columns_};
}

float* PreparedMatrix::input_means(std::size_t input) const {
  return means_.data<float>() + static_cast<std::int64_t>(input) * means().size();
}

void PreparedMatrix::decode() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    check_cuda(decode_values(input.type, input.codes.data(), input.descale, factor_, input_values(i)), "decoding");
  }
}

void PreparedMatrix::find_means(std::int64_t block_rows) {
  if (mean_rows_ == 0) {
    mean_rows_ = block_rows == 0 ? rows_ : block_rows;
    means_ = allocate<float>(means().size() * static_cast<std::int64_t>(inputs_.size()));
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    check_cuda(find_token_means(input_values(i), mean_rows_, input_means(i)), "means over tokens");
  }
}

void PreparedMatrix::subtract_means() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    check_cuda(gpu::subtract_means(input_values(i), mean_rows_, input_means(i)), "smoothing");
  }
}

void PreparedMatrix::store() {
  if (!groups_) {
    check_cuda(cast_values(values(), encoding_, codes_.data()), "a cast");
    return;
  }
  const DeviceGroups groups = groups_->view();
  const DeviceMatrix scaled{values_.data<float>(), groups_->map().rows(), columns_};
  const DeviceScales scales{amax_.data<std::uint32_t>(), scales_.data<float>(), factors_.data<float>()};
  check_cuda(find_scales(scaled, groups, scale_spec_, scales), "scales");
  if (rejects_zero_) check_zero_scales();
  check_cuda(quantize_values(values(), groups, scale_spec_.multiply, scales.factors, encoding_, codes_.data()),
             "quantizing");
  if (row_scale() != nullptr) {
    check_cuda(spread_row_scales(groups, scales.scales, rows_, row_scale_.data<float>()), "scales of rows");
  } else {
    check_cuda(spread_column_scales(groups, scales.scales, columns_, column_scale_.data<float>()), "scales of columns");
  }
}

void PreparedMatrix::check_zero_scales() const {
  const quant::GroupMap& map = groups_->map();
  const std::vector<float> scales = gpu::download<float>(scales_, map.groups());
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const auto group = static_cast<std::int64_t>(g);
    if (scales[g] == 0.0f && !map.member_rows(group).empty()) quant::reject_zero_scale(map, group);
  }
}

DeviceMatrix PreparedMatrix::dequantize() {
  if (dequantized_.data() == nullptr) dequantized_ = allocate<float>(rows_ * columns_);
  const DeviceMatrix result{dequantized_.data<float>(), rows_, columns_};
  check_cuda(dequantize_values(encoding_.type, codes(), row_scale(), column_scale(), result), "dequantizing");
  return result;
}

attention::Stored PreparedMatrix::download() const {
  attention::Stored stored{};
  stored.format = format_;
  stored.codes.resize(rows_, columns_);
  if (format::element_bytes(*format_) == 2) {
    const auto codes = gpu::download<std::uint16_t>(codes_, rows_ * columns_);
    std::copy(codes.begin(), codes.end(), stored.codes.data());
  } else {
    const auto codes = gpu::download<std::uint8_t>(codes_, rows_ * columns_);
    std::copy(codes.begin(), codes.end(), stored.codes.data());
  }
  if (row_scale() != nullptr) stored.row_scale = gpu::download<float>(row_scale_, rows_);
  if (column_scale() != nullptr) stored.column_scale = gpu::download<float>(column_scale_, columns_);
  return stored;
}

MatrixF PreparedMatrix::download_means() const {
  MatrixF result(means().rows, columns_);
  means_.read(std::as_writable_bytes(std::span(result.data(), static_cast<std::size_t>(result.size()))));
  return result;
}

}  // namespace qattn::gpu
