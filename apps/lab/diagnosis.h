// What a wrong output looks like: known mistakes of kernels, each tried against what the kernel returned.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/recipe.h"
#include "lab/checked_head.h"
#include "lab/dump_set.h"

namespace qattn::lab {

/// A mistake that explains an output.
struct Finding {
  std::string name;    ///< "stale tile", "wrong mask", "all zeros", ...
  std::string detail;  ///< one sentence: what, and where
  double residual =
      0;  ///< relative L1 between the output and what the mistake would give, over the rows that were tried
};

/// The mistake that explains a wrong head best, if one does: what remains unexplained is at most half of the error, and
/// within three times what the recipe itself loses. Some tens of rows are tried, in float64, so it takes well under a
/// second. `recipe` tells tile sizes and scale groups.
std::optional<Finding> diagnose(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe);

/// A mistake in a head that is within its limits, hidden by what the recipe itself loses: the output is off float64 in
/// the direction in which the mistake leads and about as far, which the recipe's own output is not, and by far more
/// than rounding errors of that size happen to line up. Only mistakes without a number to fit are tried (masks, tiles,
/// other heads and layouts, scale groups off by a power of two). Nothing for recipes that lose less than half a
/// percent.
/// After those: rows that repeat others, stray elements (stray_values.h), and factors that hold all over a head, a
/// channel or a tile (consistent_factor.h). What is found has to hold beside the recipe's relatives too, which
/// are then added to the head. `factor` is --factor.
std::optional<Finding> hidden_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                      double factor);

/// Those last ones alone.
std::optional<Finding> small_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                     double factor);

/// Which rows and channels of a head are wrong, in words; for outputs that nothing explains.
std::string locate(const CheckedHead& head);

}  // namespace qattn::lab
