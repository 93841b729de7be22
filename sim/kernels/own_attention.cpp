// Our own attention kernels (cuda/attention): the recipe pipeline, whose order of operations they keep.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention/contraction.h"
#include "attention/pipeline.h"
#include "base/error.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "kernels/families.h"
#include "mma/instruction.h"

namespace qattn::kernels {
namespace {

using attention::Recipe;
using attention::RecipeKey;

constexpr std::string_view kPrefix = "recipe_";

/// Whether a key decides anything of the output; exceptions are the caller's.
bool is_argument(const RecipeKey& key) {
  constexpr std::string_view kNames[] = {"name", "description", "source", "alias_of", "exceptions", "exception_recipe"};
  return key.get != nullptr && std::find(std::begin(kNames), std::end(kNames), key.name) == std::end(kNames);
}

/// "recipe_scale_place recipe_query_heads ..."
std::string_view argument_names() {
  static const std::string names = [] {
    std::string all;
    for (const RecipeKey& key : attention::recipe_keys()) {
      if (is_argument(key)) all += fmt::format("{}{}{}", all.empty() ? "" : " ", kPrefix, key.name);
    }
    return all;
  }();
  return names;
}

/// Throws Error(usage), as for a wrong value, for an argument "recipe_KEY" whose KEY is none of the recipe's: it may
/// decide what is not known here.
void check_arguments(const Call& call) {
  for (const auto& [name, value] : call.arguments) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string_view key = std::string_view(name).substr(kPrefix.size());
    const auto known = attention::recipe_keys();
    if (std::any_of(known.begin(), known.end(), [key](const RecipeKey& x) { return x.name == key; })) continue;
    throw Error(ErrorKind::usage, fmt::format("qattn_attention: attribute '{}' names no recipe key; `qattn recipes "
                                              "--keys` has them, and a newer version may have more",
                                              name));
  }
}

Recipe recipe_of(const Call& call) {
  check_arguments(call);
  Recipe recipe;
  recipe.name = "qattn_attention";
  for (const RecipeKey& key : attention::recipe_keys()) {
    if (!is_argument(key)) continue;
    const auto value = io::find_text(call.arguments, fmt::format("{}{}", kPrefix, key.name), recipe.name);
    if (value) key.set(recipe, *value);
  }
  attention::validate(recipe);
  return recipe;
}

MatrixD head_of(const Tensor& tensor, std::int64_t index, const std::vector<float>& descale, std::int64_t kv_index) {
  const std::int64_t rows = tensor.shape[2], columns = tensor.shape[3];
  MatrixD values = decode_matrix(tensor, index * rows * columns, rows, columns);
  if (!descale.empty()) values *= static_cast<double>(descale.at(static_cast<std::size_t>(kv_index)));
  return values;
}

attention::Problem problem_of(const Call& call, const Recipe& recipe, std::int64_t batch, std::int64_t head) {
  const std::int64_t group = call.q_heads() / call.kv_heads();
  const std::int64_t kv = batch * call.kv_heads() + head / group;
  attention::Problem problem;
  problem.q = head_of(call.q, batch * call.q_heads() + head, call.q_descale, kv);
  problem.k = head_of(call.k, kv, call.k_descale, kv);
  problem.v = head_of(call.v, kv, call.v_descale, kv);
  problem.sm_scale = call.sm_scale;
  problem.is_causal = call.is_causal;
  problem.causal_align = call.causal_align.value_or(attention::CausalAlign::top_left);
  if (recipe.query_heads == attention::QueryHeads::one) return problem;
  for (std::int64_t other = head / group * group; other < head / group * group + group; ++other) {
    if (other == head) continue;
    problem.group_q.push_back(head_of(call.q, batch * call.q_heads() + other, call.q_descale, kv));
  }
  return problem;
}

/// `values` to elements from `first` on.
void store(Tensor& tensor, std::int64_t first, std::int64_t count, const double* values) {
  for (std::int64_t i = 0; i < count; ++i) {
    tensor.set_code(first + i, format::encode(*tensor.format, values[i],
                                              {format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                               format::Subnormals::keep}));
  }
}

/// Whether the recipe is one that a kernel computes, of instructions that were compared with a GPU.
bool is_measured(const Recipe& recipe) {
  const attention::Accumulator accumulators[] = {
      attention::resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k),
      attention::resolve_accumulator(recipe.accumulator, recipe.p, recipe.v)};
  const auto measured = [](const attention::Accumulator& accumulator) {
    return accumulator.instruction != nullptr && accumulator.instruction->evidence == mma::Evidence::measured;
  };
  return recipe.exp2 == attention::Exp2::mufu &&
         std::all_of(std::begin(accumulators), std::end(accumulators), measured);
}

Returned run(const Call& call) {
  const Recipe recipe = recipe_of(call);
  const format::Format& o_format = recipe.o_format != nullptr ? *recipe.o_format : *call.q.format;
  Tensor o = make_tensor(o_format, {call.batch(), call.q_heads(), call.q_tokens(), call.v.shape[3]});
  Tensor lse = make_tensor(format::kFP32, {call.batch(), call.q_heads(), call.q_tokens()});
  parallel_for(call.batch() * call.q_heads(), call.threads, [&](std::int64_t i) {
    const attention::Problem problem = problem_of(call, recipe, i / call.q_heads(), i % call.q_heads());
    const attention::Output output = attention::run_recipe(problem, recipe, *call.q.format);
    store(o, i * output.o.size(), output.o.size(), output.o.data());
    store(lse, i * call.q_tokens(), call.q_tokens(), output.lse.data());
  });
  Returned returned;
  returned.tensors.emplace("o", std::move(o));
  returned.tensors.emplace("lse", std::move(lse));
  returned.predicted = !is_measured(recipe);
  returned.evidence = (returned.predicted ? "predicted: " : "") + attention::accumulator_evidence(recipe);
  return returned;
}

}  // namespace

std::span<const Kernel> own_kernels() {
  static const Kernel kernels[] = {{"qattn_attention", "QAttn (cuda/attention)",
                                    "our own kernels: the recipe of the arguments recipe_KEY, in the pipeline's order",
                                    run, argument_names()}};
  return kernels;
}

}  // namespace qattn::kernels
