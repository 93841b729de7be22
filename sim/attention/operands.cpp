#include "attention/operands.h"

#include "format/encode.h"
#include "quant/rotate.h"
#include "quant/smooth.h"

namespace qattn::attention {
namespace {

quant::Tiling tiling_of(const Recipe& recipe) {
  return {"recipe", recipe.q_block, recipe.q_warp, recipe.k_block, recipe.k_warp};
}

/// The scales of Q and K by row, those of V by column (per channel), by row (per block) or one for all columns.
void spread_scales(const quant::Quantized& quantized, quant::Operand role, Stored& stored) {
  const std::int64_t rows = quantized.codes.rows();
  const std::int64_t columns = quantized.codes.cols();
  const bool by_row =
      role != quant::Operand::v || (quantized.groups.column_groups() == 1 && quantized.scales.size() > 1);
  if (by_row) {
    for (std::int64_t i = 0; i < rows; ++i) stored.row_scale.push_back(quantized.scale(i, 0));
  } else {
    for (std::int64_t j = 0; j < columns; ++j) stored.column_scale.push_back(quantized.scale(0, j));
  }
}

/// q . kbar for each query, f64 in channel order.
std::vector<double> mean_scores(const MatrixF& q, const MatrixF& k_mean) {
  std::vector<double> scores;
  for (Eigen::Index i = 0; i < q.rows(); ++i) {
    double sum = 0.0;
    for (Eigen::Index c = 0; c < q.cols(); ++c) sum += static_cast<double>(q(i, c)) * static_cast<double>(k_mean(0, c));
    scores.push_back(sum);
  }
  return scores;
}

/// Returns the balance's factors.
std::vector<float> change_basis(const Recipe& recipe, MatrixF& q, MatrixF& k) {
  std::vector<float> factors;
  if (recipe.balance == Balance::smoothquant) {
    factors = quant::balance_factors(quant::channel_amax(q), quant::channel_amax(k), recipe.balance_alpha);
    q = quant::divide_channels(q, factors);
    k = quant::multiply_channels(k, factors);
  }
  if (recipe.rotation == Rotation::hadamard) {
    q = quant::rotate(q, {recipe.rotation_seed, 1});
    k = quant::rotate(k, {recipe.rotation_seed, 1});
  }
  return factors;
}

}  // namespace

Stored store(const Recipe& recipe, const OperandSpec& spec, quant::Operand role, const MatrixF& values) {
  Stored stored{};
  stored.format = spec.format;
  if (spec.exact()) {
    stored.values = values.cast<double>();
    return stored;
  }
  if (!spec.scaled()) {
    stored.codes = cast_codes(values, *spec.format);
    return stored;
  }
  const quant::Quantized quantized = quant::quantize(values, quantizer_spec(recipe, spec, role));
  if (spec.micro_scaled()) {
    stored.values = quant::dequantize(quantized).cast<double>();
    return stored;
  }
  stored.codes = quantized.codes;
  spread_scales(quantized, role, stored);
  return stored;
}

MatrixD values_of(const Stored& stored) {
  if (!stored.coded()) return stored.values;
  MatrixF values(stored.codes.rows(), stored.codes.cols());
  const auto size = static_cast<std::size_t>(values.size());
  format::decode_span(*stored.format, {stored.codes.data(), size}, {values.data(), size});
  for (Eigen::Index i = 0; i < values.rows(); ++i) {
    for (Eigen::Index j = 0; j < values.cols(); ++j) {
      if (!stored.row_scale.empty()) values(i, j) *= stored.row_scale[static_cast<std::size_t>(i)];
      if (!stored.column_scale.empty()) values(i, j) *= stored.column_scale[static_cast<std::size_t>(j)];
    }
  }
  return values.cast<double>();
}

quant::QuantizerSpec quantizer_spec(const Recipe& recipe, const OperandSpec& spec, quant::Operand role) {
  quant::QuantizerSpec quantizer;
  quantizer.format = spec.format;
  quantizer.groups = {spec.granularity, role, tiling_of(recipe), spec.micro_axis};
  quantizer.rule = &quant::find_scale_rule(spec.scale_rule);
  quantizer.scale_format = spec.scale_format;
  quantizer.zero_scale = recipe.zero_scale;
  quantizer.scaling = recipe.scaling;
  if (recipe.round_half_away && spec.integer() && role != quant::Operand::v) {
    quantizer.rounding = format::Rounding::nearest_away;
  }
  if (spec.global_scale) quantizer.outer = quant::Granularity::per_tensor;
  return quantizer;
}

MatrixCodes cast_codes(const MatrixF& values, const format::Format& format) {
  MatrixCodes codes(values.rows(), values.cols());
  const auto size = static_cast<std::size_t>(values.size());
  format::encode_span(format, {values.data(), size},
                      {format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep},
                      {codes.data(), size});
  return codes;
}

Operands prepare_operands(const Problem& problem, const Recipe& recipe) {
  Operands operands;
  MatrixF q = problem.q.cast<float>();
  MatrixF k = problem.k.cast<float>();
  MatrixF v = problem.v.cast<float>();
  operands.balance = change_basis(recipe, q, k);
  const bool smooth_k = recipe.smoothing == Smoothing::k || recipe.smoothing == Smoothing::qk;
  const bool smooth_q = recipe.smoothing == Smoothing::q || recipe.smoothing == Smoothing::qk;
  if (smooth_k) {
    quant::Smoothed smoothed = quant::smooth(k);
    operands.lse_shift = mean_scores(q, smoothed.means);
    k = std::move(smoothed.centred);
    operands.k_mean = std::move(smoothed.means);
  }
  operands.k = store(recipe, recipe.k, quant::Operand::k, k);
  if (smooth_q) {
    quant::SmoothSpec blocks;
    blocks.block_rows = recipe.q_block;
    quant::Smoothed smoothed = quant::smooth(q, blocks);
    const MatrixF right =
        recipe.correction == Correction::quantized_k ? MatrixF(values_of(operands.k).cast<float>()) : k;
    operands.correction = quant::mean_correction(smoothed.means, right, *recipe.correction_format);
    q = std::move(smoothed.centred);
    operands.q_means = std::move(smoothed.means);
  }
  operands.q = store(recipe, recipe.q, quant::Operand::q, q);
  if (recipe.smooth_v) {
    quant::Smoothed smoothed = quant::smooth(v);
    operands.v_mean.assign(smoothed.means.data(), smoothed.means.data() + smoothed.means.size());
    v = std::move(smoothed.centred);
  }
  operands.v = store(recipe, recipe.v, quant::Operand::v, v);
  // An exact operand that nothing has touched keeps the dump's f64 values.
  const bool same_basis = recipe.balance == Balance::none && recipe.rotation == Rotation::none;
  if (recipe.q.exact() && same_basis && !smooth_q) operands.q.values = problem.q;
  if (recipe.k.exact() && same_basis && !smooth_k) operands.k.values = problem.k;
  if (recipe.v.exact() && !recipe.smooth_v) operands.v.values = problem.v;
  return operands;
}

}  // namespace qattn::attention
