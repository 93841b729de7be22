#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/dense_product.h"
#include "base/elementary.h"
#include "base/fp_environment.h"

namespace qattn::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What one row's scores become: weights exp(score - max) in place, their sum, and the largest score.
struct RowSoftmax {
  double max = -kInfinity;
  double sum = 0.0;
  bool empty() const { return max == -kInfinity; }
};

/// Scores that are NaN make the whole row NaN; scores of -Inf are keys that the mask hides.
RowSoftmax softmax_row(std::span<double> scores) {
  RowSoftmax row;
  bool has_nan = false;
  for (const double score : scores) {
    has_nan = has_nan || std::isnan(score);
    row.max = std::max(row.max, score);
  }
  if (has_nan) row.max = kNaN;
  if (row.empty()) {
    std::fill(scores.begin(), scores.end(), 0.0);
    return row;
  }
  for (double& score : scores) score -= row.max;
  elementary::exp(scores, scores);
  for (const double weight : scores) row.sum += weight;
  return row;
}

/// Rows of the problem that share one pass over the keys. A hidden key has weight zero, which must not meet a NaN or
/// Inf in V; then only visible keys are visited, one row at a time.
class Rows {
 public:
  Rows(const Problem& problem, const MatrixD& k_transposed) : problem_(problem), k_transposed_(k_transposed) {}

  void run(std::int64_t first, std::int64_t count, bool v_is_finite, Output& output) {
    const std::int64_t keys = problem_.visible_keys(first + count - 1);
    scores_ = MatrixD::Zero(count, keys);
    accumulate_product(problem_.q.middleRows(first, count), k_transposed_, scores_, keys);
    weighted_ = MatrixD::Zero(count, problem_.v.cols());
    std::vector<RowSoftmax> softmax;
    for (std::int64_t r = 0; r < count; ++r) softmax.push_back(weights(first + r, scores_.row(r)));
    if (v_is_finite) {
      accumulate_product(scores_, problem_.v.topRows(keys), weighted_);
    } else {
      for (std::int64_t r = 0; r < count; ++r) weigh_visible(first + r, r);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const bool empty = softmax[static_cast<std::size_t>(r)].empty();
      const double sum = softmax[static_cast<std::size_t>(r)].sum;
      for (std::int64_t c = 0; c < weighted_.cols(); ++c) output.o(first + r, c) = empty ? 0.0 : weighted_(r, c) / sum;
      output.lse[static_cast<std::size_t>(first + r)] =
          empty ? -kInfinity : softmax[static_cast<std::size_t>(r)].max + elementary::log(sum);
    }
  }

 private:
  /// The row's scaled and masked scores, then their weights; keys past the causal limit get weight zero.
  RowSoftmax weights(std::int64_t row, Eigen::Ref<Eigen::RowVectorXd, 0, Eigen::InnerStride<1>> scores) {
    const std::int64_t visible = std::min<std::int64_t>(problem_.visible_keys(row), scores.size());
    for (std::int64_t key = 0; key < visible; ++key) {
      scores[key] *= problem_.sm_scale;
      if (!problem_.mask) continue;
      const double mask = (*problem_.mask)(row, key);
      scores[key] = mask == -kInfinity ? -kInfinity : scores[key] + mask;
    }
    for (std::int64_t key = visible; key < scores.size(); ++key) scores[key] = 0.0;
    return softmax_row({scores.data(), static_cast<std::size_t>(visible)});
  }

  void weigh_visible(std::int64_t row, std::int64_t r) {
    const std::int64_t visible = problem_.visible_keys(row);
    for (std::int64_t key = 0; key < visible; ++key) {
      if (problem_.mask && (*problem_.mask)(row, key) == -kInfinity) continue;
      for (std::int64_t c = 0; c < weighted_.cols(); ++c) weighted_(r, c) += scores_(r, key) * problem_.v(key, c);
    }
  }

  const Problem& problem_;
  const MatrixD& k_transposed_;
  MatrixD scores_;
  MatrixD weighted_;
};

}  // namespace

Output reference_attention(const Problem& problem) {
  const FpEnvironment environment;
  check_shapes(problem);
  const std::int64_t queries = problem.q.rows();
  Output output{MatrixD::Zero(queries, problem.v.cols()), std::vector<double>(static_cast<std::size_t>(queries))};
  const MatrixD k_transposed = problem.k.transpose();
  const bool v_is_finite = problem.v.allFinite();
  // Sixteen rows share a pass over K and V; a score row is as long as there are keys.
  constexpr std::int64_t kRowsAtOnce = 16;
  Rows rows(problem, k_transposed);
  for (std::int64_t first = 0; first < queries; first += kRowsAtOnce) {
    rows.run(first, std::min(kRowsAtOnce, queries - first), v_is_finite, output);
  }
  return output;
}

}  // namespace qattn::attention
