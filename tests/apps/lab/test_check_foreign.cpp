// check_dump on what kernels that QAttn does not replay returned on an H200: right ones pass, broken ones are named.
#include <algorithm>
#include <set>

#include "lab/check_dump.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;

namespace {

/// The calls of a file in data/vectors/ that `calls` is found in, against a recipe.
lab::CheckResult check(const std::string& file, const std::string& calls, const std::string& recipe,
                       const std::vector<lab::Override>& overrides = {}, const std::string& lse = "") {
  lab::DumpCheckOptions options;
  options.recipe = lab::with_overrides(lab::load_recipe(recipe), overrides);
  if (!lse.empty()) options.lse_demanded = lab::parse_lse_convention(lse);
  const std::string path = std::string(QATTN_SOURCE_DIR) + "/data/vectors/" + file;
  return lab::check_dump(lab::DumpSet({{path}, calls, std::nullopt}), options);
}

std::vector<lab::Json> rows_of(const lab::CheckResult& result, const std::string& output) {
  std::vector<lab::Json> rows;
  std::copy_if(result.rows.begin(), result.rows.end(), std::back_inserter(rows),
               [&](const lab::Json& row) { return row["output"] == output && !row["head"].is_null(); });
  return rows;
}

std::set<std::string> values_of(const std::vector<lab::Json>& rows, const std::string& key) {
  std::set<std::string> values;
  for (const lab::Json& row : rows) values.insert(row[key].get<std::string>());
  return values;
}

/// Both heads' o pass, and lse in one convention ("" where the function returns none).
void passes(const std::string& calls, const std::string& convention, const std::string& recipe,
            const std::vector<lab::Override>& overrides = {}) {
  const lab::CheckResult result = check("gpu_attention.h5", "^" + calls + "$", recipe, overrides);
  CAPTURE(calls, recipe, result.details);
  CHECK(result.passed);
  CHECK(rows_of(result, "o").size() == 2);
  const std::vector<lab::Json> lse = rows_of(result, "lse");
  CHECK(lse.size() == (convention.empty() ? 0 : 2));
  CHECK(values_of(lse, "convention") == (convention.empty() ? std::set<std::string>{} : std::set{convention}));
}

const std::vector<lab::Override> kHopperE5m2 = {{"qk_format", "e5m2"},
                                                {"pv_format", "e5m2"},
                                                {"scale_rule", "e8m0_floor"},
                                                {"p_scale", "1"},
                                                {"qk_accumulator", "sm90.wgmma"},
                                                {"accumulator", "sm90.wgmma"}};

}  // namespace

TEST_CASE("foreign attention recorded on an H200 passes against the recipe of its arithmetic") {
  passes("fp16/causal/triton", "base 2", "fa2-fp16");
  passes("fp16/full/triton", "base 2", "fa2-fp16");
  passes("fp16/causal/flex_attention", "base e", "fa2-fp16");
  passes("fp16/full/flex_attention", "base e", "fa2-fp16");
  passes("fp16/causal/sdpa", "", "fa2-fp16");
  passes("fp16/causal/sdpa_math", "", "fa2-fp16");
  passes("fp16/causal/sdpa_math_reduced", "", "sdpa-math-fp16");
  passes("fp16/causal/triton_int8", "", "sage1-B");
  passes("bf16/causal/triton", "base 2", "fa2-bf16");
  passes("bf16/causal/flex_attention", "base e", "fa2-bf16");
  passes("bf16/causal/sdpa_math", "", "fa2-bf16");
  passes("e5m2/causal/triton", "base 2", "fa2-fp16", kHopperE5m2);
}

TEST_CASE("a finer recipe than a foreign kernel's own is not met") {
  CHECK_FALSE(check("gpu_attention.h5", "math_reduced", "fa2-fp16").passed);
  CHECK_FALSE(check("gpu_attention.h5", "int8", "fa2-fp16").passed);
  CHECK_FALSE(check("gpu_attention.h5", "e5m2", "fa2-fp16").passed);
}

TEST_CASE("the lse of a Triton kernel in E5M2 shows Hopper's FP22 accumulator") {
  std::vector<lab::Override> float32 = kHopperE5m2;
  for (auto& [key, value] : float32) value = value == "sm90.wgmma" ? "f32" : value;
  const lab::CheckResult result = check("gpu_attention.h5", "e5m2", "fa2-fp16", float32);
  const std::vector<lab::Json> wrong = rows_of(result, "lse"),
                               right = rows_of(check("gpu_attention.h5", "e5m2", "fa2-fp16", kHopperE5m2), "lse");
  REQUIRE(wrong.size() == 2);
  REQUIRE(right.size() == 2);
  for (std::size_t head = 0; head < 2; ++head) {
    CHECK(wrong[head]["passed"] == false);
    CHECK(wrong[head]["lse_error"].get<double>() > 7e-4);
    CHECK(right[head]["lse_error"].get<double>() < 1e-6);
  }
}

TEST_CASE("a foreign kernel's lse in the other base than demanded fails and its base is named") {
  const lab::CheckResult result = check("gpu_attention.h5", "^fp16/causal/triton$", "fa2-fp16", {}, "e");
  CHECK_FALSE(result.passed);
  REQUIRE(result.details.size() == 2);
  for (const std::string& text : result.details) CHECK(contains(text, "this head is in base 2"));
  CHECK(check("gpu_attention.h5", "^fp16/causal/triton$", "fa2-fp16", {}, "2").passed);
  CHECK(check("gpu_attention.h5", "^fp16/causal/flex", "fa2-fp16", {}, "e").passed);
}

TEST_CASE("mistakes built into a Triton kernel and recorded on an H200 fail and are named") {
  const auto named = [](const std::string& call, const std::string& recipe, const std::string& name,
                        const std::string& detail) {
    const lab::CheckResult result = check("broken_attention.h5", "^" + call + "$", recipe);
    CAPTURE(call, detail, result.details);
    CHECK_FALSE(result.passed);
    const std::vector<lab::Json> rows = rows_of(result, "o");
    REQUIRE(!rows.empty());
    for (const lab::Json& row : rows) {
      CHECK(row["passed"] == false);
      CHECK(row["diagnosis"] == name);
    }
    CHECK(std::any_of(result.details.begin(), result.details.end(),
                      [&](const std::string& text) { return contains(text, detail); }));
  };
  named("top_left", "fa2-fp16", "wrong mask", "a top-left causal mask used as bottom-right");
  named("dropped_tail", "fa2-fp16", "a dropped last tile", "keys 128 to 143 are not attended to");
  named("stale_o", "fa2-fp16", "O not rescaled", "when a tile of 64 keys raises the row maximum");
  named("stale_v", "fa2-fp16", "stale tile", "keys 64 to 127 meet V of keys 0 to 63");
  named("wrong_scale", "sage1-B", "one wrong scale group", "the scores of keys 64 to 127");
  named("swapped_heads", "fa2-fp16", "two heads swapped", "o is what head 1 should return");
}
