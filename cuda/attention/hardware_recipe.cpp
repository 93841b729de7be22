#include "hardware_recipe.h"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "attention/contraction.h"
#include "base/error.h"
#include "lab/recipe_file.h"

namespace qattn::gpu {
namespace {

using attention::Accumulator;
using attention::OperandSpec;
using attention::Recipe;

/// The value that a key has, as users write it.
std::string value_of(const Recipe& recipe, std::string_view key) {
  for (const auto& [name, value] : attention::resolved(recipe)) {
    if (name == key) return value;
  }
  throw Error(ErrorKind::internal, fmt::format("recipe key '{}' is unknown", key));
}

[[noreturn]] void refuse(const Recipe& recipe, std::string_view key, const std::string& reason) {
  throw Error(ErrorKind::usage, fmt::format("recipe '{}': {} = {}: no kernel of ours does that; {}", recipe.name, key,
                                            value_of(recipe, key), reason));
}

bool is_format(const format::Format* format, std::initializer_list<const format::Format*> allowed) {
  for (const format::Format* one : allowed) {
    if (format == one) return true;
  }
  return false;
}

void check_softmax(const Recipe& recipe) {
  if (recipe.softmax != attention::Softmax::f32) refuse(recipe, "softmax", "they compute in f32");
  if (recipe.exp2 == attention::Exp2::fa4_poly) refuse(recipe, "exp2", "they use the GPU's own, mufu");
  if (recipe.p_normalized) refuse(recipe, "p_normalized", "they divide O at the end");
  if (recipe.row_sum_format != &format::kFP32) refuse(recipe, "row_sum_format", "they add in FP32");
  if (!is_format(recipe.s_format, {nullptr, &format::kFP32, &format::kFP16, &format::kBF16})) {
    refuse(recipe, "s_format", "they round scores to FP16 or BF16, or not at all");
  }
  if (!is_format(recipe.o_format, {nullptr, &format::kFP64, &format::kFP32, &format::kFP16, &format::kBF16})) {
    refuse(recipe, "o_format", "they return FP32, FP16 or BF16");
  }
}

void check_operands(const Recipe& recipe) {
  const std::pair<const OperandSpec*, std::string_view> operands[] = {
      {&recipe.q, "q"}, {&recipe.k, "k"}, {&recipe.v, "v"}, {&recipe.p, "p"}};
  for (const auto& [spec, name] : operands) {
    if (spec->exact()) refuse(recipe, fmt::format("{}_format", name), "they multiply codes");
    if (spec->micro_scaled() || (spec == &recipe.p && spec->row_scaled())) {
      refuse(recipe, fmt::format("{}_granularity", name), "their scales stand outside the matrix products");
    }
  }
}

/// "sm89.mma.f16" on sm90: "sm90.mma.f16".
std::string accumulator_on(const Card& card, std::string_view name, bool integer) {
  if (name == "exact" || name == "f32") return integer ? card.architecture + ".mma" : std::string(name);
  const std::string_view kind = name.substr(std::min(name.find('.'), name.size()));
  for (const std::string_view warpgroup : {std::string_view(".wgmma"), std::string_view(".tcgen05")}) {
    if (!kind.starts_with(warpgroup)) continue;
    const std::string_view on_card = card.architecture == "sm90" ? ".wgmma" : ".mma";
    return card.architecture + std::string(on_card) + std::string(kind.substr(warpgroup.size()));
  }
  return card.architecture + std::string(kind);
}

void choose_accumulator(const Recipe& recipe, const Card& card, const char* key, const std::string& name, bool integer,
                        HardwareRecipe& result) {
  const std::string on_card = accumulator_on(card, name, integer);
  if (on_card == "exact" || on_card == "f32") refuse(recipe, key, "their sums are a tensor core's");
  if (on_card != name) result.changes.emplace_back(key, on_card);
}

/// The instruction's name without its architecture.
std::string_view instruction_of(std::string_view accumulator, const OperandSpec& a, const OperandSpec& b) {
  const std::string_view name = attention::resolve_accumulator(accumulator, a, b).instruction->name;
  return name.substr(name.find('.') + 1);
}

const AttentionKernel* find_kernel(std::string_view qk, std::string_view pv, int capability) {
  for (const AttentionKernels& kernels :
       {attention_mma_kernels(), attention_mma_float8_kernels(), attention_wgmma_kernels()}) {
    for (const AttentionKernel& kernel : std::span(kernels.begin, static_cast<std::size_t>(kernels.count))) {
      const bool on_card = kernel.least_capability <= capability && capability <= kernel.largest_capability;
      if (on_card && kernel.qk == qk && kernel.pv == pv) return &kernel;
    }
  }
  return nullptr;
}

}  // namespace

void check_for_kernels(const Recipe& recipe) {
  attention::validate(recipe);
  check_softmax(recipe);
  check_operands(recipe);
}

HardwareRecipe hardware_recipe(const Recipe& recipe, const Card& card) {
  check_for_kernels(recipe);
  HardwareRecipe result;
  const bool integer_scores = recipe.q.integer() && recipe.k.integer();
  choose_accumulator(recipe, card, "qk_accumulator", recipe.qk_accumulator, integer_scores, result);
  choose_accumulator(recipe, card, "accumulator", recipe.accumulator, false, result);
  if (recipe.exp2 == attention::Exp2::exact) result.changes.emplace_back("exp2", "mufu");
  result.recipe = lab::with_overrides(recipe, result.changes);
  attention::validate(result.recipe);
  const std::string_view qk = instruction_of(result.recipe.qk_accumulator, recipe.q, recipe.k);
  const std::string_view pv = instruction_of(result.recipe.accumulator, recipe.p, recipe.v);
  result.kernel = find_kernel(qk, pv, card.capability);
  if (result.kernel == nullptr) {
    throw Error(
        ErrorKind::usage,
        fmt::format("recipe '{}': qk_accumulator = {} and accumulator = {}: no kernel of ours on {} has {} for "
                    "Q K and {} for P V",
                    recipe.name, result.recipe.qk_accumulator, result.recipe.accumulator, card.architecture, qk, pv));
  }
  return result;
}

}  // namespace qattn::gpu
