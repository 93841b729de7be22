#include "scalar/ulp_error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/fp_environment.h"
#include "format/encode.h"
#include "scalar/blocks.h"
#include "scalar/digest.h"
#include "scalar/exact.h"

namespace qattn::scalar {
namespace {

double reference_value(Reference reference, double x) {
  switch (reference) {
    case Reference::exp2:
      return std::exp2(x);
    case Reference::exp:
      return std::exp(x);
    case Reference::log2:
      return std::log2(x);
    case Reference::log:
      return std::log(x);
    case Reference::reciprocal:
      return 1.0 / x;
    case Reference::rsqrt:
      return 1.0 / std::sqrt(x);
    case Reference::sqrt:
      return std::sqrt(x);
    case Reference::tanh:
      return std::tanh(x);
    case Reference::identity:
      return x;
    case Reference::magnitude:
      return std::fabs(x);
    case Reference::relu:
      return std::max(x, 0.0);
  }
  return x;
}

/// What the errors of one function need again and again.
class Meter {
 public:
  using Codes = std::span<const std::uint32_t>;

  explicit Meter(const Function& function)
      : function_(function),
        largest_(format::max_finite(function.precision())),
        smallest_input_(format::min_normal(*function.input)),
        smallest_output_(format::min_normal(function.precision())) {}

  /// Consecutive inputs and their results. Where the result stays the same, the error is as monotone as the function,
  /// so the ends of the run have the extremes.
  void measure(Codes x, Codes y, UlpErrors& errors) const {
    if (x.size() <= kShortest) {
      for (std::size_t i = 0; i < x.size(); ++i) add(x[i], y[i], errors);
      return;
    }
    if (is_constant(y) && same_sign(x.front(), x.back())) {
      const Point first = point(x.front(), y.front());
      const Point last = point(x.back(), y.back());
      if (first.is_like(last)) return add_run(x, y.front(), first, last, errors);
    }
    const std::size_t half = x.size() / 2;
    measure(x.first(half), y.first(half), errors);
    measure(x.subspan(half), y.subspan(half), errors);
  }

 private:
  static constexpr std::size_t kShortest = 32;

  /// One input: whether its error counts, and how.
  struct Point {
    bool counts = false, normal = false, negative = false;
    double unit = 0, error = 0;
    /// Whether all inputs between two of one sign are counted alike and in the same unit: the exact value is monotone.
    bool is_like(const Point& other) const {
      return counts == other.counts && normal == other.normal && negative == other.negative && unit == other.unit;
    }
  };

  Point point(std::uint32_t code, std::uint32_t result) const {
    const double x = value_of(*function_.input, code);
    const double exact = reference_value(function_.reference, x);
    if (!std::isfinite(x) || !(std::fabs(exact) <= largest_)) return {};
    const double unit = ulp_at(function_.precision(), exact);
    const double error = (value_of(*function_.output, result) - exact) / unit;
    const bool normal = is_normal(x, smallest_input_) && is_normal(exact, smallest_output_);
    return {true, normal, exact < 0, unit, std::isnan(error) ? std::numeric_limits<double>::infinity() : error};
  }

  void add(std::uint32_t code, std::uint32_t result, UlpErrors& errors) const {
    const Point p = point(code, result);
    if (p.counts) (p.normal ? errors.normal : errors.subnormal).add(p.error, code);
  }

  void add_run(Codes x, std::uint32_t result, const Point& first, const Point& last, UlpErrors& errors) const {
    if (!first.counts) return;
    UlpError& errors_of_kind = first.normal ? errors.normal : errors.subnormal;
    UlpError run;
    run.add(first.error, x.front());
    if (!(errors_of_kind.inputs > 0 && errors_of_kind.low <= last.error && last.error <= errors_of_kind.high)) {
      // A record at the end: the first input that has it.
      const auto before = [&](std::uint32_t code) { return point(code, result).error != last.error; };
      run.add(last.error, *std::partition_point(x.begin(), x.end() - 1, before));
    }
    run.inputs = x.size();
    errors_of_kind.absorb(run);
  }

  bool same_sign(std::uint32_t x, std::uint32_t y) const { return ((x ^ y) >> (function_.input_bits() - 1) & 1) == 0; }
  static bool is_constant(Codes y) {
    return std::all_of(y.begin(), y.end(), [&](std::uint32_t code) { return code == y.front(); });
  }
  static double value_of(const format::Format& format, std::uint32_t code) {
    if (&format == &format::kFP32) return static_cast<double>(std::bit_cast<float>(code));
    return format::decode(format, code);
  }
  static bool is_normal(double value, double smallest) { return value == 0 || std::fabs(value) >= smallest; }

  const Function& function_;
  double largest_, smallest_input_, smallest_output_;
};

}  // namespace

void UlpError::add(double error, std::uint32_t x) { absorb({error, error, x, x, 1}); }

void UlpError::absorb(const UlpError& other) {
  if (other.inputs == 0) return;
  if (inputs == 0 || other.low < low || (other.low == low && other.at_low < at_low)) {
    low = other.low;
    at_low = other.at_low;
  }
  if (inputs == 0 || other.high > high || (other.high == high && other.at_high < at_high)) {
    high = other.high;
    at_high = other.at_high;
  }
  inputs += other.inputs;
}

void UlpErrors::absorb(const UlpErrors& other) {
  normal.absorb(other.normal);
  subnormal.absorb(other.subnormal);
}

UlpErrors ulp_errors_of_block(const Function& function, int block) {
  const FpEnvironment environment;
  UlpErrors errors;
  const Meter meter(function);
  const bool narrow = function.input_bits() < 32;
  if (narrow && block != 0) return errors;
  const std::uint64_t inputs = narrow ? std::uint64_t{1} << function.input_bits() : kDigestBlockInputs;
  std::array<std::uint32_t, 4096> x, y;
  for (std::uint64_t start = 0; start < inputs; start += x.size()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(x.size(), inputs - start));
    const auto first = (static_cast<std::uint32_t>(block) << 24) + static_cast<std::uint32_t>(start);
    std::iota(x.begin(), x.end(), first);
    function.span(std::span(x).first(count), std::span(y).first(count));
    meter.measure(std::span(x).first(count), std::span(y).first(count), errors);
  }
  return errors;
}

UlpErrors ulp_errors(const Function& function, int threads, const std::function<void(int)>& progress) {
  std::array<UlpErrors, kDigestBlocks> blocks;
  const auto measure = [&](int block) {
    blocks[static_cast<std::size_t>(block)] = ulp_errors_of_block(function, block);
  };
  for_each_block(threads, measure, progress);
  UlpErrors all;
  for (const UlpErrors& errors : blocks) all.absorb(errors);
  return all;
}

}  // namespace qattn::scalar
