// Loading a paper's table, and setting our figures beside it.
#include "lab/paper_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "lab/backward.h"
#include "lab/data_folder.h"
#include "lab/exceptions.h"
#include "lab/recipe_file.h"
#include "lab/toml_file.h"
#include "mma/instruction.h"

namespace qattn::lab {
namespace {

using Metric = TableMetric;
constexpr Metric kMetrics[] = {{"cos_sim", "CosSim", 4, true},
                               {"rel_l1", "Rel. L1", 4, false},
                               {"rel_l2", "Rel. L2", 4, false},
                               {"rmse", "RMSE", 5, false},
                               {"mean_relative", "Mean rel. error", -1, false}};

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::usage, where + ": " + what);
}

void reject_unknown_keys(const toml::table& table, std::initializer_list<std::string_view> known,
                         const std::string& file) {
  for (const auto& [key, node] : in_file_order(table)) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(place(file, *node), fmt::format("unknown key '{}'; known are {}", key, fmt::join(known, ", ")));
    }
  }
}

std::vector<Override> overrides_of(const toml::table& table, const std::string& file) {
  std::vector<Override> overrides;
  const toml::node* set = table.get("set");
  if (set == nullptr) return overrides;
  if (!set->is_array()) fail(place(file, *set), "'set' is to be a list of \"KEY=VALUE\"");
  for (const toml::node& node : *set->as_array()) {
    overrides.push_back(parse_override(scalar_text(node, place(file, node))));
  }
  return overrides;
}

Json figures_of(const toml::table& row, const std::string& file) {
  const toml::node* node = row.get("paper");
  if (node == nullptr || !node->is_table())
    fail(place(file, row), "a row needs 'paper', a table of the printed figures");
  Json figures = Json::object();
  for (const auto& [key, value] : in_file_order(*node->as_table())) {
    const auto number = value->value<double>();
    const bool is_metric = std::any_of(std::begin(kMetrics), std::end(kMetrics),
                                       [&, &name = key](const Metric& metric) { return name == metric.key; });
    if (!is_metric || !number || !std::isfinite(*number))
      fail(place(file, *value),
           fmt::format("'{}' is no finite figure of cos_sim, rel_l1, rel_l2, rmse or mean_relative", key));
    figures[key] = *number;
  }
  return figures;
}

const toml::table* subtable(const toml::table& table, std::string_view key, const std::string& file) {
  const toml::node* node = table.get(key);
  if (node != nullptr && !node->is_table()) fail(place(file, *node), fmt::format("'{}' is to be a table", key));
  return node == nullptr ? nullptr : node->as_table();
}

SynthValues values_of(const toml::table& table, const std::string& file) {
  SynthValues values;
  const toml::table* given = subtable(table, "values", file);
  if (given == nullptr) return values;
  for (const auto& [key, node] : in_file_order(*given)) {
    const auto number = node->value<double>();
    if (!number) fail(place(file, *node), fmt::format("'{}' is to be a number", key));
    values.emplace(key, *number);
  }
  return values;
}

/// `why`: one text for every figure of the row, or a table of texts by metric.
std::map<std::string, std::string> reasons_of(const toml::table& row, const Json& figures, const std::string& file) {
  std::map<std::string, std::string> reasons;
  const toml::node* why = row.get("why");
  if (why == nullptr) return reasons;
  if (!why->is_table()) {
    const std::string text = require_string(row, "why", file);
    for (const auto& [metric, figure] : figures.items()) reasons.emplace(metric, text);
    return reasons;
  }
  for (const auto& [key, node] : in_file_order(*why->as_table())) {
    if (!figures.contains(key))
      fail(place(file, *node), fmt::format("'why' has '{}', which the row does not print", key));
    reasons.emplace(key, require_string(*why->as_table(), key, file));
  }
  return reasons;
}

std::int64_t count_of(const toml::table& table, std::string_view key, std::int64_t standard, const std::string& file) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return standard;
  if (!node->is_integer() || node->as_integer()->get() < 0) {
    fail(place(file, *node), fmt::format("'{}' is to be a number from 0 on", key));
  }
  return node->as_integer()->get();
}

/// Decimals or digits of a printed figure; more than 17 no double has.
int places_of(const toml::table& table, std::string_view key, const std::string& file) {
  constexpr std::int64_t kMost = 17;
  const std::int64_t places = count_of(table, key, 0, file);
  if (places > kMost) fail(place(file, *table.get(key)), fmt::format("'{}' is to be at most {}", key, kMost));
  return static_cast<int>(places);
}

bool truth_of(const toml::table& table, std::string_view key, const std::string& file) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return false;
  if (!node->is_boolean()) fail(place(file, *node), fmt::format("'{}' is to be true or false", key));
  return node->as_boolean()->get();
}

std::optional<ProductRow> product_of(const toml::table& row, const std::string& file) {
  const toml::table* product = subtable(row, "product", file);
  if (product == nullptr) return std::nullopt;
  reject_unknown_keys(*product, {"instruction", "k", "promotion"}, file);
  return ProductRow{require_string(*product, "instruction", file), count_of(*product, "k", 4096, file),
                    count_of(*product, "promotion", 0, file)};
}

std::optional<SyntheticTensors> synthetic_of(const toml::table& table, const std::string& file) {
  const toml::table* given = subtable(table, "synthetic", file);
  if (given == nullptr) return std::nullopt;
  reject_unknown_keys(*given,
                      {"distribution", "values", "first_seed", "seeds", "heads", "tokens", "queries", "head_dim",
                       "dtype", "causal", "chosen", "decimals", "digits"},
                      file);
  SyntheticTensors tensors;
  tensors.first_seed = count_of(*given, "first_seed", tensors.first_seed, file);
  tensors.seeds = count_of(*given, "seeds", tensors.seeds, file);
  tensors.heads = count_of(*given, "heads", tensors.heads, file);
  tensors.tokens = count_of(*given, "tokens", tensors.tokens, file);
  tensors.queries = count_of(*given, "queries", tensors.queries, file);
  tensors.head_dim = count_of(*given, "head_dim", tensors.head_dim, file);
  tensors.decimals = places_of(*given, "decimals", file);
  tensors.digits = places_of(*given, "digits", file);
  tensors.is_causal = truth_of(*given, "causal", file);
  tensors.chosen = require_string(*given, "chosen", file);
  tensors.values = values_of(*given, file);
  if (tensors.seeds < 1 || tensors.heads < 1 || tensors.tokens < 1 || tensors.head_dim < 1) {
    fail(place(file, *given), "seeds, heads, tokens and head_dim are at least 1");
  }
  try {
    if (given->contains("dtype")) tensors.format = &format::find(require_string(*given, "dtype", file));
    if (!given->contains("distribution")) return tensors;
    tensors.distribution = &find_distribution(require_string(*given, "distribution", file));
    resolve_values(*tensors.distribution, tensors.values, tensors.head_dim);
  } catch (const Error& e) {
    fail(place(file, *given), e.what());
  }
  return tensors;
}

PaperRow load_row(const toml::table& table, const toml::table& row, const std::string& file) {
  reject_unknown_keys(row, {"label", "recipe", "set", "paper", "output", "values", "why", "product"}, file);
  PaperRow result{require_string(row, "label", file), std::nullopt, figures_of(row, file)};
  if (row.contains("output")) result.output = require_string(row, "output", file);
  if (std::find(kOutputs.begin(), kOutputs.end(), result.output) == kOutputs.end()) {
    fail(place(file, *row.get("output")), "'output' is to be o, dq, dk or dv");
  }
  result.why = reasons_of(row, result.paper, file);
  result.values = values_of(row, file);
  result.product = product_of(row, file);
  if (result.product) return result;
  const toml::table& owner = row.contains("recipe") ? row : table;
  const char* key = row.contains("recipe") ? "recipe" : "base";
  if (!owner.contains(key)) return result;
  try {
    std::vector<Override> overrides = overrides_of(table, file);
    for (Override& each : overrides_of(row, file)) overrides.push_back(std::move(each));
    result.recipe = with_overrides(load_recipe(require_string(owner, key, file)), overrides);
    attention::validate(*result.recipe);
  } catch (const Error& e) {
    fail(place(file, row), e.what());
  }
  return result;
}

/// A row is of tensors that its table has: drawn ones, with values that their distribution takes, or a model's.
void check_row(const PaperTable& table, const PaperRow& row, const std::string& where) {
  if (!table.synthetic) {
    if (row.product || !row.values.empty()) fail(where, "'values' and 'product' are of tables that have [synthetic]");
    return;
  }
  const Distribution* distribution = table.synthetic->distribution;
  if (row.recipe && distribution == nullptr) {
    fail(where, "a row with a recipe needs the 'distribution' of [synthetic], whose tensors it runs on");
  }
  try {
    if (row.product) mma::find_instruction(row.product->instruction);
    if (row.recipe)
      resolve_values(*distribution, drawn_values(*table.synthetic, row.values), table.synthetic->head_dim);
  } catch (const Error& e) {
    fail(where, e.what());
  }
}

/// Our figures of each paper row, in the table's statistic.
std::vector<Json> our_figures(const PaperTable& table, const RunResult& result) {
  std::vector<Json> ours;
  std::size_t trial = 0;
  for (const PaperRow& row : table.rows) {
    if (!row.recipe) {
      ours.emplace_back();
      continue;
    }
    const auto output = std::find(kOutputs.begin(), kOutputs.end(), row.output) - kOutputs.begin();
    const metric::Summary& summary = result.summaries.at(trial++ * result.outputs + static_cast<std::size_t>(output));
    const auto value = [&](const metric::MetricSummary& m) {
      return table.statistic == "worst" ? m.worst() : m.average();
    };
    ours.push_back({{"cos_sim", value(summary.cos_sim)},
                    {"rel_l1", value(summary.rel_l1)},
                    {"rel_l2", value(summary.rel_l2)},
                    {"rmse", value(summary.rmse)}});
  }
  return ours;
}

/// The rows, of a run or of its summary, that measure what the paper's row of the same label prints.
std::vector<Json> own_outputs(const PaperTable& table, const std::vector<Json>& rows) {
  std::vector<Json> own;
  for (const Json& row : rows) {
    const auto is_source = [&](const PaperRow& source) { return row.at("row") == source.label; };
    const auto source = std::find_if(table.rows.begin(), table.rows.end(), is_source);
    if (row.value("output", "o") == source->output) own.push_back(row);
  }
  return own;
}

bool prints(const PaperTable& table, const std::string& metric) {
  return std::any_of(table.rows.begin(), table.rows.end(),
                     [&](const PaperRow& row) { return row.paper.contains(metric); });
}

Table comparison(const PaperTable& table, const std::vector<Json>& ours) {
  Table out{table.title, {{"row", ""}}, {}};
  if (needs_gradients(table)) out.columns.push_back({"output", "output"});
  for (const Metric& metric : kMetrics) {
    const std::string key = metric.key;
    if (!prints(table, key)) continue;
    out.columns.push_back({"paper." + key, std::string(metric.title) + " (paper*)", metric.decimals});
    out.columns.push_back({"ours." + key, "ours", metric.decimals});
  }
  out.columns.push_back({"recipe", "recipe"});
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PaperRow& row = table.rows[i];
    out.rows.push_back({{"row", row.label},
                        {"output", row.output},
                        {"recipe", row.recipe ? Json(row.recipe->name) : Json()},
                        {"paper", row.paper},
                        {"ours", ours[i]}});
  }
  return out;
}

std::string our_tensors(const DumpSet& dumps) {
  std::vector<std::string> files;
  for (const std::string& file : dumps.files()) files.push_back(std::filesystem::path(file).filename().string());
  const auto model = io::find_text(dumps.calls().front().call->attributes, "model", dumps.files().front());
  return fmt::format("ours: {} calls, {} heads of {}{}", dumps.calls().size(), dumps.heads(), fmt::join(files, ", "),
                     model ? fmt::format(" ({})", *model) : "");
}

/// Where the upstream gradients come from.
std::string upstream_note(const DumpSet& dumps, std::uint64_t seed) {
  const auto calls = static_cast<std::int64_t>(dumps.calls().size());
  const auto own = std::count_if(dumps.calls().begin(), dumps.calls().end(),
                                 [](const SelectedCall& call) { return call.call->has("do"); });
  if (own == calls) return "upstream gradient: the dump's `do`";
  const std::string drawn = fmt::format("N(0, 1) drawn from seed {} (--upstream-seed)", seed);
  if (own == 0) return fmt::format("upstream gradient: {}; the dump has no `do`", drawn);
  return fmt::format("upstream gradient: the dump's `do` in {} calls, {} in {}", own, drawn, calls - own);
}

std::vector<std::string> notes_of(const PaperTable& table, const DumpSet& dumps,
                                  std::optional<std::uint64_t> upstream_seed) {
  std::vector<std::string> notes = {fmt::format("* other tensors: {}; {}", table.tensors, table.source)};
  if (!table.note.empty()) notes.push_back(table.note);
  notes.push_back(our_tensors(dumps));
  if (upstream_seed) notes.push_back(upstream_note(dumps, *upstream_seed));
  std::vector<std::string> evidence;
  for (const PaperRow& row : table.rows) {
    if (!row.recipe) continue;
    std::string each = Exceptions(*row.recipe).evidence();
    if (std::find(evidence.begin(), evidence.end(), each) == evidence.end()) evidence.push_back(std::move(each));
  }
  for (const std::string& each : evidence) notes.push_back("accumulators: " + each);
  return notes;
}

}  // namespace

std::span<const TableMetric> table_metrics() { return kMetrics; }

SynthValues drawn_values(const SyntheticTensors& tensors, SynthValues of_row) {
  of_row.insert(tensors.values.begin(), tensors.values.end());
  return of_row;
}

PaperTable load_paper_table(std::string_view id) {
  const std::string file = data_file("papers", id, "table");
  const toml::table parsed = parse_toml(file);
  reject_unknown_keys(parsed, {"title", "source", "tensors", "note", "statistic", "base", "set", "synthetic", "row"},
                      file);
  PaperTable table;
  table.id = std::filesystem::path(file).stem().string();
  table.title = require_string(parsed, "title", file);
  table.source = require_string(parsed, "source", file);
  table.tensors = require_string(parsed, "tensors", file);
  table.note = parsed.contains("note") ? require_string(parsed, "note", file) : "";
  table.statistic = require_string(parsed, "statistic", file);
  if (table.statistic != "average" && table.statistic != "worst") {
    fail(place(file, *parsed.get("statistic")), "'statistic' is to be average or worst");
  }
  table.synthetic = synthetic_of(parsed, file);
  const toml::node* rows = parsed.get("row");
  if (rows == nullptr || !rows->is_array_of_tables()) fail(file, "a table needs [[row]] entries");
  for (const toml::node& row : *rows->as_array()) {
    PaperRow loaded = load_row(parsed, *row.as_table(), file);
    const bool is_known = std::any_of(table.rows.begin(), table.rows.end(),
                                      [&](const PaperRow& other) { return other.label == loaded.label; });
    if (is_known) fail(place(file, row), fmt::format("a second row is called '{}'", loaded.label));
    check_row(table, loaded, place(file, row));
    table.rows.push_back(std::move(loaded));
  }
  return table;
}

std::vector<PaperTable> load_all_paper_tables() {
  std::vector<PaperTable> tables;
  for (const std::string& id : data_entries("papers")) tables.push_back(load_paper_table(id));
  return tables;
}

std::vector<std::string> default_dumps() {
  const std::filesystem::path folder = std::filesystem::path(data_folder()) / "real";
  std::vector<std::string> files;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("smollm2_") && name.ends_with(".h5")) files.push_back(entry.path().string());
  }
  if (files.empty()) {
    throw Error(ErrorKind::input,
                fmt::format("{}: no smollm2_*.h5 there to measure on; name a dump with --dump", folder.string()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool needs_gradients(const PaperTable& table) {
  return std::any_of(table.rows.begin(), table.rows.end(), [](const PaperRow& row) { return row.output != "o"; });
}

std::vector<Trial> trials_of(const PaperTable& table) {
  std::vector<Trial> trials;
  for (const PaperRow& row : table.rows) {
    if (row.recipe) trials.push_back({*row.recipe, std::nullopt, {{"row", row.label}, {"paper", row.paper}}});
  }
  return trials;
}

std::vector<Ordering> orderings(const PaperTable& table, const std::vector<Json>& ours) {
  std::vector<Ordering> all;
  for (const Metric& metric : kMetrics) {
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      for (std::size_t j = 0; j < table.rows.size(); ++j) {
        const Json &paper_i = find(table.rows[i].paper, metric.key), &paper_j = find(table.rows[j].paper, metric.key);
        const Json &our_i = find(ours[i], metric.key), &our_j = find(ours[j], metric.key);
        if (table.rows[i].output != table.rows[j].output) continue;
        if (paper_i.is_null() || paper_j.is_null() || our_i.is_null() || our_j.is_null()) continue;
        const auto better = [&](const Json& a, const Json& b) {
          return metric.higher_is_better ? a.get<double>() > b.get<double>() : a.get<double>() < b.get<double>();
        };
        if (better(paper_i, paper_j)) all.push_back({metric.key, i, j, better(our_i, our_j)});
      }
    }
  }
  return all;
}

Table ordering_table(const std::vector<Ordering>& all) {
  Table out{"Orderings of the paper on these tensors", {{"metric", "metric"}, {"hold", "hold"}, {"of", "of"}}, {}};
  for (const Metric& metric : kMetrics) {
    const auto of_metric = [&](const Ordering& o) { return o.metric == metric.key; };
    if (std::none_of(all.begin(), all.end(), of_metric)) continue;
    const auto holding = [&](const Ordering& o) { return of_metric(o) && o.holds; };
    out.rows.push_back({{"metric", metric.title},
                        {"hold", std::count_if(all.begin(), all.end(), holding)},
                        {"of", std::count_if(all.begin(), all.end(), of_metric)}});
  }
  return out;
}

Table broken_table(const PaperTable& table, const std::vector<Json>& ours, const std::vector<Ordering>& all) {
  const char* paper = table.synthetic ? "paper" : "paper*";  // the footnote is of other tensors
  Table out{"Orderings that these tensors break",
            {{"metric", "metric"},
             {"better", "better in the paper"},
             {"worse", "than"},
             {"paper_better", paper},
             {"paper_worse", paper},
             {"our_better", "ours"},
             {"our_worse", "ours"}},
            {}};
  for (const Ordering& o : all) {
    if (o.holds) continue;
    const auto metric =
        std::find_if(std::begin(kMetrics), std::end(kMetrics), [&](const Metric& m) { return o.metric == m.key; });
    out.rows.push_back({{"metric", metric->title},
                        {"better", table.rows[o.better].label},
                        {"worse", table.rows[o.worse].label},
                        {"paper_better", find(table.rows[o.better].paper, o.metric)},
                        {"paper_worse", find(table.rows[o.worse].paper, o.metric)},
                        {"our_better", find(ours[o.better], o.metric)},
                        {"our_worse", find(ours[o.worse], o.metric)}});
  }
  return out;
}

Json orderings_json(const PaperTable& table, const std::vector<Ordering>& all) {
  Json list = Json::array();
  for (const Ordering& o : all) {
    list.push_back({{"metric", o.metric},
                    {"better", table.rows[o.better].label},
                    {"worse", table.rows[o.worse].label},
                    {"holds", o.holds}});
  }
  return list;
}

Report compare(const PaperTable& table, const DumpSet& dumps, const RunResult& result,
               std::optional<std::uint64_t> upstream_seed) {
  const std::vector<Json> ours = our_figures(table, result);
  Report report;
  report.columns = row_columns({"row"});
  report.csv_keys = row_keys({"row"});
  for (const Metric& metric : kMetrics) report.csv_keys.push_back(std::string("paper.") + metric.key);
  report.row_table = RowTable::none;
  report.tables.push_back(comparison(table, ours));
  report.notes = notes_of(table, dumps, upstream_seed);
  report.summary = {{"table", table.id}, {"statistic", table.statistic}};
  report.summary["rows"] = report.tables.front().rows;
  report.rows = own_outputs(table, result.rows);
  const std::vector<Ordering> all = orderings(table, ours);
  report.tables.push_back(ordering_table(all));
  if (Table broken = broken_table(table, ours, all); !broken.rows.empty()) report.tables.push_back(std::move(broken));
  report.summary["orderings"] = orderings_json(table, all);
  report.summary["calls"] = own_outputs(table, summary_rows(trials_of(table), result));
  return report;
}

}  // namespace qattn::lab
