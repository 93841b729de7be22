// Cells, journal, results file.
#include "lab/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/parallel.h"
#include "lab/backward.h"
#include "lab/provenance.h"
#include "lab/results_file.h"
#include "lab/results_journal.h"

namespace qattn::lab {
namespace {

/// Who measures: the provenance of this run.
Json source_of(std::span<const Trial> trials, const SweepOptions& options) {
  const int threads = options.threads;
  Json source = tool_context();
  source["device"] = device_name(options.device);
  source["threads"] = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
  std::set<std::uint64_t> seeds;
  for (const Trial& trial : trials) seeds.insert(trial.recipe.rotation_seed);
  source["seed"] = fmt::format("rotation_seed {}", fmt::join(seeds, ", "));
  return source;
}

/// The results that the file at `output` holds, under the plan's lists, when they are of this configuration and
/// complete; else nothing. Throws when the file is of another configuration.
std::optional<Results> finished_results(const SweepPlan& plan, const std::string& output) {
  if (!std::filesystem::exists(output)) return std::nullopt;
  check_replaceable(output);
  const Results found = read_results(output);
  if (configuration_hash(found, cell_ids(found)) != plan.configuration) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: holds the results of another configuration or of other inputs; choose "
                            "another output, or replace it with --restart",
                            output));
  }
  Results results = plan.results;
  take_cells(results, found);
  return results;
}

/// The cells of one unit of work that are missing: a (call, batch, head), or a key/value head with its query heads.
struct Work {
  Piece piece;
  std::vector<CellId> cells;
};

Work missing_work(const SweepPlan& plan, const Results& results, const Piece& piece,
                  const std::vector<std::pair<std::size_t, std::int64_t>>& outputs) {
  Work work{piece, {}};
  for (std::size_t recipe = 0; recipe < plan.results.recipes.size(); ++recipe) {
    for (const auto& [output, head] : outputs) {
      const CellId id = {piece.call, piece.batch, head, recipe, output};
      if (!results.cells.contains(id)) work.cells.push_back(id);
    }
  }
  return work;
}

/// What each unit of a sweep gives.
std::vector<std::pair<Piece, std::vector<std::pair<std::size_t, std::int64_t>>>> units_of(const DumpSet& dumps,
                                                                                          bool backward) {
  std::vector<std::pair<Piece, std::vector<std::pair<std::size_t, std::int64_t>>>> units;
  for (const Piece& piece : backward ? groups_of(dumps) : pieces_of(dumps)) {
    units.emplace_back(piece, std::vector{std::pair(std::size_t{0}, piece.head)});
    if (backward) units.back().second = group_outputs(dumps.calls()[piece.call], piece);
  }
  return units;
}

/// A unit's reader, opened when the first recipe needs it.
class Unit {
 public:
  Unit(const DumpSet& dumps, const Piece& piece, std::optional<std::uint64_t> upstream_seed,
       const SweepOptions& options)
      : dumps_(dumps), piece_(piece), upstream_seed_(upstream_seed), options_(options) {}

  std::vector<Measured> measure(const attention::Recipe& recipe) {
    if (upstream_seed_) {
      if (!group_) group_.emplace(dumps_, piece_, *upstream_seed_);
      return group_->measure(recipe);
    }
    if (!head_) head_.emplace(dumps_, piece_, options_.references, options_.device);
    return {{0, piece_.head, head_->measure(recipe)}};
  }

  std::string bad_input() const { return group_ ? group_->first_bad_input() : first_bad_input(head_->parts()); }

 private:
  const DumpSet& dumps_;
  const Piece& piece_;
  std::optional<std::uint64_t> upstream_seed_;
  const SweepOptions& options_;
  std::optional<HeadMeasurement> head_;
  std::optional<GroupMeasurement> group_;
};

class Engine {
 public:
  Engine(const DumpSet& dumps, std::span<const Trial> trials, const SweepOptions& options, Results& results,
         ResultsJournal& journal)
      : dumps_(dumps), trials_(trials), options_(options), results_(results), journal_(journal) {
    std::map<std::string, std::size_t> first;
    for (std::size_t t = 0; t < trials.size(); ++t) {
      twin_.push_back(first.try_emplace(recipe_key(trials[t].recipe), t).first->second);
    }
  }

  void run(const std::vector<Work>& work) {
    for (const Work& w : work) total_ += static_cast<std::int64_t>(w.cells.size());
    parallel_for(static_cast<std::int64_t>(work.size()), options_.threads, [&](std::int64_t i) {
      if (failed_) return;
      try {
        measure(work[static_cast<std::size_t>(i)]);
      } catch (...) {
        failed_ = true;
        throw;
      }
    });
  }

 private:
  void measure(const Work& work) {
    Unit unit(dumps_, work.piece, results_.upstream_seed, options_);
    using Place = std::tuple<std::size_t, std::size_t, std::int64_t>;  // first twin, output, head
    std::map<Place, Cell> done;
    for (const CellId& id : work.cells) {
      if (failed_) return;
      if (options_.cancelled && options_.cancelled()) throw Interrupted();
      const std::size_t twin = twin_[id.recipe];
      if (!done.contains({twin, id.output, id.head})) {
        for (const Measured& m : unit.measure(trials_[twin].recipe)) {
          const std::string bad = m.accuracy.first_bad() ? unit.bad_input() : "";
          done.emplace(Place(twin, m.output, m.head), make_cell(journal_.source(), m.accuracy, bad));
        }
      }
      deliver(id, done.at({twin, id.output, id.head}));
    }
  }

  void deliver(const CellId& id, const Cell& cell) {
    journal_.append(id, cell);
    const std::lock_guard lock(mutex_);
    results_.cells.emplace(id, cell);
    ++done_;
    if (options_.progress) options_.progress(done_, total_);
  }

  const DumpSet& dumps_;
  std::span<const Trial> trials_;
  const SweepOptions& options_;
  Results& results_;
  ResultsJournal& journal_;
  std::vector<std::size_t> twin_;  ///< the first trial with the same keys
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::int64_t done_ = 0, total_ = 0;
};

void measure_missing(const DumpSet& dumps, std::span<const Trial> trials, const SweepPlan& plan,
                     const SweepOptions& options, Results& results, ResultsJournal& journal) {
  try {
    std::vector<Work> work;
    for (const auto& [piece, outputs] : units_of(dumps, plan.results.upstream_seed.has_value())) {
      work.push_back(missing_work(plan, results, piece, outputs));
      if (work.back().cells.empty()) work.pop_back();
    }
    Engine(dumps, trials, options, results, journal).run(work);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{} ({} of {} cells are kept in {}; the same command goes on with them)",
                                      e.what(), results.cells.size(), plan.cells.size(), journal_path(options.output)));
  }
}

}  // namespace

std::string journal_path(const std::string& output) { return output + ".journal"; }

SweepPlan plan_sweep(const DumpSet& dumps, std::span<const Trial> trials, std::optional<std::uint64_t> upstream_seed) {
  check_fit(dumps, trials);
  SweepPlan plan;
  plan.results = planned_results(dumps, trials, upstream_seed);
  for (const auto& [piece, outputs] : units_of(dumps, upstream_seed.has_value())) {
    for (std::size_t t = 0; t < trials.size(); ++t) {
      for (const auto& [output, head] : outputs) plan.cells.push_back({piece.call, piece.batch, head, t, output});
    }
  }
  plan.configuration = configuration_hash(plan.results, plan.cells);
  return plan;
}

std::size_t count_finished(const SweepPlan& plan, const std::string& output) {
  if (finished_results(plan, output)) return plan.cells.size();
  return finished_cells(journal_path(output), plan.results, plan.configuration);
}

Results run_sweep(const DumpSet& dumps, std::span<const Trial> trials, const SweepPlan& plan,
                  const SweepOptions& options) {
  const auto remark = [&](const std::string& text) {
    if (options.remark && !text.empty()) options.remark(text);
  };
  check_device(options.device, trials, plan.results.upstream_seed.has_value());
  const std::string journal_file = journal_path(options.output);
  const auto finished = [&] { return options.restart ? std::nullopt : finished_results(plan, options.output); };
  check_replaceable(options.output);
  std::optional<Results> complete = finished();
  if (!complete || std::filesystem::exists(journal_file)) {
    Results results = plan.results;
    ResultsJournal journal(journal_file, results, plan.configuration, source_of(trials, options), options.restart);
    remark(journal.note());
    // Looked at again under the journal's lock: another sweep may have just ended.
    complete = finished();
    if (!complete) {
      if (!results.cells.empty()) {
        remark(fmt::format("{}: {} of {} cells are done, going on", journal_file, results.cells.size(),
                           plan.cells.size()));
      }
      measure_missing(dumps, trials, plan, options, results, journal);
      write_results(options.output, results);
      journal.remove();
      return results;
    }
    journal.remove();
  }
  remark(fmt::format("{}: complete, nothing is measured", options.output));
  return std::move(*complete);
}

}  // namespace qattn::lab
