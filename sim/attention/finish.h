// Step 9 of the pipeline (pipeline.cpp): a row's output from what the tiles left.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/operands.h"
#include "attention/recipe.h"
#include "attention/reference.h"
#include "format/format.h"

namespace qattn::attention {

/// The LSE of a row (natural logarithm) from its running maximum, in powers of two, its row sum without P's scale, and
/// what smoothing took from each of its scores. -Inf when the sum is zero.
double row_lse(double max, double sum, double shift);

/// Finishes the rows of one head; Real is the softmax type. Refers to its arguments.
template <class Real>
class Finish {
 public:
  /// `channels` of V; outputs are rounded to `o_format`.
  Finish(const Recipe& recipe, const Operands& operands, const format::Format& o_format, std::int64_t channels);

  /// Row `query` of the output and its lse, from the running maximum, the row sum and O, [channels]. A row that has
  /// seen no key is zero, and so is one whose every weight underflowed (row_max = before_mask). Needs the default
  /// floating-point environment.
  void row(std::int64_t query, Real max, Real sum, const Real* o, Output& output) const;

 private:
  const Recipe& recipe_;
  const Operands& operands_;
  const format::Format& o_format_;
  const Real p_scale_;
  std::vector<Real> factor_;
};

extern template class Finish<float>;
extern template class Finish<double>;

}  // namespace qattn::attention
