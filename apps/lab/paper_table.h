// The papers' tables: their figures as data, and ours beside them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/dump_set.h"
#include "lab/report.h"
#include "lab/runner.h"

namespace qattn::lab {

/// One row of a paper's table.
struct PaperRow {
  std::string label;
  std::optional<attention::Recipe> recipe;  ///< what we run for it; none: only the paper's figures are known
  Json paper;                               ///< {"cos_sim": ..., "rel_l1": ..., "rmse": ...}, those that are printed
};

/// An entry of data/papers: <id>.toml.
struct PaperTable {
  std::string id;
  std::string title;
  std::string source;     ///< where the figures are printed
  std::string tensors;    ///< what the paper measured
  std::string note;       ///< what to know when comparing; may be empty
  std::string statistic;  ///< "average" over calls, or the "worst" call, metric by metric
  std::vector<PaperRow> rows;
};

/// The table `id` of data/papers, or the one in the file `id` when it ends in .toml. A file has `title`, `source`,
/// `tensors`, `statistic`, optionally `note`, `base` (a recipe) and `set` (a list of KEY=VALUE for all rows), and an
/// array `row` of `label`, `paper` and optionally `recipe` (in place of the base) and `set`. Throws Error(usage)
/// "file:line: reason".
PaperTable load_paper_table(std::string_view id);
std::vector<PaperTable> load_all_paper_tables();

/// The trials of the rows that have a recipe, with the labels `row` (the paper's name of it) and `paper`.
std::vector<Trial> trials_of(const PaperTable& table);

/// An ordering that the paper's figures show: row `better` before row `worse` in `metric`.
struct Ordering {
  std::string metric;
  std::size_t better = 0, worse = 0;  ///< indices into PaperTable::rows
  bool holds = false;                 ///< in our figures
};

/// Every ordering of two rows of which the paper prints different figures. `ours` has one row a paper row (null where
/// there is none).
std::vector<Ordering> orderings(const PaperTable& table, const std::vector<Json>& ours);

/// The paper's table with ours beside it; `result` is that of trials_of(table), or nullptr without a dump.
Report compare(const PaperTable& table, const DumpSet* dumps, const RunResult* result);

}  // namespace qattn::lab
