// The order of operations, head by head. "RN" rounds to nearest-even in the softmax type (f32, or f64); nothing is
// fused. Tiles are those of the forward pass: q blocks ascending, in each the key tiles ascending.
//
//  1. o and lse by the forward pass (pipeline.cpp). With delta_o = o_prime, O' by the same pass with P cast to
//     o_prime_p_format and its sums exact: the same maxima and row sums.
//  2. M = lse log2(e) in f64, rounded; without the shift of smoothed K where the scores below are those of smoothed K.
//  3. delta = sum of RN(dO * o) over the channels, ascending; o is O, or O', as rounded to the output's format, less
//     V's mean (RN) where the V of dP is smoothed.
//  4. x as in the forward pass, steps 1 to 4, from the operands of backward_qk_format; p = exp2(RN(x - M)).
//  5. dV += P^T dO, dP = dO V^T, dS = RN(p * RN(dP - delta)), dQ += dS K, dK += dS^T Q; each product of a tile is one
//     sum as `Factor` says, each += an addition with RN. P, dO and dS are quantized as the keys say, P and dS from this
//     tile's values; dS takes the p before its quantization.
//  6. Only where the K or Q of the product is smoothed. backward_k_mean: dQ = RN(dQ + RN(r * mean)), r the sum of the
//  row's dS over the tile, keys ascending.
//     backward_q_mean: dK = RN(dK + RN(c * mean)), c the sum of the key's dS over the q block, queries ascending.
//  7. dQ and dK times sm_scale (in the softmax type), RN; taken back through balance and rotation. dK and dV of the
//     heads are added in f64, heads ascending. dQ, dK and dV are rounded to the output's format.
//
// Roundings pass gradients straight through, and so do the means that smoothing subtracts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/dense_product.h"
#include "attention/gradient.h"
#include "attention/operands.h"
#include "attention/pipeline.h"
#include "attention/rounding.h"
#include "attention/scores.h"
#include "base/error.h"
#include "base/exponential_constants.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "quant/quantize.h"
#include "quant/rotate.h"

namespace qattn::attention {
namespace {

using Source = GradientOperand::Source;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One factor of a product: numbers, and a scale for all of them. The sum of products is taken in f64, ascending,
/// rounded, and multiplied by RN(scale * scale) where a factor has one: exact but for that with integer codes.
struct Factor {
  MatrixD values;
  float scale = 1.0F;
  bool scaled = false;

  Factor transposed() const { return {values.transpose(), scale, scaled}; }
};

template <class Real>
Matrix<Real> product(const Factor& a, const Factor& b) {
  MatrixD sum = MatrixD::Zero(a.values.rows(), b.values.cols());
  accumulate_product(a.values, b.values, sum);
  Matrix<Real> rounded_sum = sum.template cast<Real>();
  if (!a.scaled && !b.scaled) return rounded_sum;
  const Real scale = static_cast<Real>(a.scale * b.scale);
  for (Eigen::Index i = 0; i < rounded_sum.size(); ++i) rounded_sum.data()[i] *= scale;
  return rounded_sum;
}

MatrixD decoded(const format::Format& format, const MatrixCodes& codes) {
  MatrixF values(codes.rows(), codes.cols());
  const auto size = static_cast<std::size_t>(codes.size());
  format::decode_span(format, {codes.data(), size}, {values.data(), size});
  return values.cast<double>();
}

/// A tile of P or dS as the product takes it.
template <class Real>
Factor tile_factor(const Recipe& recipe, const OperandSpec& spec, const Matrix<Real>& tile) {
  if (spec.exact()) return {tile.template cast<double>()};
  const MatrixF values = tile.template cast<float>();
  if (!spec.scaled()) return {decoded(*spec.format, cast_codes(values, *spec.format))};
  const quant::Quantized quantized = quant::quantize(values, quantizer_spec(recipe, spec, quant::Operand::p));
  if (quantized.groups.groups() > 1) return {quant::dequantize(quantized).cast<double>()};
  return {decoded(*spec.format, quantized.codes), quantized.scales.front(), true};
}

/// An operand that is stored before the tiles: a Factor for any of its tiles of rows.
class StoredFactor {
 public:
  explicit StoredFactor(Stored stored)
      : stored_(std::move(stored)),
        codes_(stored_.coded() ? decoded(*stored_.format, stored_.codes) : MatrixD()),
        values_(values_of(stored_)) {}

  /// Codes where one scale covers the rows, else values.
  Factor rows(std::int64_t first, std::int64_t count) const {
    const std::vector<float>& scales = stored_.row_scale;
    if (stored_.coded() && stored_.column_scale.empty() && !scales.empty()) {
      const auto begin = scales.begin() + first;
      if (std::all_of(begin, begin + count, [&](float scale) { return scale == *begin; })) {
        return {codes_.middleRows(first, count), *begin, true};
      }
    }
    return {values_.middleRows(first, count)};
  }

 private:
  Stored stored_;
  MatrixD codes_;
  MatrixD values_;
};

Stored unchanged(const MatrixD& values) {
  Stored stored{};
  stored.values = values;
  return stored;
}

Stored own_operand(const Recipe& recipe, const OperandSpec& spec, quant::Operand role, const MatrixD& values) {
  return spec.exact() ? unchanged(values) : store(recipe, spec, role, values.cast<float>());
}

/// The recipe with which the scores are computed again.
Recipe score_recipe(const Recipe& recipe) {
  Recipe scores = recipe;
  if (recipe.backward.qk.source == Source::forward) return scores;
  const bool original = recipe.backward.qk.source == Source::original;
  scores.q = scores.k = original ? OperandSpec{} : recipe.backward.qk.spec;
  scores.qk_accumulator = "exact";
  if (!original) return scores;
  scores.smoothing = Smoothing::none;
  scores.rotation = Rotation::none;
  scores.balance = Balance::none;
  return scores;
}

/// What the forward pass gives the backward pass of one head.
template <class Real>
struct Saved {
  MatrixD o;
  std::vector<Real> log_sum;  ///< M
  std::vector<Real> delta;
};

/// One query head's backward pass.
template <class Real>
class HeadBackward {
 public:
  HeadBackward(const Problem& problem, const MatrixD& upstream, const Recipe& recipe)
      : problem_(problem),
        upstream_(upstream),
        recipe_(recipe),
        score_recipe_(score_recipe(recipe)),
        forward_(prepare_operands(problem, recipe)),
        score_operands_(prepare_operands(problem, score_recipe_)),
        scores_(problem, score_recipe_, score_operands_),
        dv_do_(own_operand(recipe, recipe.backward.dv_do, quant::Operand::q, upstream)),
        dp_do_(own_operand(recipe, recipe.backward.dp_do, quant::Operand::q, upstream)),
        unquantized_(unquantized(problem, recipe)),
        dp_v_(operand(recipe.backward.dp_v, quant::Operand::k, forward_.v, problem.v, problem.v)),
        dq_k_(operand(recipe.backward.dq_k, quant::Operand::k, forward_.k, unquantized_.k.values, problem.k)),
        dk_q_(operand(recipe.backward.dk_q, quant::Operand::q, forward_.q, unquantized_.q.values, problem.q)) {}

  void run(const format::Format& input_format, Gradients& sums) {
    const format::Format& format = recipe_.o_format == nullptr ? input_format : *recipe_.o_format;
    Saved<Real> saved = forward(input_format);
    dq_ = Matrix<Real>::Zero(problem_.q.rows(), problem_.q.cols());
    dk_ = Matrix<Real>::Zero(problem_.k.rows(), problem_.k.cols());
    dv_ = Matrix<Real>::Zero(problem_.v.rows(), problem_.v.cols());
    for (std::int64_t first = 0; first < problem_.q.rows(); first += recipe_.q_block) {
      run_block(first, std::min<std::int64_t>(recipe_.q_block, problem_.q.rows() - first), saved);
    }
    finish(format, saved, sums);
  }

 private:
  /// Q and K as they are before quantization.
  static Operands unquantized(const Problem& problem, Recipe recipe) {
    recipe.q = recipe.k = OperandSpec{};
    return prepare_operands(problem, recipe);
  }

  StoredFactor operand(const GradientOperand& wanted, quant::Operand role, const Stored& forward,
                       const MatrixD& before_quantization, const MatrixD& original) const {
    if (wanted.source == Source::forward) return StoredFactor(forward);
    if (wanted.source == Source::original) return StoredFactor(unchanged(original));
    return StoredFactor(own_operand(recipe_, wanted.spec, role, before_quantization));
  }

  /// Steps 1 to 3.
  Saved<Real> forward(const format::Format& input_format) const {
    Output output = run_recipe(problem_, recipe_, input_format);
    Saved<Real> saved;
    for (std::size_t i = 0; i < output.lse.size(); ++i) {
      const double shift =
          score_operands_.lse_shift.empty() ? 0.0 : score_operands_.score_scale * score_operands_.lse_shift[i];
      const bool empty = output.lse[i] == -kInfinity;
      saved.log_sum.push_back(empty ? Real{0} : static_cast<Real>((output.lse[i] - shift) * elementary::kLog2E));
    }
    saved.o = std::move(output.o);
    if (!recipe_.backward.delta_o_prime) {
      saved.delta = delta_of(saved.o);
      return saved;
    }
    Recipe prime = recipe_;
    prime.p = OperandSpec{};
    prime.p.format = recipe_.backward.o_prime_p;
    prime.accumulator = "exact";
    saved.delta = delta_of(run_recipe(problem_, prime, input_format).o);
    return saved;
  }

  std::vector<Real> delta_of(const MatrixD& o) const {
    const bool smoothed_v = recipe_.backward.dp_v.source == Source::forward && !forward_.v_mean.empty();
    std::vector<Real> delta;
    for (Eigen::Index i = 0; i < o.rows(); ++i) {
      Real sum{0};
      for (Eigen::Index c = 0; c < o.cols(); ++c) {
        Real value = static_cast<Real>(o(i, c));
        if (smoothed_v) value -= static_cast<Real>(forward_.v_mean[static_cast<std::size_t>(c)]);
        sum += static_cast<Real>(upstream_(i, c)) * value;
      }
      delta.push_back(sum);
    }
    return delta;
  }

  void run_block(std::int64_t first, std::int64_t rows, const Saved<Real>& saved) {
    const Side q = scores_.queries(first, rows);
    const Factor dv_do = dv_do_.rows(first, rows), dp_do = dp_do_.rows(first, rows), dk_q = dk_q_.rows(first, rows);
    const std::int64_t visible = scores_.visible_keys(first + rows - 1);
    for (std::int64_t key = 0; key < visible; key += recipe_.k_block) {
      const std::int64_t keys = std::min<std::int64_t>(recipe_.k_block, problem_.k.rows() - key);
      const Matrix<Real> p = weights(first, rows, key, q, saved);
      const BackwardSpec& spec = recipe_.backward;
      dv_.middleRows(key, keys) += product<Real>(tile_factor(recipe_, spec.dv_p, p).transposed(), dv_do);
      const Matrix<Real> ds =
          score_gradient(p, product<Real>(dp_do, dp_v_.rows(key, keys).transposed()), saved.delta.data() + first);
      dq_.middleRows(first, rows) += product<Real>(tile_factor(recipe_, spec.dq_ds, ds), dq_k_.rows(key, keys));
      dk_.middleRows(key, keys) += product<Real>(tile_factor(recipe_, spec.dk_ds, ds).transposed(), dk_q);
      add_means(first, key, ds);
    }
  }

  /// Step 4. A query that sees no key has x = -Inf everywhere and M = 0.
  Matrix<Real> weights(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q,
                       const Saved<Real>& saved) const {
    Matrix<Real> x = scores_.logits(first, rows, key, q);
    for (Eigen::Index r = 0; r < x.rows(); ++r) {
      const Real log_sum = saved.log_sum[static_cast<std::size_t>(first + r)];
      for (Eigen::Index j = 0; j < x.cols(); ++j) x(r, j) -= log_sum;
    }
    apply_exp2(recipe_.exp2, std::span<Real>(x.data(), static_cast<std::size_t>(x.size())));
    return x;
  }

  static Matrix<Real> score_gradient(const Matrix<Real>& p, Matrix<Real> dp, const Real* delta) {
    for (Eigen::Index r = 0; r < p.rows(); ++r) {
      for (Eigen::Index j = 0; j < p.cols(); ++j) dp(r, j) = p(r, j) * (dp(r, j) - delta[r]);
    }
    return dp;
  }

  /// Step 6.
  void add_means(std::int64_t first, std::int64_t key, const Matrix<Real>& ds) {
    const BackwardSpec& spec = recipe_.backward;
    if (spec.k_mean && forward_.k_mean.size() != 0 && spec.dq_k.source != Source::original) {
      for (Eigen::Index r = 0; r < ds.rows(); ++r) {
        Real sum{0};
        for (Eigen::Index j = 0; j < ds.cols(); ++j) sum += ds(r, j);
        for (Eigen::Index c = 0; c < dq_.cols(); ++c) {
          dq_(first + r, c) += sum * static_cast<Real>(forward_.k_mean(0, c));
        }
      }
    }
    if (!spec.q_mean || forward_.q_means.size() == 0 || spec.dk_q.source == Source::original) return;
    const Eigen::Index block = first / recipe_.q_block;
    for (Eigen::Index j = 0; j < ds.cols(); ++j) {
      Real sum{0};
      for (Eigen::Index r = 0; r < ds.rows(); ++r) sum += ds(r, j);
      for (Eigen::Index c = 0; c < dk_.cols(); ++c) {
        dk_(key + j, c) += sum * static_cast<Real>(forward_.q_means(block, c));
      }
    }
  }

  /// Step 7.
  void finish(const format::Format& format, Saved<Real>& saved, Gradients& sums) {
    multiply(dq_, recipe_.backward.dq_k.source, forward_.q_factor);
    multiply(dk_, recipe_.backward.dk_q.source, forward_.k_factor);
    const MatrixD dq = basis_undone(dq_, recipe_.backward.dq_k.source, false);
    sums.dk += basis_undone(dk_, recipe_.backward.dk_q.source, true);
    sums.dv += dv_.template cast<double>();
    sums.o.push_back(std::move(saved.o));
    sums.dq.push_back(dq.unaryExpr([&](double x) { return rounded(format, x); }));
  }

  /// The softmax scale, but for what the other operand of the product has of it already.
  void multiply(Matrix<Real>& gradient, Source other_source, double factor) const {
    const bool original = other_source == Source::original;
    const Real scale = static_cast<Real>(original ? problem_.sm_scale : factor * forward_.score_scale);
    for (Eigen::Index i = 0; i < gradient.size(); ++i) gradient.data()[i] *= scale;
  }

  /// A gradient that was made of rotated and balanced operands, in the basis of the dump.
  MatrixD basis_undone(const Matrix<Real>& gradient, Source source, bool is_k) const {
    const bool changed = recipe_.rotation != Rotation::none || recipe_.balance != Balance::none;
    if (source == Source::original || !changed) return gradient.template cast<double>();
    MatrixF x = gradient.template cast<float>();
    if (recipe_.rotation == Rotation::hadamard) x = quant::rotate_back(x, {recipe_.rotation_seed, 1});
    if (!forward_.balance.empty()) {
      x = is_k ? quant::multiply_channels(x, forward_.balance) : quant::divide_channels(x, forward_.balance);
    }
    return x.cast<double>();
  }

  const Problem& problem_;
  const MatrixD& upstream_;
  const Recipe& recipe_;
  const Recipe score_recipe_;
  const Operands forward_;
  const Operands score_operands_;
  const Scores<Real> scores_;
  const StoredFactor dv_do_, dp_do_;
  const Operands unquantized_;
  const StoredFactor dp_v_, dq_k_, dk_q_;
  Matrix<Real> dq_, dk_, dv_;
};

template <class Real>
void add_head(const Problem& problem, const MatrixD& upstream, const Recipe& recipe, const format::Format& input_format,
              Gradients& sums) {
  HeadBackward<Real>(problem, upstream, recipe).run(input_format, sums);
}

void check_recipes(std::span<const Problem> heads, std::span<const Recipe* const> recipes) {
  if (recipes.size() != heads.size()) throw Error(ErrorKind::usage, "gradients: one recipe a query head is needed");
  for (const Recipe* recipe : recipes) {
    validate(*recipe);
    if (recipe->o_format == recipes.front()->o_format) continue;
    throw Error(ErrorKind::usage,
                "recipe '" + recipe->name + "': the heads of a group need one o_format, that of dK and dV");
  }
}

}  // namespace

Gradients recipe_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream, const Recipe& recipe,
                           const format::Format& input_format) {
  const std::vector<const Recipe*> recipes(heads.size(), &recipe);
  return recipe_gradients(heads, upstream, recipes, input_format);
}

Gradients recipe_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream,
                           std::span<const Recipe* const> recipes, const format::Format& input_format) {
  const FpEnvironment environment;
  check_shapes(heads, upstream);
  check_recipes(heads, recipes);
  const format::Format* wanted = recipes.front()->o_format;
  const format::Format& format = wanted == nullptr ? input_format : *wanted;
  Gradients gradients;
  gradients.dk = MatrixD::Zero(heads.front().k.rows(), heads.front().k.cols());
  gradients.dv = MatrixD::Zero(heads.front().v.rows(), heads.front().v.cols());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (recipes[h]->softmax == Softmax::f64) {
      add_head<double>(heads[h], upstream[h], *recipes[h], input_format, gradients);
    } else {
      add_head<float>(heads[h], upstream[h], *recipes[h], input_format, gradients);
    }
  }
  for (MatrixD* sum : {&gradients.dk, &gradients.dv}) {
    *sum = sum->unaryExpr([&](double x) { return rounded(format, x); });
  }
  return gradients;
}

}  // namespace qattn::attention
