// Counter-based operands, and the digests of what an H200 returned for them.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/format.h"
#include "io/instruction_digests.h"
#include "mma/digest.h"
#include "mma/unpacked.h"
#include "support/catch.h"

namespace qattn::mma {
namespace {

std::vector<io::InstructionDigestCase> recorded_digests() {
  return io::read_instruction_digests(std::string(QATTN_SOURCE_DIR) + "/data/vectors/mma_digests.h5");
}

InstructionDigest to_digest(const io::InstructionDigestCase& recorded) {
  return {recorded.instruction, static_cast<std::uint64_t>(recorded.seed), parse_family_blocks(recorded.families),
          recorded.sums};
}

/// The recording cut down to the first block of its `which`th family.
InstructionDigest one_block(const InstructionDigest& digest, std::size_t which) {
  which %= digest.plan.size();
  std::size_t first = 0;
  for (std::size_t i = 0; i < which; ++i) first += static_cast<std::size_t>(digest.plan[i].blocks);
  return {digest.instruction, digest.seed, {{digest.plan[which].family, 1}}, {digest.sums.at(first)}};
}

bool is_finite(const format::Format& format, std::uint64_t code) {
  return unpack(format, code).kind == Unpacked::Class::finite;
}

const Instruction& fp8() { return find_instruction("sm90.wgmma.m64n64k32.f32.e4m3.e5m2"); }

}  // namespace

TEST_CASE("a digest block of every instruction, the families by turns, is what the H200 returned") {
  const std::vector<io::InstructionDigestCase> cases = recorded_digests();
  std::set<OperandFamily> families;
  std::size_t turn = 0;
  for (const io::InstructionDigestCase& recorded : cases) {
    const InstructionDigest block = one_block(to_digest(recorded), turn++);
    families.insert(block.plan.front().family);
    INFO(recorded.instruction << " " << to_text(block.plan));
    CHECK(check_digest(block).empty());
  }
  CHECK(cases.size() == 99);
  CHECK(families.size() == kOperandFamilies);
}

TEST_CASE("all digests are what the H200 returned, 10^8 outputs of each floating-point instruction",
          "[.][exhaustive]") {
  for (const io::InstructionDigestCase& recorded : recorded_digests()) {
    const InstructionDigest digest = to_digest(recorded);
    INFO(recorded.instruction);
    const bool is_integer = find_instruction(recorded.instruction).kind == Kind::integer_dot;
    CHECK(digest.sums.size() * kTilesPerBlock * kTileOutputs >= (is_integer ? 8000000 : 100000000));
    CHECK(check_digest(digest).empty());
  }
}

TEST_CASE("a digest tells rules apart that differ in one parameter") {
  const Instruction& original = fp8();
  const std::uint64_t sum = digest_block(original, OperandFamily::normal, 1, 0);
  const auto changed = [&](const auto& change) {
    Instruction other = original;
    change(other);
    return digest_block(other, OperandFamily::normal, 1, 0) != sum;
  };
  CHECK(changed([](Instruction& x) { x.fusion.fraction_bits = 12; }));
  CHECK(changed([](Instruction& x) { x.fusion.fraction_bits = 14; }));
  CHECK(changed([](Instruction& x) { x.fusion.mantissa_bits = 14; }));
  CHECK(changed([](Instruction& x) { x.fusion.group = 16; }));
}

TEST_CASE("a wrong sum is found by family and block, whatever the number of threads") {
  InstructionDigest digest{fp8().name, 7, {{OperandFamily::tiny, 2}, {OperandFamily::wide, 1}}, {}};
  digest.instruction = "sm90.wgmma.m64n64k32.f32.e4m3.e5m2";
  for (const auto& [family, block] :
       {std::pair{OperandFamily::tiny, 0}, {OperandFamily::tiny, 1}, {OperandFamily::wide, 0}}) {
    digest.sums.push_back(digest_block(fp8(), family, 7, static_cast<std::uint64_t>(block)));
  }
  CHECK(check_digest(digest, 3).empty());
  digest.sums[1] ^= 1;
  for (const int threads : {1, 3}) {
    const std::vector<DigestMismatch> found = check_digest(digest, threads);
    REQUIRE(found.size() == 1);
    CHECK(found[0].family == OperandFamily::tiny);
    CHECK(found[0].block == 1);
  }
  digest.sums.pop_back();
  CHECK_THROWS_AS(check_digest(digest), Error);
}

TEST_CASE("the fast and the plain path have the same digest") {
  const Instruction& x = find_instruction("sm90.mma.m16n8k8.f32.tf32.tf32");
  CHECK(digest_block(x, OperandFamily::uniform, 3, 5) == digest_block(x, OperandFamily::uniform, 3, 5, Path::plain));
}

TEST_CASE("only the special family has NaN and Inf, and a quarter of its outputs meet one") {
  for (const char* name :
       {"sm90.wgmma.m64n64k32.f32.e4m3.e5m2", "sm90.mma.m16n8k8.f32.tf32.tf32", "sm90.mma.m16n8k16.f32.bf16.bf16",
        "sm90.mma.m16n8k16.f16.f16.f16", "sm90.mma.m16n8k16.f64.f64.f64"}) {
    const Instruction& x = find_instruction(name);
    INFO(name);
    for (int family = 0; family < kOperandFamilies; ++family) {
      int special_outputs = 0;
      for (std::uint64_t tile = 0; tile < 8; ++tile) {
        const TileOperands operands = tile_operands(operand_recipe(x), static_cast<OperandFamily>(family), 2, tile);
        const auto specials = [](const format::Format& format, const auto& codes) {
          return !std::all_of(codes.begin(), codes.end(), [&](std::uint64_t code) { return is_finite(format, code); });
        };
        for (Eigen::Index i = 0; i < kTileRows; ++i) {
          for (Eigen::Index j = 0; j < kTileColumns; ++j) {
            special_outputs += specials(*x.a, operands.a.row(i)) || specials(*x.b, operands.b.row(j)) ||
                               !is_finite(*x.c, operands.c(i, j));
          }
        }
      }
      const double share = special_outputs / (8.0 * kTileOutputs);
      if (static_cast<OperandFamily>(family) == OperandFamily::special) {
        CHECK(share > 0.15);
        CHECK(share < 0.35);
      } else {
        CHECK(special_outputs == 0);
      }
    }
  }
}

TEST_CASE("cancelling products differ by a last bit of A, neighbours in even tiles and half of K apart in odd ones") {
  const Instruction& x = find_instruction("sm90.mma.m16n8k16.f32.f16.f16");
  for (const std::uint64_t tile : {0, 1}) {
    const TileOperands operands = tile_operands(operand_recipe(x), OperandFamily::cancelling, 5, tile);
    for (Eigen::Index i = 0; i < kTileRows; ++i) {
      for (Eigen::Index k = 0; k < x.k; ++k) {
        const Eigen::Index other = tile == 0 ? k ^ 1 : (k + x.k / 2) % x.k;
        CHECK((operands.a(i, k) ^ operands.a(i, other) ^ 0x8000) <= 1);
        CHECK(operands.b(i, k) == operands.b(i, other));
      }
    }
  }
}

TEST_CASE("operands depend on seed, family and tile alone") {
  const OperandRecipe recipe = operand_recipe(fp8());
  const auto operands = [&](OperandFamily family, std::uint64_t seed, std::uint64_t tile) {
    return tile_operands(recipe, family, seed, tile);
  };
  const TileOperands first = operands(OperandFamily::normal, 1, 9);
  CHECK(first.a == operands(OperandFamily::normal, 1, 9).a);
  CHECK(first.a != operands(OperandFamily::normal, 2, 9).a);
  CHECK(first.a != operands(OperandFamily::normal, 1, 10).a);
  CHECK(first.a != operands(OperandFamily::wide, 1, 9).a);
  CHECK(first.b != operands(OperandFamily::normal, 1, 10).b);
  CHECK(first.c != operands(OperandFamily::normal, 1, 10).c);
}

TEST_CASE("plans of families are written and read back") {
  const std::vector<FamilyBlocks> plan{{OperandFamily::uniform, 24}, {OperandFamily::special, 4}};
  CHECK(to_text(plan) == "uniform:24 special:4");
  CHECK(parse_family_blocks(to_text(plan)) == plan);
  for (const char* bad : {"uniform", "uniform:0", "uniform:x", "nothing:3", ":3"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_family_blocks(bad), Error);
  }
}

}  // namespace qattn::mma
