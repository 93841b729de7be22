// The SIMD tiles against the plain engine, on every target that this machine has.
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/simd_target.h"
#include "mma/tile.h"
#include "operands.h"
#include "support/catch.h"

namespace qattn::mma {
namespace {

Operand make_operand(const Instruction& x, Side side, const CodeMatrix& codes, const CodeMatrix& scales) {
  const MatrixCodes narrow = codes.cast<std::uint32_t>();
  if (x.scale == nullptr) return Operand(x, side, narrow);
  const MatrixCodes narrow_scales = scales.cast<std::uint32_t>();
  return Operand(x, side, narrow, narrow_scales);
}

std::vector<const Instruction*> fast_instructions() {
  std::vector<const Instruction*> list;
  for (const Instruction& x : instructions()) {
    if (x.d->bits <= 32 && has_fast_path(x)) list.push_back(&x);
  }
  return list;
}

MatrixCodes run(const Instruction& x, const OperandSet& set, Path path, PathUse* use = nullptr) {
  const Operand a = make_operand(x, Side::a, set.a, set.scale_a);
  const Operand b = make_operand(x, Side::b, set.b, set.scale_b);
  MatrixCodes c = set.c.cast<std::uint32_t>();
  const PathUse taken = multiply_accumulate(x, a, b, c, path);
  if (use != nullptr) *use = taken;
  return c;
}

Eigen::Index differences(const MatrixCodes& x, const MatrixCodes& y) { return (x.array() != y.array()).count(); }

}  // namespace

TEST_CASE("every target gives the plain engine's bits for every instruction with a fast path") {
  const std::vector<std::int64_t> targets = simd_targets();
  REQUIRE(!targets.empty());
  std::uint64_t seed = 0;
  for (const Instruction* x : fast_instructions()) {
    for (const Family family : kFamilies) {
      // Three steps, the last one partly padding; rows and columns beyond one block.
      const OperandSet set = random_operands(*x, family, 5, 67, 2 * x->k + x->k / 2, ++seed);
      const MatrixCodes expected = run(*x, set, Path::plain);
      for (const std::int64_t target : targets) {
        const ForcedSimdTarget forced(target);
        INFO(x->name << " on " << active_target() << ", family " << static_cast<int>(family));
        REQUIRE(differences(run(*x, set, Path::fast), expected) == 0);
      }
    }
  }
}

TEST_CASE("rows without negative elements, as attention's P, on every target") {
  std::uint64_t seed = 1000;
  for (const std::string_view name :
       {"sm90.wgmma.m64n64k32.f32.e4m3.e4m3", "sm89.mma.m16n8k32.f16.e4m3.e5m2", "sm90.mma.m16n8k32.f32.e4m3.e4m3",
        "sm90.mma.m16n8k16.f32.f16.f16", "sm80.mma.m16n8k16.f16.f16.f16", "sm90.wgmma.m64n64k16.f32.bf16.bf16"}) {
    const Instruction* x = find_instruction_or_null(name);
    INFO(name);
    REQUIRE(x != nullptr);
    for (const Family family : kFamilies) {
      OperandSet set = random_operands(*x, family, 7, 67, 2 * x->k + x->k / 2, ++seed);
      // All rows but the last two: pairs of rows without a negative element, and a pair with one.
      for (Eigen::Index i = 0; i < set.a.rows() - 2; ++i) {
        for (Eigen::Index k = 0; k < set.a.cols(); ++k) set.a(i, k) &= format::magnitude_mask(*x->a);
      }
      const MatrixCodes expected = run(*x, set, Path::plain);
      for (const std::int64_t target : simd_targets()) {
        const ForcedSimdTarget forced(target);
        INFO(active_target() << ", family " << static_cast<int>(family));
        CHECK(differences(run(*x, set, Path::fast), expected) == 0);
      }
    }
  }
}

TEST_CASE("where all products are zero, an accumulator of any size is cut at its own exponent") {
  for (const Instruction* x : fast_instructions()) {
    if (x->kind == Kind::integer_dot) continue;
    OperandSet set = random_operands(*x, kFamilies[0], 4, 67, x->k, 1);
    set.a.setZero();
    set.b.setZero();
    // Finite codes of every exponent, with mantissa bits that a cut takes.
    const std::uint64_t step = format::max_finite_code(*x->d) / static_cast<std::uint64_t>(set.c.size());
    for (Eigen::Index i = 0; i < set.c.size(); ++i) set.c.data()[i] = static_cast<std::uint64_t>(i) * step | 1;
    const MatrixCodes expected = run(*x, set, Path::plain);
    for (const std::int64_t target : simd_targets()) {
      const ForcedSimdTarget forced(target);
      INFO(x->name << " on " << active_target());
      REQUIRE(differences(run(*x, set, Path::fast), expected) == 0);
    }
  }
}

TEST_CASE("operands that were decoded on one target serve every other") {
  for (const std::string_view name :
       {"sm90.wgmma.m64n64k32.f32.e4m3.e4m3", "sm90.mma.m16n8k32.s32.s8.s8", "sm80.mma.m16n8k64.s32.u4.s4"}) {
    const Instruction& x = find_instruction(name);
    const OperandSet set = random_operands(x, Family::uniform, 5, 67, 2 * x.k + x.k / 2, 13);
    const MatrixCodes expected = run(x, set, Path::plain);
    for (const std::int64_t decoding : simd_targets()) {
      std::optional<Operand> a, b;
      {
        const ForcedSimdTarget forced(decoding);
        a = make_operand(x, Side::a, set.a, {});
        b = make_operand(x, Side::b, set.b, {});
      }
      for (const std::int64_t target : simd_targets()) {
        const ForcedSimdTarget forced(target);
        MatrixCodes c = set.c.cast<std::uint32_t>();
        multiply_accumulate(x, *a, *b, c);
        INFO(name << ", decoded on " << simd_target_name(decoding) << ", used on " << simd_target_name(target));
        CHECK(differences(c, expected) == 0);
      }
    }
  }
}

TEST_CASE("finite operands take the fast path") {
  for (const Instruction* x : fast_instructions()) {
    OperandSet set = random_operands(*x, Family::near_one, 8, 64, 2 * x->k, 7);
    for (CodeMatrix* scales : {&set.scale_a, &set.scale_b}) {
      for (Eigen::Index i = 0; i < scales->size(); ++i) scales->data()[i] = x->scale == &format::kE8M0 ? 127 : 0x38;
    }
    set.c.setZero();
    PathUse use;
    run(*x, set, Path::fast, &use);
    INFO(x->name);
    CHECK(use.plain == 0);
    CHECK(use.fast == 8 * 64 * 2);
  }
}

TEST_CASE("a slice along K chains like the whole") {
  for (const std::string_view name : {"sm90.wgmma.m64n64k32.f32.e4m3.e4m3", "sm90.mma.m16n8k32.f32.e4m3.e4m3",
                                      "sm90.mma.m16n8k16.f32.f16.f16", "sm90.mma.m16n8k32.s32.s8.s8"}) {
    const Instruction& x = find_instruction(name);
    const OperandSet set = random_operands(x, Family::finite, 70, 10, 4 * x.k + 3, 11);
    const Operand a = make_operand(x, Side::a, set.a, {});
    const Operand b = make_operand(x, Side::b, set.b, {});
    MatrixCodes whole = set.c.cast<std::uint32_t>();
    MatrixCodes parts = whole;
    multiply_accumulate(x, a, b, whole);
    for (const auto& [k0, k1] : {std::pair<int, int>(0, x.k), {x.k, 3 * x.k}, {3 * x.k, 4 * x.k + 3}}) {
      multiply_accumulate(x, a.slice(k0, k1), b.slice(k0, k1), parts);
    }
    INFO(name);
    CHECK(differences(parts, whole) == 0);
  }
}

TEST_CASE("operands decoded for another instruction, and shapes that disagree, are refused") {
  const Instruction& x = find_instruction("sm90.wgmma.m64nNk32.f32.e4m3.e4m3");
  const Instruction& y = find_instruction("sm90.mma.m16n8k32.f32.e4m3.e4m3");
  const Instruction& scaled = find_instruction("sm120.mma.m16n8k64.f32.e2m1.e2m1.block16.ue4m3");
  const MatrixCodes codes = MatrixCodes::Zero(4, 64);
  const Operand a(x, Side::a, codes);
  MatrixCodes c = MatrixCodes::Zero(4, 4);
  MatrixCodes wide = MatrixCodes::Zero(4, 5);
  CHECK_THROWS_AS(multiply_accumulate(x, a, Operand(y, Side::b, codes), c), Error);
  CHECK_THROWS_AS(multiply_accumulate(x, a, Operand(x, Side::b, codes), wide), Error);
  CHECK_THROWS_AS(multiply_accumulate(x, a, Operand(x, Side::b, MatrixCodes::Zero(4, 32)), c), Error);
  CHECK_THROWS_AS(Operand(scaled, Side::a, codes), Error);
  CHECK_THROWS_AS(Operand(x, Side::a, codes, codes), Error);
  CHECK_THROWS_AS(Operand(scaled, Side::a, codes, codes), Error);
  CHECK_THROWS_AS(a.slice(16, 64), Error);
}

}  // namespace qattn::mma
