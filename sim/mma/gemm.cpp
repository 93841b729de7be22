// The matrix product.
#include "mma/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "mma/fused_dot.h"

namespace qattn::mma {
namespace {

using Eigen::Index;

void check(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b) {
  if (plan.instruction == nullptr) throw Error(ErrorKind::usage, "matrix product: the plan names no instruction");
  const Instruction& x = *plan.instruction;
  const auto fail = [&](const std::string& what) { throw Error(ErrorKind::usage, x.name + ": " + what); };
  if (a.cols() != b.cols()) fail(fmt::format("a has K = {}, b {}", a.cols(), b.cols()));
  if (x.c != x.d || x.scale != nullptr) fail("a matrix product needs C in D's format and no block scales");
  if (plan.promotion_interval < 0) fail("the promotion interval must not be negative");
  if (plan.slice < 0 || plan.slice % x.k != 0) fail(fmt::format("slices must be a multiple of {}", x.k));
  const bool half_output = plan.output == &format::kBF16 || plan.output == &format::kFP16;
  if (x.kind != Kind::integer_dot && plan.output != &format::kFP32 && !half_output) {
    fail(fmt::format("the output must be fp32, bf16 or fp16, not {}", plan.output->name));
  }
}

/// One product over a slice of K.
class SliceProduct {
 public:
  SliceProduct(const GemmPlan& plan, const Operand& a, const Operand& b, Path path)
      : plan_(plan), a_(a), b_(b), path_(path) {}

  /// The chains' results as f32.
  MatrixF operator()() const {
    const Index steps = (a_.k() + plan_.instruction->k - 1) / plan_.instruction->k;
    const Index interval = plan_.promotion_interval == 0 ? std::max<Index>(steps, 1) : plan_.promotion_interval;
    MatrixF sum = MatrixF::Zero(a_.rows(), b_.rows());
    for (Index first = 0; first < steps; first += interval) {
      const MatrixF partial = to_float(chain(first, std::min(first + interval, steps), steps));
      if (plan_.promotion_interval == 0) return partial;
      sum = sum + partial;
    }
    return sum;
  }

  /// Instructions [first, last) of the slice, in the plan's order, from a zero accumulator.
  MatrixCodes chain(Index first, Index last, Index steps) const {
    MatrixCodes c = MatrixCodes::Zero(a_.rows(), b_.rows());
    const Index k = plan_.instruction->k;
    if (plan_.k_order == KOrder::ascending) {
      accumulate(c, first * k, std::min(last * k, a_.k()));
    } else {
      for (Index step = first; step < last; ++step) {
        const Index from = steps - 1 - step;
        accumulate(c, from * k, std::min((from + 1) * k, a_.k()));
      }
    }
    return c;
  }

 private:
  void accumulate(MatrixCodes& c, Index k0, Index k1) const {
    multiply_accumulate(*plan_.instruction, a_.slice(k0, k1), b_.slice(k0, k1), c, path_);
  }

  MatrixF to_float(const MatrixCodes& codes) const {
    const format::Format& from = *plan_.instruction->d;
    if (from.bits == 32) return codes.unaryExpr([](std::uint32_t code) { return std::bit_cast<float>(code); });
    return codes.unaryExpr([&](std::uint32_t code) { return format::decode_float(from, code); });
  }

  const GemmPlan& plan_;
  const Operand& a_;
  const Operand& b_;
  Path path_;
};

}  // namespace

MatrixCodes gemm(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b,
                 Path path) {
  check(plan, a, b);
  const FpEnvironment environment;
  const Operand left(*plan.instruction, Side::a, a);
  const Operand right(*plan.instruction, Side::b, b);
  if (plan.instruction->kind == Kind::integer_dot) {
    const Index steps = (a.cols() + plan.instruction->k - 1) / plan.instruction->k;
    return SliceProduct(plan, left, right, path).chain(0, steps, steps);
  }
  const Index slice = plan.slice == 0 ? std::max<Index>(a.cols(), 1) : plan.slice;
  MatrixF sum = MatrixF::Zero(a.rows(), b.rows());
  for (Index k0 = 0; k0 < a.cols(); k0 += slice) {
    const Index k1 = std::min<Index>(k0 + slice, a.cols());
    const Operand part_a = left.slice(k0, k1);
    const Operand part_b = right.slice(k0, k1);
    const MatrixF partial = SliceProduct(plan, part_a, part_b, path)();
    sum = k0 == 0 ? partial : MatrixF(sum + partial);
  }
  if (plan.output == &format::kFP32) {
    return sum.unaryExpr([](float value) { return std::bit_cast<std::uint32_t>(value); });
  }
  const format::Policy policy{format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep};
  return sum.unaryExpr(
      [&](float value) { return static_cast<std::uint32_t>(format::encode(*plan.output, value, policy)); });
}

namespace {

/// One instruction, over the elements [k0, k1) of K, from the accumulator c.
std::string explain_step(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b,
                         Index k0, Index k1, std::uint32_t c) {
  const Instruction& x = *plan.instruction;
  const auto padded = [&](const MatrixView<std::uint32_t>& from) {
    std::vector<std::uint64_t> codes(static_cast<std::size_t>(x.k), 0);
    for (Index k = k0; k < k1; ++k) codes[static_cast<std::size_t>(k - k0)] = from(0, k);
    return codes;
  };
  const std::vector<std::uint64_t> row = padded(a);
  const std::vector<std::uint64_t> column = padded(b);
  Trace trace;
  dot(x, {row, column, c}, &trace);
  return fmt::format("  last instruction, k {}..{}\n  a {:#x}\n  b {:#x}\n  c {:#x}\n{}", k0, k1 - 1,
                     fmt::join(row, " "), fmt::join(column, " "), c, to_text(x, trace));
}

/// The chains of one slice, which begins at element `start` of K.
std::string explain_slice(const GemmPlan& plan, const SliceProduct& product, Index start, Index k) {
  const Instruction& x = *plan.instruction;
  const Index steps = (k + x.k - 1) / x.k;
  const Index interval = plan.promotion_interval == 0 ? steps : plan.promotion_interval;
  std::string text;
  for (Index first = 0; first < steps; first += interval) {
    const Index last = std::min(first + interval, steps);
    const bool up = plan.k_order == KOrder::ascending;
    const Index from = (up ? first : steps - last) * x.k;
    const Index to = std::min((up ? last : steps - first) * x.k, k);
    const std::uint32_t code = product.chain(first, last, steps)(0, 0);
    text += fmt::format("  chain over k {}..{}: {:#x}, {:.9g}\n", start + from, start + to - 1, code,
                        format::decode(*x.d, code));
  }
  return text;
}

}  // namespace

std::string explain(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b) {
  check(plan, a, b);
  const FpEnvironment environment;
  const Instruction& x = *plan.instruction;
  const Operand left(x, Side::a, a);
  const Operand right(x, Side::b, b);
  const Index width = plan.slice == 0 ? std::max<Index>(a.cols(), 1) : plan.slice;
  std::string text = fmt::format("  {} over K = {}, promotion every {} instructions, slices of {}\n", x.name, a.cols(),
                                 plan.promotion_interval, plan.slice);
  for (Index k0 = 0; k0 < a.cols(); k0 += width) {
    const Index k1 = std::min<Index>(k0 + width, a.cols());
    const Operand part_a = left.slice(k0, k1);
    const Operand part_b = right.slice(k0, k1);
    const SliceProduct product(plan, part_a, part_b, Path::fast);
    text += explain_slice(plan, product, k0, k1 - k0);
    if (k1 < a.cols()) continue;
    const Index steps = (k1 - k0 + x.k - 1) / x.k;
    const Index interval = plan.promotion_interval == 0 ? steps : plan.promotion_interval;
    const Index begin = (steps - 1) / interval * interval;  // of the last chain
    const Index at = plan.k_order == KOrder::ascending ? steps - 1 : 0;
    text += explain_step(plan, a, b, k0 + at * x.k, std::min(k0 + (at + 1) * x.k, k1),
                         product.chain(begin, steps - 1, steps)(0, 0));
  }
  return text;
}

GemmPlan cublaslt_fp8_plan(const format::Format& a, const format::Format& b, bool fast_accumulation, std::int64_t k,
                           const format::Format& output) {
  GemmPlan plan;
  plan.instruction = find("sm90.wgmma", "f32", a, b);
  if (plan.instruction == nullptr || a.bits != 8) {
    throw Error(ErrorKind::usage,
                fmt::format("cuBLASLt's FP8 product takes e4m3 and e5m2, not {} and {}", a.name, b.name));
  }
  plan.promotion_interval = fast_accumulation ? 0 : 4;
  plan.slice = k == 16384 ? 2816 : 0;
  plan.output = &output;
  return plan;
}

}  // namespace qattn::mma
