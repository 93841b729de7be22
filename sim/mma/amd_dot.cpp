// AMD's dot products.
#include "mma/amd_dot.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/fp_environment.h"
#include "mma/fused_sum.h"
#include "mma/unpacked.h"

namespace qattn::mma {
namespace {

constexpr int kZeroExponent = -126;
constexpr int kProductBits = 24;      // fraction bits of the products and of C
constexpr int kAccumulatorBits = 31;  // fraction bits of the products' sum when C joins

/// An integer times 2^(exponent - fraction bits); the fraction bits are known from the place in the data path.
struct Partial {
  Int128 units = 0;
  int exponent = 0;
};

/// floor(x / 2^shift), shift >= 0.
Int128 floor_shift(Int128 x, int shift) { return x >> std::min(shift, 127); }

Unpacked unpack_operand(const format::Format& format, std::uint64_t code) {
  Unpacked x = unpack(format, code);
  if (x.is_zero()) x.exponent = kZeroExponent;
  return x;
}

/// The products among `terms` at first, first + stride, ..., cut toward zero at their largest exponent.
Partial sum_products(const std::vector<Term>& terms, std::size_t first, std::size_t stride, TraceStep* step) {
  Partial sum{0, terms[first].exponent};
  for (std::size_t i = first; i < terms.size(); i += stride) sum.exponent = std::max(sum.exponent, terms[i].exponent);
  for (std::size_t i = first; i < terms.size(); i += stride) {
    const Int128 units = align(terms[i], sum.exponent, kProductBits);
    sum.units += units;
    if (step == nullptr) continue;
    step->terms[i].aligned = std::ldexp(static_cast<double>(units), sum.exponent - kProductBits);
  }
  return sum;
}

/// Sum of the group's products with kProductBits fraction bits.
Partial sum_group(const Instruction& x, const std::vector<Term>& terms, TraceStep* step) {
  if (x.a->bits > 8) return sum_products(terms, 0, 1, step);
  const Partial even = sum_products(terms, 0, 2, step);
  const Partial odd = sum_products(terms, 1, 2, step);
  const int e_max = std::max(even.exponent, odd.exponent);
  return {floor_shift(even.units, e_max - even.exponent) + floor_shift(odd.units, e_max - odd.exponent), e_max};
}

/// The accumulator joins; the only rounding to the output format.
std::uint64_t join(const Instruction& x, const Partial& sum, const Unpacked& c, TraceStep* step) {
  constexpr int kExtra = kAccumulatorBits - kProductBits;
  const int e_max = std::max(sum.exponent, c.exponent);
  Int128 accumulator = c.negative ? -static_cast<Int128>(c.significand) : static_cast<Int128>(c.significand);
  // c's significand has 23 fraction bits. The FP8 path drops an accumulator that is out of reach altogether.
  accumulator = floor_shift(accumulator << (kProductBits - c.fraction_bits), e_max - c.exponent);
  if (x.a->bits == 8 && c.exponent < e_max - (kProductBits + 1)) accumulator = 0;
  const Int128 total = floor_shift(sum.units << kExtra, e_max - sum.exponent) + (accumulator << kExtra);
  const int unit = e_max - kAccumulatorBits;
  const std::uint64_t code = round_to(*x.d, x.d->mantissa_bits, Rounding::nearest_even, total < 0,
                                      static_cast<UInt128>(total < 0 ? -total : total), unit);
  if (step != nullptr) {
    step->e_max = e_max;
    step->sum_after = std::ldexp(static_cast<double>(total), unit);
    step->output = code;
  }
  return code;
}

/// NaN and Inf of one pass, products of 2^128 and more among them.
SpecialValues special_values(const Instruction& x, const DotOperands& operands, std::size_t begin, std::size_t end,
                             const Unpacked& c) {
  SpecialValues special;
  special.add(c);
  for (std::size_t k = begin; k < end; ++k) {
    special.add_product(unpack(*x.a, operands.a[k]), unpack(*x.b, operands.b[k]));
  }
  if (special.any()) return special;
  for (std::size_t k = begin; k < end; ++k) {
    const Term term = product(unpack(*x.a, operands.a[k]), unpack(*x.b, operands.b[k]));
    if (bit_width(term.significand) - 1 + term.exponent - term.fraction_bits < 128) continue;
    (term.negative ? special.negative_infinity : special.positive_infinity) = true;
  }
  return special;
}

std::uint64_t fused_group(const Instruction& x, const DotOperands& operands, std::size_t begin, std::size_t end,
                          std::uint64_t accumulator, TraceStep* step) {
  const Unpacked c = unpack_operand(*x.c, accumulator);
  const SpecialValues special = special_values(x, operands, begin, end, c);
  if (special.any()) {
    const std::uint64_t code = special_result(special, *x.d, kAmdNan);
    if (step != nullptr) {
      step->special = true;
      step->output = code;
    }
    return code;
  }
  std::vector<Term> terms;
  for (std::size_t k = begin; k < end; ++k) {
    terms.push_back(product(unpack_operand(*x.a, operands.a[k]), unpack_operand(*x.b, operands.b[k])));
    if (step == nullptr) continue;
    const double value = to_double(terms.back());
    step->terms.push_back({fmt::format("a[{0}] b[{0}]", k), value, terms.back().exponent, value});
    step->sum_before += value;
  }
  const Partial sum = sum_group(x, terms, step);
  if (step != nullptr) {
    const double value = to_double(as_term(c));
    step->fraction_bits = kProductBits;
    step->terms.push_back({"c", value, c.exponent, value});
    step->sum_before += value;
  }
  return join(x, sum, c, step);
}

/// One operand or accumulator of amd_pairwise as f32.
float pairwise_operand(const format::Format& format, std::uint64_t code, bool flush) {
  const Unpacked x = unpack(format, code);
  if (x.kind == Unpacked::Class::nan) return std::bit_cast<float>(static_cast<std::uint32_t>(kAmdNan));
  const float sign = x.negative ? -1.0f : 1.0f;
  if (x.kind == Unpacked::Class::infinite) return sign * HUGE_VALF;
  const bool subnormal = x.significand >> x.fraction_bits == 0;
  if (flush && subnormal) return 0.0f;
  return sign * std::ldexp(static_cast<float>(x.significand), x.exponent - x.fraction_bits);
}

float flushed(float x, bool flush) { return flush && std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// The tree over products [begin, end): halves summed apart, then added.
float pairwise_sum(const std::vector<float>& a, const std::vector<float>& b, std::size_t begin, std::size_t end,
                   bool flush) {
  if (end - begin == 1) return flushed(std::fma(a[begin], b[begin], 0.0f), flush);
  const std::size_t middle = begin + (end - begin) / 2;
  return flushed(pairwise_sum(a, b, begin, middle, flush) + pairwise_sum(a, b, middle, end, flush), flush);
}

}  // namespace

std::uint64_t amd_fused_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  std::uint64_t c = operands.c;
  for (int k = 0; k < x.k; k += x.fusion.group) {
    const int end = std::min(k + x.fusion.group, x.k);
    TraceStep* step = nullptr;
    if (trace != nullptr) {
      trace->steps.push_back({});
      step = &trace->steps.back();
      step->what = fmt::format("products {}..{} cut toward zero, then c", k, end - 1);
    }
    c = fused_group(x, operands, static_cast<std::size_t>(k), static_cast<std::size_t>(end), c, step);
  }
  return c;
}

std::uint64_t amd_pairwise(const Instruction& x, const DotOperands& operands, Trace* trace) {
  const FpEnvironment environment;
  const bool flush = x.flush_subnormals;
  std::vector<float> a;
  std::vector<float> b;
  for (const std::uint64_t code : operands.a) a.push_back(pairwise_operand(*x.a, code, flush));
  for (const std::uint64_t code : operands.b) b.push_back(pairwise_operand(*x.b, code, flush));
  float sum = pairwise_operand(*x.c, operands.c, flush);
  const auto code_of = [](float value) {
    return std::isnan(value) ? kAmdNan : std::uint64_t{std::bit_cast<std::uint32_t>(value)};
  };
  for (std::size_t k = 0; k < a.size(); k += static_cast<std::size_t>(x.fusion.group)) {
    const std::size_t end = std::min(k + static_cast<std::size_t>(x.fusion.group), a.size());
    const float group = pairwise_sum(a, b, k, end, flush);
    const float next = flushed(sum + group, flush);
    if (trace != nullptr) {
      const auto term = [](std::string name, double value) { return TraceTerm{std::move(name), value, 0, value}; };
      TraceStep step;
      step.what = fmt::format("tree over products {}..{}, then a rounded addition", k, end - 1);
      step.terms = {term("tree", static_cast<double>(group)), term("c", static_cast<double>(sum))};
      step.special = !std::isfinite(next);
      step.sum_before = static_cast<double>(group) + static_cast<double>(sum);
      step.sum_after = static_cast<double>(next);
      step.output = code_of(next);
      trace->steps.push_back(std::move(step));
    }
    sum = next;
  }
  return code_of(sum);
}

}  // namespace qattn::mma
