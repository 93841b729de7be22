#include "base/elementary.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace qattn::elementary {
namespace {

constexpr double kLn2 = 0x1.62E42FEFA39EFp-1;
constexpr double kLog2E = 0x1.71547652B82FEp+0;
constexpr double kLog2ELow = 0x1.777D0FFDA0D24p-56;
// ln 2 = kLn2High + kLn2Low with 32 bits in the high part: k * kLn2High is exact for every exponent k.
constexpr double kLn2High = 0x1.62E42FEE00000p-1;
constexpr double kLn2Low = 0x1.A39EF35793C76p-33;
// ln 2 again with 26 bits in the high part, for the product with a 26-bit half of an argument.
constexpr double kLn2High26 = 0x1.62E42F8000000p-1;
constexpr double kLn2Low26 = 0x1.BE8E7BCD5E4F2p-27;
// Adding and subtracting 1.5 * 2^52 rounds |x| < 2^51 to the nearest integer (ties to even).
constexpr double kRoundToInteger = 0x1.8p52;

/// 2^k for an integer-valued k in [-1022, 1023], by placing k in the exponent field: the low bits of k + 1.5 * 2^52
/// are k itself.
double power_of_two(double k) {
  const auto bits = std::bit_cast<std::uint64_t>(k + (kRoundToInteger + 1023.0));
  return std::bit_cast<double>(bits << 52);
}

/// exp(high - low) * 2^k for |high| <= 0.35 and a tiny low. (e^r - 1 - r) / r^2 is a degree-10 polynomial, Chebyshev
/// fitted on |r| <= 0.3467 (its error is 0.0015 ulp of the result). Two steps reach the subnormals and the overflow.
double scaled_exp(double high, double low, double k) {
  const double r = high - low;
  double q = 0x1.1F731EA5352CAp-29;
  q = q * r + 0x1.AF4E196027428p-26;
  q = q * r + 0x1.27E4DB57442FBp-22;
  q = q * r + 0x1.71DE021A90822p-19;
  q = q * r + 0x1.A01A01A6DCAFFp-16;
  q = q * r + 0x1.A01A01ABEF415p-13;
  q = q * r + 0x1.6C16C16C162CCp-10;
  q = q * r + 0x1.11111111100CEp-7;
  q = q * r + 0x1.5555555555556p-5;
  q = q * r + 0x1.5555555555557p-3;
  q = q * r + 0x1.0000000000000p-1;
  // high is exact and by far the largest part of the correction, so it is added last but one.
  const double mantissa = 1.0 + (high + (r * r * q - low));
  const double half_k = (k * 0.5 + kRoundToInteger) - kRoundToInteger;
  return mantissa * power_of_two(half_k) * power_of_two(k - half_k);
}

/// exp for finite or infinite x; straight-line code, so that a loop over it vectorises. NaN stays NaN.
inline double exp_core(double x) {
  // Beyond these the result is 0 or Inf anyway, and k stays in the range of power_of_two.
  double bounded = x < -1000.0 ? -1000.0 : x;
  bounded = bounded > 1000.0 ? 1000.0 : bounded;
  const double k = (bounded * kLog2E + kRoundToInteger) - kRoundToInteger;
  return scaled_exp(bounded - k * kLn2High, k * kLn2Low, k);
}

inline double exp2_core(double x) {
  double bounded = x < -2000.0 ? -2000.0 : x;
  bounded = bounded > 2000.0 ? 2000.0 : bounded;
  const double k = (bounded + kRoundToInteger) - kRoundToInteger;
  const double f = bounded - k;
  // f ln 2 as an exact high part and a low part: f is cut into halves of at most 26 bits.
  const double f_high = (f + 0x1.8p27) - 0x1.8p27;
  const double f_low = f - f_high;
  return scaled_exp(f_high * kLn2High26, -(f_high * kLn2Low26 + f_low * kLn2), k);
}

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

double exp(double x) { return exp_core(x); }
double exp2(double x) { return exp2_core(x); }

void exp(std::span<const double> x, std::span<double> y) {
  if (x.size() != y.size()) throw Error(ErrorKind::internal, "elementary::exp: spans differ in length");
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = exp_core(x[i]);
}

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

float exp2_float(float x) { return static_cast<float>(exp2_core(static_cast<double>(x))); }

void exp2_float(std::span<const float> x, std::span<float> y) {
  if (x.size() != y.size()) throw Error(ErrorKind::internal, "elementary::exp2_float: spans differ in length");
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = exp2_float(x[i]);
}

}  // namespace qattn::elementary
