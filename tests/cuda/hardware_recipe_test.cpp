// Which of our kernels computes a recipe on which card, and what the card changes; no GPU is needed.
#include "attention/hardware_recipe.h"

#include <span>
#include <string>
#include <vector>

#include "attention/tile_choices.h"
#include "base/error.h"
#include "lab/recipe_file.h"
#include "mma/instruction.h"
#include "support/catch.h"

namespace qattn::gpu {
namespace {

const Card kAmpere{"sm80", 86}, kAda{"sm89", 89}, kHopper{"sm90", 90}, kRtxBlackwell{"sm120", 120};

HardwareRecipe on(const Card& card, const std::string& name, const std::vector<lab::Override>& overrides = {}) {
  return hardware_recipe(lab::with_overrides(lab::load_recipe(name), overrides), card);
}

/// The message of the refusal.
std::string refusal(const Card& card, const std::string& name, const std::vector<lab::Override>& overrides = {}) {
  try {
    on(card, name, overrides);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "";
}

using Changes = std::vector<std::pair<std::string, std::string>>;

TEST_CASE("each recipe gets the kernel of the instructions that the card has for it") {
  struct Expected {
    Card card;
    std::string recipe, qk, pv;
    Changes changes;
  };
  const Expected all[] = {
      {kHopper, "sage2-8b", "wgmma.m64nNk32.s32.s8.s8", "wgmma.m64nNk32.f32.e4m3.e4m3", {{"exp2", "mufu"}}},
      {kHopper,
       "sage2-4b",
       "mma.m16n8k64.s32.s4.s4",
       "mma.m16n8k32.f32.e4m3.e4m3",
       {{"qk_accumulator", "sm90.mma"}, {"accumulator", "sm90.mma"}, {"exp2", "mufu"}}},
      {kHopper,
       "sage1-B",
       "mma.m16n8k32.s32.s8.s8",
       "mma.m16n8k16.f16.f16.f16",
       {{"qk_accumulator", "sm90.mma"}, {"accumulator", "sm90.mma.f16"}, {"exp2", "mufu"}}},
      {kHopper,
       "sage2pp-4b",
       "mma.m16n8k64.s32.s4.s4",
       "mma.m16n8k32.f16.e4m3.e4m3",
       {{"qk_accumulator", "sm90.mma"}, {"accumulator", "sm90.mma.f16"}, {"exp2", "mufu"}}},
      {kAmpere, "sage1-vB", "mma.m16n8k32.s32.s8.s8", "mma.m16n8k32.s32.s8.s8", {{"exp2", "mufu"}}},
      {kHopper, "fa3-fp8", "wgmma.m64nNk32.f32.e4m3.e4m3", "wgmma.m64nNk32.f32.e4m3.e4m3", {}},
      {kAmpere, "fa2-fp16", "mma.m16n8k16.f32.f16.f16", "mma.m16n8k16.f32.f16.f16", {{"exp2", "mufu"}}},
      {kAda,
       "sage2-8b",
       "mma.m16n8k32.s32.s8.s8",
       "mma.m16n8k32.f32.e4m3.e4m3",
       {{"qk_accumulator", "sm89.mma"}, {"accumulator", "sm89.mma"}, {"exp2", "mufu"}}},
      {kAda, "sage2-4b", "mma.m16n8k64.s32.s4.s4", "mma.m16n8k32.f32.e4m3.e4m3", {{"exp2", "mufu"}}},
      {kRtxBlackwell,
       "fa3-fp8",
       "mma.m16n8k32.f32.e4m3.e4m3",
       "mma.m16n8k32.f32.e4m3.e4m3",
       {{"qk_accumulator", "sm120.mma"}, {"accumulator", "sm120.mma"}}},
  };
  for (const Expected& expected : all) {
    INFO(expected.recipe << " on " << expected.card.architecture);
    const HardwareRecipe hardware = on(expected.card, expected.recipe);
    CHECK(hardware.kernel->qk == expected.qk);
    CHECK(hardware.kernel->pv == expected.pv);
    CHECK(hardware.changes == expected.changes);
    CHECK(hardware.recipe.exp2 == attention::Exp2::mufu);
    for (const auto& [key, value] : expected.changes) {
      CHECK(hardware.recipe.name.find(" " + key + "=" + value) != std::string::npos);
    }
  }
}

TEST_CASE("an accumulator that was asked for on the card is kept") {
  const HardwareRecipe hardware =
      on(kHopper, "sage2-8b", {{"qk_accumulator", "sm90.mma"}, {"accumulator", "sm90.mma"}});
  CHECK(std::string(hardware.kernel->pv) == "mma.m16n8k32.f32.e4m3.e4m3");
  const HardwareRecipe mixed = on(kHopper, "sage2-4b", {{"accumulator", "sm90.wgmma"}});
  CHECK(std::string(mixed.kernel->qk) == "mma.m16n8k64.s32.s4.s4");
  CHECK(std::string(mixed.kernel->pv) == "wgmma.m64nNk32.f32.e4m3.e4m3");
}

TEST_CASE("integer scores may be exact, since every instruction's are") {
  const HardwareRecipe hardware = on(kHopper, "sage1-B", {{"qk_accumulator", "exact"}});
  CHECK(hardware.recipe.qk_accumulator == "sm90.mma");
}

TEST_CASE("what no kernel does is refused with the recipe and the key") {
  struct Refused {
    std::string recipe;
    std::vector<lab::Override> overrides;
    std::string key;
  };
  const Refused all[] = {
      {"sage2-8b", {{"softmax", "f64"}, {"exp2", "exact"}}, "softmax = f64"},
      {"sage2-8b", {{"exp2", "fa4-poly"}}, "exp2 = fa4-poly"},
      {"sage2-8b", {{"p_normalized", "true"}}, "p_normalized = true"},
      {"sage2-8b", {{"row_sum_format", "bf16"}}, "row_sum_format = bf16"},
      {"fa2-fp16", {{"s_format", "e4m3"}}, "s_format = e4m3"},
      {"fa2-fp16", {{"o_format", "e4m3"}}, "o_format = e4m3"},
      {"fa2-fp16", {{"q_format", "exact"}}, "q_format = exact"},
      {"fa2-fp16", {{"p_format", "exact"}}, "p_format = exact"},
      {"fa2-fp16", {{"qk_accumulator", "exact"}}, "qk_accumulator = exact"},
      {"fa2-fp16", {{"accumulator", "f32"}}, "accumulator = f32"},
      {"sage3-nvfp4", {}, "_granularity"},
      {"sage2-8b", {{"qk_format", "e5m2"}}, "qk_accumulator = sm90.wgmma"},
  };
  for (const Refused& refused : all) {
    INFO(refused.recipe << " " << refused.key);
    const std::string message = refusal(kHopper, refused.recipe, refused.overrides);
    CHECK(message.find("recipe '" + refused.recipe) != std::string::npos);
    CHECK(message.find(refused.key) != std::string::npos);
  }
  CHECK(refusal(kAmpere, "sage2-8b").find("accumulator 'sm80.mma' has no instruction for") != std::string::npos);
}

TEST_CASE("every kernel multiplies by instructions of the table that its cards have") {
  int kernels = 0;
  for (const AttentionKernels& table :
       {attention_mma_kernels(), attention_mma_float8_kernels(), attention_wgmma_kernels()}) {
    for (const AttentionKernel& kernel : std::span(table.begin, static_cast<std::size_t>(table.count))) {
      ++kernels;
      for (const std::string name : {kernel.qk, kernel.pv}) {
        INFO(name << " from sm" << kernel.least_capability);
        const std::string architecture = name.starts_with("wgmma") ? "sm90." : "sm89.";
        CHECK(mma::find_instruction_or_null(architecture + name) != nullptr);
        const bool on_ampere = mma::find_instruction_or_null("sm80." + name) != nullptr;
        if (kernel.least_capability == 80) CHECK(on_ampere);
      }
      CHECK(kernel.least_capability <= kernel.largest_capability);
    }
  }
  CHECK(kernels >= 21);
}

TEST_CASE("a block's shared memory follows the tiles") {
  HeadTask task;
  task.operands.head_dim = task.operands.value_dim = 128;
  const HardwareRecipe ada = on(kAda, "sage2-8b", {{"tiling", "sm89"}});
  task.choices.k_block = 64;
  CHECK(ada.kernel->shared_bytes(task) < 99 * 1024);  // what an Ada GPU has
  const int small = ada.kernel->shared_bytes(task);
  task.choices.k_block = 128;
  CHECK(ada.kernel->shared_bytes(task) > small);
}

TEST_CASE("the tiles' choices are the recipe's and the problem's") {
  attention::Problem problem;
  problem.q = MatrixD::Zero(3, 4);
  problem.k = problem.v = MatrixD::Zero(8, 4);
  problem.is_causal = true;
  problem.causal_align = attention::CausalAlign::bottom_right;
  const attention::Recipe recipe = lab::load_recipe("fa3-fp8");
  TileChoices choices = tile_choices(recipe, problem, format::kBF16);
  CHECK(choices.causal_offset == 5);
  CHECK(choices.descending);
  CHECK(choices.q_block == 192);
  CHECK(choices.k_block == 160);
  CHECK(choices.p_scale == 256.0F);
  CHECK(choices.promotion == 0);
  CHECK(choices.o_format == FloatFormat::bf16);
  problem.causal_align = attention::CausalAlign::top_left;
  choices =
      tile_choices(lab::with_overrides(recipe, {{"row_sum", "rounded"}, {"s_format", "fp16"}}), problem, format::kFP32);
  CHECK(choices.causal_offset == 0);
  CHECK(choices.sum_rounded);
  CHECK(choices.s_format == FloatFormat::fp16);
  CHECK(choices.o_format == FloatFormat::fp32);
  CHECK_THROWS_AS(tile_choices(recipe, problem, format::kE4M3), Error);
  const attention::Recipe integer = lab::with_overrides(lab::load_recipe("sage1-vB"), {{"promotion", "never"}});
  CHECK(tile_choices(integer, problem, format::kFP32).promotion == -1);
}

}  // namespace
}  // namespace qattn::gpu
