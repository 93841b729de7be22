// The matrix product.
#include "mma/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"

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
