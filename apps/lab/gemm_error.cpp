#include "lab/gemm_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/exact_sum.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "lab/synth_random.h"
#include "metric/accuracy.h"
#include "mma/unpacked.h"

namespace qattn::lab {
namespace {

using Eigen::Index;
using format::Format;

constexpr std::int64_t kLongest = 1 << 24;

void check(const GemmErrorOptions& options) {
  const mma::Instruction& x = *options.instruction;
  const auto fail = [&](const std::string& what) { throw Error(ErrorKind::usage, fmt::format("gemm: {}", what)); };
  if (x.kind == mma::Kind::integer_dot) fail(x.name + " sums exactly, so there is no error to show");
  if (x.scale != nullptr || x.a->bits > 32) fail(x.name + " is block-scaled or FP64, which this command does not run");
  for (const std::int64_t k : options.k) {
    if (k < 1 || k > kLongest) fail(fmt::format("K = {} is not within 1 .. {}", k, kLongest));
  }
  for (const auto& [what, values] : {std::pair("promotion", &options.promotion), {"slice", &options.slice}}) {
    for (const std::int64_t value : *values) {
      if (value >= 0 && value % x.k == 0) continue;
      fail(fmt::format("a {} of {} elements is not a multiple of {}'s K, {}", what, value, x.name, x.k));
    }
  }
  if (options.rows < 1 || options.columns < 1) fail("a product needs rows and columns");
}

/// One operand: its codes as they are stored, and their values.
struct Side {
  MatrixCodes codes;
  MatrixD values;

  Side(const GemmErrorOptions& options, const Format& format, std::uint64_t stream, Index rows, Index k)
      : codes(rows, k), values(rows, k) {
    const format::Policy policy{format::Rounding::nearest_even, format::Overflow::saturate, format::Subnormals::keep};
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < k; ++j) {
        const double x = random_normal(options.seed, stream, static_cast<std::uint64_t>(i * kLongest + j));
        const std::uint64_t code = format::encode(format, options.positive ? std::fabs(x) : x, policy);
        values(i, j) = format::decode(format, code);
        codes(i, j) = static_cast<std::uint32_t>(mma::stored_code(format, code));
      }
    }
  }
};

/// The exact sums over the first k elements, each rounded once. Products of these formats are exact in a double.
MatrixD exact_product(const Side& a, const Side& b, Index k) {
  MatrixD exact(a.values.rows(), b.values.rows());
  for (Index i = 0; i < exact.rows(); ++i) {
    for (Index j = 0; j < exact.cols(); ++j) {
      ExactSum sum;
      for (Index l = 0; l < k; ++l) sum.add(a.values(i, l) * b.values(j, l));
      exact(i, j) = sum.value();
    }
  }
  return exact;
}

Json measure(const GemmErrorOptions& options, const mma::GemmPlan& plan, std::int64_t k, const MatrixCodes& d,
             const MatrixD& exact) {
  metric::Accuracy accuracy(*plan.output);
  ExactSum signed_error, magnitude, relative;
  double largest = 0;
  for (Index i = 0; i < d.size(); ++i) {
    const double value = format::decode(*plan.output, d.data()[i]);
    const double e = exact.data()[i];
    accuracy.add(value, e, {0, 0, i / d.cols(), i % d.cols()});
    if (!std::isfinite(value) || e == 0) continue;
    signed_error.add(value - e);
    magnitude.add(std::fabs(e));
    relative.add(std::fabs(value - e) / std::fabs(e));
    largest = std::max(largest, std::fabs(value - e) / std::fabs(e));
  }
  return {{"name", plan.instruction->name},
          {"k", k},
          {"promotion", plan.promotion_interval * plan.instruction->k},
          {"slice", plan.slice},
          {"order", plan.k_order == mma::KOrder::ascending ? "ascending" : "descending"},
          {"distribution", options.positive ? "positive" : "normal"},
          {"output", plan.output->name},
          {"elements", d.size()},
          {"mean_relative", relative.value() / static_cast<double>(d.size())},
          {"max_relative", largest},
          {"bias", signed_error.value() / magnitude.value()},
          {"rel_l1", accuracy.rel_l1()},
          {"rmse", accuracy.rmse()},
          {"nan_count", accuracy.nan_count()},
          {"inf_count", accuracy.inf_count()},
          {"evidence", mma::evidence_text(*plan.instruction)}};
}

}  // namespace

std::vector<Json> gemm_errors(const GemmErrorOptions& options) {
  check(options);
  const FpEnvironment environment;
  const mma::Instruction& x = *options.instruction;
  const std::int64_t longest = *std::max_element(options.k.begin(), options.k.end());
  const Side a(options, *x.a, 0, options.rows, longest);
  const Side b(options, *x.b, 1, options.columns, longest);
  std::vector<Json> rows;
  for (const std::int64_t k : options.k) {
    const MatrixD exact = exact_product(a, b, k);
    for (const std::int64_t promotion : options.promotion) {
      for (const std::int64_t slice : options.slice) {
        const mma::GemmPlan plan{&x, static_cast<int>(promotion / x.k), slice, options.order, options.output};
        rows.push_back(measure(options, plan, k, mma::gemm(plan, a.codes.leftCols(k), b.codes.leftCols(k)), exact));
      }
    }
  }
  return rows;
}

}  // namespace qattn::lab
