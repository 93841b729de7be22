// The probe's questions, put to the emulator: it must find what the table says of every NVIDIA instruction.
#include "probe.h"

#include <string>

#include "mma/instruction.h"
#include "support/catch.h"

namespace qattn::gpu {
namespace {

using mma::Instruction;
using mma::Kind;

bool is_probed(const Instruction& x) {
  const bool is_fp8_or_wider = x.a->bits >= 8 && x.b->bits >= 8;
  const bool is_one_adder = x.kind == Kind::fused_dot || x.kind == Kind::interleaved_dot || x.kind == Kind::fma_chain;
  return x.family.starts_with("sm") && x.scale == nullptr && is_fp8_or_wider && is_one_adder && x.c == x.d;
}

std::vector<std::vector<int>> consecutive_groups(int k, int size) {
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < k; ++i) {
    if (i % size == 0) groups.emplace_back();
    groups.back().push_back(i);
  }
  return groups;
}

std::vector<std::vector<int>> interleaved_groups(int k) {
  std::vector<std::vector<int>> groups(2);
  for (int i = 0; i < k; ++i) groups[i % 4 < 2 ? 0 : 1].push_back(i);
  return groups;
}

}  // namespace

TEST_CASE("the probe finds the group size, F, cut, rounding and order of every NVIDIA entry") {
  int probed = 0;
  for (const Instruction& x : mma::instructions()) {
    if (!is_probed(x)) continue;
    ++probed;
    const Adder found = probe(x, emulator(x));
    INFO(x.name << ": " << groups_text(found));
    CHECK_FALSE(found.normalises_products);
    if (x.kind == Kind::fma_chain) {
      CHECK(found.groups == consecutive_groups(x.k, 1));
      CHECK(found.rounding == "to nearest even");
      CHECK(found.accumulator == "in the sum");
      continue;
    }
    const bool is_interleaved = x.kind == Kind::interleaved_dot;
    CHECK(found.groups == (is_interleaved ? interleaved_groups(x.k) : consecutive_groups(x.k, x.fusion.group)));
    CHECK(found.fraction_bits == x.fusion.fraction_bits);
    CHECK(found.cut == "toward zero");
    CHECK(found.accumulator == (is_interleaved ? "added after" : "in the sum"));
    CHECK(found.mantissa_bits == x.fusion.mantissa_bits);
    CHECK(found.rounding == (x.fusion.rounding == mma::Rounding::toward_zero ? "toward zero" : "to nearest even"));
  }
  CHECK(probed > 60);
}

TEST_CASE("the probe sees each parameter that is changed") {
  const Instruction& original = mma::find_instruction("sm90.wgmma.m64nNk16.f32.bf16.bf16");
  const Adder before = probe(original, emulator(original));
  CHECK(before.floor == std::to_string(original.fusion.exponent_floor));
  const auto changed = [&](auto change) {
    Instruction other = original;
    change(other);
    return probe(other, emulator(other));
  };
  CHECK(changed([](Instruction& x) { x.fusion.group = 8; }).group_size() == 8);
  CHECK(changed([](Instruction& x) { x.fusion.fraction_bits = 24; }).fraction_bits == 24);
  CHECK(changed([](Instruction& x) { x.fusion.fraction_bits = 26; }).fraction_bits == 26);
  CHECK(changed([](Instruction& x) { x.fusion.exponent_floor = -132; }).floor == "-132");
  CHECK(changed([](Instruction& x) { x.fusion.exponent_floor = -134; }).floor == "-134");
  CHECK(changed([](Instruction& x) { x.fusion.mantissa_bits = 13; }).mantissa_bits == 13);
  CHECK(changed([](Instruction& x) { x.fusion.rounding = mma::Rounding::nearest_even; }).rounding == "to nearest even");
}

TEST_CASE("decisive experiments tell every change of a parameter apart") {
  for (const char* name :
       {"sm90.wgmma.m64nNk16.f32.bf16.bf16", "sm90.mma.m16n8k16.f16.f16.f16", "sm90.wgmma.m64nNk32.f32.e4m3.e4m3",
        "sm90.wgmma.m64nNk32.f16.e5m2.e5m2", "sm90.mma.m16n8k32.f16.e4m3.e5m2", "sm90.mma.m16n8k4.f32.tf32.tf32"}) {
    const Instruction& original = mma::find_instruction(name);
    const std::vector<DotExperiment> experiments = decisive_experiments(original, probe(original, emulator(original)));
    const std::vector<std::uint64_t> outputs = emulator(original)(experiments);
    const auto decides = [&](const auto& change) {
      Instruction other = original;
      change(other);
      return emulator(other)(experiments) != outputs;
    };
    INFO(name << ", " << experiments.size() << " experiments");
    CHECK(experiments.size() < 900);
    CHECK(decides([](Instruction& x) { --x.fusion.fraction_bits; }));
    CHECK(decides([](Instruction& x) { ++x.fusion.fraction_bits; }));
    CHECK(decides([](Instruction& x) { x.fusion.mantissa_bits -= 1; }));
    CHECK(decides([&](Instruction& x) {
      const bool cuts = original.fusion.rounding == mma::Rounding::toward_zero;
      x.fusion.rounding = cuts ? mma::Rounding::nearest_even : mma::Rounding::toward_zero;
    }));
    if (original.kind == Kind::interleaved_dot) {
      CHECK(decides([](Instruction& x) {
        x.kind = Kind::fused_dot;
        x.fusion.group = x.k;
      }));
    } else {
      CHECK(decides([](Instruction& x) { x.fusion.group /= 2; }));
    }
  }
}

}  // namespace qattn::gpu
