#include "scalar/exact.h"

#include <algorithm>
#include <bit>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <cstdint>
#include <limits>

namespace qattn::scalar {
namespace {

namespace mp = boost::multiprecision;
// 128 bits. Among 2^32 arguments the value nearest to a rounding boundary is expected some 2^-32 units away from it, so
// the last bits of a double rounded to odd are safe.
using Real = mp::number<mp::cpp_bin_float<128, mp::digit_base_2>, mp::et_off>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int kLimit = 1000;

/// 2^x for x clamped so that the result is within 2^+-1000.
Real power_of_two(const Real& x) {
  if (x > kLimit) return mp::ldexp(Real(1), kLimit);
  if (x < -kLimit) return mp::ldexp(Real(1), -kLimit);
  const Real whole = mp::floor(x), fraction = x - whole;
  const Real mantissa = fraction == 0 ? Real(1) : mp::exp(fraction * mp::log(Real(2)));
  return mp::ldexp(mantissa, whole.convert_to<int>());
}

Real exponential(const Real& x) {
  if (x > 690) return mp::ldexp(Real(1), kLimit);
  if (x < -690) return mp::ldexp(Real(1), -kLimit);
  return mp::exp(x);
}

/// log2 with the exponent split off, so that powers of two are exact.
Real logarithm_2(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.75) {
    mantissa *= 2;
    --exponent;
  }
  if (mantissa == 1.0) return Real(exponent);
  return exponent + mp::log(Real(mantissa)) / mp::log(Real(2));
}

/// tanh by its series where the quotient of exponentials would cancel.
Real hyperbolic_tangent(const Real& x) {
  const Real size = mp::abs(x);
  if (size > 60) return x < 0 ? Real(-1) + mp::ldexp(Real(1), -100) : Real(1) - mp::ldexp(Real(1), -100);
  if (size < mp::ldexp(Real(1), -30)) {
    const Real square = x * x;
    return x * (1 - square / 3 * (1 - square * 2 / 5));
  }
  return mp::tanh(x);
}

/// The value at a finite x inside the function's domain.
Real regular(Reference reference, double x) {
  const Real r(x);
  switch (reference) {
    case Reference::exp2:
      return power_of_two(r);
    case Reference::exp:
      return exponential(r);
    case Reference::log2:
      return logarithm_2(x);
    case Reference::log:
      return mp::log(r);
    case Reference::reciprocal:
      return 1 / r;
    case Reference::rsqrt:
      return 1 / mp::sqrt(r);
    case Reference::sqrt:
      return mp::sqrt(r);
    case Reference::tanh:
      return hyperbolic_tangent(r);
    case Reference::identity:
      return r;
    case Reference::magnitude:
      return mp::abs(r);
    case Reference::relu:
      return x < 0 ? Real(0) : r;
  }
  return r;
}

/// Whether `value` is the answer without any computing: zeros, infinities, NaN.
bool special(Reference reference, double x, double& value) {
  const bool is_log = reference == Reference::log2 || reference == Reference::log;
  const bool is_root = reference == Reference::sqrt || reference == Reference::rsqrt;
  if (std::isnan(x) || ((is_log || is_root) && x < 0)) {
    value = kNotANumber;
    return true;
  }
  if (x != 0 && std::isfinite(x)) return false;
  switch (reference) {
    case Reference::exp2:
    case Reference::exp:
      value = x == 0 ? 1.0 : (x > 0 ? kInfinity : 0.0);
      break;
    case Reference::log2:
    case Reference::log:
      value = x == 0 ? -kInfinity : kInfinity;
      break;
    case Reference::reciprocal:
    case Reference::rsqrt:
      value = x == 0 ? std::copysign(kInfinity, x) : std::copysign(0.0, x);
      break;
    case Reference::tanh:
      value = x == 0 ? x : std::copysign(1.0, x);
      break;
    case Reference::sqrt:
    case Reference::identity:
      value = x;
      break;
    case Reference::magnitude:
      value = std::fabs(x);
      break;
    case Reference::relu:
      value = std::signbit(x) ? 0.0 : x;
      break;
  }
  return true;
}

double to_odd(const Real& value) {
  if (value == 0) return 0.0;
  int exponent = 0;
  const Real mantissa = mp::frexp(mp::abs(value), &exponent);  // in [1/2, 1)
  const Real scaled = mp::ldexp(mantissa, 53), whole = mp::floor(scaled);
  auto integer = whole.convert_to<std::int64_t>();
  if (whole != scaled) integer |= 1;
  const double result = std::ldexp(static_cast<double>(integer), exponent - 53);
  return value < 0 ? -result : result;
}

}  // namespace

double exact_to_odd(Reference reference, double x) {
  double value = 0;
  if (special(reference, x, value)) return value;
  return to_odd(regular(reference, x));
}

double ulp_at(const format::Format& format, double value) {
  if (format.specials == format::Specials::integer) return 1.0;
  const int smallest = format.specials == format::Specials::power_of_two ? -format.bias : 1 - format.bias;
  // By the double's exponent field: a power of two far inside a double's range, and this is called for 2^32 inputs.
  const auto field = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7FF);
  const int exponent = std::max(field - 1023, smallest) - format.mantissa_bits;
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

double ulps_from_exact(Reference reference, double x, const format::Format& format, double y) {
  double value = 0;
  if (special(reference, x, value)) return std::isfinite(value) ? (y - value) / ulp_at(format, value) : kNotANumber;
  const Real exact = regular(reference, x);
  const Real unit(ulp_at(format, to_odd(exact)));
  return ((Real(y) - exact) / unit).convert_to<double>();
}

}  // namespace qattn::scalar
