#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/dense_product.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "attention/dense_product.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::attention::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Row-major operands: element (i, j) at pointer[i * stride + j].
template <class T>
struct Product {
  const T* a;
  std::size_t a_stride;
  const T* b;
  std::size_t b_stride;
  T* c;
  std::size_t c_stride;
  std::size_t depth;
};

/// A panel of kRows rows and two vectors of columns, its sums held in registers. Mul and Add stay apart: a fused
/// operation would round once where the plain form rounds twice.
template <int kRows, class D, class T>
HWY_INLINE void multiply_panel(D d, const Product<T>& p, std::size_t row, std::size_t column) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> left[kRows];
  hn::Vec<D> right[kRows];
  for (int r = 0; r < kRows; ++r) {
    left[r] = hn::LoadU(d, p.c + (row + r) * p.c_stride + column);
    right[r] = hn::LoadU(d, p.c + (row + r) * p.c_stride + column + lanes);
  }
  for (std::size_t k = 0; k < p.depth; ++k) {
    const auto b_left = hn::LoadU(d, p.b + k * p.b_stride + column);
    const auto b_right = hn::LoadU(d, p.b + k * p.b_stride + column + lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto a = hn::Set(d, p.a[(row + r) * p.a_stride + k]);
      left[r] = hn::Add(left[r], hn::Mul(a, b_left));
      right[r] = hn::Add(right[r], hn::Mul(a, b_right));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    hn::StoreU(left[r], d, p.c + (row + r) * p.c_stride + column);
    hn::StoreU(right[r], d, p.c + (row + r) * p.c_stride + column + lanes);
  }
}

template <class T>
HWY_INLINE void multiply_element(const Product<T>& p, std::size_t row, std::size_t column) {
  T sum = p.c[row * p.c_stride + column];
  for (std::size_t k = 0; k < p.depth; ++k) sum += p.a[row * p.a_stride + k] * p.b[k * p.b_stride + column];
  p.c[row * p.c_stride + column] = sum;
}

template <class T>
HWY_INLINE void multiply(const Product<T>& p, std::size_t rows, std::size_t columns) {
  const hn::ScalableTag<T> d;
  const std::size_t width = 2 * hn::Lanes(d);
  const std::size_t whole = columns - columns % width;
  for (std::size_t column = 0; column < whole; column += width) {
    std::size_t row = 0;
    for (; row + 4 <= rows; row += 4) multiply_panel<4>(d, p, row, column);
    for (; row < rows; ++row) multiply_panel<1>(d, p, row, column);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = whole; column < columns; ++column) multiply_element(p, row, column);
  }
}

void multiply_float(const float* a, std::size_t a_stride, const float* b, std::size_t b_stride, float* c,
                    std::size_t c_stride, std::size_t rows, std::size_t depth, std::size_t columns) {
  multiply<float>({a, a_stride, b, b_stride, c, c_stride, depth}, rows, columns);
}

void multiply_double(const double* a, std::size_t a_stride, const double* b, std::size_t b_stride, double* c,
                     std::size_t c_stride, std::size_t rows, std::size_t depth, std::size_t columns) {
  multiply<double>({a, a_stride, b, b_stride, c, c_stride, depth}, rows, columns);
}

}  // namespace qattn::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/error.h"

namespace qattn::attention {
namespace {

HWY_EXPORT(multiply_float);
HWY_EXPORT(multiply_double);

template <class A, class B, class C>
Eigen::Index checked_columns(const A& a, const B& b, const C& c, Eigen::Index n) {
  const Eigen::Index columns = n < 0 ? b.cols() : n;
  if (a.cols() != b.rows() || a.rows() != c.rows() || columns > b.cols() || columns > c.cols()) {
    throw Error(ErrorKind::internal, "accumulate_product: shapes disagree");
  }
  return columns;
}

template <class A, class B, class C>
void plain_product(const A& a, const B& b, C& c, Eigen::Index n) {
  const Eigen::Index columns = checked_columns(a, b, c, n);
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    for (Eigen::Index j = 0; j < columns; ++j) {
      auto sum = c(i, j);
      for (Eigen::Index k = 0; k < a.cols(); ++k) sum += a(i, k) * b(k, j);
      c(i, j) = sum;
    }
  }
}

std::size_t size(Eigen::Index index) { return static_cast<std::size_t>(index); }

}  // namespace

void accumulate_product(MatrixView<float> a, MatrixView<float> b, Eigen::Ref<MatrixF, 0, Eigen::OuterStride<>> c,
                        Eigen::Index n) {
  const Eigen::Index columns = checked_columns(a, b, c, n);
  HWY_DYNAMIC_DISPATCH(multiply_float)
  (a.data(), size(a.outerStride()), b.data(), size(b.outerStride()), c.data(), size(c.outerStride()), size(a.rows()),
   size(a.cols()), size(columns));
}

void accumulate_product(MatrixView<double> a, MatrixView<double> b, Eigen::Ref<MatrixD, 0, Eigen::OuterStride<>> c,
                        Eigen::Index n) {
  const Eigen::Index columns = checked_columns(a, b, c, n);
  HWY_DYNAMIC_DISPATCH(multiply_double)
  (a.data(), size(a.outerStride()), b.data(), size(b.outerStride()), c.data(), size(c.outerStride()), size(a.rows()),
   size(a.cols()), size(columns));
}

void accumulate_product_plain(MatrixView<float> a, MatrixView<float> b, Eigen::Ref<MatrixF, 0, Eigen::OuterStride<>> c,
                              Eigen::Index n) {
  plain_product(a, b, c, n);
}

void accumulate_product_plain(MatrixView<double> a, MatrixView<double> b,
                              Eigen::Ref<MatrixD, 0, Eigen::OuterStride<>> c, Eigen::Index n) {
  plain_product(a, b, c, n);
}

}  // namespace qattn::attention
#endif  // HWY_ONCE
