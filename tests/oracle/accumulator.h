// Dot products as a tensor core adds them up, one output element at a time.
//
// The rule of every floating-point matrix instruction, as measured on an H200 and reported for other chips (MMA-Sim,
// arXiv 2511.10909, table 4; Khattak and Mikaitis, arXiv 2512.07004): `terms` products and the accumulator are exact;
// a product's exponent is the sum of its operands' exponents (subnormals have the smallest normal exponent); every
// term is cut toward zero to `fraction_bits` below the largest exponent; the cut terms are added exactly; the sum is
// rounded once. More products go through the accumulator, `terms` at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "matrix.h"
#include "number_set.h"

namespace oracle {

enum class Sum { exact, f32_chain, tensor_core, block_scaled };
enum class Result { f32, fp22, f16 };

struct Accumulator {
  std::string name = "exact";
  Sum sum = Sum::exact;
  int instruction_keys = 1 << 20;  ///< length of the dot product of one instruction
  int terms = 0;
  int fraction_bits = 0;
  int floor_exponent = 0;  ///< the largest exponent is never taken below this
  Result result = Result::f32;
};

inline const std::vector<Accumulator>& accumulators() {
  static const std::vector<Accumulator> all = {
      {},
      {"f32", Sum::f32_chain},
      {"hopper-wgmma-fp8", Sum::tensor_core, 32, 32, 13, -133, Result::fp22},
      {"ada-fp8", Sum::tensor_core, 32, 16, 13, -132, Result::fp22},
      {"ada-fp8-to-f16", Sum::tensor_core, 32, 16, 13, -21, Result::f16},
      // Dot products of 16 are exact; their scales' exponents align them.
      {"blackwell-fp4", Sum::block_scaled, 64, 64, 35, -139, Result::f32},
      // What FP8 would give if the accumulator had Blackwell's width: the leave-out of "no FP22".
      {"blackwell-fp8", Sum::tensor_core, 32, 32, 25, -133, Result::f32},
      {"hopper-f16", Sum::tensor_core, 16, 16, 25, -133, Result::f32},
      {"hopper-f16-to-f16", Sum::tensor_core, 16, 16, 25, -22, Result::f16},
      {"ampere-f16", Sum::tensor_core, 16, 8, 24, -132, Result::f32},
      {"ampere-f16-to-f16", Sum::tensor_core, 16, 8, 24, -21, Result::f16},
  };
  return all;
}

inline const Accumulator& find_accumulator(const std::string& name) {
  for (const Accumulator& a : accumulators())
    if (a.name == name) return a;
  throw std::runtime_error("no accumulator is called '" + name + "'");
}

/// Cut toward zero to `bits` mantissa bits, with FP32's exponent range.
inline double cut_mantissa(double x, int bits) {
  if (x == 0) return 0;
  const int unit = std::max(std::ilogb(x), -126) - bits;
  return std::ldexp(std::trunc(std::ldexp(x, -unit)), unit);
}

inline double round_result(double x, Result result) {
  switch (result) {
    case Result::f32:
      return cut_mantissa(x, 23);
    case Result::fp22:
      return cut_mantissa(x, 13);
    case Result::f16:
      if (std::fabs(x) >= 65520) throw std::runtime_error("an FP16 accumulator overflows");
      return fp16().nearest(x);
  }
  throw std::logic_error("no such result format");
}

/// A number beside the exponent that the adder aligns it by.
struct Term {
  double value;
  int exponent;
};

inline int aligned_exponent(double x, int smallest) { return std::max(std::ilogb(x), smallest); }

/// One pass of the adder: the terms, cut and added, rounded to the result's format. Terms that are zero align no other
/// unless `zeros_align`.
inline double add_terms(const std::vector<Term>& terms, const Accumulator& how, bool zeros_align = false) {
  int largest = how.floor_exponent;
  for (const Term& t : terms)
    if (t.value != 0 || zeros_align) largest = std::max(largest, t.exponent);
  const int unit = largest - how.fraction_bits;
  double sum = 0;  // integers far below 2^53
  for (const Term& t : terms) sum += std::trunc(std::ldexp(t.value, -unit));
  return round_result(std::ldexp(sum, unit), how.result);
}

/// One side of a dot product: members of a set, the set's smallest exponent, and the scale that each element's block
/// has (none: 1), with the smallest exponent of scales.
struct Factor {
  std::vector<double> codes;
  int smallest_exponent = -1100;
  std::vector<double> block_scales = {};
  int smallest_scale_exponent = -1100;

  double value(std::size_t i) const { return block_scales.empty() ? codes[i] : codes[i] * block_scales[i]; }
  Factor part(std::size_t first, std::size_t last) const {
    const auto cut = [&](const std::vector<double>& all) {
      if (all.empty()) return all;
      return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                 all.begin() + static_cast<std::ptrdiff_t>(last));
    };
    return {cut(codes), smallest_exponent, cut(block_scales), smallest_scale_exponent};
  }
};

/// Groups of 16 within one instruction: exact dot products times both scales, aligned by the scales' exponents.
inline std::vector<Term> scaled_groups(const Factor& a, const Factor& b, std::size_t first, std::size_t last) {
  std::vector<Term> terms;
  for (std::size_t g = first; g < last; g += 16) {
    double dot = 0;
    for (std::size_t i = g; i < std::min(last, g + 16); ++i) dot += a.codes[i] * b.codes[i];
    const double sa = a.block_scales[g], sb = b.block_scales[g];
    terms.push_back({dot * sa * sb, aligned_exponent(sa, a.smallest_scale_exponent) +
                                        aligned_exponent(sb, b.smallest_scale_exponent)});
  }
  return terms;
}

/// start + sum of a[i] * b[i].
inline double accumulate(const Accumulator& how, double start, const Factor& left, const Factor& right) {
  const std::vector<double>&a = left.codes, &b = right.codes;
  const int smallest_a = left.smallest_exponent, smallest_b = right.smallest_exponent;
  const std::size_t n = a.size();
  if (how.sum == Sum::exact) {
    Wide sum = wide(start);
    for (std::size_t i = 0; i < n; ++i) sum += wide(left.value(i)) * wide(right.value(i));
    return static_cast<double>(sum);
  }
  if (how.sum == Sum::f32_chain) {
    float sum = static_cast<float>(start);
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<float>(a[i] * b[i]);
    return static_cast<double>(sum);
  }
  double sum = start;
  const int smallest_c = how.result == Result::f16 ? -14 : -126;
  for (std::size_t first = 0; first < n; first += static_cast<std::size_t>(how.terms)) {
    std::vector<Term> terms;
    if (sum != 0) terms.push_back({sum, aligned_exponent(sum, smallest_c)});
    const std::size_t last = std::min(n, first + static_cast<std::size_t>(how.terms));
    if (how.sum == Sum::block_scaled) {
      for (const Term& t : scaled_groups(left, right, first, last)) terms.push_back(t);
      sum = add_terms(terms, how, true);
      continue;
    }
    for (std::size_t i = first; i < last; ++i)
      if (a[i] * b[i] != 0)
        terms.push_back({a[i] * b[i], aligned_exponent(a[i], smallest_a) + aligned_exponent(b[i], smallest_b)});
    sum = add_terms(terms, how);
  }
  return sum;
}

}  // namespace oracle
