// The softmax weights of a few rows in float64: what the reference and its gradients share.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "attention/problem.h"

namespace qattn::attention {

/// What one row's scores become: weights exp(score - max), their sum, and the largest score. A NaN among the scores
/// makes max NaN and the weights with it.
struct RowSoftmax {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0.0;
  /// The row sees no key; its weights are zero.
  bool empty() const { return max == -std::numeric_limits<double>::infinity(); }
};

/// Weights of rows that share one pass over the keys. Refers to its arguments; k_transposed is problem.k transposed.
class ReferenceWeights {
 public:
  ReferenceWeights(const Problem& problem, const MatrixD& k_transposed)
      : problem_(problem), k_transposed_(k_transposed) {}

  /// Computes rows [first, first + count). Keys from visible_keys(last row) on are left out, hidden ones have weight
  /// zero. Sums run over channels and keys in ascending order, every operation rounded.
  void compute(std::int64_t first, std::int64_t count);

  MatrixD& weights() { return weights_; }  ///< [count, keys]
  const RowSoftmax& row(std::int64_t r) const { return rows_[static_cast<std::size_t>(r)]; }

 private:
  RowSoftmax weigh(std::int64_t row, Eigen::Ref<Eigen::RowVectorXd, 0, Eigen::InnerStride<1>> scores) const;

  const Problem& problem_;
  const MatrixD& k_transposed_;
  MatrixD weights_;
  std::vector<RowSoftmax> rows_;
};

/// So many rows share a pass over K and V.
inline constexpr std::int64_t kReferenceRowsAtOnce = 16;

}  // namespace qattn::attention
