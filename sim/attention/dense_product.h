// Matrix products in ordinary float or double arithmetic with a fixed order of operations, by SIMD.
#pragma once

#include "tensor/matrix.h"

namespace qattn::attention {

/// c += a b for a [M, K], b [K, N], c [M, N]. Each element of c takes its K products in ascending order: every product
/// is rounded, then added with a rounding. No fused operation is used on any SIMD target, so all targets give the bits
/// of accumulate_product_plain(). `n` limits the work to the first n columns (-1: all).
void accumulate_product(MatrixView<float> a, MatrixView<float> b, Eigen::Ref<MatrixF, 0, Eigen::OuterStride<>> c,
                        Eigen::Index n = -1);
void accumulate_product(MatrixView<double> a, MatrixView<double> b, Eigen::Ref<MatrixD, 0, Eigen::OuterStride<>> c,
                        Eigen::Index n = -1);

/// The plain twin.
void accumulate_product_plain(MatrixView<float> a, MatrixView<float> b, Eigen::Ref<MatrixF, 0, Eigen::OuterStride<>> c,
                              Eigen::Index n = -1);
void accumulate_product_plain(MatrixView<double> a, MatrixView<double> b,
                              Eigen::Ref<MatrixD, 0, Eigen::OuterStride<>> c, Eigen::Index n = -1);

}  // namespace qattn::attention
