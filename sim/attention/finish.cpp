#include "attention/finish.h"

#include <limits>

#include "attention/rounding.h"
#include "base/elementary.h"
#include "base/exponential_constants.h"

namespace qattn::attention {

double row_lse(double max, double sum, double shift) {
  if (sum == 0.0) return -std::numeric_limits<double>::infinity();
  return max * elementary::kLn2 + elementary::log(sum) + shift;
}

template <class Real>
Finish<Real>::Finish(const Recipe& recipe, const Operands& operands, const format::Format& o_format,
                     std::int64_t channels)
    : recipe_(recipe), operands_(operands), o_format_(o_format), p_scale_(static_cast<Real>(resolved_p_scale(recipe))) {
  const auto& scales = operands.v.column_scale;
  for (std::int64_t c = 0; c < channels; ++c) {
    const Real scale = scales.empty() ? Real{1} : static_cast<Real>(scales[static_cast<std::size_t>(c)]);
    factor_.push_back(scale / p_scale_);
  }
}

template <class Real>
void Finish<Real>::row(std::int64_t query, Real max, Real sum, const Real* o, Output& output) const {
  const auto q = static_cast<std::size_t>(query);
  if (sum == Real{0}) {
    output.lse[q] = -std::numeric_limits<double>::infinity();
    return;
  }
  // A sum of rounded codes is in units of 1 / p_scale.
  if (recipe_.row_sum == RowSum::rounded) sum /= p_scale_;
  const Real divisor = recipe_.p_normalized ? Real{1} : sum;
  for (std::size_t c = 0; c < factor_.size(); ++c) {
    Real value = o[c] / divisor * factor_[c];
    if (!operands_.v_mean.empty()) value += static_cast<Real>(operands_.v_mean[c]);
    output.o(query, static_cast<Eigen::Index>(c)) = rounded(o_format_, static_cast<double>(value));
  }
  const double shift = operands_.lse_shift.empty() ? 0.0 : operands_.score_scale * operands_.lse_shift[q];
  output.lse[q] = row_lse(static_cast<double>(max), static_cast<double>(sum), shift);
}

template class Finish<float>;
template class Finish<double>;

}  // namespace qattn::attention
