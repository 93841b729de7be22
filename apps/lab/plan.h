// Which recipe each layer of a model should run under.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/dump_set.h"
#include "lab/runner.h"

namespace qattn::lab {

/// What decides how sensitive a layer is.
enum class Sensitivity : std::uint8_t { rel_l1, cos_sim, rmse };

/// "rel_l1", "cos_sim", "rmse". Throws Error(usage) that lists them.
Sensitivity parse_sensitivity(std::string_view name);

/// A layer: the calls whose paths agree in what `expression` finds (the whole path where it is empty or finds nothing).
struct PlannedLayer {
  std::string name;
  std::vector<std::size_t> calls;  ///< indices into DumpSet::calls()
  bool second = false;             ///< it takes the second of the two recipes
  double worst = 0.0;              ///< the decisive figure of the first recipe, its worst call
};

/// The layers of a set, in its order, undecided.
std::vector<PlannedLayer> layers_of(const DumpSet& dumps, const std::string& expression);

/// SageAttention, section 4.5: a layer keeps the first recipe where its cosine similarity exceeds `threshold` on every
/// call, and takes the second otherwise (also where a cosine is NaN). `accuracies` has one row a call:
/// call_accuracies().
void plan_by_threshold(std::vector<PlannedLayer>& layers, std::span<const Json> first, double threshold);

/// The `budget` layers in which the first recipe is worst take the second; ties go to the earlier layer.
void plan_by_budget(std::vector<PlannedLayer>& layers, std::span<const Json> first, Sensitivity by,
                    std::int64_t budget);

/// The rows over whole calls of trial `trial` of `trials`, in the order of DumpSet::calls().
std::vector<Json> call_rows(const RunResult& result, std::size_t trial, std::size_t trials);

/// What a plan costs: average and worst over calls of the rows that it chose.
metric::Summary planned_summary(const DumpSet& dumps, std::span<const Json> rows);

/// The row of each call under the plan.
std::vector<Json> planned_rows(const std::vector<PlannedLayer>& layers, std::span<const Json> first,
                               std::span<const Json> second);

}  // namespace qattn::lab
