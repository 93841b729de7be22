// The table of recipe keys: every key round-trips, every bad value and misfit is named.
#include <bit>
#include <set>

#include "attention/recipe.h"
#include "attention/rounding.h"
#include "base/elementary.h"
#include "base/error.h"
#include "heads.h"
#include "scalar/mufu.h"
#include "scalar/ptx.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::attention;
using attention::testing::make_recipe;

namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the softmax's exponential is the function that the recipe's exp2 names") {
  std::vector<float> x;
  for (int i = 0; i < 500; ++i) x.push_back(-0.0371f * static_cast<float>(i));
  struct Choice {
    const char* name;
    float (*function)(float);
  };
  const Choice choices[] = {
      {"exact", elementary::exp2_float},
      {"mufu", [](float v) { return std::bit_cast<float>(scalar::mufu_ex2(std::bit_cast<std::uint32_t>(v))); }},
      {"fa4-poly",
       [](float v) { return std::bit_cast<float>(scalar::ex2_fa4_poly(std::bit_cast<std::uint32_t>(v))); }}};
  std::vector<std::vector<float>> results;
  for (const Choice& choice : choices) {
    INFO(choice.name);
    Recipe recipe;
    set(recipe, "exp2", choice.name);
    std::vector<float> y = x;
    apply_exp2(recipe.exp2, y);
    bool same = true;
    for (std::size_t i = 0; i < x.size(); ++i) same &= y[i] == choice.function(x[i]);
    std::vector<double> wide(x.begin(), x.end());  // with softmax = f64
    apply_exp2(recipe.exp2, wide);
    for (std::size_t i = 0; i < x.size() && recipe.exp2 != Exp2::exact; ++i) same &= wide[i] == static_cast<double>(y[i]);
    CHECK(same);
    results.push_back(y);
  }
  CHECK(results[0] != results[1]);
  CHECK(results[0] != results[2]);
  CHECK(results[1] != results[2]);
}

TEST_CASE("every recipe key round-trips through its text form") {
  const Recipe recipe = make_recipe({{"name", "x"},
                                     {"qk_format", "int4"},
                                     {"granularity", "per_thread"},
                                     {"pv_format", "e4m3"},
                                     {"v_granularity", "per_channel"},
                                     {"smoothing", "qk"},
                                     {"accumulator", "sm89.mma"},
                                     {"promotion", "3"},
                                     {"rotation_seed", "18446744073709551615"},
                                     {"p_scale", "256"},
                                     {"o_format", "input"}});
  Recipe copy;
  std::set<std::string> names;
  for (const auto& [key, value] : resolved(recipe)) {
    set(copy, key, value);
    CHECK(names.insert(key).second);
  }
  CHECK(resolved(copy) == resolved(recipe));
  CHECK(names.size() > 40);
}

TEST_CASE("shorthand keys set what they stand for") {
  const Recipe recipe = make_recipe({{"tiling", "sm90"}, {"qk_format", "nvfp4"}, {"pv_format", "e5m2"}});
  CHECK(recipe.q_block == 64);
  CHECK(recipe.k_block == 128);
  CHECK(recipe.q_warp == 16);
  CHECK(recipe.k_warp == 128);
  CHECK(recipe.q.format == &format::kE2M1);
  CHECK(recipe.k.scale_format == &format::kE4M3);
  CHECK(recipe.q.micro_scaled());
  CHECK(recipe.v.format == &format::kE5M2);
  CHECK(resolved_p_scale(recipe) == 57344.0);
}

TEST_CASE("a bad key or value is named with what may be given") {
  Recipe recipe;
  CHECK(error_of([&] { set(recipe, "smoothin", "k"); }).find("'smoothing'") != std::string::npos);
  CHECK(error_of([&] { set(recipe, "smoothing", "kq"); }).find("none, k, q, qk") != std::string::npos);
  for (const auto& [key, value] : {std::pair{"q_format", "fp7"},
                                   {"v_format", "e8m0"},
                                   {"q_granularity", "per_row"},
                                   {"p_scale", "0"},
                                   {"p_scale", "nan"},
                                   {"p_scale", "inf"},
                                   {"p_scale", "1e300"},
                                   {"p_scale", "1e-300"},
                                   {"p_scale", "1e-40"},
                                   {"v_range", "1e300"},
                                   {"v_range", "1e-300"},
                                   {"v_range", "-1"},
                                   {"name", ""},
                                   {"promotion", "0"},
                                   {"promotion", "-3"},
                                   {"q_block", "0"},
                                   {"q_block", "64x"},
                                   {"k_block", "100000"},
                                   {"balance_alpha", "1.5"},
                                   {"tiling", "sm70"},
                                   {"smooth_v", "yes"},
                                   {"k_scale_rule", "max"},
                                   {"correction_format", "float"}}) {
    const std::string message = error_of([&, k = key, v = value] { set(recipe, k, v); });
    INFO(message);
    CHECK(message.find(key) != std::string::npos);
  }
}

TEST_CASE("keys that do not fit each other are refused with the recipe's name") {
  const std::pair<std::string_view, Recipe> misfits[] = {
      {"q_warp", make_recipe({{"q_block", "100"}})},
      {"per_thread", make_recipe({{"qk_format", "int8"}, {"granularity", "per_thread"}, {"q_warp", "8"}})},
      {"per_channel", make_recipe({{"qk_format", "int8"}, {"granularity", "per_channel"}})},
      {"v_granularity", make_recipe({{"v_format", "int8"}, {"v_granularity", "per_token"}})},
      {"promotion", make_recipe({{"v_format", "int8"}, {"v_granularity", "per_block"}, {"promotion", "2"}})},
      {"sm91", make_recipe({{"pv_format", "e4m3"}, {"accumulator", "sm91.wgmma"}})},
      {"no instruction", make_recipe({{"p_format", "e4m3"}, {"v_format", "fp16"}, {"accumulator", "sm90.wgmma"}})},
  };
  for (const auto& [word, recipe] : misfits) {
    const std::string message = error_of([&, r = recipe] { validate(r); });
    INFO(message);
    CHECK(message.find("recipe 'test'") != std::string::npos);
    CHECK(message.find(word) != std::string::npos);
  }
  CHECK_NOTHROW(validate(make_recipe({{"accumulator", "sm90.wgmma"}, {"pv_format", "exact"}})));
}

TEST_CASE("accumulators say which instruction they are and how it is known") {
  const std::string text = accumulator_evidence(make_recipe(
      {{"qk_format", "int8"}, {"pv_format", "e4m3"}, {"qk_accumulator", "sm90.wgmma"}, {"accumulator", "sm90.wgmma"}}));
  CHECK(text.find("sm90.wgmma.m64") != std::string::npos);
  CHECK(text.find("e4m3.e4m3 (measured here)") != std::string::npos);
  CHECK(accumulator_evidence(Recipe{}) == "QK exact sums; PV exact sums");
  CHECK(accumulator_evidence(make_recipe({{"accumulator", "sm90.wgmma"}})) ==
        "QK exact sums; PV exact sums (sm90.wgmma is not used: an operand is exact)");
}
