// The papers' tables: their figures as data, and ours beside them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/dump_set.h"
#include "lab/report.h"
#include "lab/runner.h"
#include "lab/synth_distribution.h"

namespace qattn::lab {

/// A matrix product in place of attention: the error of an instruction's chain (gemm_error.h).
struct ProductRow {
  std::string instruction;
  std::int64_t k = 0, promotion = 0;
};

/// One row of a paper's table.
struct PaperRow {
  std::string label;
  std::optional<attention::Recipe> recipe;  ///< what we run for it; none: only the paper's figures are known
  Json paper;                ///< {"cos_sim": ..., "rel_l1": ..., "rel_l2": ..., "rmse": ...}, those that are printed
  std::string output = "o";  ///< "o", "dq", "dk" or "dv"
  SynthValues values = {};   ///< of the distribution, in place of the table's
  std::map<std::string, std::string> why = {};  ///< by metric: why its figure does not lie within our spread
  std::optional<ProductRow> product = std::nullopt;
};

/// The tensors of a table that says how its own were drawn.
struct SyntheticTensors {
  const Distribution* distribution = nullptr;  ///< nullptr: rows are products
  SynthValues values;
  std::int64_t first_seed = 1, seeds = 8;
  std::int64_t heads = 1, tokens = 1024, head_dim = 64;
  std::int64_t queries = 0;  ///< 0: as many as tokens; fewer measure the same error on part of the rows
  const format::Format* format = &format::kFP16;
  bool is_causal = false;
  std::string chosen;            ///< what the paper does not state and how it was chosen here
  int decimals = 0, digits = 0;  ///< to which the paper prints its figures; 0: not said
};

/// The values that a row's tensors are drawn with: the row's own, and the table's where the row has none.
SynthValues drawn_values(const SyntheticTensors& tensors, SynthValues of_row);

/// An entry of data/papers: <id>.toml.
struct PaperTable {
  std::string id;
  std::string title;
  std::string source;     ///< where the figures are printed
  std::string tensors;    ///< what the paper measured
  std::string note;       ///< what to know when comparing; may be empty
  std::string statistic;  ///< "average" over calls, or the "worst" call, metric by metric
  std::vector<PaperRow> rows;
  std::optional<SyntheticTensors> synthetic;  ///< unset: the tensors are a model's, ours those of a dump
};

/// The metrics that a table may print, in the order of its columns.
struct TableMetric {
  const char* key;
  const char* title;
  int decimals;
  bool higher_is_better;
};
std::span<const TableMetric> table_metrics();

/// The table `id` of data/papers, or the one in the file `id` when it ends in .toml. A file has `title`, `source`,
/// `tensors`, `statistic`, optionally `note`, `base` (a recipe) and `set` (a list of KEY=VALUE for all rows), and an
/// array `row` of `label`, `paper` and optionally `recipe` (in place of the base) and `set`. A table whose tensors can
/// be drawn has a table `synthetic` (SyntheticTensors; the distribution's parameters under `values`), and its rows may
/// have `output`, `values`, `why` (a text, or one a metric) and, in place of a recipe, `product`. Throws Error(usage)
/// "file:line: reason".
PaperTable load_paper_table(std::string_view id);
std::vector<PaperTable> load_all_paper_tables();

/// The dumps that the tables of models run on unless the user names others: data/real/smollm2_*.h5. Throws Error(input)
/// when there are none.
std::vector<std::string> default_dumps();

/// The trials of the rows that have a recipe, with the labels `row` (the paper's name of it) and `paper`.
std::vector<Trial> trials_of(const PaperTable& table);

/// Whether a row is of a gradient, so that trials_of() are to run with RunOptions::upstream_seed.
bool needs_gradients(const PaperTable& table);

/// An ordering that the paper's figures show: row `better` before row `worse` in `metric`.
struct Ordering {
  std::string metric;
  std::size_t better = 0, worse = 0;  ///< indices into PaperTable::rows
  bool holds = false;                 ///< in our figures
};

/// Every ordering of two rows of one output of which the paper prints different figures. `ours` has one row a paper row
/// (null where there is none).
std::vector<Ordering> orderings(const PaperTable& table, const std::vector<Json>& ours);

/// How many of the paper's orderings hold, metric by metric; those that do not, both sides' figures; all of them.
Table ordering_table(const std::vector<Ordering>& all);
Table broken_table(const PaperTable& table, const std::vector<Json>& ours, const std::vector<Ordering>& all);
Json orderings_json(const PaperTable& table, const std::vector<Ordering>& all);

/// The paper's table with ours beside it; `result` is that of trials_of(table) on `dumps`, with this seed for upstream
/// gradients where the table has rows of gradients. The report's rows are those of each row's own output.
Report compare(const PaperTable& table, const DumpSet& dumps, const RunResult& result,
               std::optional<std::uint64_t> upstream_seed = std::nullopt);

}  // namespace qattn::lab
