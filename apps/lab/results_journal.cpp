// Records of two kinds: "H" and a JSON object begins a run, "C" and a cell in compact bytes belongs to the run before
// it, whose lists its indices mean.
#include "lab/results_journal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace qattn::lab {
namespace {

constexpr char kRunRecord = 'H';
constexpr char kCellRecord = 'C';

/// One run as the journal has it.
struct Run {
  std::string configuration;
  Results results;
};

Json lists_json(const Results& results) {
  Json inputs = Json::array(), calls = Json::array(), recipes = Json::array();
  for (const ResultInput& i : results.inputs) {
    inputs.push_back({{"file", i.file}, {"bytes", i.bytes}, {"sha256", i.sha256}});
  }
  for (const ResultCall& c : results.calls) calls.push_back({{"input", c.input}, {"path", c.path}, {"label", c.label}});
  for (const ResultRecipe& r : results.recipes) {
    recipes.push_back({{"name", r.name}, {"evidence", r.evidence}, {"keys", r.keys}});
  }
  return {{"inputs", inputs}, {"calls", calls}, {"recipes", recipes}};
}

std::string run_record(const Results& plan, const std::string& configuration, const Json& source) {
  Json run = {{"schema", kResultsSchema}, {"configuration", configuration}, {"source", source}};
  run.update(lists_json(plan));
  return kRunRecord + run.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Run parse_run(std::string_view text) {
  const Json json = Json::parse(text);
  if (json.at("schema") != kResultsSchema) throw Error(ErrorKind::input, "its schema is " + to_json(json.at("schema")));
  Run run;
  run.configuration = json.at("configuration");
  for (const Json& i : json.at("inputs")) run.results.inputs.push_back({i.at("file"), i.at("bytes"), i.at("sha256")});
  for (const Json& c : json.at("calls")) run.results.calls.push_back({c.at("input"), c.at("path"), c.at("label")});
  for (const Json& r : json.at("recipes")) {
    run.results.recipes.push_back({r.at("name"), r.at("evidence"), r.at("keys")});
  }
  for (const ResultCall& c : run.results.calls) run.results.inputs.at(c.input);
  run.results.sources.push_back(json.at("source"));
  return run;
}

std::string cell_record(const CellId& id, const Cell& cell) {
  ByteWriter bytes;
  bytes.put_unsigned(id.call);
  bytes.put_signed(id.batch);
  bytes.put_signed(id.head);
  bytes.put_unsigned(id.recipe);
  bytes.put_unsigned(id.output);
  bytes.put_text(cell.accuracy);
  bytes.put_text(cell.bad_input);
  return kCellRecord + bytes.bytes();
}

void parse_cell(std::string_view record, Results& results) {
  ByteReader bytes(record);
  CellId id;
  id.call = bytes.get_unsigned();
  id.batch = bytes.get_signed();
  id.head = bytes.get_signed();
  id.recipe = bytes.get_unsigned();
  id.output = bytes.get_unsigned();
  results.calls.at(id.call);
  results.recipes.at(id.recipe);
  static_cast<void>(kOutputs.at(id.output));
  Cell cell;
  cell.accuracy = bytes.get_text();
  cell.bad_input = bytes.get_text();
  accuracy_of(cell);
  results.cells.insert_or_assign(id, std::move(cell));
}

/// A run's record that damage took away was like the one before it, since all runs of a journal have one configuration;
/// without one before it `damaged` excuses cells that nobody can read any more.
std::vector<Run> parse(const std::vector<std::string>& records, bool damaged, const std::string& path) {
  std::vector<Run> runs;
  try {
    for (const std::string_view record : records) {
      if (record.starts_with(kRunRecord)) {
        runs.push_back(parse_run(record.substr(1)));
      } else if (record.starts_with(kCellRecord) && !runs.empty()) {
        parse_cell(record.substr(1), runs.back().results);
      } else if (record.starts_with(kCellRecord) && damaged) {
        continue;
      } else {
        throw Error(ErrorKind::input, "a record is of an unknown kind");
      }
    }
  } catch (const std::exception& e) {
    throw Error(ErrorKind::input, fmt::format("{}: cannot be understood ({}); --restart begins anew", path, e.what()));
  }
  return runs;
}

void check_inputs(const std::string& path, const Results& before, const Results& plan) {
  for (const ResultInput& now : plan.inputs) {
    for (const ResultInput& then : before.inputs) {
      if (then.file != now.file || then.sha256 == now.sha256) continue;
      throw Error(ErrorKind::input,
                  fmt::format("{}: {} has changed since the sweep began (SHA-256 {} then, {} now); put "
                              "it back, or begin anew with --restart",
                              path, now.file, then.sha256, now.sha256));
    }
  }
}

void check_build(const std::string& path, const Json& then, const Json& now) {
  for (const char* key : {"version", "commit"}) {
    if (find(then, key) == find(now, key)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{}: the sweep was begun by a build of {} {}, this one has {}; go on with "
                            "that build, or begin anew with --restart",
                            path, key, to_json(find(then, key)), to_json(find(now, key))));
  }
}

std::vector<std::string> missing_names(const Results& from, const Results& in) {
  std::vector<std::string> names;
  for (const ResultRecipe& recipe : from.recipes) {
    if (std::find(in.recipes.begin(), in.recipes.end(), recipe) == in.recipes.end()) names.push_back(recipe.name);
  }
  return names;
}

[[noreturn]] void refuse_configuration(const std::string& path, const Results& before, const Results& plan) {
  const std::vector<std::string> gone = missing_names(before, plan), added = missing_names(plan, before);
  std::string what = "other calls or heads";
  if (!gone.empty() || !added.empty()) {
    what = fmt::format("recipes only there: {}; only here: {}",
                       gone.empty() ? "none" : fmt::format("{}", fmt::join(gone, ", ")),
                       added.empty() ? "none" : fmt::format("{}", fmt::join(added, ", ")));
  }
  throw Error(ErrorKind::usage, fmt::format("{}: belongs to another configuration ({}); choose another output, or "
                                            "begin anew with --restart",
                                            path, what));
}

}  // namespace

ResultsJournal::ResultsJournal(const std::string& path, Results& plan, const std::string& configuration,
                               const Json& source, bool restart)
    : file_(path) {
  if (restart) file_.clear();
  for (const Run& run : parse(file_.records(), file_.damaged_bytes() > 0, path)) {
    check_inputs(path, run.results, plan);
    check_build(path, run.results.sources.front(), source);
    if (run.configuration != configuration) refuse_configuration(path, run.results, plan);
    take_cells(plan, run.results);
  }
  if (file_.dropped_bytes() > 0) {
    note_ = fmt::format("{}: the last {} bytes are no whole record, as a killed run leaves them, and are dropped", path,
                        file_.dropped_bytes());
  }
  if (file_.damaged_bytes() > 0) {
    note_ +=
        fmt::format("{}{}: {} bytes between its records are damaged; the cells that stood there are measured again",
                    note_.empty() ? "" : "; ", path, file_.damaged_bytes());
  }
  source_ = plan.sources.size();
  plan.sources.push_back(source);
  file_.append(run_record(plan, configuration, source));
}

void ResultsJournal::append(const CellId& id, const Cell& cell) { file_.append(cell_record(id, cell)); }

std::size_t finished_cells(const std::string& path, const Results& plan, const std::string& configuration) {
  Results found = plan;
  const Records journal = peek_records(path);
  for (const Run& run : parse(journal.records, journal.damaged > 0, path)) {
    if (run.configuration == configuration) take_cells(found, run.results);
  }
  return found.cells.size();
}

}  // namespace qattn::lab
