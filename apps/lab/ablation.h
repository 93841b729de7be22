// Ablations: one quantity of a recipe changed at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/recipe.h"
#include "lab/runner.h"

namespace qattn::lab {

/// What can be varied. Adding one is adding one entry to the table in ablation.cpp.
struct Axis {
  std::string_view name;
  std::string_view help;
  std::vector<std::string_view> values;  ///< those that are run when the user names none
  /// The trial at `value`. Throws Error(usage) when the recipe has no such value.
  Trial (*apply)(const attention::Recipe& base, std::string_view axis, std::string_view value);
};

/// smoothing, granularity, qk_format, pv_format, accumulator, promotion, smooth_v, stage, ...
std::span<const Axis> axes();

struct Ablation {
  std::vector<Trial> trials;          ///< each with the labels `axis` and `value`
  std::vector<std::string> left_out;  ///< why values of the axis' own list do not fit the recipe, a line each
};

/// The trials of "AXIS" (its own values, as far as they fit the recipe) or "AXIS=VALUE,VALUE,..."; then AXIS may also
/// be any key of a recipe, and a value that does not fit throws Error(usage), as an unknown axis does.
Ablation ablate(const attention::Recipe& base, std::string_view axis);

}  // namespace qattn::lab
