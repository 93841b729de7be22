// A second, slow conversion to compare with: exact big integers, the definition of each format, and nothing of
// encode.cpp. It finds the two neighbours of x in the format by search and chooses between them by exact comparison.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <vector>

#include "format/encode.h"
#include "format/format.h"

namespace qattn::format::oracle {

/// A number times 2^kScale: an integer for every value and every midpoint of every format here. 2^1025 times that and
/// 32 bits more must fit.
using Exact = boost::multiprecision::number<
    boost::multiprecision::cpp_int_backend<2304, 2304, boost::multiprecision::unsigned_magnitude,
                                           boost::multiprecision::unchecked, void>,
    boost::multiprecision::et_off>;
inline constexpr int kScale = 1160;

/// The magnitude of a finite number, exactly.
Exact exact_magnitude(double x);

/// The magnitude that the definition of the format gives to the `index`-th number from zero up (E8M0: from 2^-127 up),
/// continued beyond the largest finite one with an unbounded exponent. The numbers of a format are numbered from 0 on
/// in the order of their size.
Exact magnitude_at(const Format& format, std::uint64_t index);

/// How many numbers, counted from zero, a sign has: the next index is beyond the range.
std::uint64_t magnitudes(const Format& format, bool negative);

/// The code of the `index`-th number of a sign, by the definition of the code space.
std::uint64_t code_at(const Format& format, bool negative, std::uint64_t index);

/// The double nearest to zero's side of a magnitude: the magnitude itself where it has at most 53 bits.
double to_double(const Exact& magnitude);

/// The midpoint of `index` and the next number.
Exact midpoint_after(const Format& format, std::uint64_t index);

/// Where |x| lies between two numbers of the format.
struct Place {
  std::uint64_t lower = 0;     ///< index of the largest number not above |x|; the last index if |x| is beyond it
  bool below_all = false;      ///< |x| is below the smallest number (E8M0)
  bool beyond_next = false;    ///< |x| is at or beyond the first number out of range
  bool exact = true;           ///< |x| is that number
  int against_half = -1;       ///< -1, 0, 1: the rest is below, at or above half of the gap
  bool even = true;            ///< the number is an even multiple of the gap above it
  std::uint32_t fraction = 0;  ///< top 32 bits of the rest as a fraction of the gap
};
Place place(const Format& format, bool negative, const Exact& magnitude);

/// The code that a finite x at `where` must get.
std::uint64_t choose(const Format& format, bool negative, bool zero, const Place& where, const Policy& policy,
                     std::uint32_t random_bits);

/// The code that x must get; NaN and infinities too. place() and choose() in one.
std::uint64_t encode(const Format& format, double x, const Policy& policy, std::uint32_t random_bits = 0);

/// Every combination of the deterministic roundings, overflow and subnormal policies; with the stochastic one last.
std::vector<Policy> deterministic_policies();
std::vector<Policy> all_policies();

}  // namespace qattn::format::oracle
