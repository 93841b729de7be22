// What a sweep has measured, in memory: calls, recipes, finished cells and where each comes from.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/backward.h"
#include "lab/dump_set.h"
#include "lab/measurement.h"
#include "lab/report.h"
#include "lab/runner.h"
#include "metric/accuracy.h"

namespace qattn::lab {

inline constexpr std::string_view kResultsSchema = "qattn-results/1";

/// A dump that cells were measured on.
struct ResultInput {
  std::string file;
  std::uint64_t bytes = 0;
  std::string sha256;
};

struct ResultCall {
  std::size_t input = 0;  ///< index into Results::inputs
  std::string path;
  std::string label;  ///< as SelectedCall has it
};

struct ResultRecipe {
  std::string name;
  std::string evidence;                     ///< of the accumulators
  std::map<std::string, std::string> keys;  ///< every key that has a part in the numbers, resolved
  bool operator==(const ResultRecipe&) const = default;
};

/// One output of one (call, batch, head) under one recipe; ordered as rows are. Indices into the Results' lists and
/// into kOutputs; the head of dk and dv is a key/value head.
struct CellId {
  std::size_t call = 0;
  std::int64_t batch = 0, head = 0;
  std::size_t recipe = 0;
  std::size_t output = 0;
  auto operator<=>(const CellId&) const = default;
};

struct Cell {
  std::size_t source = 0;  ///< index into Results::sources: which run measured it
  std::string accuracy;    ///< metric::Accuracy as save() writes it: a kilobyte instead of eleven
  std::string bad_input;   ///< first_bad_input() where the output is not finite, else empty
  bool same_result(const Cell& other) const { return accuracy == other.accuracy && bad_input == other.bad_input; }
};

struct Results {
  std::vector<ResultInput> inputs;
  std::vector<ResultCall> calls;
  std::vector<ResultRecipe> recipes;
  /// Set where gradients are measured too: the seed of the upstream gradients of calls without `do`.
  std::optional<std::uint64_t> upstream_seed;
  std::vector<Json> sources;  ///< one object a run: tool, version, commit, compiler, SIMD target, threads, ...
  std::map<CellId, Cell> cells;
};

/// Inputs (their digests included), calls and recipes of a sweep that is to come; no cells.
Results planned_results(const DumpSet& dumps, std::span<const Trial> trials,
                        std::optional<std::uint64_t> upstream_seed = std::nullopt);

/// SHA-256 over the resolved recipes, the upstream seed and over which (input, call, batch, head, recipe, output) are
/// measured, inputs by their digests. The order of recipes, the names of files, threads and the machine do not enter.
std::string configuration_hash(const Results& results, std::span<const CellId> cells);

/// Every cell's id.
std::vector<CellId> cell_ids(const Results& results);

Cell make_cell(std::size_t source, const metric::Accuracy& accuracy, std::string bad_input);
/// Throws Error(input) when the bytes are damaged.
metric::Accuracy accuracy_of(const Cell& cell);

/// Rows, summaries (one a recipe and output) and outputs that are not finite, as run_trials() gives them; a whole
/// call's row merges the cells that are there.
RunResult rows_of(const Results& results);

/// The recipes as trials that summary_rows() can name.
std::vector<Trial> named_trials(const Results& results);

/// All cells of both. Inputs are the same when their digests are, recipes when their names are. Throws Error(input)
/// when a recipe of one name has other keys, when upstream seeds differ, when builds of different version or commit
/// measured them, or when a cell that both have differs.
Results merge_results(const Results& a, const Results& b);

/// For every cell of `from` whose input, call and recipe `into` has too: the cell under `into`'s indices. `into`
/// keeps its lists but for sources, which are added.
void take_cells(Results& into, const Results& from);

}  // namespace qattn::lab
