// The order of operations, for one tile of q_block queries against all tiles of k_block keys. "RN" rounds to nearest-
// even in the softmax type (f32, or f64). Nothing is fused.
//
// Before the tiles: the softmax scale where Q or K take it, balance, rotation, smoothing, quantization (operands.cpp).
//
//  1. s = q . k in the QK accumulator, over head_dim ascending, from zero.
//  2. s = RN(s * RN(q_scale * k_scale)), scaled operands only.
//  3. s = RN(s + correction), smoothed Q only; then rounded to s_format, where there is one.
//  4. x = RN(s * c), c = RN(log2(e) * what is left of the softmax scale); x = RN(x + RN(mask * log2(e))) with an
//     additive mask; hidden keys -Inf.
//  5. m' = max(m, x over the tile), the x before the masks if row_max says so; m' = m if RN(m' - m) <=
//     rescale_threshold. osc = exp2(RN(m - m')); p = exp2(RN(x - m')). A row that has seen no key keeps m' = -Inf, and
//     subtracts 0.
//  6. l = RN(RN(l * osc) + t), t the sum of the tile's p from zero, keys ascending (of their codes, if row_sum says
//     so; in the order of narrow_row_sum() where row_sum_format is narrower than FP32). Normalized P: p = RN(p / l).
//  7. P's codes: RN(p * p_scale) to f32 (where p_scale is not 1), then to the format, nearest-even and saturating;
//     formats that are cast: p. A per_token scale or the second level of a micro-scaled P is a factor of the row, the
//     block scales belong to the codes.
//  8. O = RN(O * osc), and a pending partial sum R likewise; R continues over the tile's keys in the PV accumulator;
//     wherever the promotion interval ends, O = RN(O + R) and R starts from zero. In between R = RN(R * factor of P's
//     row) and R = RN(R * V's scale of the block), where there are such.
//  9. After the last tile: o = RN(RN(O / l) * RN(v_scale / p_scale)), without the division if P is normalized;
//     o = RN(o + v_mean), then O's format.
//
// A key hidden in a tile that is visited has p = 0 and still meets V, as in every kernel: a NaN there shows.
#include "attention/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/contraction.h"
#include "attention/finish.h"
#include "attention/operands.h"
#include "attention/rounding.h"
#include "attention/scores.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "format/encode.h"

namespace qattn::attention {
namespace {

/// A tile's row sum in a narrow format: every p and every addition is rounded to it. The order is that in which the
/// fragments of an m16n8 row are reduced: neighbours, the lanes of a quad at distance 2, then 1, then blocks of 8
/// columns, half the tile apart first. The row is padded with zeros to a power of two, at least 8.
float narrow_row_sum(const format::Format& format, std::vector<float> p) {
  std::size_t size = 8;
  while (size < p.size()) size *= 2;
  p.resize(size, 0.0F);
  for (float& value : p) value = rounded(format, value);
  std::vector<std::size_t> distances = {1, 4, 2};
  for (std::size_t distance = size / 2; distance >= 8; distance /= 2) distances.push_back(distance);
  std::size_t reduced = 0;
  for (const std::size_t distance : distances) {
    reduced |= distance;
    for (std::size_t i = 0; i < size; ++i) {
      if ((i & reduced) == 0) p[i] = rounded(format, p[i] + p[i | distance]);
    }
  }
  return p.front();
}

/// One head under one recipe; Real is the softmax type.
template <class Real>
class Head {
 public:
  Head(const Problem& problem, const Recipe& recipe, const format::Format& o_format, mma::Path path)
      : problem_(problem),
        recipe_(recipe),
        operands_(prepare_operands(problem, recipe)),
        scores_(problem, recipe, operands_, path),
        pv_(resolve_accumulator(recipe.accumulator, recipe.p, recipe.v)),
        p_scale_(static_cast<Real>(resolved_p_scale(recipe))),
        finish_(recipe, operands_, o_format, problem.v.cols()) {
    pv_.path = path;
    prepare_values();
  }

  Output run() const {
    const std::int64_t queries = problem_.q.rows();
    Output output{MatrixD::Zero(queries, problem_.v.cols()), std::vector<double>(static_cast<std::size_t>(queries))};
    const std::int64_t block = recipe_.q_block, blocks = (queries + block - 1) / block;
    std::vector<mma::PathUse> steps(static_cast<std::size_t>(blocks));
    parallel_for(blocks, 1, [&](std::int64_t i) {
      steps[static_cast<std::size_t>(i)] = run_block(i * block, std::min(block, queries - i * block), output);
    });
    for (const mma::PathUse& of_block : steps) output.steps += of_block;
    return output;
  }

 private:
  /// What the online softmax carries from tile to tile.
  struct Running {
    std::vector<Real> max;
    std::vector<Real> tile_max;  ///< of the tile in hand
    std::vector<Real> sum;
    std::vector<Real> rescale;  ///< osc of the tile in hand
    Matrix<Real> o;
    PartialSum partial;
    std::int64_t pending = 0;  ///< steps in `partial` since it was last added to O; a whole tile where there are none
    mma::PathUse score_steps = {};
  };

  void prepare_values() {
    const std::int64_t keys = problem_.v.rows();
    for (std::int64_t first = 0; first < keys; first += recipe_.k_block) {
      const std::int64_t count = std::min<std::int64_t>(recipe_.k_block, keys - first);
      v_tiles_.push_back(right_tile(pv_, operands_.v, first, count, false));
    }
  }

  mma::PathUse run_block(std::int64_t first, std::int64_t rows, Output& output) const {
    const auto count = static_cast<std::size_t>(rows);
    Running running{std::vector<Real>(count, -std::numeric_limits<Real>::infinity()),
                    std::vector<Real>(count),
                    std::vector<Real>(count, Real{0}),
                    std::vector<Real>(count, Real{1}),
                    Matrix<Real>::Zero(rows, problem_.v.cols()),
                    PartialSum(pv_, rows, problem_.v.cols())};
    const Side q = scores_.queries(first, rows);
    const std::int64_t tiles = (scores_.visible_keys(first + rows - 1) + recipe_.k_block - 1) / recipe_.k_block;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t tile = recipe_.tile_order == TileOrder::ascending ? i : tiles - 1 - i;
      const std::int64_t key = tile * recipe_.k_block;
      Matrix<Real> p = tile_logits(first, rows, key, q, running);
      weights(p, running);
      accumulate(p, key, v_tiles_[static_cast<std::size_t>(tile)], running);
    }
    if (running.pending > 0) promote(0, {}, running);
    for (Eigen::Index r = 0; r < rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      finish_.row(first + r, running.max[row], running.sum[row], running.o.data() + r * running.o.cols(), output);
    }
    running.score_steps += running.partial.use();
    return running.score_steps;
  }

  /// Steps 1 to 4, and the row maxima of the tile.
  Matrix<Real> tile_logits(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q,
                           Running& running) const {
    const bool before_mask = recipe_.row_max == RowMax::before_mask;
    Matrix<Real> x =
        scores_.logits(first, rows, key, q, before_mask ? &running.tile_max : nullptr, &running.score_steps);
    if (before_mask) return x;
    for (Eigen::Index r = 0; r < rows; ++r) {
      running.tile_max[static_cast<std::size_t>(r)] = largest(x.data() + r * x.cols(), x.cols());
    }
    return x;
  }

  /// Steps 5 and 6, but for a row sum of rounded P; `x` becomes p.
  void weights(Matrix<Real>& x, Running& running) const {
    const auto threshold = static_cast<Real>(recipe_.rescale_threshold);
    for (Eigen::Index r = 0; r < x.rows(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      Real* row = x.data() + r * x.cols();
      Real max = std::max(running.max[i], running.tile_max[i]);
      if (max - running.max[i] <= threshold) max = running.max[i];
      const bool unseen = max == -std::numeric_limits<Real>::infinity();
      running.rescale[i] = unseen ? Real{0} : running.max[i] - max;
      running.max[i] = max;
      const Real subtracted = unseen ? Real{0} : max;
      for (Eigen::Index j = 0; j < x.cols(); ++j) row[j] -= subtracted;
    }
    apply_exp2(recipe_.exp2, std::span<Real>(running.rescale));
    apply_exp2(recipe_.exp2, std::span<Real>(x.data(), static_cast<std::size_t>(x.size())));
    if (recipe_.row_sum == RowSum::unrounded) add_row_sums(x, running);
    if (recipe_.p_normalized) normalize(x, running);
  }

  static void normalize(Matrix<Real>& p, const Running& running) {
    for (Eigen::Index r = 0; r < p.rows(); ++r) {
      const Real sum = running.sum[static_cast<std::size_t>(r)];
      if (sum == Real{0}) continue;
      for (Eigen::Index j = 0; j < p.cols(); ++j) p(r, j) /= sum;
    }
  }

  template <class T>
  void add_row_sums(const Matrix<T>& p, Running& running) const {
    const bool narrow = recipe_.row_sum_format != &format::kFP32;
    std::vector<Real> sums = narrow ? std::vector<Real>(running.sum.size()) : row_sums<Real>(p);
    for (Eigen::Index r = 0; r < p.rows(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (narrow) {
        std::vector<float> row;
        for (Eigen::Index j = 0; j < p.cols(); ++j) row.push_back(static_cast<float>(p(r, j)));
        sums[i] = static_cast<Real>(narrow_row_sum(*recipe_.row_sum_format, std::move(row)));
      }
      running.sum[i] = running.sum[i] * running.rescale[i] + sums[i];
    }
  }

  /// P as the PV product takes it, and the factor of each row's partial sums; empty: none.
  struct StoredP {
    Side side;
    std::vector<float> row_factor;
  };

  /// Step 7; the row sum too, where it adds rounded values.
  StoredP stored_p(const Matrix<Real>& p, Running& running) const {
    if (recipe_.p.exact()) {
      if (recipe_.row_sum == RowSum::rounded) add_row_sums(p, running);
      return {left_side(pv_, MatrixD(p.template cast<double>())), {}};
    }
    Stored stored = quantized_p(p.template cast<float>());
    if (recipe_.row_sum == RowSum::rounded) add_row_sums(MatrixF(values_of(stored).cast<float>()), running);
    return {left_tile(pv_, stored, 0, p.rows()), std::move(stored.row_scale)};
  }

  Stored quantized_p(MatrixF p) const {
    const OperandSpec& spec = recipe_.p;
    if (p_scale_ != Real{1}) {
      const auto scale = static_cast<float>(p_scale_);
      for (Eigen::Index i = 0; i < p.size(); ++i) p.data()[i] *= scale;
    }
    if (!spec.scaled() || spec.micro_scaled() || spec.row_scaled()) return store(recipe_, spec, quant::Operand::p, p);
    Stored stored{};
    stored.format = spec.format;
    stored.codes.resize(p.rows(), p.cols());
    const auto size = static_cast<std::size_t>(p.size());
    format::encode_span(*spec.format, {p.data(), size}, format::Policy{}, {stored.codes.data(), size});
    return stored;
  }

  /// Step 8.
  void accumulate(const Matrix<Real>& p, std::int64_t key, const Side& v, Running& running) const {
    const StoredP left = stored_p(p, running);
    for (Eigen::Index r = 0; r < p.rows(); ++r) {
      const Real rescale = running.rescale[static_cast<std::size_t>(r)];
      for (Eigen::Index c = 0; c < running.o.cols(); ++c) running.o(r, c) *= rescale;
      if (running.pending > 0) running.partial.rescale_row(r, static_cast<double>(rescale));
    }
    const std::int64_t keys = p.cols();
    // Where there are no steps, or the promotion is per tile, one slice is the tile.
    const bool stepped = pv_.step() > 0 && recipe_.promotion > 0;
    const std::int64_t interval = stepped ? recipe_.promotion : 1;
    std::int64_t start = 0;
    while (start < keys) {
      const std::int64_t left_in_interval = stepped ? (interval - running.pending) * pv_.step() : keys;
      const std::int64_t end = std::min(keys, start + left_in_interval);
      running.partial.add(left.side, v, start, end);
      running.pending += stepped ? (end - start + pv_.step() - 1) / pv_.step() : 1;
      start = end;
      if (promotes_every_tile() || (stepped && running.pending == interval)) promote(key, left.row_factor, running);
    }
  }

  /// An integer sum is exact only until it would be rescaled, so it never outlives a tile; other sums without steps
  /// take any interval as one tile.
  bool promotes_every_tile() const {
    if (pv_.kind == Accumulator::Kind::integer || recipe_.promotion < 0) return true;
    return pv_.step() == 0 && recipe_.promotion > 0;
  }

  void promote(std::int64_t key, const std::vector<float>& row_factor, Running& running) const {
    Matrix<Real> partial;
    running.partial.read(partial);
    if (!row_factor.empty()) {
      for (Eigen::Index r = 0; r < partial.rows(); ++r) {
        const auto factor = static_cast<Real>(row_factor[static_cast<std::size_t>(r)]);
        for (Eigen::Index c = 0; c < partial.cols(); ++c) partial(r, c) *= factor;
      }
    }
    const auto& block_scale = operands_.v.row_scale;
    const Real scale = block_scale.empty() ? Real{1} : static_cast<Real>(block_scale[static_cast<std::size_t>(key)]);
    for (Eigen::Index i = 0; i < partial.size(); ++i) running.o.data()[i] += partial.data()[i] * scale;
    running.partial.clear();
    running.pending = 0;
  }

  const Problem& problem_;
  const Recipe& recipe_;
  const Operands operands_;
  const Scores<Real> scores_;
  Accumulator pv_;
  const Real p_scale_;
  const Finish<Real> finish_;
  std::vector<Side> v_tiles_;
};

}  // namespace

void check_runnable(const Problem& problem, const Recipe& recipe) {
  check_shapes(problem);
  validate(recipe);
  if (!recipe.p_normalized || problem.k.rows() <= recipe.k_block) return;
  throw Error(ErrorKind::usage, fmt::format("recipe '{}': p_normalized needs all {} keys in one tile (k_block is {})",
                                            recipe.name, problem.k.rows(), recipe.k_block));
}

Output run_recipe(const Problem& problem, const Recipe& recipe, const format::Format& input_format, mma::Path path) {
  const FpEnvironment environment;
  check_runnable(problem, recipe);
  const format::Format& o_format = recipe.o_format == nullptr ? input_format : *recipe.o_format;
  if (recipe.softmax == Softmax::f64) return Head<double>(problem, recipe, o_format, path).run();
  return Head<float>(problem, recipe, o_format, path).run();
}

Recipe with_exact_accumulators(const Recipe& recipe) {
  Recipe exact = recipe;
  exact.qk_accumulator = "exact";
  exact.accumulator = "exact";
  return exact;
}

}  // namespace qattn::attention
