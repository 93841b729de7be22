// Attention and its gradients in float64, and random operands for them.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "base/elementary.h"
#include "base/random.h"
#include "format/encode.h"
#include "tensor/tensor.h"

namespace qattn::kernels {

/// Head `head` (batch and head as one index) of a tensor [B, H, N, D].
inline MatrixD head_of(const Tensor& tensor, Eigen::Index head) {
  const Eigen::Index size = tensor.shape[2] * tensor.shape[3];
  return decode_matrix(tensor, head * size, tensor.shape[2], tensor.shape[3]);
}

/// Uniform in (-2, 2).
inline Tensor random_tensor(const format::Format& format, std::vector<std::int64_t> shape, std::uint64_t stream) {
  Tensor tensor = make_tensor(format, std::move(shape));
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double x = 4 * random_unit(7, stream, static_cast<std::uint64_t>(i)) - 2;
    tensor.set_code(i, format::encode(format, x, {}));
  }
  return tensor;
}

/// sqrt(sum (x - y)^2 / sum y^2).
inline double relative_l2(const MatrixD& x, const MatrixD& y) { return (x - y).norm() / y.norm(); }

/// o, dq, dk and dv of one head; query i sees the keys before visible(i).
template <class Visible>
std::map<std::string, MatrixD> exact_gradients(const MatrixD& q, const MatrixD& k, const MatrixD& v, const MatrixD& d_o,
                                               double scale, Visible visible) {
  MatrixD p = q * k.transpose() * scale;
  for (Eigen::Index i = 0; i < p.rows(); ++i) {
    for (Eigen::Index j = 0; j < p.cols(); ++j) p(i, j) = j < visible(i) ? elementary::exp(p(i, j)) : 0;
    if (p.row(i).sum() > 0) p.row(i) /= p.row(i).sum();
  }
  const MatrixD o = p * v;
  MatrixD ds = d_o * v.transpose();
  for (Eigen::Index i = 0; i < p.rows(); ++i) ds.row(i).array() -= d_o.row(i).dot(o.row(i));
  ds = p.cwiseProduct(ds);
  return {{"o", o}, {"dq", ds * k * scale}, {"dk", ds.transpose() * q * scale}, {"dv", p.transpose() * d_o}};
}

}  // namespace qattn::kernels
