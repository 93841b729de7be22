// Drawing, measuring, judging.
#include "lab/synthetic_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <tuple>

#include "base/elementary.h"
#include "base/error.h"
#include "lab/backward.h"
#include "lab/gemm_error.h"
#include "lab/synth.h"

namespace qattn::lab {
namespace {

namespace fs = std::filesystem;

/// A folder that is gone when this is.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "qattn-table-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      throw Error(ErrorKind::input, fmt::format("{}: cannot be made; TMPDIR is to name a folder that can be written",
                                                fs::path(path_).parent_path().string()));
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Values of each metric over the seeds, a row of the table.
using Samples = std::vector<std::map<std::string, std::vector<double>>>;

SynthRequest request_of(const PaperTable& table, const SynthValues& values, std::int64_t seed) {
  const SyntheticTensors& tensors = *table.synthetic;
  SynthRequest request;
  request.distribution = tensors.distribution;
  request.values = drawn_values(tensors, values);
  request.seed = static_cast<std::uint64_t>(seed);
  request.q_heads = request.kv_heads = tensors.heads;
  request.kv_tokens = tensors.tokens;
  request.q_tokens = tensors.queries > 0 ? tensors.queries : tensors.tokens;
  request.head_dim = tensors.head_dim;
  request.format = tensors.format;
  request.is_causal = tensors.is_causal;
  return request;
}

/// What one table's measurement gathers.
struct Gathered {
  Samples samples;
  std::vector<Json> rows;
  std::vector<BadOutput> bad;
};

void add_sample(const Json& row, std::map<std::string, std::vector<double>>& samples) {
  for (const TableMetric& metric : table_metrics()) {
    if (row.contains(metric.key)) samples[metric.key].push_back(row.at(metric.key).get<double>());
  }
}

/// The rows of one set of values: every seed in a file of its own, all of them in one run.
void measure_values(const PaperTable& table, const SynthValues& values, std::int64_t seeds, RunOptions options,
                    Gathered& gathered) {
  const TemporaryFolder folder;
  const std::int64_t first = table.synthetic->first_seed;
  for (std::int64_t seed = first; seed < first + seeds; ++seed) {
    RunOptions quiet = options;
    quiet.progress = nullptr;
    synthesize(fmt::format("{}/{:06}.h5", folder.path(), seed), request_of(table, values, seed), quiet);
  }
  std::vector<Trial> trials;
  std::vector<std::size_t> row_of_trial;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PaperRow& row = table.rows[i];
    if (!row.recipe || row.values != values) continue;
    trials.push_back({*row.recipe, std::nullopt, {{"row", row.label}, {"paper", row.paper}}});
    row_of_trial.push_back(i);
    if (row.output != "o") options.upstream_seed = 0;  // the distribution has its own upstream gradient
  }
  const DumpSet dumps({{folder.path()}, "", std::nullopt});
  RunResult result = run_trials(dumps, trials, options);
  for (Json& row : result.rows) {
    const auto trial =
        std::find_if(trials.begin(), trials.end(), [&](const Trial& t) { return t.labels.at("row") == row.at("row"); });
    const std::size_t index = row_of_trial[static_cast<std::size_t>(trial - trials.begin())];
    if (row.at("output") != table.rows[index].output) continue;
    if (row.at("head").is_null()) add_sample(row, gathered.samples[index]);
    row["seed"] = std::stoll(fs::path(row.at("file").get<std::string>()).stem().string());
    row["file"] = "";
    gathered.rows.push_back(std::move(row));
  }
  for (BadOutput& bad : result.bad) gathered.bad.push_back(std::move(bad));
}

void measure_product(const PaperTable& table, std::size_t index, std::int64_t seeds, Gathered& gathered) {
  const PaperRow& row = table.rows[index];
  GemmErrorOptions options;
  options.instruction = &mma::find_instruction(row.product->instruction);
  options.k = {row.product->k};
  options.promotion = {row.product->promotion};
  options.slice = {0};
  options.positive = true;
  for (std::int64_t i = 0; i < seeds; ++i) {
    options.seed = static_cast<std::uint64_t>(table.synthetic->first_seed + i);
    Json out = gemm_errors(options).front();
    out["row"] = row.label;
    out["seed"] = options.seed;
    out["paper"] = row.paper;
    add_sample(out, gathered.samples[index]);
    gathered.rows.push_back(std::move(out));
  }
}

Gathered gather(const PaperTable& table, std::int64_t seeds, const RunOptions& options) {
  Gathered gathered;
  gathered.samples.resize(table.rows.size());
  std::vector<SynthValues> done;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PaperRow& row = table.rows[i];
    if (row.product) measure_product(table, i, seeds, gathered);
    if (!row.recipe || std::find(done.begin(), done.end(), row.values) != done.end()) continue;
    measure_values(table, row.values, seeds, options, gathered);
    done.push_back(row.values);
  }
  return gathered;
}

/// One printed figure and what we make of it.
Json judged(const PaperTable& table, const PaperRow& row, const std::string& metric, const SeedStatistics& ours) {
  const Json& printed = find(row.paper, metric);
  Json figure = {{"ours", ours.mean},       {"deviation", ours.deviation}, {"least", ours.least},
                 {"largest", ours.largest}, {"seeds", ours.seeds},         {"paper", printed}};
  if (printed.is_null()) return figure;
  if (ours.seeds < 2) {
    figure["verdict"] = "one seed has no spread";
    return figure;
  }
  const double unit = half_unit(printed.get<double>(), *table.synthetic);
  const bool within = within_spread(printed.get<double>(), unit, ours);
  figure["within"] = within;
  if (within) {
    figure["verdict"] = "within";
  } else if (!ours.finite || ours.deviation == 0) {
    figure["verdict"] = "not within";
  } else {
    figure["verdict"] = fmt::format("{:+.1f} s", (printed.get<double>() - ours.mean) / ours.deviation);
  }
  if (const auto why = row.why.find(metric); !within && why != row.why.end()) figure["why"] = why->second;
  return figure;
}

/// A metric's columns: the paper's figure, our mean, least and largest, the verdict.
void add_columns(Table& out, const TableMetric& metric) {
  const std::string key = metric.key;
  out.columns.push_back({key + ".paper", fmt::format("{} (paper)", metric.title)});
  out.columns.push_back({key + ".ours", "ours"});
  out.columns.push_back({key + ".deviation", "s"});
  out.columns.push_back({key + ".verdict", "verdict"});
}

std::vector<std::string> notes_of(const PaperTable& table, std::int64_t seeds) {
  const SyntheticTensors& tensors = *table.synthetic;
  std::vector<std::string> notes = {fmt::format("the paper's tensors: {}; {}", table.tensors, table.source),
                                    fmt::format("not stated there, chosen here: {}", tensors.chosen)};
  if (tensors.distribution != nullptr) {
    const std::string queries = tensors.queries > 0 ? fmt::format(" ({} of them queries)", tensors.queries) : "";
    notes.push_back(fmt::format("ours: distribution {}, {} head{} of {} tokens{}, head_dim {}, {}{}",
                                tensors.distribution->name, tensors.heads, tensors.heads == 1 ? "" : "s",
                                tensors.tokens, queries, tensors.head_dim, tensors.format->dtype,
                                tensors.is_causal ? ", causal" : ""));
  }
  notes.push_back(
      fmt::format("means and standard deviations s over seeds {} to {}; within: at most {} s from the mean, "
                  "half a unit of the last printed digit given; of the logarithms where that would reach zero",
                  tensors.first_seed, tensors.first_seed + seeds - 1, kSpreadDeviations));
  if (!table.note.empty()) notes.push_back(table.note);
  return notes;
}

/// The mean, and the deviation of the sample (n - 1); 0 of one value.
std::pair<double, double> mean_and_deviation(const std::vector<double>& values) {
  double mean = 0, squares = 0;
  for (const double x : values) mean += x;
  mean /= static_cast<double>(values.size());
  for (const double x : values) squares += (x - mean) * (x - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / static_cast<double>(values.size() - 1)) : 0.0};
}

}  // namespace

SeedStatistics statistics_of(const std::vector<double>& values) {
  SeedStatistics s;
  s.seeds = static_cast<std::int64_t>(values.size());
  s.finite = !values.empty() && std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  s.log_mean = s.log_deviation = kNaN;
  if (!s.finite) {
    s.mean = s.deviation = s.least = s.largest = kNaN;
    return s;
  }
  s.least = *std::min_element(values.begin(), values.end());
  s.largest = *std::max_element(values.begin(), values.end());
  std::tie(s.mean, s.deviation) = mean_and_deviation(values);
  if (s.least > 0) {
    std::vector<double> logs;
    for (const double x : values) logs.push_back(elementary::log(x));
    std::tie(s.log_mean, s.log_deviation) = mean_and_deviation(logs);
  }
  return s;
}

bool within_spread(double printed, double half_unit, const SeedStatistics& ours) {
  if (!ours.finite) return false;
  const double spread = kSpreadDeviations * ours.deviation;
  if (ours.least > 0 && ours.mean <= spread) {
    return printed > 0 && std::abs(elementary::log(printed) - ours.log_mean) <= kSpreadDeviations * ours.log_deviation;
  }
  return std::abs(printed - ours.mean) <= spread + half_unit;
}

double half_unit(double printed, const SyntheticTensors& tensors) {
  int exponent = 0;
  if (tensors.decimals > 0) {
    exponent = -tensors.decimals;
  } else if (tensors.digits > 0 && printed != 0) {
    // The decade of the figure as it is written with so many digits.
    const std::string text = fmt::format("{:.{}e}", printed, tensors.digits - 1);
    exponent = std::stoi(text.substr(text.find('e') + 1)) - (tensors.digits - 1);
  } else {
    return 0;
  }
  return 0.5 * std::stod(fmt::format("1e{}", exponent));
}

Report measure_synthetic(const PaperTable& table, std::int64_t seeds, const RunOptions& options, RunResult* bad) {
  if (!table.synthetic) throw Error(ErrorKind::usage, fmt::format("table {} is not synthetic: give --dump", table.id));
  if (seeds <= 0) seeds = table.synthetic->seeds;
  Gathered gathered = gather(table, seeds, options);
  Report report;
  report.columns = row_columns({"row", "seed", "output"});
  report.csv_keys = row_keys({"row", "seed"});
  report.row_table = RowTable::none;
  Table out{table.title, {{"row", ""}, {"output", "output"}}, {}};
  std::vector<Json> ours;
  std::int64_t judged_figures = 0, within = 0;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const PaperRow& row = table.rows[i];
    Json line = {{"row", row.label}, {"output", row.output}};
    line["recipe"] = row.recipe ? Json(row.recipe->name) : Json();
    Json means = Json::object();
    for (const auto& [metric, values] : gathered.samples[i]) {
      const SeedStatistics s = statistics_of(values);
      means[metric] = s.mean;
      line[metric] = judged(table, row, metric, s);
      if (line[metric].contains("within")) ++judged_figures;
      if (line[metric].value("within", false)) ++within;
      if (line[metric].contains("why")) {
        report.notes.push_back(fmt::format("{}, {}: {}", row.label, metric, line[metric]["why"].get<std::string>()));
      }
    }
    ours.push_back(std::move(means));
    out.rows.push_back(std::move(line));
  }
  for (const TableMetric& metric : table_metrics()) {
    const auto printed = [&](const PaperRow& row) { return row.paper.contains(metric.key); };
    if (std::any_of(table.rows.begin(), table.rows.end(), printed)) add_columns(out, metric);
  }
  out.columns.push_back({"recipe", "recipe"});
  report.tables.push_back(std::move(out));
  const std::vector<Ordering> all = orderings(table, ours);
  report.tables.push_back(ordering_table(all));
  if (Table broken = broken_table(table, ours, all); !broken.rows.empty()) report.tables.push_back(std::move(broken));
  report.rows = std::move(gathered.rows);
  report.summary = {{"table", table.id},
                    {"seeds", seeds},
                    {"figures", judged_figures},
                    {"within", within},
                    {"rows", report.tables.front().rows},
                    {"orderings", orderings_json(table, all)}};
  std::vector<std::string> notes = {fmt::format("{} of {} figures within the spread", within, judged_figures)};
  for (std::string& note : notes_of(table, seeds)) notes.push_back(std::move(note));
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  if (bad != nullptr) bad->bad = std::move(gathered.bad);
  return report;
}

}  // namespace qattn::lab
