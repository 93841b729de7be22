// exp2 of one double as a header, for the CPU and for the GPU: additions, multiplications and moves of bits alone. It
// must be compiled without contraction (-ffp-contract=off, nvcc: -fmad=false); elementary.h has what users call.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/exponential_constants.h"
#include "base/host_device.h"

namespace qattn::elementary::detail {

/// 2^k for an integer-valued k in [-1022, 1023], by placing k in the exponent field: the low bits of k + 1.5 * 2^52
/// are k itself.
QATTN_HOST_DEVICE inline double power_of_two(double k) {
  const auto bits = std::bit_cast<std::uint64_t>(k + (kRoundToInteger + 1023.0));
  return std::bit_cast<double>(bits << 52);
}

/// A coefficient as a number of its own: device code may read those, but no array of the host.
template <std::size_t i>
struct ExpCoefficient {
  static constexpr double value = kExpPolynomial[i];
};

/// The polynomial of exp by Horner's rule, from the highest power down.
template <std::size_t... i>
QATTN_HOST_DEVICE inline double exp_polynomial(double r, std::index_sequence<i...>) {
  double q = ExpCoefficient<0>::value;
  ((q = q * r + ExpCoefficient<i + 1>::value), ...);
  return q;
}

/// exp(high - low) * 2^k for |high| <= 0.35 and a tiny low. Two steps reach the subnormals and the overflow.
QATTN_HOST_DEVICE inline double scaled_exp(double high, double low, double k) {
  const double r = high - low;
  const double q = exp_polynomial(r, std::make_index_sequence<std::size(kExpPolynomial) - 1>());
  // high is exact and by far the largest part of the correction, so it is added last but one.
  const double mantissa = 1.0 + (high + (r * r * q - low));
  const double half_k = (k * 0.5 + kRoundToInteger) - kRoundToInteger;
  return mantissa * power_of_two(half_k) * power_of_two(k - half_k);
}

QATTN_HOST_DEVICE inline double exp2(double x) {
  double bounded = x < -kExp2Bound ? -kExp2Bound : x;
  bounded = bounded > kExp2Bound ? kExp2Bound : bounded;
  const double k = (bounded + kRoundToInteger) - kRoundToInteger;
  const double f = bounded - k;
  // f ln 2 as an exact high part and a low part: f is cut into halves of at most 26 bits.
  const double f_high = (f + kUpperHalf) - kUpperHalf;
  const double f_low = f - f_high;
  return scaled_exp(f_high * kLn2High26, -(f_high * kLn2Low26 + f_low * kLn2), k);
}

}  // namespace qattn::elementary::detail
