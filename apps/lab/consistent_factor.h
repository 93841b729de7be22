// A scale that is slightly wrong all over a head, a channel or a tile: smaller than what the recipe loses, and yet to
// be told from its errors, because it leads the same way in every row.
#pragma once

#include <optional>

#include "attention/recipe.h"
#include "lab/checked_head.h"
#include "lab/diagnosis.h"

namespace qattn::lab {

/// A factor that o, one channel of it, the part of o that 64 keys give, or that part in one block of 64 rows has, and
/// that the recipe's rounding does not explain.
///
/// With r float64 attention, e the recipe's output and u such a part of r (a channel less its mean), o - r is first
/// freed of what it shares with the recipe's own error: d = o - r - s (e - r), s from shared_error(). The factor is 1 +
/// <d, u> / <u, u>. It counts when it stands out by kDeviations (consistent_factor.cpp) of its jackknife deviation,
/// rows and channels left out one at a time and rows that are alike together, beyond a quarter of what the recipe's own
/// error has along u; when it moves u by a fair share of the recipe's error there; and, with head.related, when at
/// least half of it is left beside each relative, and it either is the main difference between kernel and recipe or
/// exceeds twice what the relatives differ by from the recipe along u. A channel's factor also has to exceed what a
/// single rounding of V can make of it.
///
/// `factor` is --factor: above 2 more of the recipe's error has to be exceeded in proportion. Blocks of rows are tried
/// up to kMostBlocks, spread evenly.
std::optional<Finding> consistent_factor(const CheckedHead& head, const attention::Recipe& recipe, double factor);

}  // namespace qattn::lab
