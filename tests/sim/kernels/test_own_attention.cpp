// Our own attention kernels' recordings against the recipe pipeline, whose order of operations they keep.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "attention/pipeline.h"
#include "base/error.h"
#include "sim/attention/heads.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

const std::string kFile = "own_kernels_h200.h5";

std::int64_t wrong_outputs(const Trial& trial, const io::Attributes& changes = {}) {
  Call call = trial.call;
  call.arguments = io::override_attributes(call.arguments, changes);
  const Returned returned = find_kernel(trial.kernel).run(call);
  return mismatches(returned, trial.recorded, "o") + mismatches(returned, trial.recorded, "lse");
}

/// "sage2-8b" of "own_kernels_h200.h5 outliers/layer_00 sage2-8b".
std::string recipe_of(const Trial& trial) { return trial.name.substr(trial.name.rfind(' ') + 1); }

TEST_CASE("every recorded output of our kernels comes out bit for bit from q, k and v") {
  std::map<std::string, std::int64_t> outputs;
  for (const Trial& trial : trials(kFile)) {
    INFO(trial.name);
    CHECK(wrong_outputs(trial) == 0);
    CHECK_FALSE(find_kernel(trial.kernel).run(trial.call).predicted);
    outputs[recipe_of(trial)] += trial.recorded.at("o").elements() + trial.recorded.at("lse").elements();
  }
  for (const char* recipe : {"sage2-8b", "sage2-8b-sm89", "sage2-4b", "sage1-B", "fa2-fp16", "fa3-fp8"}) {
    INFO(recipe);
    CHECK(outputs[recipe] > 30000);
  }
}

TEST_CASE("the recordings tell another order of operations, another rounding and another instruction") {
  struct Change {
    std::string recipe;
    io::Attributes changes;
  };
  const Change all[] = {
      {"sage2-8b", {{"recipe_exp2", "exact"}}},
      {"sage2-8b", {{"recipe_k_block", "64"}, {"recipe_k_warp", "64"}}},
      {"sage2-8b", {{"recipe_accumulator", "sm90.mma"}}},
      {"sage2-8b", {{"recipe_accumulator", "sm89.mma"}}},
      {"sage2-8b", {{"recipe_promotion", "never"}}},
      {"sage2-8b", {{"recipe_promotion", "2"}}},
      {"sage2-8b", {{"recipe_row_sum", "rounded"}}},
      {"sage2-8b", {{"recipe_tile_order", "descending"}}},
      {"sage2-8b", {{"recipe_scaling", "reciprocal"}}},
      {"sage2-8b-sm89", {{"recipe_accumulator", "sm90.wgmma"}}},
      {"sage2-4b", {{"recipe_smoothing", "k"}}},
      {"sage2-4b", {{"recipe_correction", "quantized_k"}}},
      {"sage2-4b", {{"recipe_accumulator", "sm89.mma"}}},
      {"sage1-B", {{"recipe_scale_place", "logits"}}},
      {"sage1-B", {{"recipe_accumulator", "sm90.mma"}}},
      {"sage1-B", {{"recipe_accumulator", "sm80.mma.f16"}}},
      {"sage1-B", {{"recipe_promotion", "never"}}},
      {"fa2-fp16", {{"recipe_promotion", "tile"}}},
      {"fa2-fp16", {{"recipe_qk_accumulator", "sm80.mma"}}},
      {"fa2-fp16", {{"recipe_exp2", "exact"}}},
      {"fa3-fp8", {{"recipe_tile_order", "ascending"}}},
      {"fa3-fp8", {{"recipe_query_heads", "one"}}},
      {"fa3-fp8", {{"recipe_p_scale", "448"}}},
      {"fa3-fp8", {{"recipe_k_block", "128"}, {"recipe_k_warp", "128"}}},
      {"fa3-fp8", {{"recipe_qk_accumulator", "sm90.mma"}}},
  };
  const std::vector<Trial> recorded = trials(kFile);
  for (const Change& change : all) {
    std::int64_t wrong = 0;
    for (const Trial& trial : recorded) {
      if (recipe_of(trial) == change.recipe) wrong += wrong_outputs(trial, change.changes);
    }
    INFO(change.recipe << " with " << change.changes.begin()->first);
    CHECK(wrong > 0);
  }
}

TEST_CASE("a recipe that no kernel of ours can compute is a prediction, and a wrong value an error") {
  const Trial trial = trials(kFile, "qattn_attention").front();
  Call call = trial.call;
  call.arguments["recipe_accumulator"] = std::string("sm89.mma");
  const Returned predicted = find_kernel("qattn_attention").run(call);
  CHECK(predicted.predicted);
  CHECK(predicted.evidence.starts_with("predicted: "));
  call.arguments["recipe_accumulator"] = std::string("sm90.nothing");
  CHECK_THROWS_AS(find_kernel("qattn_attention").run(call), Error);
}

TEST_CASE("an attribute recipe_KEY whose key is unknown is refused by name, since it may decide something") {
  Call call = trials(kFile, "qattn_attention").front().call;
  call.arguments["recipe_name"] = std::string("another name decides nothing");
  CHECK_NOTHROW(find_kernel("qattn_attention").run(call));
  call.arguments["recipe_exp3"] = std::string("mufu");
  std::string message;
  try {
    find_kernel("qattn_attention").run(call);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);  // an error of the file where a file says so
    message = error.what();
  }
  CHECK(message.starts_with("qattn_attention: attribute 'recipe_exp3' names no recipe key"));
}

TEST_CASE("heads of a batch and of a group are the pipeline's, each with its own descale") {
  Call call;
  call.q = make_tensor(format::kFP16, {2, 4, 5, 8});
  call.k = make_tensor(format::kFP16, {2, 2, 9, 8});
  call.v = make_tensor(format::kFP16, {2, 2, 9, 8});
  std::uint64_t seed = 0;
  for (Tensor* tensor : {&call.q, &call.k, &call.v}) {
    ++seed;
    for (std::int64_t i = 0; i < tensor->elements(); ++i) {
      const double x = attention::testing::normal(seed, 0, static_cast<std::uint64_t>(i));
      tensor->set_code(i, format::encode(format::kFP16, x, format::Policy{}));
    }
  }
  call.sm_scale = 0.25;
  call.is_causal = true;
  call.causal_align = attention::CausalAlign::bottom_right;
  call.k_descale = {1.0F, 0.5F, 2.0F, 0.25F};
  call.arguments = {
      {"recipe_q_format", "e4m3"},           {"recipe_k_format", "e4m3"},     {"recipe_q_granularity", "per_tensor"},
      {"recipe_k_granularity", "per_token"}, {"recipe_query_heads", "group"}, {"recipe_o_format", "fp32"}};
  const Returned returned = find_kernel("qattn_attention").run(call);
  attention::Recipe recipe;
  for (const auto& [key, value] : call.arguments) attention::set(recipe, key.substr(7), std::get<std::string>(value));
  attention::Problem problem;
  const auto q = [&](std::int64_t head) { return decode_matrix(call.q, (4 + head) * 40, 5, 8); };  // of batch 1
  problem.q = q(3);
  problem.group_q = {q(2)};
  problem.k = decode_matrix(call.k, 3 * 72, 9, 8) * 0.25;
  problem.v = decode_matrix(call.v, 3 * 72, 9, 8);
  problem.sm_scale = 0.25;
  problem.is_causal = true;
  problem.causal_align = attention::CausalAlign::bottom_right;
  const attention::Output expected = attention::run_recipe(problem, recipe, format::kFP16);
  CHECK(decode_matrix(returned.tensors.at("o"), 7 * 40, 5, 8) == expected.o);
  CHECK(decode_matrix(returned.tensors.at("lse"), 7 * 5, 1, 5)(0, 4) ==
        static_cast<double>(static_cast<float>(expected.lse[4])));
}

}  // namespace
}  // namespace qattn::kernels
