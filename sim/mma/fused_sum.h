// What the kinds of fused dot product share: special values, alignment, the one output rounding.
#pragma once

#include <string>
#include <vector>

#include "mma/fused_dot.h"
#include "mma/unpacked.h"
#include "mma/wide_integer.h"

namespace qattn::mma {

/// A finite summand: (-1)^negative * significand * 2^(exponent - fraction_bits).
struct Term {
  bool negative = false;
  bool always_aligns = false;  ///< its exponent counts for e_max even when it is zero
  int exponent = 0;
  int fraction_bits = 0;
  std::uint64_t significand = 0;
};

/// NaN and Inf among a sum's terms. They decide the output before any alignment.
struct SpecialValues {
  bool nan = false;
  bool positive_infinity = false;
  bool negative_infinity = false;

  void add(const Unpacked& x);
  void add_product(const Unpacked& x, const Unpacked& y);
  bool any() const { return nan || positive_infinity || negative_infinity; }
  /// NaN also for Inf - Inf.
  bool result_is_nan() const { return nan || (positive_infinity && negative_infinity); }
};

/// The output when `special.any()`: `nan_code`, or the Inf of `format`.
std::uint64_t special_result(const SpecialValues& special, const format::Format& format, std::uint64_t nan_code);

/// NVIDIA's canonical NaN of f32 and f16: every bit but the sign.
std::uint64_t nvidia_nan(const format::Format& format);

Term as_term(const Unpacked& x);
Term product(const Unpacked& x, const Unpacked& y);

/// The code of (-1)^negative * magnitude * 2^exponent in an `ieee` format of which `mantissa_bits` are kept (the rest
/// zero). Subnormals are kept, overflow gives Inf even toward zero, and a zero result is +0, whatever the sign.
std::uint64_t round_to(const format::Format& format, int mantissa_bits, Rounding rounding, bool negative,
                       UInt128 magnitude, int exponent);

/// The largest exponent among the nonzero terms, at least `floor`.
int largest_exponent(const std::vector<Term>& terms, int floor);

/// The term cut toward zero to units of 2^(e_max - fraction_bits).
Int128 align(const Term& term, int e_max, int fraction_bits);

/// Aligns, cuts, sums and rounds: one pass through NVIDIA's adder.
std::uint64_t fuse(const Fusion& fusion, const format::Format& output, const std::vector<Term>& terms,
                   TraceStep* step = nullptr);

/// x + y in f32 or f16, rounded to nearest even; NaN as NVIDIA's adders return it.
std::uint64_t rounded_add(const format::Format& format, std::uint64_t x, std::uint64_t y);

double to_double(const Term& term);

}  // namespace qattn::mma
