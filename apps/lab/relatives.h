// Recipes that an honest kernel of a recipe's formats might follow as well: what their errors show is no mistake.
#pragma once

#include <vector>

#include "attention/recipe.h"
#include "lab/checked_head.h"

namespace qattn::lab {

/// The recipe with choices that no two kernels share changed, several at a time: the other row sum, other scales of P
/// and of V (so that both round elsewhere), V smoothed or not, other tiles and their order, scales for each token and K
/// smoothed, sums that are cut as Hopper's FP8 sums are. Formats stay. Changes that the recipe cannot take are left
/// out.
std::vector<attention::Recipe> relatives(const attention::Recipe& recipe);

/// Sets head.related to what they return on a head of these dumps.
void add_related(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe);

}  // namespace qattn::lab
