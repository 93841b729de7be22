// The pipeline and the metrics against values that an independent slow program computed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/pipeline.h"
#include "attention/problem.h"
#include "attention/recipe.h"
#include "attention/reference.h"
#include "format/format.h"
#include "io/dump.h"
#include "metric/accuracy.h"
#include "pinned_values.h"
#include "support/catch.h"
#include "tensor/tensor.h"

namespace {

using namespace qattn;

using Keys = std::vector<std::pair<std::string_view, std::string_view>>;

struct NamedKeys {
  std::string_view name;
  Keys keys;
};

/// The recipes in the words of recipe.h; tests/oracle/options.h has them in the slow program's.
const std::vector<NamedKeys>& recipes() {
  static const std::vector<NamedKeys> all = {
      {"exact", {{"softmax", "f64"}, {"accumulator", "exact"}, {"qk_accumulator", "exact"}, {"o_format", "fp32"}}},
      {"fa2-fp16",
       {{"qk_format", "fp16"},
        {"pv_format", "fp16"},
        {"tiling", "sm80"},
        {"qk_accumulator", "sm80.mma"},
        {"accumulator", "sm80.mma"},
        {"promotion", "never"},
        {"o_format", "fp16"}}},
      {"fp8-tensor",
       {{"qk_format", "e4m3"},
        {"granularity", "per_tensor"},
        {"pv_format", "e4m3"},
        {"v_granularity", "per_tensor"},
        {"tiling", "sm89"},
        {"qk_accumulator", "f32"},
        {"accumulator", "f32"},
        {"promotion", "tile"}}},
      {"int8-token", {{"qk_format", "int8"}, {"granularity", "per_token"}, {"pv_format", "fp16"}, {"tiling", "sm80"}}},
      {"int4-token", {{"qk_format", "int4"}, {"granularity", "per_token"}, {"pv_format", "fp16"}, {"tiling", "sm80"}}},
      {"sage1-B",
       {{"smoothing", "k"},
        {"qk_format", "int8"},
        {"granularity", "per_block"},
        {"pv_format", "fp16"},
        {"tiling", "sm80"},
        {"qk_accumulator", "sm80.mma"},
        {"accumulator", "sm80.mma.f16"},
        {"promotion", "tile"}}},
      {"sage2-4b",
       {{"smoothing", "qk"},
        {"qk_format", "int4"},
        {"granularity", "per_thread"},
        {"pv_format", "e4m3"},
        {"v_granularity", "per_channel"},
        {"tiling", "sm89"},
        {"qk_accumulator", "sm89.mma"},
        {"accumulator", "sm89.mma"},
        {"promotion", "tile"}}},
      {"sage2-8b",
       {{"smoothing", "k"},
        {"qk_format", "int8"},
        {"granularity", "per_thread"},
        {"pv_format", "e4m3"},
        {"v_granularity", "per_channel"},
        {"tiling", "sm90"},
        {"qk_accumulator", "sm90.wgmma"},
        {"accumulator", "sm90.wgmma"},
        {"promotion", "tile"}}},
  };
  return all;
}

attention::Recipe recipe_named(std::string_view name) {
  attention::Recipe recipe;
  recipe.name = name;
  const auto found =
      std::find_if(recipes().begin(), recipes().end(), [&](const NamedKeys& r) { return r.name == name; });
  REQUIRE(found != recipes().end());
  for (const auto& [key, value] : found->keys) attention::set(recipe, key, value);
  return recipe;
}

struct Change {
  std::string_view recipe;
  std::string_view key;
  std::string_view value;
};

attention::Problem read_problem(const pinned::Value& value) {
  const io::DumpReader dump(std::string(QATTN_SOURCE_DIR "/data/real/") + std::string(value.file));
  const io::AttentionCall& call = dump.call(value.call);
  const auto matrix = [&](std::string_view dataset, std::int64_t head) {
    const Tensor tensor = dump.read_head(call, dataset, value.batch, head);
    return decode_matrix(tensor, 0, tensor.shape[0], tensor.shape[1]);
  };
  const std::int64_t kv_head = call.kv_head(value.head);
  attention::Problem problem;
  problem.q = matrix("q", value.head);
  problem.k = matrix("k", kv_head);
  problem.v = matrix("v", kv_head);
  problem.sm_scale = call.sm_scale;
  problem.is_causal = call.is_causal;
  return problem;
}

metric::Accuracy accuracy_of(const attention::Problem& problem, const attention::Output& exact,
                             const attention::Recipe& recipe) {
  const attention::Output output = attention::run_recipe(problem, recipe, format::kFP16);
  metric::Accuracy accuracy(*recipe.o_format);
  accuracy.add(output.o.cast<float>(), exact.o);  // O is FP32 or FP16 in all of these
  return accuracy;
}

/// The two programs' O agree in every bit (tests/oracle/test_pipeline_bits.cpp), so what is left is that the pins have
/// 9 digits (5e-9 of a value; 3e-9 was seen) and that a cosine near 1 is a double (2e-16).
constexpr double kTolerance = 1e-8;

bool agrees(double value, double expected) { return std::fabs(value - expected) <= kTolerance * expected; }

bool agrees(const metric::Accuracy& accuracy, const pinned::Value& v) {
  const double cosine_error = std::fabs(accuracy.cos_sim() - v.cosine);
  return cosine_error <= kTolerance * (1 - v.cosine) + 5e-16 && agrees(accuracy.rel_l1(), v.relative_l1) &&
         agrees(accuracy.rmse(), v.rmse);
}

/// One ingredient of each recipe replaced. How far that moves the relative L1 of the pin (the least over the pins of
/// the recipe) stands beside it; `slow_attention leave-outs` prints these and the other metrics'.
const std::vector<Change> kChanges{
    {"exact", "softmax", "f32"},                     // 550 %
    {"fa2-fp16", "accumulator", "exact"},            // -9.4e-5
    {"fa2-fp16", "o_format", "fp32"},                // -70 %
    {"fp8-tensor", "granularity", "per_token"},      // -20 %
    {"fp8-tensor", "v_granularity", "per_channel"},  // 1.0 %
    {"fp8-tensor", "p_scale", "256"},                // 0.33 %
    {"fp8-tensor", "p_scale", "1"},                  // 6.5 %
    {"fp8-tensor", "tiling", "sm90"},                // 2.0e-4
    {"fp8-tensor", "accumulator", "sm89.mma"},       // 3.8e-4
    {"int8-token", "granularity", "per_block"},      // 70 %
    {"int8-token", "smoothing", "k"},                // -3.7 %
    {"int8-token", "p_format", "exact"},             // -1.2e-4
    {"int4-token", "granularity", "per_thread"},     // 4.5 %
    {"int4-token", "smoothing", "k"},                // -1.6 %
    {"int4-token", "p_format", "exact"},             // 1.0e-4
    {"sage1-B", "smoothing", "none"},                // 49 %
    {"sage1-B", "granularity", "per_thread"},        // -7.2 %
    {"sage1-B", "tiling", "sm90"},                   // 0.66 %
    {"sage1-B", "accumulator", "sm80.mma"},          // -1.8e-5
    {"sage2-4b", "smoothing", "none"},               // 28 %
    {"sage2-4b", "smoothing", "k"},                  // 8.7 %
    {"sage2-4b", "granularity", "per_block"},        // 17 %
    {"sage2-4b", "tiling", "sm90"},                  // -9.4 %
    {"sage2-4b", "accumulator", "exact"},            // 1.0e-5
    {"sage2-4b", "accumulator", "sm90.wgmma"},       // -8.8e-6
    {"sage2-4b", "promotion", "never"},              // 9.7e-6
    {"sage2-4b", "p_scale", "256"},                  // -0.41 %
    {"sage2-4b", "v_granularity", "per_tensor"},     // 0.12 %
    {"sage2-8b", "smoothing", "none"},               // 0.49 %
    {"sage2-8b", "smoothing", "qk"},                 // -1.2 %
    {"sage2-8b", "granularity", "per_block"},        // 2.6 %
    {"sage2-8b", "tiling", "sm89"},                  // -0.13 %
    {"sage2-8b", "accumulator", "exact"},            // -5.0e-4
    {"sage2-8b", "accumulator", "sm89.mma"},         // -5.9e-5
    {"sage2-8b", "promotion", "never"},              // 0.12 %
    {"sage2-8b", "p_scale", "256"},                  // -0.82 %
    {"sage2-8b", "v_granularity", "per_tensor"},     // 0.26 %
};

}  // namespace

TEST_CASE("recipes on real heads give what the slow program gives") {
  for (const pinned::Value& v : pinned::kValues) {
    const attention::Problem problem = read_problem(v);
    const metric::Accuracy accuracy =
        accuracy_of(problem, attention::reference_attention(problem), recipe_named(v.recipe));
    CAPTURE(v.recipe, v.file, v.call, v.batch, v.head);
    CAPTURE(accuracy.cos_sim(), v.cosine, accuracy.rel_l1(), v.relative_l1, accuracy.rmse(), v.rmse);
    CHECK(agrees(accuracy, v));
  }
}

TEST_CASE("a recipe without one of its ingredients does not give the pinned values") {
  for (const pinned::Value& v : pinned::kValues) {
    const attention::Problem problem = read_problem(v);
    const attention::Output exact = attention::reference_attention(problem);
    for (const Change& change : kChanges) {
      if (change.recipe != v.recipe) continue;
      attention::Recipe recipe = recipe_named(v.recipe);
      attention::set(recipe, change.key, change.value);
      CAPTURE(v.recipe, v.file, v.call, v.batch, v.head, change.key, change.value);
      CHECK(!agrees(accuracy_of(problem, exact, recipe), v));
    }
  }
}

TEST_CASE("every recipe of the table is pinned, on both models") {
  for (const NamedKeys& r : recipes())
    CHECK(std::any_of(pinned::kValues.begin(), pinned::kValues.end(),
                      [&](const pinned::Value& v) { return v.recipe == r.name; }));
  for (const std::string_view file : {"kwt1_qkv.h5", "smollm2_1.h5", "smollm2_2.h5"})
    CHECK(std::any_of(pinned::kValues.begin(), pinned::kValues.end(),
                      [&](const pinned::Value& v) { return v.file == file; }));
}
