#include "tile_choices.h"

#include <fmt/format.h>

#include "attention/scores.h"
#include "base/error.h"

namespace qattn::gpu {
namespace {

FloatFormat float_format(const format::Format* format) {
  if (format == &format::kFP16) return FloatFormat::fp16;
  if (format == &format::kBF16) return FloatFormat::bf16;
  if (format == nullptr || format == &format::kFP32 || format == &format::kFP64) return FloatFormat::fp32;
  throw Error(ErrorKind::usage, fmt::format("o_format: no kernel of ours returns {}", format->name));
}

}  // namespace

TileChoices tile_choices(const attention::Recipe& recipe, const attention::Problem& problem,
                         const format::Format& o_format) {
  TileChoices choices;
  choices.q_block = recipe.q_block;
  choices.k_block = recipe.k_block;
  choices.descending = recipe.tile_order == attention::TileOrder::descending;
  choices.causal = problem.is_causal;
  if (attention::causal_alignment(problem, recipe) == attention::CausalAlign::bottom_right) {
    choices.causal_offset = static_cast<int>(problem.k.rows() - problem.q.rows());
  }
  choices.max_before_mask = recipe.row_max == attention::RowMax::before_mask;
  choices.sum_rounded = recipe.row_sum == attention::RowSum::rounded;
  choices.rescale_threshold = static_cast<float>(recipe.rescale_threshold);
  choices.p_scale = static_cast<float>(attention::resolved_p_scale(recipe));
  // An integer sum is exact and never outlives a tile, whatever the recipe says.
  choices.promotion = recipe.p.integer() && recipe.v.integer() ? -1 : recipe.promotion;
  choices.s_format = float_format(recipe.s_format);
  choices.o_format = float_format(&o_format);
  return choices;
}

}  // namespace qattn::gpu
