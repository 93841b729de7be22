// A recipe's choices as our kernels take them.
#pragma once

#include "attention/problem.h"
#include "attention/recipe.h"
#include "device_operands.h"
#include "format/format.h"

namespace qattn::gpu {

/// The choices for one problem, O rounded to `o_format`. Throws Error(usage) for a format that kernels do not return.
TileChoices tile_choices(const attention::Recipe& recipe, const attention::Problem& problem,
                         const format::Format& o_format);

}  // namespace qattn::gpu
