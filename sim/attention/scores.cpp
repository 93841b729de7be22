#include "attention/scores.h"

#include <algorithm>
#include <limits>

namespace qattn::attention {
namespace {

constexpr double kLog2E = 0x1.71547652B82FEp+0;

}  // namespace

Side left_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count) {
  if (stored.coded()) return left_side(accumulator, *stored.format, MatrixCodes(stored.codes.middleRows(first, count)));
  return left_side(accumulator, MatrixD(stored.values.middleRows(first, count)));
}

Side right_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count,
                bool transpose) {
  if (stored.coded()) {
    const MatrixCodes codes = stored.codes.middleRows(first, count);
    if (!transpose) return right_side(accumulator, *stored.format, codes);
    return right_side(accumulator, *stored.format, MatrixCodes(codes.transpose()));
  }
  const MatrixD values = stored.values.middleRows(first, count);
  return transpose ? right_side(accumulator, MatrixD(values.transpose())) : right_side(accumulator, values);
}

template <class Real>
Scores<Real>::Scores(const Problem& problem, const Recipe& recipe, const Operands& operands)
    : problem_(problem),
      recipe_(recipe),
      operands_(operands),
      accumulator_(resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k)),
      logit_scale_(static_cast<Real>(problem.sm_scale * kLog2E)) {
  const std::int64_t keys = problem.k.rows();
  for (std::int64_t first = 0; first < keys; first += recipe.k_block) {
    const std::int64_t count = std::min<std::int64_t>(recipe.k_block, keys - first);
    k_tiles_.push_back(right_tile(accumulator_, operands.k, first, count, true));
  }
}

template <class Real>
Side Scores<Real>::queries(std::int64_t first, std::int64_t rows) const {
  return left_tile(accumulator_, operands_.q, first, rows);
}

template <class Real>
Matrix<Real> Scores<Real>::logits(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q) const {
  const std::int64_t keys = std::min<std::int64_t>(recipe_.k_block, problem_.k.rows() - key);
  PartialSum sum(accumulator_, rows, keys);
  sum.add(q, k_tiles_[static_cast<std::size_t>(key / recipe_.k_block)], 0, problem_.q.cols());
  Matrix<Real> x;
  sum.read(x);
  for (std::int64_t r = 0; r < rows; ++r) {
    Real* row = x.data() + r * keys;
    dequantize_row(first + r, key, keys, row);
    if (operands_.correction.size() != 0) {
      const float* correction =
          operands_.correction.data() + (first / recipe_.q_block) * operands_.correction.cols() + key;
      for (std::int64_t j = 0; j < keys; ++j) row[j] += static_cast<Real>(correction[j]);
    }
    for (std::int64_t j = 0; j < keys; ++j) row[j] *= logit_scale_;
    if (problem_.mask) add_mask(first + r, key, keys, row);
    const std::int64_t visible = std::clamp<std::int64_t>(problem_.visible_keys(first + r) - key, 0, keys);
    std::fill(row + visible, row + keys, -std::numeric_limits<Real>::infinity());
  }
  return x;
}

template <class Real>
void Scores<Real>::dequantize_row(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const {
  const auto& q_scale = operands_.q.row_scale;
  const auto& k_scale = operands_.k.row_scale;
  if (q_scale.empty() && k_scale.empty()) return;
  const float left = q_scale.empty() ? 1.0F : q_scale[static_cast<std::size_t>(query)];
  for (std::int64_t j = 0; j < keys; ++j) {
    const float right = k_scale.empty() ? 1.0F : k_scale[static_cast<std::size_t>(key + j)];
    row[j] *= static_cast<Real>(left * right);
  }
}

template <class Real>
void Scores<Real>::add_mask(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const {
  for (std::int64_t j = 0; j < keys; ++j) {
    const double mask = (*problem_.mask)(query, key + j);
    if (mask == -std::numeric_limits<double>::infinity()) {
      row[j] = -std::numeric_limits<Real>::infinity();
    } else {
      row[j] += static_cast<Real>(mask * kLog2E);
    }
  }
}

template class Scores<float>;
template class Scores<double>;

}  // namespace qattn::attention
