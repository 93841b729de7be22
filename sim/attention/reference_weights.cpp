#include "attention/reference_weights.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attention/dense_product.h"
#include "base/elementary.h"

namespace qattn::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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

}  // namespace

void ReferenceWeights::compute(std::int64_t first, std::int64_t count) {
  const std::int64_t keys = problem_.visible_keys(first + count - 1);
  weights_ = MatrixD::Zero(count, keys);
  accumulate_product(problem_.q.middleRows(first, count), k_transposed_, weights_, keys);
  rows_.clear();
  for (std::int64_t r = 0; r < count; ++r) rows_.push_back(weigh(first + r, weights_.row(r)));
}

RowSoftmax ReferenceWeights::weigh(std::int64_t row,
                                   Eigen::Ref<Eigen::RowVectorXd, 0, Eigen::InnerStride<1>> scores) const {
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

}  // namespace qattn::attention
