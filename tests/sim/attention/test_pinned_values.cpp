// The pipeline and the metrics against values that an independent slow program computed.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/pipeline.h"
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
  for (const NamedKeys& r : recipes())
    if (r.name == name)
      for (const auto& [key, value] : r.keys) attention::set(recipe, key, value);
  return recipe;
}

metric::Accuracy accuracy_of(const pinned::Value& value) {
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

  const attention::Recipe recipe = recipe_named(value.recipe);
  const attention::Output output = attention::run_recipe(problem, recipe, *call.q_format);
  const attention::Output exact = attention::reference_attention(problem);
  metric::Accuracy accuracy(*recipe.o_format);
  accuracy.add(output.o.cast<float>(), exact.o);
  return accuracy;
}

double relative(double value, double expected) { return std::fabs(value / expected - 1); }

}  // namespace

TEST_CASE("recipes on real heads give what the slow program gives") {
  for (const pinned::Value& v : pinned::kValues) {
    const metric::Accuracy accuracy = accuracy_of(v);
    CAPTURE(v.recipe, v.call, v.batch, v.head);
    WARN(v.recipe << " " << v.call << " " << v.head << " " << (1 - accuracy.cos_sim()) / (1 - v.cosine) - 1 << " " << accuracy.rel_l1()/v.relative_l1 - 1 << " " << accuracy.rmse()/ v.rmse - 1);
    CHECK(relative(1 - accuracy.cos_sim(), 1 - v.cosine) < 1e-3);
    CHECK(relative(accuracy.rel_l1(), v.relative_l1) < 1e-3);
    CHECK(relative(accuracy.rmse(), v.rmse) < 1e-3);
  }
}
