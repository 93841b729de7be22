// The dot product of each kind of instruction.
#include "mma/fused_dot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "mma/amd_dot.h"
#include "mma/fused_sum.h"
#include "mma/unpacked.h"

namespace qattn::mma {
namespace {

/// A new step of the trace, or nullptr when nobody looks.
template <class Text>
TraceStep* next_step(Trace* trace, const Text& text) {
  if (trace == nullptr) return nullptr;
  trace->steps.push_back({});
  trace->steps.back().what = text();
  return &trace->steps.back();
}

/// The accumulator, in D's format, joins the products' terms; NaN and Inf among all of them decide before the sum.
std::uint64_t add_accumulator(const Instruction& x, std::uint64_t c, SpecialValues special, std::vector<Term>& terms,
                              TraceStep* step) {
  const Unpacked accumulator = unpack(*x.d, c);
  special.add(accumulator);
  terms.push_back(as_term(accumulator));
  if (step != nullptr) step->terms.push_back({"c"});
  if (!special.any()) return fuse(x.fusion, *x.d, terms, step);
  const std::uint64_t code = special_result(special, *x.d, nvidia_nan(*x.d));
  if (step != nullptr) {
    step->special = true;
    step->output = code;
  }
  return code;
}

/// C in D's format, exactly: Volta and Turing widen an f16 accumulator to f32 before they add.
std::uint64_t widened_accumulator(const Instruction& x, std::uint64_t code) {
  if (x.c == x.d) return code;
  const Unpacked c = unpack(*x.c, code);
  SpecialValues special;
  special.add(c);
  if (special.any()) return special_result(special, *x.d, nvidia_nan(*x.d));
  return round_to(*x.d, x.d->mantissa_bits, Rounding::nearest_even, c.negative, c.significand,
                  c.exponent - c.fraction_bits);
}

/// An operand as the adder sees it.
Unpacked adder_operand(const Instruction& x, const format::Format& format, std::uint64_t code) {
  const Unpacked operand = unpack(format, code);
  return x.kind == Kind::interleaved_dot ? as_fp16(operand) : operand;
}

/// One pass through the adder: the products at `positions`, scaled where the instruction has block scales, and c.
std::uint64_t fused_pass(const Instruction& x, const DotOperands& operands, std::span<const int> positions,
                         std::uint64_t c, TraceStep* step) {
  SpecialValues special;
  std::vector<Term> terms;
  terms.reserve(positions.size() + 1);
  for (const int k : positions) {
    const auto i = static_cast<std::size_t>(k);
    const Unpacked a = adder_operand(x, *x.a, operands.a[i]);
    const Unpacked b = adder_operand(x, *x.b, operands.b[i]);
    special.add_product(a, b);
    terms.push_back(product(a, b));
    if (step != nullptr) step->terms.push_back({fmt::format("a[{0}] b[{0}]", k)});
    if (x.scale == nullptr) continue;
    for (const auto& scales : {operands.scale_a, operands.scale_b}) {
      const Unpacked scale = unpack(*x.scale, scales[i / static_cast<std::size_t>(x.block)]);
      special.nan |= scale.kind == Unpacked::Class::nan;
      terms.back().exponent += scale.exponent;
    }
  }
  return add_accumulator(x, c, special, terms, step);
}

std::vector<int> range(int begin, int end) {
  std::vector<int> positions;
  for (int k = begin; k < end; ++k) positions.push_back(k);
  return positions;
}

/// Groups of L products, each summed with the accumulator that the group before left.
std::uint64_t fused_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  std::uint64_t c = widened_accumulator(x, operands.c);
  for (int k = 0; k < x.k; k += x.fusion.group) {
    const int end = std::min(k + x.fusion.group, x.k);
    c = fused_pass(x, operands, range(k, end), c,
                   next_step(trace, [&] { return fmt::format("products {}..{} and c", k, end - 1); }));
  }
  return c;
}

/// Traces the rounded addition of c, in D's format, to `sum`.
void record_add(const Instruction& x, std::uint64_t sum, std::uint64_t c, std::uint64_t code, Trace* trace) {
  TraceStep* step = next_step(trace, [] { return "rounded addition of c"; });
  if (step == nullptr) return;
  for (const auto& [name, operand] : {std::pair("sum", unpack(*x.d, sum)), {"c", unpack(*x.d, c)}}) {
    const Term term = as_term(operand);
    step->special |= operand.kind != Unpacked::Class::finite;
    step->terms.push_back({name, to_double(term), term.exponent, to_double(term)});
    step->sum_before += to_double(term);
  }
  step->sum_after = step->sum_before;
  step->output = code;
}

/// Hopper's FP8 mma.sync: the operands are converted to FP16, where E4M3's subnormals are normal, and go through two
/// HMMA, k mod 4 in {0, 1} first, from a zero accumulator; C joins by an ordinary addition.
std::uint64_t interleaved_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  std::uint64_t sum = 0;
  for (const int half : {0, 2}) {
    std::vector<int> positions;
    for (int k = 0; k < x.k; ++k) {
      if (k % 4 == half || k % 4 == half + 1) positions.push_back(k);
    }
    sum = fused_pass(x, operands, positions, sum, next_step(trace, [&] {
                       return fmt::format("products with k mod 4 in {{{}, {}}}", half, half + 1);
                     }));
  }
  const std::uint64_t code = rounded_add(*x.d, sum, operands.c);
  record_add(x, sum, operands.c, code, trace);
  return code;
}

/// The exact dot product of a[begin, end) and b[begin, end) in a format without specials.
Term exact_group(const Instruction& x, const DotOperands& operands, int begin, int end) {
  const int unit = 2 * (1 - x.a->bias);  // exponent of a product of two subnormals
  std::int64_t sum = 0;
  for (int k = begin; k < end; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const Term term = product(unpack(*x.a, operands.a[i]), unpack(*x.b, operands.b[i]));
    const auto magnitude = static_cast<std::int64_t>(term.significand << (term.exponent - unit));
    sum += term.negative ? -magnitude : magnitude;
  }
  return {sum < 0, true, unit, 2 * x.a->mantissa_bits, static_cast<std::uint64_t>(sum < 0 ? -sum : sum)};
}

/// MXFP4 and NVFP4: dot products of 16 are exact and multiply the exact significands of their scales; the scales'
/// exponents alone align them.
std::uint64_t scaled_group_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  constexpr int kGroup = 16;
  TraceStep* step = next_step(trace, [&] { return fmt::format("scaled groups of {} products and c", kGroup); });
  SpecialValues special;
  std::vector<Term> terms;
  for (int k = 0; k < x.k; k += kGroup) {
    Term term = exact_group(x, operands, k, k + kGroup);
    term.fraction_bits -= term.exponent;
    term.exponent = 0;
    for (const auto& scales : {operands.scale_a, operands.scale_b}) {
      const Unpacked scale = unpack(*x.scale, scales[static_cast<std::size_t>(k / x.block)]);
      special.nan |= scale.kind == Unpacked::Class::nan;
      term.exponent += scale.exponent;
      term.fraction_bits += scale.fraction_bits;
      term.significand *= scale.significand;
      term.always_aligns &= scale.significand != 0;
    }
    terms.push_back(term);
    if (step != nullptr) step->terms.push_back({fmt::format("a[{0}..{1}] b[{0}..{1}]", k, k + kGroup - 1)});
  }
  return add_accumulator(x, operands.c, special, terms, step);
}

/// Traces next = a * b + c.
template <class T>
void record_fma(TraceStep* step, std::size_t k, T a, T b, T c, T next) {
  if (step == nullptr) return;
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const auto addend = static_cast<double>(c);
  step->terms = {{fmt::format("a[{0}] b[{0}]", k), product, 0, product}, {"c", addend, 0, addend}};
  step->special = !std::isfinite(next);
  step->sum_before = product + addend;
  step->sum_after = static_cast<double>(next);
  step->output = std::bit_cast<std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>(next);
}

/// D of one fused multiply-add after the other in the floating-point type T with codes of type Code. `nan_of` says
/// which NaN a step gives.
template <class T, class Code, class NanOf>
std::uint64_t fma_chain(const DotOperands& operands, const NanOf& nan_of, Trace* trace) {
  const FpEnvironment environment;
  const auto value = [](std::uint64_t code) { return std::bit_cast<T>(static_cast<Code>(code)); };
  T sum = value(operands.c);
  for (std::size_t k = 0; k < operands.a.size(); ++k) {
    const T a = value(operands.a[k]);
    const T b = value(operands.b[k]);
    T next = std::fma(a, b, sum);
    if (std::isnan(next)) next = value(nan_of(a, b, sum));
    record_fma(next_step(trace, [&] { return fmt::format("fma at k = {}", k); }), k, a, b, sum, next);
    sum = next;
  }
  return std::bit_cast<Code>(sum);
}

/// NVIDIA's FP64 (measured): an operand's NaN is made quiet and kept, B's before the accumulator's before A's; a NaN
/// out of other numbers is the negative quiet one.
std::uint64_t nvidia_fp64_nan(double a, double b, double c) {
  for (const double operand : {b, c, a}) {
    if (std::isnan(operand)) return std::bit_cast<std::uint64_t>(operand) | 0x0008000000000000u;
  }
  return 0xFFF8000000000000u;
}

/// The chain from zero, in f32 whatever the operands' format; C is added last.
std::uint64_t late_fma_chain(const Instruction& x, const DotOperands& operands, Trace* trace) {
  const FpEnvironment environment;
  float sum = 0;
  for (std::size_t k = 0; k < operands.a.size(); ++k) {
    const float a = format::decode_float(*x.a, operands.a[k]);
    const float b = format::decode_float(*x.b, operands.b[k]);
    const float next = std::fma(a, b, sum);
    record_fma(next_step(trace, [&] { return fmt::format("fma at k = {}", k); }), k, a, b, sum, next);
    sum = next;
  }
  const std::uint64_t chain = std::isnan(sum) ? nvidia_nan(*x.d) : std::uint64_t{std::bit_cast<std::uint32_t>(sum)};
  const std::uint64_t c = widened_accumulator(x, operands.c);
  const std::uint64_t code = rounded_add(*x.d, chain, c);
  record_add(x, chain, c, code, trace);
  return code;
}

/// Two pairs of products in f32, the first pair and C before the second; the sum is rounded to f16.
std::uint64_t split_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  const FpEnvironment environment;
  const auto a = [&](std::size_t k) { return format::decode_float(*x.a, operands.a[k]); };
  const auto b = [&](std::size_t k) { return format::decode_float(*x.b, operands.b[k]); };
  const auto add = [&](std::string_view what, const char* first, float p, const char* second, float q) {
    const float sum = p + q;
    if (TraceStep* step = next_step(trace, [&] { return std::string(what); })) {
      step->terms = {{first, static_cast<double>(p), 0, static_cast<double>(p)},
                     {second, static_cast<double>(q), 0, static_cast<double>(q)}};
      step->special = !std::isfinite(sum);
      step->sum_before = static_cast<double>(p) + static_cast<double>(q);
      step->sum_after = static_cast<double>(sum);
      step->output = std::bit_cast<std::uint32_t>(sum);
    }
    return sum;
  };
  const float c = format::decode_float(*x.c, operands.c);
  const float low = add("rounded sum of the first pair", "a[0] b[0]", a(0) * b(0), "a[1] b[1]", a(1) * b(1));
  const float high = add("rounded sum of the second pair", "a[2] b[2]", a(2) * b(2), "a[3] b[3]", a(3) * b(3));
  const float sum = add("rounded addition of both, rounded to f16", "first pair and c",
                        add("rounded addition of c", "first pair", low, "c", c), "second pair", high);
  const format::Policy policy{format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep};
  const std::uint64_t code =
      std::isnan(sum) ? nvidia_nan(*x.d) : format::encode(*x.d, static_cast<double>(sum), policy);
  if (trace != nullptr) trace->steps.back().output = code;
  return code;
}

/// Exact, then modulo 2^32 or clamped.
std::uint64_t integer_dot(const Instruction& x, const DotOperands& operands, Trace* trace) {
  TraceStep* step =
      next_step(trace, [&] { return x.saturate ? "exact sum, clamped to s32" : "exact sum modulo 2^32"; });
  std::int64_t sum = unpack_integer(*x.c, operands.c);
  const auto record = [&](std::string name, std::int64_t value) {
    if (step == nullptr) return;
    step->terms.push_back({std::move(name), static_cast<double>(value), 0, static_cast<double>(value)});
    step->sum_before += static_cast<double>(value);
  };
  for (std::size_t k = 0; k < static_cast<std::size_t>(x.k); ++k) {
    const std::int64_t term = unpack_integer(*x.a, operands.a[k]) * unpack_integer(*x.b, operands.b[k]);
    sum += term;
    record(step == nullptr ? "" : fmt::format("a[{0}] b[{0}]", k), term);
  }
  record("c", unpack_integer(*x.c, operands.c));
  if (x.saturate) sum = std::clamp<std::int64_t>(sum, INT32_MIN, INT32_MAX);
  const auto code = static_cast<std::uint32_t>(sum);
  if (step != nullptr) {
    step->sum_after = static_cast<double>(static_cast<std::int32_t>(code));
    step->output = code;
  }
  return code;
}

void check_lengths(const Instruction& x, const DotOperands& operands) {
  const auto k = static_cast<std::size_t>(x.k);
  const std::size_t scales = x.block == 0 ? 0 : k / static_cast<std::size_t>(x.block);
  if (operands.a.size() == k && operands.b.size() == k && operands.scale_a.size() == scales &&
      operands.scale_b.size() == scales) {
    return;
  }
  throw Error(ErrorKind::usage, fmt::format("{}: operands have {} and {} elements with {} and {} scales; the "
                                            "instruction takes {} with {}",
                                            x.name, operands.a.size(), operands.b.size(), operands.scale_a.size(),
                                            operands.scale_b.size(), k, scales));
}

std::uint64_t dispatch(const Instruction& x, const DotOperands& operands, Trace* trace) {
  switch (x.kind) {
    case Kind::fused_dot:
      return fused_dot(x, operands, trace);
    case Kind::scaled_group_dot:
      return scaled_group_dot(x, operands, trace);
    case Kind::interleaved_dot:
      return interleaved_dot(x, operands, trace);
    case Kind::late_fma_chain:
      return late_fma_chain(x, operands, trace);
    case Kind::split_dot:
      return split_dot(x, operands, trace);
    case Kind::integer_dot:
      return integer_dot(x, operands, trace);
    case Kind::amd_fused_dot:
      return amd_fused_dot(x, operands, trace);
    case Kind::amd_pairwise:
      return amd_pairwise(x, operands, trace);
    case Kind::fma_chain:
      break;
  }
  if (x.d->bits == 32) {
    return fma_chain<float, std::uint32_t>(
        operands, [](float, float, float) { return kAmdNan; }, trace);
  }
  if (x.family.starts_with("sm")) return fma_chain<double, std::uint64_t>(operands, nvidia_fp64_nan, trace);
  const auto amd_nan = [](double, double, double) { return std::uint64_t{0x7FF8000000000000u}; };
  return fma_chain<double, std::uint64_t>(operands, amd_nan, trace);
}

std::string term_line(const TraceTerm& term, int fraction_bits) {
  if (fraction_bits < 0) return fmt::format("    {:<20} {: .17g}\n", term.name, term.value);
  const double lost = term.value - term.aligned;
  return fmt::format("    {:<20} {: .9e}  exponent {:>4}  aligned {: .9e}{}\n", term.name, term.value, term.exponent,
                     term.aligned, lost == 0 ? "" : fmt::format("  cut {: .3e}", lost));
}

}  // namespace

std::uint64_t dot(const Instruction& instruction, const DotOperands& operands, Trace* trace) {
  check_lengths(instruction, operands);
  const std::uint64_t code = dispatch(instruction, operands, trace);
  if (trace != nullptr) trace->output = code;
  return code;
}

CodeMatrix execute(const Instruction& instruction, const CodeMatrix& a, const CodeMatrix& b, const CodeMatrix& c,
                   const CodeMatrix& scale_a, const CodeMatrix& scale_b) {
  if (c.rows() != a.rows() || c.cols() != b.rows()) {
    throw Error(ErrorKind::usage, fmt::format("{}: c is {} x {}, the operands make {} x {}", instruction.name, c.rows(),
                                              c.cols(), a.rows(), b.rows()));
  }
  if (instruction.scale != nullptr && (scale_a.rows() != a.rows() || scale_b.rows() != b.rows())) {
    throw Error(ErrorKind::usage, fmt::format("{}: {} and {} rows of scales for {} and {} rows", instruction.name,
                                              scale_a.rows(), scale_b.rows(), a.rows(), b.rows()));
  }
  const auto row = [](const CodeMatrix& matrix, Eigen::Index i) {
    const auto width = static_cast<std::size_t>(matrix.cols());
    return std::span(matrix.data() + i * matrix.cols(), matrix.rows() == 0 ? 0 : width);
  };
  CodeMatrix d(c.rows(), c.cols());
  for (Eigen::Index i = 0; i < c.rows(); ++i) {
    for (Eigen::Index j = 0; j < c.cols(); ++j) {
      DotOperands operands{row(a, i), row(b, j), c(i, j)};
      if (instruction.scale != nullptr) {
        operands.scale_a = row(scale_a, i);
        operands.scale_b = row(scale_b, j);
      }
      d(i, j) = dot(instruction, operands);
    }
  }
  return d;
}

std::string to_text(const Instruction& instruction, const Trace& trace) {
  std::string text =
      fmt::format("{}: {}, {}\n", instruction.name, kind_name(instruction.kind), evidence_text(instruction));
  const int digits = instruction.d->bits / 4;
  for (const TraceStep& step : trace.steps) {
    text += fmt::format("  {}\n", step.what);
    if (step.special) {
      text += "    NaN or Inf among the operands or in the result\n";
    } else {
      for (const TraceTerm& term : step.terms) text += term_line(term, step.fraction_bits);
      if (step.fraction_bits >= 0) {
        text += fmt::format("    e_max {}, cut below 2^{}\n", step.e_max, step.e_max - step.fraction_bits);
      }
      text += fmt::format("    sum before {:.17g}, after {:.17g}\n", step.sum_before, step.sum_after);
    }
    text += fmt::format("    output 0x{:0{}X}\n", step.output, digits);
  }
  return text;
}

}  // namespace qattn::mma
