#include "attention/prepare.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "attention/basis.h"
#include "attention/smooth.h"
#include "base/error.h"
#include "quant/rotate.h"

namespace qattn::gpu {
namespace {

using attention::OperandSpec;
using attention::Recipe;

[[noreturn]] void refuse(const Recipe& recipe, const std::string& key, const std::string& reason) {
  throw Error(ErrorKind::usage, fmt::format("recipe {}: {} on the GPU: {}", recipe.name, key, reason));
}

void check_operand(const Recipe& recipe, const std::string& name, const OperandSpec& spec) {
  if (spec.exact()) refuse(recipe, name + "_format", "exact operands fit no matrix instruction");
  const bool wide = !spec.scaled() && spec.format != &format::kFP16 && spec.format != &format::kBF16;
  if (wide) refuse(recipe, name + "_format", fmt::format("{} is not supported", spec.format->name));
  if (!spec.scaled()) return;
  if (spec.micro_scaled()) refuse(recipe, name + "_granularity", "micro-scaled formats are not supported");
  if (spec.scale_format != &format::kFP32) refuse(recipe, name + "_scale_format", "scales are fp32");
  if (spec.scale_rule.starts_with("e8m0")) refuse(recipe, name + "_scale_rule", "scales are no powers of two");
  element_type(*spec.format, fmt::format("recipe {}: {}_format", recipe.name, name));
}

const Recipe& preparable(const Recipe& recipe) {
  check_preparable(recipe);
  return recipe;
}

bool shares_scale(const Recipe& recipe) {
  return recipe.query_heads == attention::QueryHeads::group && recipe.q.scaled() &&
         recipe.q.granularity == quant::Granularity::per_tensor;
}

/// The query heads that the recipe looks at, the one in hand first.
std::vector<InputMatrix> query_inputs(const HeadInput& input, const Recipe& recipe) {
  std::vector<InputMatrix> heads = {input.q};
  const bool balanced = recipe.balance != attention::Balance::none;
  const bool shares_balance = balanced && recipe.query_heads == attention::QueryHeads::group;
  if (shares_scale(recipe) || shares_balance) {
    heads.insert(heads.end(), input.group_q.begin(), input.group_q.end());
  }
  return heads;
}

InputMatrix matrix_of(const MatrixD& values) {
  const std::span<const double> elements(values.data(), static_cast<std::size_t>(values.size()));
  return {&format::kFP64, std::as_bytes(elements), values.rows(), values.cols(), 1.0};
}

MatrixF download_matrix(const DeviceBuffer& buffer, std::int64_t rows, std::int64_t columns) {
  MatrixF matrix(rows, columns);
  buffer.read(std::as_writable_bytes(std::span(matrix.data(), static_cast<std::size_t>(matrix.size()))));
  return matrix;
}

}  // namespace

HeadInput input_of(const attention::Problem& problem) {
  HeadInput input{matrix_of(problem.q), matrix_of(problem.k), matrix_of(problem.v), {}, problem.sm_scale};
  for (const MatrixD& q : problem.group_q) input.group_q.push_back(matrix_of(q));
  return input;
}

void check_preparable(const Recipe& recipe) {
  const bool balanced = recipe.balance != attention::Balance::none;
  if (balanced && recipe.balance_alpha != 0.5) refuse(recipe, "balance_alpha", "it is 0.5");
  check_operand(recipe, "q", recipe.q);
  check_operand(recipe, "k", recipe.k);
  check_operand(recipe, "v", recipe.v);
  const format::Format* const correction = recipe.correction_format;
  const bool roundable = correction == &format::kFP32 || correction == &format::kFP16 || correction == &format::kBF16;
  if (attention::smooths_q(recipe) && !roundable) refuse(recipe, "correction_format", "it is fp32, fp16 or bf16");
}

Preparation::Preparation(const HeadInput& input, const Recipe& recipe)
    : recipe_(preparable(recipe)),
      factors_(attention::scale_factors(recipe, input.sm_scale)),
      smooth_q_(attention::smooths_q(recipe)),
      smooth_k_(attention::smooths_k(recipe)),
      q_(query_inputs(input, recipe), shares_scale(recipe), static_cast<float>(factors_.q),
         quantizer_spec(recipe, recipe.q, quant::Operand::q), recipe.q),
      k_({input.k}, false, static_cast<float>(factors_.k), quantizer_spec(recipe, recipe.k, quant::Operand::k),
         recipe.k),
      v_({input.v}, false, 1.0f, quantizer_spec(recipe, recipe.v, quant::Operand::v), recipe.v) {
  if (recipe.balance != attention::Balance::none) {
    balance_.emplace(q_.all_values().rows, k_.rows(), q_.columns());
  }
  if (recipe.rotation != attention::Rotation::none) rotation_factor_ = quant::rotation_factor(q_.columns(), 1);
  const std::int64_t blocks = (q_.rows() + recipe.q_block - 1) / recipe.q_block;
  if (smooth_q_) correction_ = DeviceBuffer(static_cast<std::size_t>(blocks * k_.rows()) * sizeof(float));
  if (smooth_k_) lse_shift_ = DeviceBuffer(static_cast<std::size_t>(q_.rows()) * sizeof(double));
}

void Preparation::run() {
  q_.decode();
  k_.decode();
  v_.decode();
  change_basis();
  if (smooth_k_) {
    k_.find_means(0);
    check_cuda(find_mean_scores(q_.values(), k_.means().values, lse_shift_.data<double>()), "q . kbar");
    k_.subtract_means();
  }
  k_.store();
  if (smooth_q_) {
    q_.find_means(recipe_.q_block);
    correct(recipe_.correction == attention::Correction::quantized_k ? k_.dequantize() : k_.values());
    q_.subtract_means();
  }
  q_.store();
  if (recipe_.smooth_v) {
    v_.find_means(0);
    v_.subtract_means();
  }
  v_.store();
}

void Preparation::change_basis() {
  if (balance_) balance_->apply(q_.all_values(), k_.all_values());
  if (recipe_.rotation == attention::Rotation::none) return;
  for (const PreparedMatrix* matrix : {&q_, &k_}) {
    check_cuda(rotate_rows(matrix->all_values(), recipe_.rotation_seed, rotation_factor_), "rotation");
  }
}

void Preparation::correct(DeviceMatrix k) {
  const ElementType type = element_type(*recipe_.correction_format, "correction_format");
  check_cuda(find_correction(q_.means(), k, type, correction_.data<float>()), "corrections");
}

DeviceOperands Preparation::operands() const {
  DeviceOperands result;
  result.q = q_.codes();
  result.k = k_.codes();
  result.v = v_.codes();
  result.q_scale = q_.row_scale();
  result.k_scale = k_.row_scale();
  result.v_scale = v_.column_scale();
  result.v_block_scale = v_.row_scale();
  result.v_mean = recipe_.smooth_v ? v_.means().values : nullptr;
  result.correction = correction_.data<const float>();
  result.queries = static_cast<int>(q_.rows());
  result.keys = static_cast<int>(k_.rows());
  result.head_dim = static_cast<int>(q_.columns());
  result.value_dim = static_cast<int>(v_.columns());
  return result;
}

std::vector<double> Preparation::lse_shift() const {
  std::vector<double> shift(smooth_k_ ? static_cast<std::size_t>(q_.rows()) : 0);
  if (smooth_k_) lse_shift_.read(std::as_writable_bytes(std::span(shift)));
  return shift;
}

attention::Operands Preparation::download() const {
  attention::Operands result;
  result.q = q_.download();
  result.k = k_.download();
  result.v = v_.download();
  result.score_scale = factors_.scores;
  result.q_factor = factors_.q;
  result.k_factor = factors_.k;
  if (balance_) result.balance = balance_->factors();
  result.lse_shift = lse_shift();
  if (smooth_k_) result.k_mean = k_.download_means();
  if (smooth_q_) {
    result.q_means = q_.download_means();
    result.correction = download_matrix(correction_, result.q_means.rows(), k_.rows());
  }
  if (recipe_.smooth_v) {
    const MatrixF mean = v_.download_means();
    result.v_mean.assign(mean.data(), mean.data() + mean.size());
  }
  return result;
}

}  // namespace qattn::gpu
