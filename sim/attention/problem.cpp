#include "attention/problem.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace qattn::attention {

std::int64_t Problem::visible_keys(std::int64_t row, CausalAlign align) const {
  if (!is_causal) return k.rows();
  const std::int64_t offset = align == CausalAlign::bottom_right ? k.rows() - q.rows() : 0;
  return std::clamp<std::int64_t>(row + 1 + offset, 0, k.rows());
}

void check_shapes(const Problem& problem) {
  const auto& [q, k, v] = std::tie(problem.q, problem.k, problem.v);
  if (q.size() == 0 || k.size() == 0 || v.size() == 0) {
    throw Error(ErrorKind::input, "attention: q, k and v must have at least one token and one channel");
  }
  if (q.cols() != k.cols()) {
    throw Error(ErrorKind::input, fmt::format("attention: head_dim of q ({}) and k ({}) differ", q.cols(), k.cols()));
  }
  for (const MatrixD& other : problem.group_q) {
    if (other.rows() == q.rows() && other.cols() == q.cols()) continue;
    throw Error(ErrorKind::input, "attention: the query heads of a group have different shapes");
  }
  if (k.rows() != v.rows()) {
    throw Error(ErrorKind::input, fmt::format("attention: k has {} tokens and v {}", k.rows(), v.rows()));
  }
  if (problem.mask && (problem.mask->rows() != q.rows() || problem.mask->cols() != k.rows())) {
    throw Error(ErrorKind::input, fmt::format("attention: the mask is {} x {}, the scores are {} x {}",
                                              problem.mask->rows(), problem.mask->cols(), q.rows(), k.rows()));
  }
}

}  // namespace qattn::attention
