// A slow second implementation of scales and element rounding on exact rationals, shared by this room's tests.
#pragma once

#include <algorithm>
#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "format/encode.h"
#include "format/format.h"

namespace oracle {

using Rational = boost::multiprecision::cpp_rational;
using boost::multiprecision::cpp_int;

inline Rational exact(float x) { return Rational(static_cast<double>(x)); }

inline Rational power_of_two(int e) {
  const Rational power(cpp_int(cpp_int(1) << std::abs(e)));
  return e >= 0 ? power : Rational(1 / power);
}

/// The float nearest to q, ties to even; q stays below the overflow threshold.
inline float to_float(const Rational& q) {
  if (q == 0) return 0;
  if (q < 0) return -to_float(-q);
  const int leading = static_cast<int>(msb(numerator(q))) - static_cast<int>(msb(denominator(q)));
  int e = std::max(-149, leading - 24);  // q is less than 2^(leading + 1)
  if (q >= power_of_two(e + 24)) ++e;
  const Rational steps = q / power_of_two(e);
  cpp_int whole = numerator(steps) / denominator(steps);
  const Rational twice_rest = 2 * (steps - Rational(whole));
  if (twice_rest > 1 || (twice_rest == 1 && (whole & 1) == 1)) ++whole;
  return std::ldexp(static_cast<float>(whole.convert_to<std::int64_t>()), e);
}

/// All values that a quantizer may use with their codes, ascending: finite numbers (one code of zero, +0), integers
/// without their most negative one.
inline std::vector<std::pair<float, std::uint32_t>> code_table(const qattn::format::Format& format) {
  std::vector<std::pair<float, std::uint32_t>> table;
  for (std::uint32_t code = 0; code < (1u << format.bits); ++code) {
    if (qattn::format::has_nan(format) && qattn::format::is_nan(format, code)) continue;
    const float value = qattn::format::decode_float(format, code);
    if (std::isinf(value) || (value == 0 && code != 0)) continue;
    if (format.specials == qattn::format::Specials::integer && code == (1u << (format.bits - 1))) continue;
    table.emplace_back(value, code);
  }
  std::sort(table.begin(), table.end());
  return table;
}

/// The code nearest to y, ties to even codes, beyond the ends the last one. A zero keeps the sign of y in formats with
/// a -0, which `sign_bit` names (0: none).
inline std::uint32_t nearest_code(const std::vector<std::pair<float, std::uint32_t>>& table, float y,
                                  std::uint32_t sign_bit) {
  const auto above = std::lower_bound(table.begin(), table.end(), std::pair(y, 0u));
  std::uint32_t code = 0;
  if (above == table.end()) {
    code = table.back().second;
  } else if (above == table.begin()) {
    code = above->second;
  } else {
    const auto& [low, low_code] = *(above - 1);
    const auto& [high, high_code] = *above;
    const Rational twice = 2 * exact(y);
    const Rational middle = exact(low) + exact(high);
    code = twice < middle || (twice == middle && low_code % 2 == 0) ? low_code : high_code;
  }
  return code == 0 && std::signbit(y) ? sign_bit : code;
}

/// A scale rule by its definition on rationals.
inline float scale(std::string_view rule, float amax, float range) {
  const Rational a = exact(amax);
  const Rational r = exact(range);
  const float reciprocal = to_float(1 / r);
  if (rule == "amax") return to_float(a / r);
  if (rule == "reciprocal") return to_float(a * exact(reciprocal));
  if (rule == "triton_eps") return to_float(a * exact(reciprocal) + exact(1e-7f));
  if (amax == 0) return 0;
  int k = std::ilogb(amax) - std::ilogb(range) - 4;  // below every rule's answer
  if (rule == "e8m0_floor") {
    int range_exponent = -20;
    while (power_of_two(range_exponent + 1) <= r) ++range_exponent;
    while (power_of_two(k + 1 + range_exponent) <= a) ++k;
  } else if (rule == "e8m0_ceil") {
    while (r * power_of_two(k) < a) ++k;
  } else if (rule == "e8m0_nearest") {
    const auto distance = [&](int n) { return Rational(abs(a / r - power_of_two(n))); };
    while (distance(k + 1) <= distance(k)) ++k;
  } else {
    throw std::logic_error("the oracle does not know this scale rule");
  }
  return to_float(power_of_two(std::clamp(k, -127, 127)));
}

}  // namespace oracle
