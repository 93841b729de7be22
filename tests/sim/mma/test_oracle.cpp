// The plain engine against the oracle, and what must hold for any rule.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "format/encode.h"
#include "mma/fused_dot.h"
#include "operands.h"
#include "oracle.h"
#include "support/catch.h"

namespace qattn::mma {
namespace {

std::span<const std::uint64_t> row(const CodeMatrix& matrix, Eigen::Index i) {
  if (matrix.rows() == 0) return {};
  return {matrix.data() + i * matrix.cols(), static_cast<std::size_t>(matrix.cols())};
}

DotOperands element(const OperandSet& set, Eigen::Index i, Eigen::Index j) {
  return {row(set.a, i), row(set.b, j), set.c(i, j), row(set.scale_a, i), row(set.scale_b, j)};
}

void compare_with_oracle(const Instruction& x, Eigen::Index m, Eigen::Index n, std::uint64_t seed) {
  for (const Family family : kFamilies) {
    const OperandSet set = random_operands(x, family, m, n, x.k, seed);
    for (Eigen::Index i = 0; i < m; ++i) {
      for (Eigen::Index j = 0; j < n; ++j) {
        const DotOperands operands = element(set, i, j);
        const std::uint64_t ours = dot(x, operands);
        const std::uint64_t expected = oracle_dot(x, operands);
        if (ours == expected) continue;
        Trace trace;
        dot(x, operands, &trace);
        INFO(to_text(x, trace) << "family " << static_cast<int>(family) << " c " << std::hex << operands.c);
        REQUIRE(ours == expected);
      }
    }
  }
}

}  // namespace

TEST_CASE("every instruction agrees with the oracle on random and adversarial operands") {
  std::uint64_t seed = 0;
  for (const Instruction& x : instructions()) compare_with_oracle(x, 4, 5, ++seed);
}

TEST_CASE("every instruction agrees with the oracle on many operands", "[.][exhaustive]") {
  std::uint64_t seed = 1000;
  for (const Instruction& x : instructions()) compare_with_oracle(x, 40, 50, ++seed);
}

TEST_CASE("with wide alignment and one group the sum of any fused instruction is the correctly rounded exact one") {
  const format::Policy policy{format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep};
  int checked = 0;
  for (const Instruction& x : instructions()) {
    if (x.kind != Kind::fused_dot || x.scale != nullptr) continue;
    Instruction wide = x;
    wide.fusion.group = x.k;
    wide.fusion.fraction_bits = 90;
    wide.fusion.mantissa_bits = x.d->mantissa_bits;
    wide.fusion.rounding = Rounding::nearest_even;
    const OperandSet set = random_operands(wide, Family::near_one, 4, 4, wide.k, 17);
    for (Eigen::Index i = 0; i < 4; ++i) {
      // Numbers near one are multiples of 2^-26, of products and of the accumulator: their sum is exact in f64.
      double exact = format::decode(*x.c, set.c(i, i));
      if (std::abs(exact) > 8 || (exact != 0 && std::abs(exact) < 0.125)) continue;
      for (Eigen::Index k = 0; k < wide.k; ++k) {
        exact += format::decode(*x.a, operand_code(*x.a, set.a(i, k))) *
                 format::decode(*x.b, operand_code(*x.b, set.b(i, k)));
      }
      INFO(x.name);
      CHECK(dot(wide, element(set, i, i)) == (exact == 0 ? 0 : format::encode(*x.d, exact, policy)));
      ++checked;
    }
  }
  CHECK(checked > 500);
}

/// The position that takes the place of k when every group of products is summed in another order.
int other_position(const Instruction& x, int k) {
  if (x.kind == Kind::interleaved_dot) return x.k - 4 - k / 4 * 4 + (k % 4 ^ 1);  // k mod 4 in {0, 1} stays there
  const int group = x.kind == Kind::integer_dot ? x.k : x.kind == Kind::scaled_group_dot ? 16 : x.fusion.group;
  return std::min(k - k % group + group, x.k) - 1 - k % group;
}

TEST_CASE("the order of K inside a group does not matter, but across groups it does") {
  bool across = false;
  for (const Instruction& x : instructions()) {
    const bool sums_groups = x.kind == Kind::fused_dot || x.kind == Kind::integer_dot ||
                             x.kind == Kind::scaled_group_dot || x.kind == Kind::interleaved_dot;
    if (!sums_groups) continue;
    const OperandSet set = random_operands(x, Family::finite, 2, 2, x.k, 5);
    OperandSet reordered = set;
    OperandSet reversed = set;
    for (int k = 0; k < x.k; ++k) {
      reordered.a.col(k) = set.a.col(other_position(x, k));
      reordered.b.col(k) = set.b.col(other_position(x, k));
      reversed.a.col(k) = set.a.col(x.k - 1 - k);
      reversed.b.col(k) = set.b.col(x.k - 1 - k);
    }
    INFO(x.name);
    for (Eigen::Index i = 0; i < 2; ++i) {
      CHECK(dot(x, element(set, i, i)) == dot(x, element(reordered, i, i)));
      if (x.scale == nullptr) across |= dot(x, element(set, i, i)) != dot(x, element(reversed, i, i));
    }
  }
  CHECK(across);
}

TEST_CASE("an accumulator written through FP22 instructions keeps 13 mantissa bits, through the others all") {
  for (const Instruction& x : instructions()) {
    if (x.d->bits != 32 || x.c != x.d || x.kind == Kind::integer_dot || x.scale != nullptr) continue;
    const std::vector<std::uint64_t> zeros(static_cast<std::size_t>(x.k), 0);
    const bool fp22 = x.kind == Kind::fused_dot && x.fusion.mantissa_bits == 13;
    Random random(9, 1);
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t c = random_code(format::kFP32, Family::near_one, random);
      INFO(x.name << std::hex << " c " << c);
      CHECK(dot(x, {zeros, zeros, c}) == (fp22 ? c & ~std::uint64_t{0x3FF} : c));
    }
  }
}

TEST_CASE("the published example 2^23 - 2^23 - 0.5 - 0.25 - 0.125 comes out as published") {
  // MMA-Sim, arXiv 2511.10909, table 8; C carries 2^23, the products the rest.
  struct Row {
    const char* name;
    float expected;
  };
  const Row rows[] = {
      {"sm70.mma.m8n8k4.f32.f16.f16", 0.0f},
      {"sm75.mma.m16n8k8.f32.f16.f16", -0.5f},
      {"sm80.mma.m16n8k16.f32.f16.f16", -0.5f},
      {"sm89.mma.m16n8k16.f32.f16.f16", -0.5f},
      {"sm89.mma.m16n8k32.f32.e5m2.e5m2", 0.0f},
      {"sm90.wgmma.m64n8k16.f32.f16.f16", -0.75f},
      {"sm90.wgmma.m64n8k32.f32.e5m2.e5m2", 0.0f},
      {"sm100.tcgen05.m64n8k16.f32.f16.f16", -0.75f},
      {"sm100.tcgen05.m64n8k32.f32.e5m2.e5m2", -0.75f},
  };
  const format::Policy policy{};
  for (const Row& expected : rows) {
    const Instruction& x = find_instruction(expected.name);
    std::vector<std::uint64_t> a(static_cast<std::size_t>(x.k), 0);
    std::vector<std::uint64_t> b(a.size(), 0);
    const std::array<std::pair<double, double>, 4> products{{{-2048, 4096}, {-0.5, 1}, {-0.25, 1}, {-0.125, 1}}};
    for (std::size_t k = 0; k < products.size(); ++k) {
      a[k] = format::encode(*x.a, products[k].first, policy);
      b[k] = format::encode(*x.b, products[k].second, policy);
    }
    INFO(expected.name);
    CHECK(std::bit_cast<float>(static_cast<std::uint32_t>(dot(x, {a, b, std::bit_cast<std::uint32_t>(0x1p23f)}))) ==
          expected.expected);
  }
}

TEST_CASE("special values follow the recorded rules") {
  const Instruction& f32 = find_instruction("sm90.mma.m16n8k16.f32.f16.f16");
  const Instruction& f16 = find_instruction("sm90.mma.m16n8k16.f16.f16.f16");
  const std::uint64_t one = 0x3C00, inf = 0x7C00, nan = 0x7E00, minus_inf = 0xFC00, largest = 0x7BFF;
  const auto with = [](std::vector<std::uint64_t> head) {
    head.resize(16, 0);
    return head;
  };
  const auto d32 = [&](const auto& a, const auto& b, std::uint64_t c) { return dot(f32, {a, b, c}); };
  const auto d16 = [&](const auto& a, const auto& b, std::uint64_t c) { return dot(f16, {a, b, c}); };
  CHECK(d32(with({inf}), with({one}), 0) == 0x7F800000);
  CHECK(d32(with({minus_inf}), with({one}), 0) == 0xFF800000);
  CHECK(d32(with({inf}), with({0}), 0) == 0x7FFFFFFF);
  CHECK(d32(with({inf, minus_inf}), with({one, one}), 0) == 0x7FFFFFFF);
  CHECK(d32(with({nan}), with({one}), 0) == 0x7FFFFFFF);
  CHECK(d32(with({one}), with({one}), 0xFF800000) == 0xFF800000);
  CHECK(d32(with({largest}), with({largest}), 0x7F7FFFFF) == 0x7F7FFFFF);
  CHECK(d32(with({0x8000}), with({one}), 0x80000000) == 0);
  CHECK(d16(with({largest, largest}), with({one, one}), 0) == 0x7C00);
  CHECK(d16(with({nan}), with({one}), 0) == 0x7FFF);
  CHECK(d16(with({0x8001}), with({0x0001}), 0) == 0);  // a tiny negative sum rounds to +0
  const Instruction& bf16 = find_instruction("sm90.mma.m16n8k16.f32.bf16.bf16");
  CHECK(dot(bf16, {with({0x7F7F}), with({0x7F7F}), 0}) == 0x7F800000);  // overflow, although rounding is toward zero
}

TEST_CASE("a trace repeats the output and shows the cut") {
  for (const Instruction& x : instructions()) {
    const OperandSet set = random_operands(x, Family::near_one, 1, 1, x.k, 3);
    Trace trace;
    const std::uint64_t code = dot(x, element(set, 0, 0), &trace);
    INFO(x.name);
    REQUIRE(!trace.steps.empty());
    CHECK(trace.output == code);
    if (x.kind != Kind::fma_chain) CHECK(trace.steps.back().output == code);
    CHECK(to_text(x, trace).find(x.name) == 0);
  }
  const Instruction& fp22 = find_instruction("sm90.wgmma.m64n8k32.f32.e4m3.e4m3");
  std::vector<std::uint64_t> a(32, 0);
  std::vector<std::uint64_t> b(32, 0);
  a[0] = b[0] = 0x38;  // 1
  a[1] = b[1] = 0x01;  // 2^-9, so a product of 2^-18: out of reach of 13 bits
  Trace trace;
  dot(fp22, {a, b, 0}, &trace);
  CHECK(trace.steps[0].e_max == 0);
  CHECK(trace.steps[0].terms[1].value == 0x1p-18);
  CHECK(trace.steps[0].terms[1].aligned == 0);
  CHECK(trace.steps[0].sum_before == 1 + 0x1p-18);
  CHECK(trace.steps[0].sum_after == 1);
}

}  // namespace qattn::mma
