// The engine behind run, ablate and table.
#include "lab/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "lab/backward.h"
#include "lab/exceptions.h"

namespace qattn::lab {
namespace {

using attention::Recipe;

/// The trials of a run with doubles taken out: a measurement is an output compared with a reference.
struct Plan {
  struct Measurement {
    const Recipe* recipe = nullptr;
    const Recipe* reference = nullptr;  ///< nullptr: float64
  };
  std::vector<Measurement> measurements;
  std::vector<std::size_t> measurement_of_trial;

  explicit Plan(std::span<const Trial> trials) {
    std::map<std::pair<std::string, std::string>, std::size_t> known;
    for (const Trial& trial : trials) {
      const Recipe* reference = trial.reference ? &*trial.reference : nullptr;
      const std::string reference_key = reference != nullptr ? recipe_key(*reference) : "";
      const auto [entry, is_new] = known.try_emplace({recipe_key(trial.recipe), reference_key}, measurements.size());
      if (is_new) measurements.push_back({&trial.recipe, reference});
      measurement_of_trial.push_back(entry->second);
    }
  }
};

/// The row's place within its call: batch, head (whole calls: behind all heads), trial, output.
using RowPlace = std::array<std::int64_t, 4>;
constexpr std::int64_t kWholeCall = std::numeric_limits<std::int64_t>::max();

/// Everything that a run gathers; units deliver in any order. Accuracies merge to the same bits in any order, rows and
/// bad outputs are sorted by their places.
class Collector {
 public:
  Collector(const DumpSet& dumps, std::span<const Trial> trials, const Plan& plan, std::size_t outputs)
      : dumps_(dumps), trials_(trials), plan_(plan), outputs_(outputs), calls_(dumps.calls().size()) {
    for (const Trial& trial : trials) exceptions_.emplace_back(trial.recipe);
  }

  /// `measured` has one list a measurement of the plan; `bad_input` is asked for when an output is not finite.
  void deliver(const Piece& piece, const std::vector<std::vector<Measured>>& measured,
               const std::function<std::string()>& bad_input) {
    const SelectedCall& call = dumps_.calls()[piece.call];
    std::optional<std::string> input;
    std::map<RowPlace, Json> rows;
    std::map<RowPlace, BadOutput> bad;
    for (std::size_t t = 0; t < trials_.size(); ++t) {
      for (const Measured& m : measured[plan_.measurement_of_trial[t]]) {
        const RowPlace place = place_of(piece.batch, m.head, t, m.output);
        rows.emplace(place, row(call, std::pair(piece.batch, m.head), t, m.output, m.accuracy));
        if (!m.accuracy.first_bad()) continue;
        if (!input) input = bad_input();
        bad.emplace(place,
                    BadOutput{call.label, piece.batch, m.head, trials_[t].recipe.name, std::string(kOutputs[m.output]),
                              m.accuracy.nan_count(), m.accuracy.inf_count(), *m.accuracy.first_bad(), *input});
      }
    }
    const std::lock_guard lock(mutex_);
    OfCall& all = calls_[piece.call];
    all.rows.merge(rows);
    all.bad.merge(bad);
    for (std::size_t i = 0; i < measured.size(); ++i) {
      for (const Measured& m : measured[i]) {
        const auto [whole, is_new] = all.whole.try_emplace({i, m.output}, m.accuracy);
        if (!is_new) whole->second.merge(m.accuracy);
      }
    }
  }

  RunResult finish() {
    RunResult result;
    result.outputs = outputs_;
    result.summaries.resize(trials_.size() * outputs_);
    for (std::size_t c = 0; c < calls_.size(); ++c) close_call(c, result);
    return result;
  }

 private:
  struct OfCall {
    std::map<RowPlace, Json> rows;
    std::map<RowPlace, BadOutput> bad;
    std::map<std::pair<std::size_t, std::size_t>, metric::Accuracy> whole;  ///< by measurement and output
  };

  static RowPlace place_of(std::int64_t batch, std::int64_t head, std::size_t trial, std::size_t output) {
    return {batch, head, static_cast<std::int64_t>(trial), static_cast<std::int64_t>(output)};
  }

  Json row(const SelectedCall& call, const std::optional<std::pair<std::int64_t, std::int64_t>>& batch_and_head,
           std::size_t t, std::size_t output, const metric::Accuracy& accuracy) const {
    const Trial& trial = trials_[t];
    RowIdentity identity{call.call->path, batch_and_head, trial.recipe.name, trial.labels};
    if (trial.reference) identity.reference = trial.reference->name;
    identity.evidence = exceptions_[t].evidence();
    if (batch_and_head && !trial.recipe.exceptions.empty()) {
      identity.labels["exception"] = exception_label(call, t, output, batch_and_head->second);
    }
    identity.file = dumps_.files()[call.file];
    identity.output = kOutputs[output];
    return row_json(identity, accuracy);
  }

  /// The exceptions' recipe where the head is one; for dk and dv, where all query heads of the group are, else which.
  Json exception_label(const SelectedCall& call, std::size_t t, std::size_t output, std::int64_t head) const {
    const bool is_group = kOutputs[output] == "dk" || kOutputs[output] == "dv";
    const std::int64_t size = is_group ? call.call->q_heads / call.call->kv_heads : 1;
    return exceptions_[t].rules().label(call.call->path, head * size, size, trials_[t].recipe.exception_recipe);
  }

  void close_call(std::size_t c, RunResult& result) {
    const SelectedCall& call = dumps_.calls()[c];
    OfCall& all = calls_[c];
    for (std::size_t t = 0; t < trials_.size(); ++t) {
      for (std::size_t output = 0; output < outputs_; ++output) {
        const metric::Accuracy& accuracy = all.whole.at({plan_.measurement_of_trial[t], output});
        all.rows.emplace(place_of(kWholeCall, kWholeCall, t, output), row(call, std::nullopt, t, output, accuracy));
        result.summaries[t * outputs_ + output].add(accuracy, call.label);
      }
    }
    for (auto& [place, json] : all.rows) result.rows.push_back(std::move(json));
    for (auto& [place, output] : all.bad) result.bad.push_back(std::move(output));
  }

  const DumpSet& dumps_;
  std::span<const Trial> trials_;
  const Plan& plan_;
  std::size_t outputs_;
  std::vector<Exceptions> exceptions_;  ///< of the trials
  std::vector<OfCall> calls_;
  std::mutex mutex_;
};

/// One (call, batch, head) forward.
void measure_head(const DumpSet& dumps, const Plan& plan, const Piece& piece, const RunOptions& options,
                  Collector& collector) {
  HeadMeasurement head(dumps, piece, options.references, options.device);
  std::vector<std::vector<Measured>> measured;
  for (const Plan::Measurement& m : plan.measurements) {
    measured.push_back({{0, piece.head, head.measure(*m.recipe, m.reference)}});
  }
  collector.deliver(piece, measured, [&] { return first_bad_input(head.parts()); });
}

/// One key/value head with its query heads, forward and backward.
void measure_group(const DumpSet& dumps, const Plan& plan, const Piece& piece, std::uint64_t seed,
                   Collector& collector) {
  GroupMeasurement group(dumps, piece, seed);
  std::vector<std::vector<Measured>> measured;
  for (const Plan::Measurement& m : plan.measurements) measured.push_back(group.measure(*m.recipe, m.reference));
  collector.deliver(piece, measured, [&] { return group.first_bad_input(); });
}

Json summary_json(const Trial& trial, std::string_view statistic) {
  Json row = {{"recipe", trial.recipe.name}};
  row.update(trial.labels);
  row["statistic"] = statistic;
  return row;
}

std::vector<Column> with_labels(std::vector<Column> before, const std::vector<std::string>& labels,
                                std::initializer_list<Column> after) {
  for (const std::string& label : labels) before.push_back({label, label});
  before.insert(before.end(), after);
  return before;
}

}  // namespace

void check_fit(const DumpSet& dumps, std::span<const Trial> trials) {
  for (const Trial& trial : trials) {
    for (const attention::Recipe* recipe : {&trial.recipe, trial.reference ? &*trial.reference : nullptr}) {
      if (recipe == nullptr) continue;
      if (const std::string why = Exceptions(*recipe).misfit(dumps); !why.empty()) throw Error(ErrorKind::usage, why);
    }
  }
}

std::vector<std::string> idle_exceptions(const DumpSet& dumps, std::span<const Trial> trials) {
  std::vector<std::string> all;
  for (const Trial& trial : trials) {
    for (const std::string& rule : ExceptionRules(trial.recipe.exceptions).idle(dumps)) {
      all.push_back(fmt::format("{}: exceptions '{}' finds none of the selected heads", trial.recipe.name, rule));
    }
  }
  return all;
}

RunResult run_trials(const DumpSet& dumps, std::span<const Trial> trials, const RunOptions& options) {
  for (const Trial& trial : trials) {
    attention::validate(trial.recipe);
  }
  check_fit(dumps, trials);
  check_device(options.device, trials, options.upstream_seed.has_value());
  const Plan plan(trials);
  const bool backward = options.upstream_seed.has_value();
  const std::vector<Piece> pieces = backward ? groups_of(dumps) : pieces_of(dumps);
  Collector collector(dumps, trials, plan, backward ? kOutputs.size() : 1);
  std::mutex progress_mutex;
  std::int64_t done = 0;
  const auto total = static_cast<std::int64_t>(pieces.size());
  parallel_for(total, options.threads, [&](std::int64_t index) {
    if (options.cancelled && options.cancelled()) throw Interrupted();
    const Piece& piece = pieces[static_cast<std::size_t>(index)];
    if (backward) {
      measure_group(dumps, plan, piece, *options.upstream_seed, collector);
    } else {
      measure_head(dumps, plan, piece, options, collector);
    }
    if (!options.progress) return;
    const std::lock_guard lock(progress_mutex);
    options.progress(++done, total);
  });
  return collector.finish();
}

std::vector<Column> row_columns(const std::vector<std::string>& labels, bool several_files) {
  std::vector<Column> place = {{"call", "call"}, {"batch", "batch"}, {"head", "head"}, {"recipe", "recipe"}};
  if (several_files) place.insert(place.begin(), {"file", "file"});
  return with_labels(std::move(place), labels,
                     {{"reference", "reference"},
                      {"cos_sim", "CosSim", 6},
                      {"rel_l1", "Rel. L1"},
                      {"rmse", "RMSE"},
                      {"rel_l2", "Rel. L2"},
                      {"max_abs", "max abs"},
                      {"max_ulp", "max ulp"},
                      {"p50", "p50"},
                      {"p99", "p99"},
                      {"nan_count", "NaN"},
                      {"inf_count", "Inf"},
                      {"first_bad", "first bad"}});
}

std::vector<std::string> row_keys(const std::vector<std::string>& labels) {
  std::vector<std::string> keys = {"call", "batch", "head", "recipe"};
  keys.insert(keys.end(), labels.begin(), labels.end());
  for (const char* key : {"reference",
                          "output",
                          "cos_sim",
                          "rel_l1",
                          "rmse",
                          "rel_l2",
                          "max_abs",
                          "max_ulp",
                          "p50",
                          "p90",
                          "p99",
                          "p999",
                          "worst_at",
                          "elements",
                          "nan_count",
                          "inf_count",
                          "bad_reference_count",
                          "first_bad",
                          "evidence",
                          "file"}) {
    keys.emplace_back(key);
  }
  return keys;
}

std::vector<Json> summary_rows(std::span<const Trial> trials, const RunResult& result) {
  std::vector<Json> rows;
  for (std::size_t i = 0; i < result.summaries.size(); ++i) {
    const metric::Summary& s = result.summaries[i];
    const std::pair<const char*, const metric::MetricSummary*> metrics[] = {{"cos_sim", &s.cos_sim},
                                                                            {"rel_l1", &s.rel_l1},
                                                                            {"rel_l2", &s.rel_l2},
                                                                            {"rmse", &s.rmse},
                                                                            {"max_abs", &s.max_abs}};
    const Trial& trial = trials[i / result.outputs];
    Json average = summary_json(trial, "average"), worst = summary_json(trial, "worst");
    for (const auto& [name, metric] : metrics) {
      average[name] = metric->average();
      worst[name] = metric->worst();
    }
    for (const auto& [name, metric] : metrics) worst[std::string(name) + "_call"] = metric->worst_call();
    for (Json* row : {&average, &worst}) {
      if (result.outputs > 1) (*row)["output"] = kOutputs[i % result.outputs];
      (*row)["calls"] = s.cos_sim.calls();
      (*row)["nan_count"] = s.nan_count;
      (*row)["inf_count"] = s.inf_count;
      rows.push_back(*row);
    }
  }
  return rows;
}

std::vector<Column> summary_columns(const std::vector<std::string>& labels) {
  return with_labels({{"recipe", "recipe"}}, labels,
                     {{"statistic", "over calls"},
                      {"cos_sim", "CosSim", 6},
                      {"rel_l1", "Rel. L1"},
                      {"rmse", "RMSE"},
                      {"rel_l2", "Rel. L2"},
                      {"max_abs", "max abs"},
                      {"rel_l1_call", "worst Rel. L1 in"}});
}

std::string describe(const BadOutput& bad) {
  return fmt::format("{}, batch {}, head {}: {} of {} has {} NaN and {} Inf, the first at token {}, channel {}{}",
                     bad.call, bad.batch, bad.head, bad.output == "o" ? "the output" : bad.output, bad.recipe,
                     bad.nan_count, bad.inf_count, bad.first.row, bad.first.column,
                     bad.input.empty() ? "; the inputs are finite" : "; input " + bad.input);
}

}  // namespace qattn::lab
