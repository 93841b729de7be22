#include "attention/gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/dense_product.h"
#include "attention/reference_weights.h"
#include "base/error.h"
#include "base/fp_environment.h"

namespace qattn::attention {
namespace {

/// One query head; dk and dv are added to.
class HeadGradient {
 public:
  HeadGradient(const Problem& problem, const MatrixD& upstream, Gradients& sums)
      : problem_(problem),
        upstream_(upstream),
        k_transposed_(problem.k.transpose()),
        v_transposed_(problem.v.transpose()),
        softmax_(problem, k_transposed_),
        o_(MatrixD::Zero(problem.q.rows(), problem.v.cols())),
        dq_(MatrixD::Zero(problem.q.rows(), problem.q.cols())),
        sums_(sums) {}

  void run() {
    const std::int64_t queries = problem_.q.rows();
    for (std::int64_t first = 0; first < queries; first += kReferenceRowsAtOnce) {
      run_rows(first, std::min(kReferenceRowsAtOnce, queries - first));
    }
    sums_.o.push_back(std::move(o_));
    sums_.dq.push_back(std::move(dq_));
  }

 private:
  void run_rows(std::int64_t first, std::int64_t count) {
    softmax_.compute(first, count);
    MatrixD& p = softmax_.weights();
    const std::int64_t keys = p.cols();
    // As reference_attention() does: the weighted sum of V first, then the division.
    accumulate_product(p, problem_.v.topRows(keys), o_.middleRows(first, count));
    for (std::int64_t r = 0; r < count; ++r) {
      const RowSoftmax& row = softmax_.row(r);
      if (row.empty()) continue;
      for (std::int64_t c = 0; c < o_.cols(); ++c) o_(first + r, c) /= row.sum;
      for (std::int64_t j = 0; j < keys; ++j) p(r, j) /= row.sum;
    }
    const MatrixD upstream = upstream_.middleRows(first, count);
    accumulate_product(MatrixD(p.transpose()), upstream, sums_.dv.topRows(keys));
    const MatrixD ds = score_gradient(first, p, upstream);
    accumulate_product(ds, problem_.k.topRows(keys), dq_.middleRows(first, count));
    accumulate_product(MatrixD(ds.transpose()), problem_.q.middleRows(first, count), sums_.dk.topRows(keys));
  }

  /// sm_scale * P * (upstream V^T - delta).
  MatrixD score_gradient(std::int64_t first, const MatrixD& p, const MatrixD& upstream) const {
    MatrixD ds = MatrixD::Zero(p.rows(), p.cols());
    accumulate_product(upstream, v_transposed_, ds, p.cols());
    for (std::int64_t r = 0; r < p.rows(); ++r) {
      double delta = 0.0;
      for (std::int64_t c = 0; c < upstream.cols(); ++c) delta += upstream(r, c) * o_(first + r, c);
      for (std::int64_t j = 0; j < p.cols(); ++j) ds(r, j) = p(r, j) * (ds(r, j) - delta) * problem_.sm_scale;
    }
    return ds;
  }

  const Problem& problem_;
  const MatrixD& upstream_;
  const MatrixD k_transposed_;
  const MatrixD v_transposed_;
  ReferenceWeights softmax_;
  MatrixD o_;
  MatrixD dq_;
  Gradients& sums_;
};

}  // namespace

void check_shapes(std::span<const Problem> heads, std::span<const MatrixD> upstream) {
  if (heads.empty() || heads.size() != upstream.size()) {
    throw Error(ErrorKind::input,
                fmt::format("attention: {} heads and {} upstream gradients", heads.size(), upstream.size()));
  }
  const Problem& first = heads.front();
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const Problem& head = heads[h];
    check_shapes(head);
    if (head.q.rows() != first.q.rows() || head.q.cols() != first.q.cols() || head.k.rows() != first.k.rows() ||
        head.v.cols() != first.v.cols()) {
      throw Error(ErrorKind::input, fmt::format("attention: head {} of a group has another shape than the first", h));
    }
    if (upstream[h].rows() != head.q.rows() || upstream[h].cols() != head.v.cols()) {
      throw Error(ErrorKind::input, fmt::format("attention: the upstream gradient is {} x {}, the output {} x {}",
                                                upstream[h].rows(), upstream[h].cols(), head.q.rows(), head.v.cols()));
    }
  }
}

Gradients reference_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream) {
  const FpEnvironment environment;
  check_shapes(heads, upstream);
  const Problem& first = heads.front();
  Gradients gradients;
  gradients.dk = MatrixD::Zero(first.k.rows(), first.k.cols());
  gradients.dv = MatrixD::Zero(first.v.rows(), first.v.cols());
  for (std::size_t h = 0; h < heads.size(); ++h) HeadGradient(heads[h], upstream[h], gradients).run();
  return gradients;
}

}  // namespace qattn::attention
