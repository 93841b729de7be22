// The tiled online-softmax pipeline: one head through a recipe.
#pragma once

#include "attention/problem.h"
#include "attention/recipe.h"
#include "attention/reference.h"

namespace qattn::attention {

/// Runs `recipe` on one head; `input_format` is the format of q in the dump, which a recipe may round O to.
/// o and lse are as in Output (natural logarithm, of the unshifted scores, without P's scale), o's values are those of
/// the recipe's output format. The order of operations is in pipeline.cpp, step by step; the result is the same for
/// every machine, thread count and path of its instructions. Throws Error(usage) as validate() does.
Output run_recipe(const Problem& problem, const Recipe& recipe, const format::Format& input_format,
                  mma::Path path = mma::Path::fast);

/// Throws what run_recipe() throws for a problem and a recipe that do not fit together or each by itself.
void check_runnable(const Problem& problem, const Recipe& recipe);

/// The same with exact P V accumulation in place of the recipe's accumulators: what remains between the two is the
/// accumulator's error alone.
Recipe with_exact_accumulators(const Recipe& recipe);

}  // namespace qattn::attention
