#include "lab/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

#include "attention/pipeline.h"
#include "base/error.h"
#include "base/parallel.h"
#include "lab/measurement.h"

namespace qattn::lab {
namespace {

using attention::Problem;
using attention::Recipe;

/// Mask changes stand beside the recipe's keys under this name.
constexpr std::string_view kMask = "mask";

struct Change {
  std::string_view key;
  std::vector<std::string_view> values;
  std::string_view words;  ///< "{}" is the value
};

/// The axes along which kernels differ, as a person says it.
const std::vector<Change>& changes() {
  static const std::vector<Change> kChanges = {
      {kMask, {"top-left", "bottom-right"}, "a {} causal mask"},
      {kMask, {"no"}, "{} causal mask"},
      {"granularity", {"per_tensor"}, "per-tensor scales of Q and K"},
      {"granularity", {"per_block"}, "per-block scales of Q and K"},
      {"granularity", {"per_warp"}, "per-warp scales of Q and K"},
      {"granularity", {"per_thread"}, "per-thread scales of Q and K"},
      {"granularity", {"per_token"}, "per-token scales of Q and K"},
      {"smoothing", {"none"}, "Q and K without smoothing"},
      {"smoothing", {"k"}, "smoothing of K alone"},
      {"smoothing", {"q"}, "smoothing of Q alone"},
      {"smoothing", {"qk"}, "smoothing of Q and K"},
      {"smooth_v", {"true"}, "a smoothed V"},
      {"smooth_v", {"false"}, "a V without smoothing"},
      {"qk_format",
       {"int8", "int4", "e4m3", "e5m2", "fp16", "bf16", "nvfp4", "mxfp4", "mxfp8_e4m3", "exact"},
       "Q and K in {}"},
      {"pv_format", {"int8", "e4m3", "e5m2", "fp16", "bf16", "nvfp4", "mxfp4", "mxfp8_e4m3"}, "P and V in {}"},
      {"p_format", {"int8", "e4m3", "e5m2", "fp16", "bf16", "exact"}, "P in {}"},
      {"v_format", {"e4m3", "fp16", "bf16", "exact"}, "V in {}"},
      {"q_global_scale", {"true", "false"}, "a second FP32 scale of Q: {}"},
      {"k_global_scale", {"true", "false"}, "a second FP32 scale of K: {}"},
      {"v_global_scale", {"true", "false"}, "a second FP32 scale of V: {}"},
      {"v_range", {"auto", "2.25", "4.5", "9"}, "V mapped to a range of {}"},
      {"v_micro_axis", {"tokens", "channels"}, "groups of V along the {}"},
      {"p_granularity", {"static", "per_token"}, "{} scales of P"},
      {"p_divisor", {"rounded", "unrounded"}, "P divided by its {} scale"},
      {"p_second_level", {"none", "tile", "row"}, "a second level of P's scales: {}"},
      {"p_normalized", {"true"}, "P divided by its row sum before it is stored"},
      {"p_normalized", {"false"}, "P divided by its row sum at the end"},
      {"v_granularity", {"per_tensor", "per_block", "per_channel"}, "V with {} scales"},
      {"p_scale", {"1", "127", "256", "448"}, "P scaled by {}"},
      {"row_sum", {"rounded"}, "a row sum taken from rounded P"},
      {"row_sum", {"unrounded"}, "a row sum taken from unrounded P"},
      {"row_sum_format", {"fp16", "bf16", "fp32"}, "a row sum in {}"},
      {"promotion", {"never"}, "{accumulator} without promotion"},
      {"promotion", {"tile"}, "{accumulator} promoted every tile"},
      {"promotion", {"1", "2", "4"}, "{accumulator} promoted every {} steps"},
      {"accumulator",
       {"exact", "f32", "sm80.mma", "sm80.mma.f16", "sm89.mma", "sm90.wgmma"},
       "{accumulator} ({}) of P V"},
      {"qk_accumulator",
       {"exact", "f32", "sm80.mma", "sm80.mma.f16", "sm89.mma", "sm90.wgmma"},
       "the accumulator {} of Q K^T"},
      {"rounding", {"half_away"}, "codes of Q and K rounded half away from zero"},
      {"rounding", {"nearest_even"}, "codes of Q and K rounded half to even"},
      {"scaling", {"reciprocal"}, "elements multiplied by the reciprocal of their scale"},
      {"scaling", {"divide"}, "elements divided by their scale"},
      {"exp2", {"mufu"}, "the GPU's ex2.approx"},
      {"exp2", {"exact"}, "a correctly rounded exp2"},
      {"exp2", {"fa4-poly"}, "FlashAttention-4's polynomial exp2"},
      {"k_block", {"32", "64", "128", "256"}, "tiles of {} keys"},
      {"q_block", {"64", "128"}, "tiles of {} queries"},
      {"tiling", {"sm80", "sm89", "sm90"}, "the tiles of the {} kernels"},
      {"correction", {"smoothed_k", "quantized_k"}, "a correction row from {}"},
      {"correction_format", {"fp32", "fp16", "bf16"}, "a correction row in {}"},
      {"rotation", {"hadamard", "none"}, "rotation {} of Q and K"},
      {"zero_scale", {"epsilon"}, "an epsilon in the scales"},
      {"softmax", {"f64"}, "a softmax in FP64"},
      {"softmax", {"f32"}, "a softmax in FP32"},
      {"o_format", {"bf16", "fp16"}, "O rounded to {}"},
      {"scale_place", {"logits"}, "the softmax scale on the scores"},
      {"scale_place", {"q"}, "the softmax scale in Q"},
      {"scale_place", {"qk"}, "the root of the softmax scale in Q and in K"},
      {"query_heads", {"one"}, "a scale of Q for each query head"},
      {"query_heads", {"group"}, "one scale of Q for the query heads of a key/value head"},
      {"balance", {"smoothquant"}, "SmoothQuant between Q and K"},
      {"balance", {"none"}, "Q and K without SmoothQuant"},
      {"scale_rule",
       {"amax", "reciprocal", "triton_eps", "e8m0_floor", "e8m0_ceil", "e8m0_nearest"},
       "scales by the rule {}"},
      {"p_scale_rule", {"amax", "reciprocal", "e8m0_floor", "e8m0_ceil"}, "scales of P by the rule {}"},
      {"zero_scale", {"propagate"}, "a scale of zero that makes NaN"},
      {"q_warp", {"16", "32", "64"}, "warps of {} queries"},
      {"k_warp", {"32", "64", "128"}, "warps of {} keys"},
      {"tile_order", {"ascending", "descending"}, "tiles of keys in {} order"},
      {"s_format", {"exact", "fp16", "bf16"}, "scores rounded to {}"},
      {"row_max", {"before_mask"}, "a row maximum over hidden keys too"},
      {"row_max", {"after_mask"}, "a row maximum over visible keys"},
      {"rescale_threshold", {"0", "8"}, "O rescaled when the row maximum grows by more than 2^{}"},
  };
  return kChanges;
}

constexpr UntriedKey kUntried[] = {
    {"name", "says nothing of the arithmetic"},
    {"description", "says nothing of the arithmetic"},
    {"source", "says nothing of the arithmetic"},
    {"alias_of", "says nothing of the arithmetic"},
    {"rotation_seed", "2^64 of them"},
    {"balance_alpha", "a continuum; balance = smoothquant is tried at the recipe's alpha"},
    {"causal_align", "the masks that are tried say it"},
    {"exceptions", "names calls, and one call is looked at"},
    {"exception_recipe", "names calls, and one call is looked at"},
    {"backward_qk_format", "of the backward pass"},
    {"dv_p_format", "of the backward pass"},
    {"dv_p_granularity", "of the backward pass"},
    {"dv_do_format", "of the backward pass"},
    {"dp_do_format", "of the backward pass"},
    {"dp_v_format", "of the backward pass"},
    {"dq_ds_format", "of the backward pass"},
    {"dq_k_format", "of the backward pass"},
    {"dk_ds_format", "of the backward pass"},
    {"dk_q_format", "of the backward pass"},
    {"ds_granularity", "of the backward pass"},
    {"delta_o", "of the backward pass"},
    {"o_prime_p_format", "of the backward pass"},
    {"backward_k_mean", "of the backward pass"},
    {"backward_q_mean", "of the backward pass"},
};

/// "an FP22 accumulator" where that is what the instruction has.
std::string accumulator_words(const Recipe& recipe) {
  const std::string& name = recipe.accumulator;
  if (name == "exact") return "exact sums";
  if (name == "f32") return "an FP32 accumulator";
  if (name.size() > 4 && name.substr(name.size() - 4) == ".f16") return "an FP16 accumulator";
  const bool narrow = recipe.p.format != nullptr && recipe.p.format->bits == 8 && !recipe.p.integer();
  const bool fp22 = name.rfind("sm89.", 0) == 0 || name.rfind("sm90.", 0) == 0;
  return narrow && fp22 ? "an FP22 accumulator" : "a tensor core's FP32 accumulator";
}

std::string spell(std::string_view words, std::string_view value, const Recipe& changed) {
  std::string text(words);
  const auto replace = [&text](std::string_view what, const std::string& by) {
    const std::size_t at = text.find(what);
    if (at != std::string::npos) text.replace(at, what.size(), by);
  };
  replace("{accumulator}", accumulator_words(changed));
  replace("{}", std::string(value));
  return text;
}

struct Attempt {
  Resemblance found;
  Recipe recipe;
  std::optional<bool> causal;  ///< unset: the problem's own mask
  attention::CausalAlign align = attention::CausalAlign::top_left;
};

std::optional<Attempt> trial_of(const Recipe& base, std::string_view key, std::string_view value,
                                std::string_view words) {
  Attempt trial{{std::string(key), std::string(value), "", 0, 0}, base, std::nullopt, {}};
  if (key == kMask) {
    trial.causal = value != "no";
    if (value == "bottom-right") trial.align = attention::CausalAlign::bottom_right;
  } else {
    try {
      attention::set(trial.recipe, key, value);
      attention::validate(trial.recipe);
    } catch (const Error&) {
      return std::nullopt;
    }
    if (recipe_key(trial.recipe) == recipe_key(base)) return std::nullopt;
  }
  trial.found.words = spell(words, value, trial.recipe);
  return trial;
}

std::vector<Attempt> trials_of(const Problem& problem, const Recipe& base) {
  std::vector<Attempt> trials = {{{"", "", "the recipe as it is described", 0, 0}, base, std::nullopt, {}}};
  std::set<std::string> seen;
  for (const Change& change : changes()) {
    for (const std::string_view value : change.values) {
      std::optional<Attempt> trial = trial_of(base, change.key, value, change.words);
      if (!trial) continue;
      if (trial->causal) {
        const bool same =
            *trial->causal == problem.is_causal &&
            (!problem.is_causal || trial->align == problem.causal_align || problem.q.rows() == problem.k.rows());
        if (same) continue;
      } else if (!seen.insert(recipe_key(trial->recipe)).second) {
        continue;
      }
      trials.push_back(std::move(*trial));
    }
  }
  return trials;
}

/// Queries [first, first + count) against all keys; the mask, made explicit, stays where it was.
Problem slice(const Problem& problem, const Attempt& trial, std::int64_t first, std::int64_t count) {
  Problem whole = problem;
  if (trial.causal) whole.is_causal = *trial.causal;
  if (trial.causal) whole.causal_align = trial.align;
  if (first == 0 && count == problem.q.rows()) return whole;
  Problem part = whole;
  part.q = problem.q.middleRows(first, count);
  part.is_causal = false;
  if (!whole.is_causal && !whole.mask) return part;
  part.mask = whole.mask ? MatrixD(whole.mask->middleRows(first, count)) : MatrixD::Zero(count, problem.k.rows());
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t visible = whole.visible_keys(first + r);
    part.mask->row(r).tail(problem.k.rows() - visible).setConstant(-std::numeric_limits<double>::infinity());
  }
  return part;
}

struct Rows {
  std::int64_t first = 0, count = 0;
};

/// The block with the largest error, and the last one; everything where there are no more than that.
std::vector<Rows> blocks_of(const MatrixD& output, const MatrixD& reference, std::int64_t block) {
  const std::int64_t rows = output.rows();
  if (rows <= 2 * block) return {{0, rows}};
  const auto at = [&](std::int64_t first) { return Rows{first, std::min(block, rows - first)}; };
  Rows worst = at(0);
  double largest = -1;
  for (std::int64_t first = 0; first < rows; first += block) {
    const Rows here = at(first);
    const double error =
        (output.middleRows(first, here.count) - reference.middleRows(first, here.count)).cwiseAbs().sum();
    if (!(error > largest)) continue;
    largest = error;
    worst = here;
  }
  const Rows last = at((rows - 1) / block * block);
  if (worst.first == last.first) return {at(0), last};
  return {worst, last};
}

void compare(Attempt& trial, const Problem& problem, const MatrixD& output, const std::vector<Rows>& blocks,
             const format::Format& input_format) {
  // One scale for all of Q needs all of Q.
  const bool whole = (trial.recipe.q.scaled() && trial.recipe.q.granularity == quant::Granularity::per_tensor) ||
                     trial.recipe.query_heads == attention::QueryHeads::group;
  double off = 0, size = 0;
  std::int64_t equal = 0, count = 0;
  for (const Rows& block : blocks) {
    const Rows run = whole ? Rows{0, output.rows()} : block;
    MatrixD all;
    try {
      all = attention::run_recipe(slice(problem, trial, run.first, run.count), trial.recipe, input_format).o;
    } catch (const Error&) {
      // A change that does not fit these inputs, such as a normalized P over several tiles, resembles nothing.
      trial.found.distance = std::numeric_limits<double>::infinity();
      return;
    }
    for (std::int64_t r = 0; r < block.count; ++r) {
      for (Eigen::Index c = 0; c < output.cols(); ++c) {
        const double k = output(block.first + r, c), e = all(block.first - run.first + r, c);
        off += std::fabs(k - e);
        size += std::fabs(e);
        equal += k == e ? 1 : 0;
        ++count;
      }
    }
  }
  trial.found.distance = off / size;
  trial.found.equal = static_cast<double>(equal) / static_cast<double>(count);
}

}  // namespace

std::span<const UntriedKey> untried_keys() { return kUntried; }

std::set<std::string> tried_keys() {
  const Recipe plain;
  const auto before = attention::resolved(plain);
  std::set<std::string> keys;
  for (const Change& change : changes()) {
    if (change.key == kMask) continue;
    for (const std::string_view value : change.values) {
      Recipe changed = plain;
      attention::set(changed, change.key, value);
      const auto after = attention::resolved(changed);
      for (std::size_t i = 0; i < after.size(); ++i) {
        if (after[i] != before[i]) keys.insert(after[i].first);
      }
    }
  }
  return keys;
}

std::vector<Resemblance> resemblances(const CheckedHead& head, const Recipe& recipe, const format::Format& input_format,
                                      int threads) {
  const HeadProblem& part = head.parts.front();
  const std::int64_t rows = part.problem.q.rows();
  const MatrixD output = head.o.middleRows(part.first_row, rows);
  const MatrixD reference = head.reference.middleRows(part.first_row, rows);
  // Whole blocks of every tile size in the table.
  const std::vector<Rows> blocks = blocks_of(output, reference, std::lcm<std::int64_t>(recipe.q_block, 128));
  std::vector<Attempt> trials = trials_of(part.problem, recipe);
  parallel_for(static_cast<std::int64_t>(trials.size()), threads, [&](std::int64_t i) {
    compare(trials[static_cast<std::size_t>(i)], part.problem, output, blocks, input_format);
  });
  std::vector<Resemblance> found;
  for (Attempt& trial : trials) found.push_back(std::move(trial.found));
  std::stable_sort(found.begin(), found.end(), [](const Resemblance& a, const Resemblance& b) {
    // What is not finite is nearest to nothing.
    if (std::isfinite(a.distance) != std::isfinite(b.distance)) return std::isfinite(a.distance);
    return a.distance < b.distance;
  });
  return found;
}

std::string resemblance_text(const std::vector<Resemblance>& found, const Recipe& recipe) {
  const auto base = std::find_if(found.begin(), found.end(), [](const Resemblance& each) { return each.key.empty(); });
  const Resemblance& nearest = found.front();
  const auto figures = [](const Resemblance& each) {
    return fmt::format("{:.1f} % of the elements equal, relative L1 {:.3g}", 100 * each.equal, each.distance);
  };
  if (nearest.key.empty() || !(nearest.distance < 0.8 * base->distance)) {
    return fmt::format("explain: no single change of {} comes clearly nearer ({})", recipe.name, figures(*base));
  }
  return fmt::format("explain: looks like {} ({} = {}): {}; {} as it is: {}", nearest.words, nearest.key, nearest.value,
                     figures(nearest), recipe.name, figures(*base));
}

}  // namespace qattn::lab
