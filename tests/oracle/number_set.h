// Number formats as what they are: finite sets of numbers. Rounding is a search for the nearest member.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace oracle {

/// The magnitudes that a format can hold, ascending from zero. A member's place is its code without the sign, so that
/// an even place is an even significand.
struct NumberSet {
  std::string name;
  std::vector<double> magnitudes;
  int smallest_exponent = 0;  ///< of normal numbers; subnormals share it
  bool scaled = false;        ///< too narrow to hold data without a scale

  double largest() const { return magnitudes.back(); }

  /// The nearest member, of two equally near ones that with the even place (or the larger one); the largest for
  /// anything beyond it.
  double nearest(double x, bool half_away = false) const {
    const double magnitude = std::fabs(x);
    if (magnitude >= largest()) return std::copysign(largest(), x);
    const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    const auto place = static_cast<std::size_t>(above - magnitudes.begin()) - 1;
    const double down = magnitude - magnitudes[place];
    const double up = magnitudes[place + 1] - magnitude;
    const bool take_upper = up < down || (up == down && (half_away || place % 2 == 1));
    return std::copysign(magnitudes[take_upper ? place + 1 : place], x);
  }
};

/// Sign, exponent, mantissa with subnormals; the first `members` magnitudes are finite.
inline NumberSet floating_set(const std::string& name, int mantissa_bits, int bias, int members, bool scaled) {
  NumberSet set{name, {}, 1 - bias, scaled};
  for (int code = 0; code < members; ++code) {
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
    set.magnitudes.push_back(std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias - mantissa_bits));
  }
  return set;
}

/// The integers -largest .. largest.
inline NumberSet integer_set(const std::string& name, int largest) {
  NumberSet set{name, {}, 0, true};
  for (int n = 0; n <= largest; ++n) set.magnitudes.push_back(n);
  return set;
}

inline const NumberSet& int4() {
  static const NumberSet set = integer_set("int4", 7);
  return set;
}
inline const NumberSet& int8() {
  static const NumberSet set = integer_set("int8", 127);
  return set;
}
/// E4M3 without infinities: only the code 0x7F is no number.
inline const NumberSet& e4m3() {
  static const NumberSet set = floating_set("e4m3", 3, 7, 0x7F, true);
  return set;
}
inline const NumberSet& e5m2() {
  static const NumberSet set = floating_set("e5m2", 2, 15, 0x7C, true);
  return set;
}
/// No code is a NaN.
inline const NumberSet& e2m1() {
  static const NumberSet set = floating_set("e2m1", 1, 1, 8, true);
  return set;
}
inline const NumberSet& fp16() {
  static const NumberSet set = floating_set("fp16", 10, 15, 0x7C00, false);
  return set;
}

}  // namespace oracle
