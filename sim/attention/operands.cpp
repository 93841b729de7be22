#include "attention/operands.h"

#include <cmath>
#include <utility>

#include "format/encode.h"
#include "quant/rotate.h"
#include "quant/smooth.h"

namespace qattn::attention {
namespace {

quant::Tiling tiling_of(const Recipe& recipe) {
  return {"recipe", recipe.q_block, recipe.q_warp, recipe.k_block, recipe.k_warp};
}

/// Scales of V by column (per channel, or one for all), except those per block; all others by row.
template <class Scale>
void spread_scales(const MatrixCodes& codes, bool by_row, const Scale& scale, Stored& stored) {
  if (by_row) {
    for (std::int64_t i = 0; i < codes.rows(); ++i) stored.row_scale.push_back(scale(i, 0));
  } else {
    for (std::int64_t j = 0; j < codes.cols(); ++j) stored.column_scale.push_back(scale(0, j));
  }
}

/// Block scales as a block-scaled instruction takes them, and the values code * scale, which f64 holds.
void store_blocks(const quant::Quantized& quantized, quant::Operand role, const OperandSpec& spec, Stored& stored) {
  const std::int64_t block = spec.granularity == quant::Granularity::block_1x16 ? 16 : 32;
  const std::vector<std::uint32_t> scales = quant::scale_codes(quantized);
  const MatrixCodes& codes = quantized.codes;
  const bool by_column = spec.micro_axis.value_or(quant::contraction_axis(role)) == quant::Axis::rows;
  const std::int64_t lines = by_column ? codes.cols() : codes.rows();
  const std::int64_t length = by_column ? codes.rows() : codes.cols();
  stored.block_scales.resize(lines, (length + block - 1) / block);
  for (std::int64_t i = 0; i < lines; ++i) {
    for (std::int64_t j = 0; j < stored.block_scales.cols(); ++j) {
      const auto group = by_column ? quantized.groups.index(j * block, i) : quantized.groups.index(i, j * block);
      stored.block_scales(i, j) = scales[static_cast<std::size_t>(group)];
    }
  }
  MatrixF values(codes.rows(), codes.cols());
  const auto size = static_cast<std::size_t>(values.size());
  format::decode_span(*spec.format, {codes.data(), size}, {values.data(), size});
  stored.values = values.cast<double>();
  for (std::int64_t i = 0; i < codes.rows(); ++i) {
    for (std::int64_t j = 0; j < codes.cols(); ++j) stored.values(i, j) *= static_cast<double>(quantized.scale(i, j));
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

MatrixF multiplied(MatrixF x, double factor) {
  const auto f = static_cast<float>(factor);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] *= f;
  return x;
}

/// The query heads that share a scale, the one in hand first.
std::vector<MatrixF> query_heads(const Problem& problem, const Recipe& recipe) {
  std::vector<MatrixF> heads = {problem.q.cast<float>()};
  if (recipe.query_heads == QueryHeads::one) return heads;
  for (const MatrixD& other : problem.group_q) heads.push_back(other.cast<float>());
  return heads;
}

std::vector<float> largest_of_channels(const std::vector<MatrixF>& heads) {
  std::vector<float> largest = quant::channel_amax(heads.front());
  for (const MatrixF& head : heads) {
    const std::vector<float> amax = quant::channel_amax(head);
    for (std::size_t c = 0; c < largest.size(); ++c) {
      if (!(amax[c] <= largest[c])) largest[c] = amax[c];  // NaN stays
    }
  }
  return largest;
}

/// The softmax scale where Q or K have it, balance, rotation; notes what the gradients need to undo them.
void change_basis(const Problem& problem, const Recipe& recipe, std::vector<MatrixF>& heads, MatrixF& k,
                  Operands& operands) {
  const ScaleFactors factors = scale_factors(recipe, problem.sm_scale);
  operands.q_factor = factors.q;
  operands.k_factor = factors.k;
  operands.score_scale = factors.scores;
  if (operands.q_factor != 1.0) {
    for (MatrixF& q : heads) q = multiplied(std::move(q), operands.q_factor);
  }
  if (operands.k_factor != 1.0) k = multiplied(std::move(k), operands.k_factor);
  if (recipe.balance == Balance::smoothquant) {
    operands.balance = quant::balance_factors(largest_of_channels(heads), quant::channel_amax(k), recipe.balance_alpha);
    for (MatrixF& q : heads) q = quant::divide_channels(q, operands.balance);
    k = quant::multiply_channels(k, operands.balance);
  }
  if (recipe.rotation == Rotation::hadamard) {
    for (MatrixF& q : heads) q = quant::rotate(q, {recipe.rotation_seed, 1});
    k = quant::rotate(k, {recipe.rotation_seed, 1});
  }
}

/// Whether the operand is to be the input's own codes, which nothing has touched.
bool takes_codes(const OperandSpec& spec, const InputCodes& input, bool untouched) {
  return untouched && input.format != nullptr && spec.format == input.format && spec.scaled() && !spec.micro_scaled() &&
         spec.granularity == quant::Granularity::per_tensor && spec.range == 0 && spec.scale_format == &format::kFP32;
}

/// The codes of values that are code * scale, which f64 holds exactly.
Stored codes_of(const MatrixD& values, const InputCodes& input, quant::Operand role) {
  Stored stored{};
  stored.format = input.format;
  stored.codes = cast_codes((values / input.scale).cast<float>(), *input.format);
  const auto scale = static_cast<float>(input.scale);
  if (role == quant::Operand::v) {
    stored.column_scale.assign(static_cast<std::size_t>(values.cols()), scale);
  } else {
    stored.row_scale.assign(static_cast<std::size_t>(values.rows()), scale);
  }
  return stored;
}

/// Q of the head in hand; with one scale for a group, all of its heads are quantized together.
Stored store_queries(const Recipe& recipe, const std::vector<MatrixF>& heads) {
  const bool one_scale = recipe.q.scaled() && recipe.q.granularity == quant::Granularity::per_tensor;
  if (heads.size() == 1 || !one_scale) return store(recipe, recipe.q, quant::Operand::q, heads.front());
  const Eigen::Index rows = heads.front().rows();
  MatrixF all(rows * static_cast<Eigen::Index>(heads.size()), heads.front().cols());
  for (std::size_t h = 0; h < heads.size(); ++h) all.middleRows(static_cast<Eigen::Index>(h) * rows, rows) = heads[h];
  Stored stored = store(recipe, recipe.q, quant::Operand::q, all);
  stored.codes = MatrixCodes(stored.codes.topRows(rows));
  stored.row_scale.resize(static_cast<std::size_t>(rows));
  return stored;
}

}  // namespace

ScaleFactors scale_factors(const Recipe& recipe, double sm_scale) {
  switch (recipe.scale_place) {
    case ScalePlace::logits:
      return {1.0, 1.0, sm_scale};
    case ScalePlace::q:
      return {sm_scale, 1.0, 1.0};
    case ScalePlace::qk:
      break;
  }
  const double root = std::sqrt(sm_scale);
  return {root, root, 1.0};
}

bool smooths_q(const Recipe& recipe) { return recipe.smoothing == Smoothing::q || recipe.smoothing == Smoothing::qk; }

bool smooths_k(const Recipe& recipe) { return recipe.smoothing == Smoothing::k || recipe.smoothing == Smoothing::qk; }

quant::QuantizerSpec quantizer_spec(const Recipe& recipe, const OperandSpec& spec, quant::Operand role) {
  quant::QuantizerSpec quantizer;
  quantizer.format = spec.format;
  quantizer.groups = {spec.granularity, role, tiling_of(recipe), spec.micro_axis};
  quantizer.rule = &quant::find_scale_rule(spec.scale_rule);
  quantizer.range = spec.range;
  quantizer.scaling = recipe.scaling;
  quantizer.scale_format = spec.scale_format;
  quantizer.unrounded_divisor = spec.unrounded_divisor;
  // A tile's rows and blocks of hidden keys have no weight.
  quantizer.zero_scale = role == quant::Operand::p ? quant::ZeroScale::one : recipe.zero_scale;
  if (recipe.round_half_away && spec.integer() && (role == quant::Operand::q || role == quant::Operand::k)) {
    quantizer.rounding = format::Rounding::nearest_away;
  }
  const bool is_p = role == quant::Operand::p;
  if (is_p ? recipe.p_second_level == SecondLevel::tile : spec.global_scale) {
    quantizer.outer = quant::Granularity::per_tensor;
  }
  if (is_p && recipe.p_second_level == SecondLevel::row) quantizer.outer = quant::Granularity::per_token;
  if (!spec.micro_scaled()) quantizer.outer.reset();
  return quantizer;
}

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
  stored.codes = quantized.codes;
  if (!spec.micro_scaled()) {
    const bool one_a_block = quantized.groups.column_groups() == 1 && quantized.scales.size() > 1;
    spread_scales(
        stored.codes, role != quant::Operand::v || one_a_block,
        [&](std::int64_t i, std::int64_t j) { return quantized.scale(i, j); }, stored);
    return stored;
  }
  store_blocks(quantized, role, spec, stored);
  if (!quantized.outer_scales.empty()) {
    spread_scales(
        stored.codes, role != quant::Operand::v,
        [&](std::int64_t i, std::int64_t j) { return quantized.outer_scale(i, j); }, stored);
  }
  return stored;
}

MatrixD values_of(const Stored& stored) {
  if (!stored.coded() && stored.row_scale.empty() && stored.column_scale.empty()) return stored.values;
  MatrixF values = stored.values.cast<float>();
  if (stored.coded()) {
    values.resize(stored.codes.rows(), stored.codes.cols());
    const auto size = static_cast<std::size_t>(values.size());
    format::decode_span(*stored.format, {stored.codes.data(), size}, {values.data(), size});
  }
  for (Eigen::Index i = 0; i < values.rows(); ++i) {
    for (Eigen::Index j = 0; j < values.cols(); ++j) {
      if (!stored.row_scale.empty()) values(i, j) *= stored.row_scale[static_cast<std::size_t>(i)];
      if (!stored.column_scale.empty()) values(i, j) *= stored.column_scale[static_cast<std::size_t>(j)];
    }
  }
  return values.cast<double>();
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
  std::vector<MatrixF> heads = query_heads(problem, recipe);
  MatrixF k = problem.k.cast<float>();
  MatrixF v = problem.v.cast<float>();
  change_basis(problem, recipe, heads, k, operands);
  const bool smooth_q = smooths_q(recipe);
  const bool smooth_k = smooths_k(recipe);
  if (smooth_k) {
    quant::Smoothed smoothed = quant::smooth(k);
    operands.lse_shift = mean_scores(heads.front(), smoothed.means);
    k = std::move(smoothed.centred);
    operands.k_mean = std::move(smoothed.means);
  }
  const bool same_basis = recipe.balance == Balance::none && recipe.rotation == Rotation::none;
  const bool q_untouched = same_basis && !smooth_q && recipe.scale_place == ScalePlace::logits;
  const bool k_untouched = same_basis && !smooth_k && recipe.scale_place != ScalePlace::qk;
  operands.k = takes_codes(recipe.k, problem.k_codes, k_untouched)
                   ? codes_of(problem.k, problem.k_codes, quant::Operand::k)
                   : store(recipe, recipe.k, quant::Operand::k, k);
  if (smooth_q) {
    quant::SmoothSpec blocks;
    blocks.block_rows = recipe.q_block;
    operands.q_means = quant::token_means(heads.front(), recipe.q_block);
    const MatrixF right =
        recipe.correction == Correction::quantized_k ? MatrixF(values_of(operands.k).cast<float>()) : k;
    operands.correction = quant::mean_correction(operands.q_means, right, *recipe.correction_format);
    for (MatrixF& q : heads) q = quant::smooth(q, blocks).centred;
  }
  operands.q = takes_codes(recipe.q, problem.q_codes, q_untouched)
                   ? codes_of(problem.q, problem.q_codes, quant::Operand::q)
                   : store_queries(recipe, heads);
  if (recipe.smooth_v) {
    quant::Smoothed smoothed = quant::smooth(v);
    operands.v_mean.assign(smoothed.means.data(), smoothed.means.data() + smoothed.means.size());
    v = std::move(smoothed.centred);
  }
  operands.v = takes_codes(recipe.v, problem.v_codes, !recipe.smooth_v)
                   ? codes_of(problem.v, problem.v_codes, quant::Operand::v)
                   : store(recipe, recipe.v, quant::Operand::v, v);
  // An exact operand that nothing has touched keeps the dump's f64 values.
  if (recipe.q.exact() && q_untouched) operands.q.values = problem.q;
  if (recipe.k.exact() && k_untouched) operands.k.values = problem.k;
  if (recipe.v.exact() && !recipe.smooth_v) operands.v.values = problem.v;
  return operands;
}

}  // namespace qattn::attention
