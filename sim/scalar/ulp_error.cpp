#include "scalar/ulp_error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

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
  explicit Meter(const Function& function)
      : function_(function),
        largest_(format::max_finite(function.precision())),
        smallest_input_(format::min_normal(*function.input)),
        smallest_output_(format::min_normal(function.precision())) {}

  void measure(std::uint32_t code, std::uint32_t result, UlpErrors& errors) const {
    const double x = value_of(*function_.input, code);
    const double exact = reference_value(function_.reference, x);
    if (!std::isfinite(x) || !(std::fabs(exact) <= largest_)) return;
    const double y = value_of(*function_.output, result);
    const double error = (y - exact) / ulp_at(function_.precision(), exact);
    const bool normal = is_normal(x, smallest_input_) && is_normal(exact, smallest_output_);
    (normal ? errors.normal : errors.subnormal)
        .add(std::isnan(error) ? std::numeric_limits<double>::infinity() : error, code);
  }

 private:
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
    for (std::size_t i = 0; i < count; ++i) meter.measure(x[i], y[i], errors);
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
