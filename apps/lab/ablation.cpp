// The table of axes.
#include "lab/ablation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "attention/pipeline.h"
#include "base/error.h"
#include "lab/recipe_file.h"

namespace qattn::lab {
namespace {

using attention::Recipe;

bool fits(const Recipe& recipe) {
  try {
    attention::validate(recipe);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// The key of the axis' own name. A format that the recipe's instructions do not have is run with f32 sums instead, and
/// the row's recipe says so.
Trial set_key(const Recipe& base, std::string_view axis, std::string_view value) {
  const Override change{axis, value};
  Recipe recipe = with_overrides(base, {change});
  for (const char* accumulator : {"accumulator", "qk_accumulator"}) {
    if (fits(recipe) || axis == accumulator) break;
    if (Recipe summed = with_overrides(base, {change, {accumulator, "f32"}}); fits(summed)) recipe = std::move(summed);
  }
  attention::validate(recipe);
  return {std::move(recipe)};
}

/// All exact but the preprocessing (rotation, smoothing), which changes nothing by itself.
Recipe without_quantization(Recipe recipe) {
  for (const char* key : {"q_format", "k_format", "p_format", "v_format", "accumulator", "qk_accumulator", "exp2"}) {
    attention::set(recipe, key, "exact");
  }
  attention::set(recipe, "softmax", "f64");
  attention::set(recipe, "o_format", "fp64");
  attention::set(recipe, "correction_format", "fp32");
  return recipe;
}

/// One stage of the recipe alone: an operand quantized and everything else exact, or the accumulator against the same
/// recipe with exact sums.
Trial keep_stage(const Recipe& base, std::string_view, std::string_view value) {
  if (value == "accumulator") {
    Trial trial{base, attention::with_exact_accumulators(base)};
    trial.recipe.name = base.name;
    trial.reference->name = base.name + " accumulator=exact";
    return trial;
  }
  Recipe recipe = without_quantization(base);
  recipe.name = fmt::format("{} stage={}", base.name, value);
  if (value == "q") {
    recipe.q = base.q;
  } else if (value == "k") {
    recipe.k = base.k;
  } else if (value == "p") {
    recipe.p = base.p;
  } else if (value == "v") {
    recipe.v = base.v;
  } else {
    throw Error(ErrorKind::usage, fmt::format("axis stage: '{}' is not one of q, k, p, v, accumulator", value));
  }
  return {std::move(recipe)};
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t start = 0;
  for (std::size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',', start)) {
    parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  parts.push_back(text.substr(start));
  return parts;
}

[[noreturn]] void unknown_axis(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Axis& axis : axes()) names.push_back(axis.name);
  throw Error(ErrorKind::usage, fmt::format("unknown axis '{}'; known are {}, or any recipe key as KEY=VALUE,VALUE,...",
                                            name, fmt::join(names, ", ")));
}

}  // namespace

std::span<const Axis> axes() {
  static const std::vector<Axis> kAxes = {
      {"smoothing", "means taken out of Q and K", {"none", "k", "q", "qk"}, set_key},
      {"granularity",
       "what shares a scale of Q and K",
       {"per_tensor", "per_block", "per_warp", "per_thread", "per_token"},
       set_key},
      {"qk_format", "format of Q and K", {"int8", "int4", "e4m3", "e5m2", "fp16", "exact"}, set_key},
      {"pv_format", "format of P and V", {"int8", "int4", "e4m3", "e5m2", "fp16", "exact"}, set_key},
      {"accumulator",
       "accumulator of P V",
       {"exact", "f32", "sm80.mma", "sm80.mma.f16", "sm89.mma", "sm90.mma", "sm90.wgmma", "sm100.tcgen05", "sm120.mma"},
       set_key},
      {"promotion",
       "instruction steps until the partial sum is added to O in f32",
       {"1", "2", "4", "tile", "never"},
       set_key},
      {"smooth_v", "channel mean taken out of V", {"false", "true"}, set_key},
      {"stage",
       "one stage of the recipe alone; the accumulator against the recipe with exact sums",
       {"q", "k", "p", "v", "accumulator"},
       keep_stage},
  };
  return kAxes;
}

Ablation ablate(const Recipe& base, std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const auto axis = std::find_if(axes().begin(), axes().end(), [&](const Axis& a) { return a.name == name; });
  const bool named_values = equals != std::string_view::npos;
  if (axis == axes().end() && !named_values) unknown_axis(name);
  const auto apply = axis != axes().end() ? axis->apply : set_key;
  const std::vector<std::string_view> values = named_values ? split(text.substr(equals + 1)) : axis->values;
  Ablation ablation;
  for (const std::string_view value : values) {
    try {
      Trial trial = apply(base, name, value);
      trial.labels = {{"axis", name}, {"value", value}};
      ablation.trials.push_back(std::move(trial));
    } catch (const Error& e) {
      if (named_values || e.kind() != ErrorKind::usage) throw;
      ablation.left_out.push_back(fmt::format("{}={} left out: {}", name, value, e.what()));
    }
  }
  return ablation;
}

}  // namespace qattn::lab
