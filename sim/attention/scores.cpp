#include "attention/scores.h"

#include <algorithm>
#include <limits>

#include "base/exponential_constants.h"
#include "format/encode.h"

namespace qattn::attention {
namespace {

constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};

/// The accumulator takes what the operand stands for, not its codes.
bool by_value(const Accumulator& accumulator, const Stored& stored) {
  return stored.values.size() != 0 && !accumulator.block_scaled();
}

template <class Real>
void round_row(const format::Format& format, std::int64_t count, Real* row) {
  for (std::int64_t j = 0; j < count; ++j) {
    row[j] = static_cast<Real>(format::decode(format, format::encode(format, row[j], kToNearest)));
  }
}

}  // namespace

CausalAlign causal_alignment(const Problem& problem, const Recipe& recipe) {
  if (recipe.causal_align == CausalStart::input) return problem.causal_align;
  return recipe.causal_align == CausalStart::top_left ? CausalAlign::top_left : CausalAlign::bottom_right;
}

double logit_scale(double score_scale) { return score_scale * elementary::kLog2E; }

double mask_addend(double mask) { return mask * elementary::kLog2E; }

template <class Real>
Real largest(const Real* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;  // the order decides nothing
  Real lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<Real>::infinity());
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (std::int64_t t = 0; t < kLanes; ++t) lanes[t] = lanes[t] < values[j + t] ? values[j + t] : lanes[t];
  }
  for (; j < count; ++j) lanes[0] = std::max(lanes[0], values[j]);
  return *std::max_element(lanes, lanes + kLanes);
}

template float largest(const float*, std::int64_t);
template double largest(const double*, std::int64_t);

namespace {

/// Rows side by side: an addition waits for the one before it in its row only.
template <int kRows, class Real, class T>
void add_rows(const T* first, Eigen::Index columns, Real* sums) {
  Real running[kRows] = {};
  for (Eigen::Index j = 0; j < columns; ++j) {
    for (int r = 0; r < kRows; ++r) running[r] += static_cast<Real>(first[r * columns + j]);
  }
  std::copy_n(running, kRows, sums);
}

template <int kRows, class Real, class T>
std::vector<Real> sums_of(const Matrix<T>& a) {
  std::vector<Real> sums(static_cast<std::size_t>(a.rows()));
  Eigen::Index row = 0;
  for (; row + kRows <= a.rows(); row += kRows) add_rows<kRows>(a.data() + row * a.cols(), a.cols(), sums.data() + row);
  for (; row < a.rows(); ++row) add_rows<1>(a.data() + row * a.cols(), a.cols(), sums.data() + row);
  return sums;
}

}  // namespace

template <class Real, class T>
std::vector<Real> row_sums(const Matrix<T>& a) {
  return sums_of<8, Real>(a);
}

template <class Real, class T>
std::vector<Real> row_sums_plain(const Matrix<T>& a) {
  return sums_of<1, Real>(a);
}

template std::vector<float> row_sums(const Matrix<float>&);
template std::vector<double> row_sums(const Matrix<float>&);
template std::vector<double> row_sums(const Matrix<double>&);
template std::vector<float> row_sums_plain(const Matrix<float>&);
template std::vector<double> row_sums_plain(const Matrix<float>&);
template std::vector<double> row_sums_plain(const Matrix<double>&);

Side left_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count) {
  if (by_value(accumulator, stored)) return left_side(accumulator, MatrixD(stored.values.middleRows(first, count)));
  const MatrixView<std::uint32_t> codes = stored.codes.middleRows(first, count);
  if (!accumulator.block_scaled()) return left_side(accumulator, *stored.format, codes);
  return left_side(accumulator, *stored.format, codes, stored.block_scales.middleRows(first, count));
}

Side right_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count,
                bool transpose) {
  if (by_value(accumulator, stored)) {
    const MatrixD values = stored.values.middleRows(first, count);
    return transpose ? right_side(accumulator, MatrixD(values.transpose())) : right_side(accumulator, values);
  }
  MatrixCodes codes = stored.codes.middleRows(first, count);
  if (transpose) codes = MatrixCodes(codes.transpose());
  if (!accumulator.block_scaled()) return right_side(accumulator, *stored.format, codes);
  const std::int64_t block = accumulator.instruction->block;
  return right_side(accumulator, *stored.format, codes,
                    transpose
                        ? MatrixCodes(stored.block_scales.middleRows(first, count))
                        : MatrixCodes(stored.block_scales.middleCols(first / block, (count + block - 1) / block)));
}

template <class Real>
Scores<Real>::Scores(const Problem& problem, const Recipe& recipe, const Operands& operands, mma::Path path)
    : problem_(problem),
      recipe_(recipe),
      operands_(operands),
      accumulator_(resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k)),
      logit_scale_(static_cast<Real>(logit_scale(operands.score_scale))),
      align_(causal_alignment(problem, recipe)) {
  accumulator_.path = path;
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
Matrix<Real> Scores<Real>::logits(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q,
                                  std::vector<Real>* unmasked_max, mma::PathUse* steps) const {
  const std::int64_t keys = std::min<std::int64_t>(recipe_.k_block, problem_.k.rows() - key);
  PartialSum sum(accumulator_, rows, keys);
  sum.add(q, k_tiles_[static_cast<std::size_t>(key / recipe_.k_block)], 0, problem_.q.cols());
  if (steps != nullptr) *steps += sum.use();
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
    if (recipe_.s_format != nullptr) round_row(*recipe_.s_format, keys, row);
    for (std::int64_t j = 0; j < keys; ++j) row[j] *= logit_scale_;
    if (unmasked_max != nullptr) (*unmasked_max)[static_cast<std::size_t>(r)] = largest(row, keys);
    if (problem_.mask) add_mask(first + r, key, keys, row);
    const std::int64_t visible = std::clamp<std::int64_t>(visible_keys(first + r) - key, 0, keys);
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
      row[j] += static_cast<Real>(mask_addend(mask));
    }
  }
}

template class Scores<float>;
template class Scores<double>;

}  // namespace qattn::attention
