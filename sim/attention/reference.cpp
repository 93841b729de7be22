#include "attention/reference.h"

#include <algorithm>
#include <limits>

#include "attention/dense_product.h"
#include "attention/reference_weights.h"
#include "base/elementary.h"
#include "base/fp_environment.h"
#include "base/parallel.h"

namespace qattn::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rows of the problem that share one pass over the keys. A hidden key has weight zero, which must not meet a NaN or
/// Inf in V; then only visible keys are visited, one row at a time.
class Rows {
 public:
  Rows(const Problem& problem, const MatrixD& k_transposed) : problem_(problem), softmax_(problem, k_transposed) {}

  void run(std::int64_t first, std::int64_t count, bool v_is_finite, Output& output) {
    softmax_.compute(first, count);
    const MatrixD& weights = softmax_.weights();
    weighted_ = MatrixD::Zero(count, problem_.v.cols());
    if (v_is_finite) {
      accumulate_product(weights, problem_.v.topRows(weights.cols()), weighted_);
    } else {
      for (std::int64_t r = 0; r < count; ++r) weigh_visible(first + r, r);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const RowSoftmax& row = softmax_.row(r);
      for (std::int64_t c = 0; c < weighted_.cols(); ++c) {
        output.o(first + r, c) = row.empty() ? 0.0 : weighted_(r, c) / row.sum;
      }
      output.lse[static_cast<std::size_t>(first + r)] = row.empty() ? -kInfinity : row.max + elementary::log(row.sum);
    }
  }

 private:
  void weigh_visible(std::int64_t row, std::int64_t r) {
    const std::int64_t visible = problem_.visible_keys(row);
    for (std::int64_t key = 0; key < visible; ++key) {
      if (problem_.mask && (*problem_.mask)(row, key) == -kInfinity) continue;
      for (std::int64_t c = 0; c < weighted_.cols(); ++c) {
        weighted_(r, c) += softmax_.weights()(r, key) * problem_.v(key, c);
      }
    }
  }

  const Problem& problem_;
  ReferenceWeights softmax_;
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
  constexpr std::int64_t kRows = kReferenceRowsAtOnce;
  parallel_for((queries + kRows - 1) / kRows, 1, [&](std::int64_t i) {
    Rows(problem, k_transposed).run(i * kRows, std::min(kRows, queries - i * kRows), v_is_finite, output);
  });
  return output;
}

}  // namespace qattn::attention
