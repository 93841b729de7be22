// Runs recipes over the calls of a dump and measures them against the float64 reference.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/dump_set.h"
#include "lab/measurement.h"
#include "lab/report.h"
#include "metric/accuracy.h"

namespace qattn::lab {

/// A head's output that has a NaN or Inf.
struct BadOutput {
  std::string call;
  std::int64_t batch = 0, head = 0;
  std::string recipe;
  std::string output;
  std::int64_t nan_count = 0, inf_count = 0;
  metric::Location first;
  std::string input;  ///< the first NaN or Inf of the head's inputs; empty when they are finite
};

struct RunOptions {
  int threads = 0;                             ///< 0: one for each core
  const ReferenceCache* references = nullptr;  ///< float64 references kept on disk; nullptr: computed
  const Device* device = nullptr;              ///< where recipes run; nullptr: on the CPU
  /// Gradients too, with this seed for the upstream gradients of calls that have none; unset: the forward pass alone.
  std::optional<std::uint64_t> upstream_seed = std::nullopt;
  /// Called from any thread, one at a time, after each (call, batch, head).
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
  /// Asked before each (call, batch, head); true ends the run with Interrupted.
  std::function<bool()> cancelled = nullptr;
};

/// The user asked to stop.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

struct RunResult {
  /// Call by call: for each (batch, head) one row a trial, then for the whole call one row a trial; each of them one a
  /// output in the order of kOutputs. dk and dv stand under the number of their key/value head. The same for every
  /// number of threads.
  std::vector<Json> rows;
  std::size_t outputs = 1;                 ///< kOutputs' first so many
  std::vector<metric::Summary> summaries;  ///< over calls: trial by trial, output by output
  std::vector<BadOutput> bad;              ///< in the order of the rows
};

/// Throws Error(usage) with file, call and recipe where a selected head cannot run under a trial (its rotation does not
/// take the call's head_dim).
void check_fit(const DumpSet& dumps, std::span<const Trial> trials);

/// "NAME: exceptions 'layer_99' finds none of the selected heads" for each rule of the trials' exceptions that does
/// not.
std::vector<std::string> idle_exceptions(const DumpSet& dumps, std::span<const Trial> trials);

/// The unit of work is a (call, batch, head), or a key/value head with its query heads for gradients: its float64
/// reference is computed once for all trials, trials with the same keys once for all of them, and no more than one unit
/// a thread is in memory.
RunResult run_trials(const DumpSet& dumps, std::span<const Trial> trials, const RunOptions& options);

/// The columns of the rows in readable forms, and all keys of a row in order; `labels` are the trials' keys.
/// With `several_files` the file too, since calls of two dumps may have one path.
std::vector<Column> row_columns(const std::vector<std::string>& labels, bool several_files = false);
std::vector<std::string> row_keys(const std::vector<std::string>& labels);

/// Two summary rows a trial, "average" and "worst" over calls (each metric's own worst, its call beside it).
std::vector<Json> summary_rows(std::span<const Trial> trials, const RunResult& result);
std::vector<Column> summary_columns(const std::vector<std::string>& labels);

/// "layer_00, batch 0, head 3: the output of sage2-4b has 64 NaN ...", one line.
std::string describe(const BadOutput& bad);

}  // namespace qattn::lab
