// The matrix types of the house: row-major, rows are tokens, columns are channels.
#pragma once

#include <Eigen/Core>
#include <cstdint>

namespace qattn {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixF = Matrix<float>;
using MatrixD = Matrix<double>;
/// Raw codes of any format of at most 32 bits.
using MatrixCodes = Matrix<std::uint32_t>;

template <class T>
using MatrixView = Eigen::Ref<const Matrix<T>, 0, Eigen::OuterStride<>>;

}  // namespace qattn
