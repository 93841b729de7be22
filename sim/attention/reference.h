// Exact attention in float64: what every recipe is compared with.
#pragma once

#include <vector>

#include "attention/problem.h"
#include "mma/tile.h"

namespace qattn::attention {

/// o [Nq, dv]; lse [Nq] = log(sum over keys of exp(score)) with the natural logarithm. A query that sees no key gets
/// o = 0 and lse = -Inf.
struct Output {
  MatrixD o;
  std::vector<double> lse;
  mma::PathUse steps = {};  ///< of a recipe's instructions in both products; none under other accumulators
};

/// softmax(sm_scale Q K^T + mask) V in float64. Each row streams over the keys: memory is O(N d). Sums run in
/// ascending order of channel (scores) and key (row sum, O) with every product rounded, so the bits are the same
/// everywhere; exp is ours. Queries of NaN or Inf give NaN rows, which callers count.
Output reference_attention(const Problem& problem);

}  // namespace qattn::attention
