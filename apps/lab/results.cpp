// From cells to rows, and one set of cells out of two.
#include "lab/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/sha256.h"
#include "lab/exceptions.h"

namespace qattn::lab {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
/// dk and dv, which come last in kOutputs, are of key/value heads.
constexpr std::size_t kFirstOfGroups = 2;
static_assert(kOutputs[kFirstOfGroups] == "dk" && kOutputs[kFirstOfGroups + 1] == "dv");

const std::string& digest_of(const Results& results, const ResultCall& call) {
  return results.inputs[call.input].sha256;
}

std::string cell_text(const Results& results, const CellId& id) {
  const std::string output = id.output == 0 ? "" : fmt::format("{} of ", kOutputs[id.output]);
  return fmt::format("{}, batch {}, head {}, {}{}", results.calls[id.call].label, id.batch, id.head, output,
                     results.recipes[id.recipe].name);
}

/// Index of the first element that satisfies, or kNone.
template <class List, class Predicate>
std::size_t index_where(const List& list, const Predicate& predicate) {
  const auto found = std::find_if(list.begin(), list.end(), predicate);
  return found == list.end() ? kNone : static_cast<std::size_t>(found - list.begin());
}

std::size_t find_call(const Results& in, const Results& of, const ResultCall& call) {
  return index_where(
      in.calls, [&](const ResultCall& c) { return c.path == call.path && digest_of(in, c) == digest_of(of, call); });
}

std::size_t find_recipe(const Results& in, const ResultRecipe& recipe) {
  return index_where(in.recipes, [&](const ResultRecipe& r) { return r.name == recipe.name; });
}

/// The same number does not come out of two builds unless they are the same source.
std::pair<std::string, std::string> build_of(const Json& source) {
  const auto text = [&](const char* key) { return source.contains(key) ? to_json(source.at(key)) : std::string(); };
  return {text("version"), text("commit")};
}

void check_builds(const Results& a, const Results& b) {
  for (const Json& x : a.sources) {
    for (const Json& y : b.sources) {
      const auto [version, commit] = build_of(x);
      const auto [other_version, other_commit] = build_of(y);
      if (version == other_version && commit == other_commit) continue;
      throw Error(ErrorKind::input, fmt::format("the results come from different builds, {} of commit {} and {} of "
                                                "commit {}; measure one of them again",
                                                version, commit, other_version, other_commit));
    }
  }
}

/// Adds to `into` the inputs, calls and recipes of `from` that it lacks.
void take_lists(Results& into, const Results& from) {
  for (const ResultRecipe& recipe : from.recipes) {
    const std::size_t known = find_recipe(into, recipe);
    if (known == kNone) {
      into.recipes.push_back(recipe);
    } else if (into.recipes[known] != recipe) {
      throw Error(ErrorKind::input,
                  fmt::format("the recipe '{}' has other keys in the one than in the other", recipe.name));
    }
  }
  for (ResultCall call : from.calls) {
    if (find_call(into, from, call) != kNone) continue;
    const ResultInput& input = from.inputs[call.input];
    call.input = index_where(into.inputs, [&](const ResultInput& i) { return i.sha256 == input.sha256; });
    if (call.input == kNone) {
      call.input = into.inputs.size();
      into.inputs.push_back(input);
    }
    const auto has_label = [&](const ResultCall& c) { return c.label == call.label; };
    if (std::any_of(into.calls.begin(), into.calls.end(), has_label)) {
      call.label = fmt::format("{}: {}", std::filesystem::path(input.file).filename().string(), call.label);
    }
    into.calls.push_back(std::move(call));
  }
}

/// Gathers the rows of one call.
class CallRows {
 public:
  CallRows(const Results& results, std::size_t call, RunResult& out) : results_(results), call_(call), out_(out) {
    whole_.resize(out.summaries.size());
    for (const ResultRecipe& recipe : results.recipes) rules_.emplace_back(key_of(recipe, "exceptions"));
    group_size_ = group_size();
  }

  void add(const CellId& id, const Cell& cell) {
    const metric::Accuracy accuracy = accuracy_of(cell);
    const std::size_t place = id.recipe * out_.outputs + id.output;
    out_.rows.push_back(row(place, std::pair(id.batch, id.head), accuracy));
    if (accuracy.first_bad()) {
      out_.bad.push_back({results_.calls[call_].label, id.batch, id.head, results_.recipes[id.recipe].name,
                          std::string(kOutputs[id.output]), accuracy.nan_count(), accuracy.inf_count(),
                          *accuracy.first_bad(), cell.bad_input});
    }
    std::optional<metric::Accuracy>& whole = whole_[place];
    if (whole) {
      whole->merge(accuracy);
    } else {
      whole = accuracy;
    }
  }

  void finish() {
    for (std::size_t place = 0; place < whole_.size(); ++place) {
      if (!whole_[place]) continue;
      out_.rows.push_back(row(place, std::nullopt, *whole_[place]));
      out_.summaries[place].add(*whole_[place], results_.calls[call_].label);
    }
  }

 private:
  /// `place` is the recipe's place times the number of outputs, plus the output's.
  Json row(std::size_t place, std::optional<std::pair<std::int64_t, std::int64_t>> batch_and_head,
           const metric::Accuracy& accuracy) const {
    const std::size_t recipe = place / out_.outputs;
    RowIdentity identity{results_.calls[call_].path, batch_and_head, results_.recipes[recipe].name};
    identity.evidence = results_.recipes[recipe].evidence;
    if (batch_and_head && !rules_[recipe].empty()) {
      const bool is_group = place % out_.outputs >= kFirstOfGroups;
      const std::int64_t size = is_group ? group_size_ : 1;
      identity.labels["exception"] = rules_[recipe].label(identity.call, batch_and_head->second * size, size,
                                                          key_of(results_.recipes[recipe], "exception_recipe"));
    }
    identity.file = results_.inputs[results_.calls[call_].input].file;
    identity.output = kOutputs[place % out_.outputs];
    return row_json(identity, accuracy);
  }

  static std::string key_of(const ResultRecipe& recipe, const char* key) {
    const auto found = recipe.keys.find(key);
    return found == recipe.keys.end() ? "" : found->second;
  }

  /// Query heads a key/value head. A group's outputs are measured together: there are so many times more of o.
  std::int64_t group_size() const {
    std::int64_t of_heads = 0, of_groups = 0;
    for (auto cell = results_.cells.lower_bound({call_}); cell != results_.cells.end(); ++cell) {
      if (cell->first.call != call_) break;
      of_heads += cell->first.output == 0 ? 1 : 0;
      of_groups += cell->first.output == kFirstOfGroups ? 1 : 0;
    }
    return of_groups == 0 ? 1 : std::max<std::int64_t>(1, of_heads / of_groups);
  }

  const Results& results_;
  std::size_t call_;
  RunResult& out_;
  std::vector<std::optional<metric::Accuracy>> whole_;
  std::vector<ExceptionRules> rules_;  ///< of the recipes
  std::int64_t group_size_ = 1;
};

}  // namespace

Results planned_results(const DumpSet& dumps, std::span<const Trial> trials,
                        std::optional<std::uint64_t> upstream_seed) {
  Results results;
  results.upstream_seed = upstream_seed;
  for (const std::string& file : dumps.files()) {
    results.inputs.push_back({file, std::filesystem::file_size(file), io::sha256_file(file)});
  }
  for (const SelectedCall& call : dumps.calls()) results.calls.push_back({call.file, call.call->path, call.label});
  for (const Trial& trial : trials) {
    const Exceptions exceptions(trial.recipe);
    ResultRecipe recipe{trial.recipe.name, exceptions.evidence(), {}};
    const auto add_keys = [&recipe](const attention::Recipe& from, const std::string& prefix) {
      for (const auto& [key, value] : attention::resolved(from)) {
        if (key != "name" && key != "description" && key != "source") recipe.keys.emplace(prefix + key, value);
      }
    };
    add_keys(trial.recipe, "");
    // Its name alone would not tell that the recipe's file was changed between two runs of a sweep.
    if (exceptions.other() != nullptr) add_keys(*exceptions.other(), "exception_recipe.");
    results.recipes.push_back(std::move(recipe));
  }
  return results;
}

std::string configuration_hash(const Results& results, std::span<const CellId> cells) {
  std::set<std::string> lines;
  for (const ResultRecipe& recipe : results.recipes) {
    lines.insert("recipe " + to_json(Json{recipe.name, recipe.keys}) + "\n");
  }
  if (results.upstream_seed) lines.insert(fmt::format("upstream seed {}\n", *results.upstream_seed));
  for (const CellId& id : cells) {
    const ResultCall& call = results.calls[id.call];
    Json cell = {digest_of(results, call), call.path, id.batch, id.head, results.recipes[id.recipe].name};
    if (results.upstream_seed) cell.push_back(kOutputs[id.output]);
    lines.insert("cell " + to_json(cell) + "\n");
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return io::sha256(text);
}

std::vector<CellId> cell_ids(const Results& results) {
  std::vector<CellId> ids;
  for (const auto& [id, cell] : results.cells) ids.push_back(id);
  return ids;
}

Cell make_cell(std::size_t source, const metric::Accuracy& accuracy, std::string bad_input) {
  ByteWriter bytes;
  accuracy.save(bytes);
  return {source, bytes.bytes(), std::move(bad_input)};
}

metric::Accuracy accuracy_of(const Cell& cell) {
  ByteReader bytes(cell.accuracy);
  metric::Accuracy accuracy = metric::Accuracy::load(bytes);
  if (!bytes.at_end()) throw Error(ErrorKind::input, "stored values are damaged: a cell is too long");
  return accuracy;
}

RunResult rows_of(const Results& results) {
  RunResult out;
  out.outputs = results.upstream_seed ? kOutputs.size() : 1;
  out.summaries.resize(results.recipes.size() * out.outputs);
  for (auto cell = results.cells.begin(); cell != results.cells.end();) {
    const std::size_t call = cell->first.call;
    CallRows rows(results, call, out);
    for (; cell != results.cells.end() && cell->first.call == call; ++cell) rows.add(cell->first, cell->second);
    rows.finish();
  }
  return out;
}

std::vector<Trial> named_trials(const Results& results) {
  std::vector<Trial> trials(results.recipes.size());
  for (std::size_t i = 0; i < trials.size(); ++i) trials[i].recipe.name = results.recipes[i].name;
  return trials;
}

void take_cells(Results& into, const Results& from) {
  std::vector<std::size_t> calls, recipes;
  for (const ResultCall& call : from.calls) calls.push_back(find_call(into, from, call));
  for (const ResultRecipe& recipe : from.recipes) {
    const std::size_t known = find_recipe(into, recipe);
    recipes.push_back(known != kNone && into.recipes[known] == recipe ? known : kNone);
  }
  const std::size_t first_source = into.sources.size();
  into.sources.insert(into.sources.end(), from.sources.begin(), from.sources.end());
  for (const auto& [id, cell] : from.cells) {
    const CellId here = {calls[id.call], id.batch, id.head, recipes[id.recipe], id.output};
    if (here.call == kNone || here.recipe == kNone) continue;
    const auto [entry, is_new] = into.cells.try_emplace(here, cell);
    if (is_new) {
      entry->second.source = first_source + cell.source;
    } else if (!entry->second.same_result(cell)) {
      throw Error(ErrorKind::input, fmt::format("{}: measured twice with different results", cell_text(into, here)));
    }
  }
}

Results merge_results(const Results& a, const Results& b) {
  check_builds(a, b);
  if (a.upstream_seed != b.upstream_seed) {
    throw Error(ErrorKind::input, "the one holds gradients that the other does not, or of other upstream gradients");
  }
  Results merged = a;
  take_lists(merged, b);
  take_cells(merged, b);
  return merged;
}

}  // namespace qattn::lab
