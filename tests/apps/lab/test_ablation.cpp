// Axes: what each value changes, and what it leaves alone.
#include "lab/ablation.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::message_of;

namespace {

std::string value_of(const attention::Recipe& recipe, std::string_view key) {
  for (const auto& [name, value] : attention::resolved(recipe)) {
    if (name == key) return value;
  }
  return "no such key";
}

std::vector<std::string> names_of(const lab::Ablation& ablation) {
  std::vector<std::string> names;
  for (const lab::Trial& trial : ablation.trials) names.push_back(trial.recipe.name);
  return names;
}

}  // namespace

TEST_CASE("Every axis of the contract runs on sage2-4b, and its rows say axis and value") {
  const attention::Recipe base = lab::load_recipe("sage2-4b");
  for (const char* name :
       {"smoothing", "granularity", "qk_format", "pv_format", "accumulator", "promotion", "smooth_v", "stage"}) {
    const lab::Ablation ablation = lab::ablate(base, name);
    CHECK(ablation.trials.size() >= 2);
    for (const lab::Trial& trial : ablation.trials) CHECK(trial.labels["axis"] == name);
  }
  CHECK(names_of(lab::ablate(base, "smoothing")) ==
        std::vector<std::string>{"sage2-4b smoothing=none", "sage2-4b smoothing=k", "sage2-4b smoothing=q",
                                 "sage2-4b smoothing=qk"});
  CHECK(lab::ablate(base, "granularity").trials.size() == 5);
  CHECK(lab::ablate(base, "qk_format").trials.size() == 6);
  CHECK(lab::ablate(base, "pv_format").trials.size() == 6);
}

TEST_CASE("A format that the recipe's instruction does not have is summed in f32, and the recipe says so") {
  const attention::Recipe base = lab::load_recipe("sage2-8b");
  const lab::Ablation ablation = lab::ablate(base, "pv_format");
  REQUIRE(ablation.trials.size() == 6);
  CHECK(ablation.trials[1].recipe.name == "sage2-8b pv_format=int4 accumulator=f32");
  CHECK(ablation.trials[2].recipe.name == "sage2-8b pv_format=e4m3");
  CHECK(value_of(ablation.trials[2].recipe, "accumulator") == "sm90.wgmma");
}

TEST_CASE("Instructions that do not have the recipe's formats are left out with the reason") {
  const lab::Ablation ablation = lab::ablate(lab::load_recipe("sage2-8b"), "accumulator");
  CHECK(ablation.trials.size() >= 4);
  REQUIRE_FALSE(ablation.left_out.empty());
  CHECK(ablation.left_out[0].rfind("accumulator=sm80.mma left out: ", 0) == 0);
}

TEST_CASE("Values may be named, and any key may be an axis") {
  const attention::Recipe base = lab::load_recipe("sage2-4b");
  CHECK(names_of(lab::ablate(base, "granularity=per_token,per_block")) ==
        std::vector<std::string>{"sage2-4b granularity=per_token", "sage2-4b granularity=per_block"});
  const lab::Ablation blocks = lab::ablate(base, "q_block=64,128");
  REQUIRE(blocks.trials.size() == 2);
  CHECK(blocks.trials[0].recipe.q_block == 64);
  CHECK(blocks.trials[0].labels["value"] == "64");
  CHECK(message_of([&] { lab::ablate(base, "granularity=per_moon"); }, ErrorKind::usage).find("per_moon") !=
        std::string::npos);
  CHECK(message_of([&] { lab::ablate(base, "colour"); }, ErrorKind::usage).find("known are smoothing, granularity") !=
        std::string::npos);
  CHECK_FALSE(message_of([&] { lab::ablate(base, "colour=red"); }, ErrorKind::usage).empty());
}

TEST_CASE("A stage quantizes one operand and keeps everything else exact") {
  const attention::Recipe base = lab::load_recipe("sage2-4b");
  const lab::Ablation ablation = lab::ablate(base, "stage");
  REQUIRE(ablation.trials.size() == 5);
  const char* const operands[] = {"q", "k", "p", "v"};
  for (int i = 0; i < 4; ++i) {
    const attention::Recipe& recipe = ablation.trials[static_cast<std::size_t>(i)].recipe;
    CHECK(recipe.name == std::string("sage2-4b stage=") + operands[i]);
    for (const char* operand : operands) {
      const std::string key = std::string(operand) + "_format";
      CHECK(value_of(recipe, key) == (operand == operands[i] ? value_of(base, key) : "exact"));
    }
    CHECK(value_of(recipe, "accumulator") == "exact");
    CHECK(value_of(recipe, "softmax") == "f64");
    CHECK(value_of(recipe, "smoothing") == "qk");
    CHECK_FALSE(ablation.trials[static_cast<std::size_t>(i)].reference);
  }
  const lab::Trial& accumulator = ablation.trials[4];
  CHECK(value_of(accumulator.recipe, "accumulator") == "sm89.mma");
  REQUIRE(accumulator.reference);
  CHECK(value_of(*accumulator.reference, "accumulator") == "exact");
  CHECK(value_of(*accumulator.reference, "k_format") == "int4");
}
