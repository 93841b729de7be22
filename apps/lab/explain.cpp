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
      {"qk_format", {"int8", "int4", "e4m3", "e5m2", "fp16", "bf16"}, "Q and K in {}"},
      {"pv_format", {"int8", "e4m3", "e5m2", "fp16", "bf16"}, "P and V in {}"},
      {"p_format", {"int8", "e4m3", "e5m2", "fp16", "bf16", "exact"}, "P in {}"},
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
      {"o_format", {"bf16", "fp16"}, "O rounded to {}"},
  };
  return kChanges;
}

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
    const MatrixD all =
        attention::run_recipe(slice(problem, trial, run.first, run.count), trial.recipe, input_format).o;
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
