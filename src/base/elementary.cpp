#include "base/elementary.h"

#include <cmath>
#include <limits>

#include "base/exponential.h"
#include "base/exponential_constants.h"

namespace qattn::elementary {
namespace {

constexpr double kLog2ELow = 0x1.777D0FFDA0D24p-56;

}  // namespace

double exp(double x) {
  double bounded = x < -kExpBound ? -kExpBound : x;
  bounded = bounded > kExpBound ? kExpBound : bounded;
  const double k = (bounded * kLog2E + kRoundToInteger) - kRoundToInteger;
  return detail::scaled_exp(bounded - k * kLn2High, k * kLn2Low, k);
}

double exp2(double x) { return detail::exp2(x); }

float exp2_float(float x) { return static_cast<float>(exp2(static_cast<double>(x))); }

namespace {

struct DoubleDouble {
  double high;
  double low;
};

/// A finite positive x as m * 2^k with m in [sqrt(1/2), sqrt(2)), and log(m) to about 70 bits.
struct LogParts {
  int exponent;
  DoubleDouble log_mantissa;
};

LogParts log_parts(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0x1.6A09E667F3BCDp-1) {
    m *= 2.0;
    --exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1) in double-double: m - 1 is exact, m + 1 is with its rounding error.
  const double numerator = m - 1.0;
  const double denominator = m + 1.0;
  const double denominator_error = m < 1.0 ? (1.0 - denominator) + m : (m - denominator) + 1.0;
  const double s = numerator / denominator;
  const double s_low = (std::fma(-s, denominator, numerator) - s * denominator_error) / denominator;
  const double z = s * s;
  double series = 0.0;
  for (int n = 12; n >= 1; --n) series = series * z + 1.0 / (2.0 * n + 1.0);
  const double rest = 2.0 * s_low + 2.0 * s * (z * series);
  const double high = 2.0 * s + rest;
  return {exponent, {high, (2.0 * s - high) + rest}};
}

/// a + b with its rounding error, for |a| >= |b| or a = 0.
DoubleDouble fast_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, (a - sum) + b};
}

/// The results that the logarithms share for arguments that are not finite and positive.
bool special_log(double x, double& result) {
  if (x > 0.0 && x < std::numeric_limits<double>::infinity()) return false;
  if (x == 0.0) {
    result = -std::numeric_limits<double>::infinity();
  } else if (x > 0.0) {
    result = x;
  } else {
    result = std::numeric_limits<double>::quiet_NaN();
  }
  return true;
}

}  // namespace

double log(double x) {
  double result = 0.0;
  if (special_log(x, result)) return result;
  const auto [exponent, mantissa] = log_parts(x);
  const double k = exponent;
  const DoubleDouble sum = fast_two_sum(k * kLn2High, mantissa.high);
  return sum.high + (sum.low + (k * kLn2Low + mantissa.low));
}

double log2(double x) {
  double result = 0.0;
  if (special_log(x, result)) return result;
  const auto [exponent, mantissa] = log_parts(x);
  const double product = mantissa.high * kLog2E;
  const double product_error = std::fma(mantissa.high, kLog2E, -product);
  const double low = product_error + (mantissa.high * kLog2ELow + mantissa.low * kLog2E);
  const DoubleDouble sum = fast_two_sum(static_cast<double>(exponent), product);
  return sum.high + (sum.low + low);
}

}  // namespace qattn::elementary
