// The engine behind run, ablate and table.
#include "lab/runner.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
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

Json trial_row(const SelectedCall& call, const std::string& file, const Piece* piece, const Trial& trial,
               const metric::Accuracy& accuracy) {
  RowIdentity identity{call.call->path, std::nullopt, trial.recipe.name, trial.labels};
  if (piece != nullptr) identity.batch_and_head = {piece->batch, piece->head};
  if (trial.reference) identity.reference = trial.reference->name;
  identity.evidence = attention::accumulator_evidence(trial.recipe);
  if (piece != nullptr && !trial.recipe.exceptions.empty()) {
    const Exceptions exceptions(trial.recipe);
    const bool applies = exceptions.applies(call.call->path, piece->head);
    identity.labels["exception"] = applies ? Json(trial.recipe.exception_recipe) : Json();
    identity.evidence = attention::accumulator_evidence(exceptions.effective(call.call->path, piece->head));
  }
  identity.file = file;
  return row_json(identity, accuracy);
}

/// Everything that a run gathers; pieces deliver in any order. Accuracies merge to the same bits in any order, rows and
/// bad outputs wait in their piece's place.
class Collector {
 public:
  Collector(const DumpSet& dumps, std::span<const Trial> trials, const Plan& plan, std::size_t pieces)
      : dumps_(dumps), trials_(trials), plan_(plan), rows_(pieces), bad_(pieces), whole_(dumps.calls().size()) {}

  void deliver(std::size_t index, const Piece& piece, const std::vector<metric::Accuracy>& accuracies,
               const std::vector<HeadProblem>& head) {
    const SelectedCall& call = dumps_.calls()[piece.call];
    for (std::size_t t = 0; t < trials_.size(); ++t) {
      const metric::Accuracy& a = accuracies[plan_.measurement_of_trial[t]];
      rows_[index].push_back(trial_row(call, dumps_.files()[call.file], &piece, trials_[t], a));
      if (!a.first_bad()) continue;
      bad_[index].push_back({call.label, piece.batch, piece.head, trials_[t].recipe.name, a.nan_count(), a.inf_count(),
                             *a.first_bad(), first_bad_input(head)});
    }
    const std::lock_guard lock(mutex_);
    std::vector<metric::Accuracy>& whole = whole_[piece.call];
    if (whole.empty()) {
      whole = accuracies;
      return;
    }
    for (std::size_t m = 0; m < whole.size(); ++m) whole[m].merge(accuracies[m]);
  }

  RunResult finish(const std::vector<Piece>& pieces) {
    RunResult result;
    result.summaries.resize(trials_.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::move(rows_[i].begin(), rows_[i].end(), std::back_inserter(result.rows));
      std::move(bad_[i].begin(), bad_[i].end(), std::back_inserter(result.bad));
      if (i + 1 == pieces.size() || pieces[i + 1].call != pieces[i].call) close_call(pieces[i].call, result);
    }
    return result;
  }

 private:
  void close_call(std::size_t c, RunResult& result) const {
    const SelectedCall& call = dumps_.calls()[c];
    for (std::size_t t = 0; t < trials_.size(); ++t) {
      const metric::Accuracy& a = whole_[c][plan_.measurement_of_trial[t]];
      result.rows.push_back(trial_row(call, dumps_.files()[call.file], nullptr, trials_[t], a));
      result.summaries[t].add(a, call.label);
    }
  }

  const DumpSet& dumps_;
  std::span<const Trial> trials_;
  const Plan& plan_;
  std::vector<std::vector<Json>> rows_;
  std::vector<std::vector<BadOutput>> bad_;
  std::vector<std::vector<metric::Accuracy>> whole_;
  std::mutex mutex_;
};

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

RunResult run_trials(const DumpSet& dumps, std::span<const Trial> trials, const RunOptions& options) {
  for (const Trial& trial : trials) {
    attention::validate(trial.recipe);
    static_cast<void>(Exceptions(trial.recipe));  // a bad list is an error before anything runs
  }
  const Plan plan(trials);
  const std::vector<Piece> pieces = pieces_of(dumps);
  Collector collector(dumps, trials, plan, pieces.size());
  std::mutex progress_mutex;
  std::int64_t done = 0;
  const auto total = static_cast<std::int64_t>(pieces.size());
  parallel_for(total, options.threads, [&](std::int64_t index) {
    if (options.cancelled && options.cancelled()) throw Interrupted();
    const Piece& piece = pieces[static_cast<std::size_t>(index)];
    HeadMeasurement head(dumps, piece, options.references);
    std::vector<metric::Accuracy> accuracies;
    for (const Plan::Measurement& m : plan.measurements) accuracies.push_back(head.measure(*m.recipe, m.reference));
    collector.deliver(static_cast<std::size_t>(index), piece, accuracies, head.parts());
    if (!options.progress) return;
    const std::lock_guard lock(progress_mutex);
    options.progress(++done, total);
  });
  return collector.finish(pieces);
}

std::vector<Column> row_columns(const std::vector<std::string>& labels) {
  return with_labels({{"call", "call"}, {"batch", "batch"}, {"head", "head"}, {"recipe", "recipe"}}, labels,
                     {{"reference", "reference"},
                      {"cos_sim", "CosSim", 6},
                      {"rel_l1", "Rel. L1"},
                      {"rmse", "RMSE"},
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
  for (const char* key :
       {"reference", "output", "cos_sim", "rel_l1", "rmse", "max_abs", "max_ulp", "p50", "p90", "p99", "p999",
        "worst_at", "elements", "nan_count", "inf_count", "bad_reference_count", "first_bad", "evidence", "file"}) {
    keys.emplace_back(key);
  }
  return keys;
}

std::vector<Json> summary_rows(std::span<const Trial> trials, const RunResult& result) {
  std::vector<Json> rows;
  for (std::size_t t = 0; t < trials.size(); ++t) {
    const metric::Summary& s = result.summaries[t];
    const std::pair<const char*, const metric::MetricSummary*> metrics[] = {
        {"cos_sim", &s.cos_sim}, {"rel_l1", &s.rel_l1}, {"rmse", &s.rmse}, {"max_abs", &s.max_abs}};
    Json average = summary_json(trials[t], "average"), worst = summary_json(trials[t], "worst");
    for (const auto& [name, metric] : metrics) {
      average[name] = metric->average();
      worst[name] = metric->worst();
    }
    for (const auto& [name, metric] : metrics) worst[std::string(name) + "_call"] = metric->worst_call();
    for (Json* row : {&average, &worst}) {
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
                      {"max_abs", "max abs"},
                      {"rel_l1_call", "worst Rel. L1 in"}});
}

std::string describe(const BadOutput& bad) {
  return fmt::format(
      "{}, batch {}, head {}: the output of {} has {} NaN and {} Inf, the first at token {}, channel {}{}", bad.call,
      bad.batch, bad.head, bad.recipe, bad.nan_count, bad.inf_count, bad.first.row, bad.first.column,
      bad.input.empty() ? "; the inputs are finite" : "; input " + bad.input);
}

}  // namespace qattn::lab
