// Which arithmetic an output looks like: the recipe with one thing changed that comes nearest to it.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/recipe.h"
#include "lab/checked_head.h"
#include "lab/report.h"

namespace qattn::lab {

/// One change and how near it comes, over the rows that were tried.
struct Resemblance {
  std::string key, value;  ///< empty: the recipe as it is
  std::string words;       ///< "per-block scales", "row sum taken from rounded P", ...
  double distance = 0;     ///< relative L1 between the kernel's output and the emulation
  double equal = 0;        ///< share of elements with the same code
};

/// The recipe and every single change that fits it, nearest first; equally near ones in the order of the table. Two
/// blocks of queries of the head are run, the one with the largest error and the last.
std::vector<Resemblance> resemblances(const CheckedHead& head, const attention::Recipe& recipe,
                                      const format::Format& input_format, int threads);

/// A key of recipes that is never changed, and why.
struct UntriedKey {
  std::string_view name, reason;
};
std::span<const UntriedKey> untried_keys();

/// The keys (of those that resolved() gives) that some change of the table touches.
std::set<std::string> tried_keys();

/// "looks like per-block scales (granularity = per_block): ...", or that no single change brings it nearer.
std::string resemblance_text(const std::vector<Resemblance>& found, const attention::Recipe& recipe);

}  // namespace qattn::lab
