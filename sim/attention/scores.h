// The logits of a tile: what the forward pass computes, and the backward pass computes again.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/contraction.h"
#include "attention/operands.h"
#include "attention/problem.h"
#include "attention/recipe.h"

namespace qattn::attention {

/// Steps 1 to 4 of the pipeline (pipeline.cpp) for one head; Real is the softmax type, `path` that of the accumulator's
/// instruction. Refers to its arguments.
template <class Real>
class Scores {
 public:
  Scores(const Problem& problem, const Recipe& recipe, const Operands& operands, mma::Path path = mma::Path::fast);

  /// Queries [first, first + rows), ready for logits(). A tile of queries never spans two of the recipe's q blocks.
  Side queries(std::int64_t first, std::int64_t rows) const;

  /// [rows, keys of the tile that starts at `key`]: the scores times sm_scale * log2(e), masked; -Inf where a key is
  /// hidden. `key` is a multiple of k_block. `unmasked_max`, if given, gets each row's largest logit before any mask;
  /// `steps` is added to.
  Matrix<Real> logits(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q,
                      std::vector<Real>* unmasked_max = nullptr, mma::PathUse* steps = nullptr) const;
  /// Keys that query `row` sees as the recipe aligns the causal mask.
  std::int64_t visible_keys(std::int64_t row) const { return problem_.visible_keys(row, align_); }

 private:
  void dequantize_row(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const;
  void add_mask(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const;

  const Problem& problem_;
  const Recipe& recipe_;
  const Operands& operands_;
  Accumulator accumulator_;
  const Real logit_scale_;
  const CausalAlign align_;
  std::vector<Side> k_tiles_;
};

extern template class Scores<float>;
extern template class Scores<double>;

/// Where the recipe puts the causal mask's diagonal.
CausalAlign causal_alignment(const Problem& problem, const Recipe& recipe);
/// What step 4 multiplies the scores with, log2(e) times what is left of the softmax scale, and what it adds for an
/// element of the additive mask; the softmax type rounds both.
double logit_scale(double score_scale);
double mask_addend(double mask);

/// The largest of `count` values; NaN is left out, and nothing gives -Inf.
template <class Real>
Real largest(const Real* values, std::int64_t count);

/// The sum of each row of a [M, N], from zero, columns ascending, every addition rounded to Real.
template <class Real, class T>
std::vector<Real> row_sums(const Matrix<T>& a);

/// The plain twin.
template <class Real, class T>
std::vector<Real> row_sums_plain(const Matrix<T>& a);

/// Rows [first, first + count) of a stored operand as one side of a product: the left one, or the right one, transposed
/// if its rows are not the contraction axis. A block-scaled instruction gets the scales along; then `first` of a right
/// side that is not transposed is a multiple of its blocks.
Side left_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count);
Side right_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count,
                bool transpose);

}  // namespace qattn::attention
