// The sweep engine: every cell once, whatever kills the program in between.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/dump_set.h"
#include "lab/measurement.h"
#include "lab/results.h"

namespace qattn::lab {

struct SweepOptions {
  std::string output;    ///< the results file; its journal is <output>.journal while the sweep is under way
  int threads = 0;       ///< 0: one for each core
  bool restart = false;  ///< throw away what is there instead of going on with it
  const ReferenceCache* references = nullptr;  ///< float64 references kept on disk; nullptr: computed
  const Device* device = nullptr;              ///< where recipes run; nullptr: on the CPU
  /// Called from any thread, one at a time, after each cell: how many of those that were missing are done.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
  /// Asked before each cell; true ends the sweep with Interrupted when the cells in hand are done.
  std::function<bool()> cancelled = nullptr;
  /// Remarks for the user, one line each.
  std::function<void(const std::string&)> remark = nullptr;
};

/// A sweep that is to be run: what it measures, and how much of it is there.
struct SweepPlan {
  Results results;  ///< lists only
  std::vector<CellId> cells;
  std::string configuration;
};

/// With an upstream seed gradients are measured too (backward.h).
SweepPlan plan_sweep(const DumpSet& dumps, std::span<const Trial> trials,
                     std::optional<std::uint64_t> upstream_seed = std::nullopt);

/// Where the journal of a results file lies.
std::string journal_path(const std::string& output);

/// Measures every (call, batch, head, recipe, output) that neither the results file nor the journal has, each of which
/// is in the journal before the next begins; then writes the results file in one step and removes the journal. The rows
/// of what is returned are the same for every number of threads and of interruptions. Throws Error(usage) when file or
/// journal belong to another configuration or build, Error(input) when an input has changed, another sweep writes the
/// same output, or a file cannot be read or written (the finished cells stay in the journal), Interrupted.
Results run_sweep(const DumpSet& dumps, std::span<const Trial> trials, const SweepPlan& plan,
                  const SweepOptions& options);

/// Cells of the plan that are finished: all when the results file is complete, else those of the journal.
std::size_t count_finished(const SweepPlan& plan, const std::string& output);

}  // namespace qattn::lab
