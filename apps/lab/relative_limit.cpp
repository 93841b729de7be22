#include "lab/relative_limit.h"

#include <algorithm>
#include <cmath>

#include "lab/measurement.h"

namespace qattn::lab {
namespace {

bool passes(const MatrixD& wrong, const MatrixD& reference, const RelativeLimit& limit,
            const format::Format& o_format) {
  if (wrong == reference) return false;
  metric::Accuracy accuracy(o_format);
  absorb(accuracy, o_format, wrong, reference, reference.cols(), {});
  return within(accuracy, limit);
}

}  // namespace

RelativeLimit relative_limit(const metric::Accuracy& recipe, double factor, const format::Format& o_format,
                             double largest_reference) {
  const double unit = std::ldexp(1.0, -o_format.mantissa_bits);
  const auto at_least = [](double x, double floor) { return std::isnan(x) ? x : std::max(x, floor); };
  return {at_least(factor * recipe.rel_l1(), unit / 2), at_least(factor * recipe.max_abs(), unit * largest_reference)};
}

bool within(const metric::Accuracy& output, const RelativeLimit& limit) {
  if (output.first_bad() || !(output.max_abs() <= limit.max_abs)) return false;
  const double rel_l1 = output.rel_l1();
  return std::isfinite(rel_l1) ? rel_l1 <= limit.rel_l1 : output.max_abs() == 0;
}

std::string guard(const MatrixD& reference, const RelativeLimit& limit, const format::Format& o_format) {
  if (passes(MatrixD::Zero(reference.rows(), reference.cols()), reference, limit, o_format)) {
    return "an output of zeros";
  }
  if (passes(reference.rowwise().reverse(), reference, limit, o_format))
    return "an output with its channels in reverse";
  return "";
}

bool rows_in_reverse_pass(const MatrixD& reference, const RelativeLimit& limit, const format::Format& o_format) {
  return passes(reference.colwise().reverse(), reference, limit, o_format);
}

}  // namespace qattn::lab
