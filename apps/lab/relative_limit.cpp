#include "lab/relative_limit.h"

#include <algorithm>
#include <cmath>

#include "format/encode.h"
#include "lab/measurement.h"
#include "lab/tensor_difference.h"

namespace qattn::lab {
namespace {

bool passes(const MatrixD& wrong, const MatrixD& reference, const RelativeLimit& limit,
            const format::Format& o_format) {
  if (wrong == reference) return false;
  metric::Accuracy accuracy(o_format);
  absorb(accuracy, o_format, wrong, reference, reference.cols(), {});
  return within(accuracy, limit);
}

/// The relative L1 below which a permuted output is one of an output that hardly varies.
constexpr double kHardlyVaries = 0.25;

bool hardly_varies(const MatrixD& permuted, const MatrixD& reference, const format::Format& o_format) {
  metric::Accuracy accuracy(o_format);
  absorb(accuracy, o_format, permuted, reference, reference.cols(), {});
  return accuracy.rel_l1() < kHardlyVaries;
}

bool permuted_passes(const MatrixD& permuted, const MatrixD& reference, const RelativeLimit& limit,
                     const RelativeLimit& usual, const format::Format& o_format) {
  if (!passes(permuted, reference, limit, o_format)) return false;
  return !(passes(permuted, reference, usual, o_format) && hardly_varies(permuted, reference, o_format));
}

bool passes(const MatrixD& wrong, const MatrixD& target, std::uint64_t allowed, const format::Format& o_format) {
  if (wrong == target) return false;
  const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                  format::Subnormals::keep};
  for (Eigen::Index i = 0; i < target.size(); ++i) {
    const std::uint64_t want = format::encode(o_format, target.data()[i], to_nearest);
    const std::uint64_t have = format::encode(o_format, wrong.data()[i], to_nearest);
    if (ulp_beyond(o_format, want, have, allowed)) return false;
  }
  return true;
}

bool permuted_passes(const MatrixD& permuted, const MatrixD& target, std::uint64_t allowed,
                     const format::Format& o_format) {
  return passes(permuted, target, allowed, o_format) && !hardly_varies(permuted, target, o_format);
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

std::string guard(const MatrixD& reference, const RelativeLimit& limit, const RelativeLimit& usual,
                  const format::Format& o_format) {
  if (passes(MatrixD::Zero(reference.rows(), reference.cols()), reference, limit, o_format)) {
    return "an output of zeros";
  }
  if (permuted_passes(reference.rowwise().reverse(), reference, limit, usual, o_format)) {
    return "an output with its channels in reverse";
  }
  return "";
}

bool rows_in_reverse_pass(const MatrixD& reference, const RelativeLimit& limit, const RelativeLimit& usual,
                          const format::Format& o_format) {
  return permuted_passes(reference.colwise().reverse(), reference, limit, usual, o_format);
}

std::string ulp_guard(const MatrixD& target, std::uint64_t allowed, const format::Format& o_format) {
  if (passes(MatrixD::Zero(target.rows(), target.cols()), target, allowed, o_format)) return "an output of zeros";
  if (passes(2 * target, target, allowed, o_format)) return "an output twice as large";
  if (permuted_passes(target.rowwise().reverse(), target, allowed, o_format)) {
    return "an output with its channels in reverse";
  }
  return "";
}

bool rows_in_reverse_pass(const MatrixD& target, std::uint64_t allowed, const format::Format& o_format) {
  return permuted_passes(target.colwise().reverse(), target, allowed, o_format);
}

}  // namespace qattn::lab
