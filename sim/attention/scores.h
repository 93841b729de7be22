// The logits of a tile: what the forward pass computes, and the backward pass computes again.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/contraction.h"
#include "attention/operands.h"
#include "attention/problem.h"
#include "attention/recipe.h"

namespace qattn::attention {

/// Steps 1 to 4 of the pipeline (pipeline.cpp) for one head; Real is the softmax type. Refers to its arguments.
template <class Real>
class Scores {
 public:
  Scores(const Problem& problem, const Recipe& recipe, const Operands& operands);

  /// Queries [first, first + rows), ready for logits(). A tile of queries never spans two of the recipe's q blocks.
  Side queries(std::int64_t first, std::int64_t rows) const;

  /// [rows, keys of the tile that starts at `key`]: the scores times sm_scale * log2(e), masked; -Inf where a key is
  /// hidden. `key` is a multiple of k_block.
  Matrix<Real> logits(std::int64_t first, std::int64_t rows, std::int64_t key, const Side& q) const;

 private:
  void dequantize_row(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const;
  void add_mask(std::int64_t query, std::int64_t key, std::int64_t keys, Real* row) const;

  const Problem& problem_;
  const Recipe& recipe_;
  const Operands& operands_;
  const Accumulator accumulator_;
  const Real logit_scale_;
  std::vector<Side> k_tiles_;
};

extern template class Scores<float>;
extern template class Scores<double>;

/// Rows [first, first + count) of a stored operand as one side of a product: the left one, or the right one, transposed
/// if its rows are not the contraction axis.
Side left_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count);
Side right_tile(const Accumulator& accumulator, const Stored& stored, std::int64_t first, std::int64_t count,
                bool transpose);

}  // namespace qattn::attention
