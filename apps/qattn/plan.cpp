// qattn plan: which recipe each layer should run under.
#include "lab/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "command.h"
#include "lab/exceptions.h"
#include "lab/recipe_file.h"
#include "options.h"
#include "stopwatch.h"

namespace qattn::cli {
namespace {

constexpr std::int64_t kMostLayers = 1'000'000;

struct Options {
  std::string recipe;       ///< empty: sage1-vB, or sage2-4b with a budget
  std::string alternative;  ///< empty: sage1-B, or fa2-fp16 with a budget
  double threshold = 0.998;
  std::int64_t budget = -1;  ///< -1: by threshold
  std::string by = "rel_l1";
  std::string layer;
  std::vector<std::string> settings;
  WorkOptions work;
  OutputOptions output;

  bool by_budget() const { return budget >= 0; }
  std::string cheap() const { return !recipe.empty() ? recipe : by_budget() ? "sage2-4b" : "sage1-vB"; }
  std::string safe() const { return !alternative.empty() ? alternative : by_budget() ? "fa2-fp16" : "sage1-B"; }
};

std::vector<lab::Trial> trials_of(const Options& options) {
  std::vector<lab::Override> overrides;
  for (const std::string& setting : options.settings) overrides.push_back(lab::parse_override(setting));
  lab::Trial cheap{lab::with_overrides(lab::load_recipe(options.cheap()), overrides)};
  lab::Trial safe{lab::load_recipe(options.safe())};
  if (!cheap.recipe.exceptions.empty() || !safe.recipe.exceptions.empty()) {
    throw Error(ErrorKind::usage, "plan: the plan is what finds the exceptions; leave them out (--set exceptions=)");
  }
  safe.recipe.o_format = cheap.recipe.o_format;  // as an exception of the first would run
  return {std::move(cheap), std::move(safe)};
}

lab::Table layer_table(const std::vector<lab::PlannedLayer>& layers, const std::vector<lab::Trial>& trials,
                       const Options& options) {
  const std::string figure = options.by_budget() ? options.by == "cos_sim" ? "1 - CosSim" : options.by : "CosSim";
  lab::Table table{"Layers",
                   {{"layer", "layer"},
                    {"worst", fmt::format("{} of {}, worst call", figure, trials.front().recipe.name), 6},
                    {"recipe", "takes"}},
                   {}};
  for (const lab::PlannedLayer& layer : layers) {
    table.rows.push_back(
        {{"layer", layer.name}, {"worst", layer.worst}, {"recipe", trials[layer.second ? 1 : 0].recipe.name}});
  }
  return table;
}

lab::Json summary_row(const std::string& plan, std::string_view statistic, const metric::Summary& s) {
  const bool worst = statistic == "worst";
  const auto value = [&](const metric::MetricSummary& m) { return worst ? m.worst() : m.average(); };
  return {
      {"plan", plan},          {"statistic", statistic},   {"cos_sim", value(s.cos_sim)}, {"rel_l1", value(s.rel_l1)},
      {"rmse", value(s.rmse)}, {"nan_count", s.nan_count}, {"inf_count", s.inf_count}};
}

/// The whole model under the plan and under either recipe alone.
std::vector<lab::Json> model_rows(const lab::DumpSet& dumps, const std::vector<lab::Json>& planned,
                                  const lab::RunResult& result, const std::vector<lab::Trial>& trials) {
  std::vector<lab::Json> rows;
  const metric::Summary chosen = lab::planned_summary(dumps, planned);
  for (const char* statistic : {"average", "worst"}) {
    rows.push_back(summary_row("planned", statistic, chosen));
    for (std::size_t t = 0; t < trials.size(); ++t) {
      rows.push_back(summary_row(fmt::format("{} everywhere", trials[t].recipe.name), statistic, result.summaries[t]));
    }
  }
  return rows;
}

/// The options of qattn run that give the plan's result, or why there are none. `calls` take the second recipe.
std::string as_exceptions(const Options& options, const lab::DumpSet& dumps, const std::vector<std::size_t>& calls) {
  std::vector<std::string> paths;
  for (const std::size_t call : calls) paths.push_back(dumps.calls()[call].call->path);
  for (std::size_t c = 0; c < dumps.calls().size(); ++c) {
    const bool is_planned = std::find(calls.begin(), calls.end(), c) != calls.end();
    const std::string& path = dumps.calls()[c].call->path;
    if (is_planned || std::find(paths.begin(), paths.end(), path) == paths.end()) continue;
    return fmt::format("as exceptions of qattn run the plan cannot be said: {} is a call of several files", path);
  }
  std::string text = fmt::format("the same with qattn run: --recipe '{}'", options.cheap());
  for (const std::string& setting : options.settings) text += fmt::format(" --set '{}'", setting);
  return text +
         fmt::format(" --set 'exceptions={}' --set 'exception_recipe={}'", lab::exceptions_text(paths), options.safe());
}

std::vector<std::string> notes_of(const Options& options, const lab::DumpSet& dumps,
                                  const std::vector<lab::PlannedLayer>& layers, const std::vector<lab::Trial>& trials) {
  std::vector<std::size_t> calls;
  std::size_t second = 0;
  for (const lab::PlannedLayer& layer : layers) {
    if (!layer.second) continue;
    ++second;
    calls.insert(calls.end(), layer.calls.begin(), layer.calls.end());
  }
  std::vector<std::string> notes = {fmt::format("{} of {} layers take {}, {} take {}", layers.size() - second,
                                                layers.size(), trials[0].recipe.name, second, trials[1].recipe.name)};
  if (second > 0) notes.push_back(as_exceptions(options, dumps, calls));
  for (const std::string& note : evidence_notes(trials)) notes.push_back(note);
  return notes;
}

int plan(const Options& options) {
  if (!std::isfinite(options.threshold)) throw Error(ErrorKind::usage, "plan: --threshold is to be a number");
  const Stopwatch time;
  const lab::Sensitivity by = lab::parse_sensitivity(options.by);
  const std::vector<lab::Trial> trials = trials_of(options);
  const lab::DumpSet dumps = options.work.open(options.output);
  std::vector<lab::PlannedLayer> layers = lab::layers_of(dumps, options.layer);
  const lab::RunResult result = run_with_progress(dumps, trials, options.work, options.output);
  const std::vector<lab::Json> first = lab::call_rows(result, 0, 2), second = lab::call_rows(result, 1, 2);
  if (options.by_budget()) {
    lab::plan_by_budget(layers, first, by, options.budget);
  } else {
    lab::plan_by_threshold(layers, first, options.threshold);
  }
  lab::Report report;
  report.context = run_context("plan", dumps, trials, options.work, time.seconds());
  report.rows = lab::planned_rows(layers, first, second);
  report.columns = lab::row_columns({});
  report.csv_keys = lab::row_keys({});
  report.row_table = lab::RowTable::none;
  report.tables.push_back(layer_table(layers, trials, options));
  const std::vector<lab::Json> model = model_rows(dumps, report.rows, result, trials);
  report.tables.push_back({"The whole model",
                           {{"plan", "plan"},
                            {"statistic", "over calls"},
                            {"cos_sim", "CosSim", 6},
                            {"rel_l1", "Rel. L1"},
                            {"rmse", "RMSE"}},
                           model});
  report.summary = {{"layers", report.tables.front().rows}, {"model", model}};
  report.notes = notes_of(options, dumps, layers, trials);
  emit(report, options.output);
  return status_of(result);
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "which recipe each layer should run under, and what the model loses");
  command->add_option("dump", options->work.selection.inputs, "dumps (HDF5, safetensors, npz) or folders of them")
      ->required()
      ->type_name("DUMP");
  command->add_option("--recipe", options->recipe, "the cheap recipe (sage1-vB; with --budget sage2-4b)")
      ->type_name("NAME");
  command
      ->add_option("--alternative", options->alternative,
                   "what layers take that the cheap one does not suit (sage1-B; with --budget fa2-fp16)")
      ->type_name("NAME");
  CLI::Option* threshold = command->add_option(
      "--threshold", options->threshold,
      "a layer keeps the cheap recipe where its cosine similarity exceeds this on every call (0.998)");
  threshold->check(CLI::Range(-1.0, 1.0));
  CLI::Option* budget =
      command->add_option("--budget", options->budget, "give the alternative to the N most sensitive layers instead");
  budget->type_name("N")->check(CLI::Range(std::int64_t{0}, kMostLayers))->excludes(threshold);
  command->add_option("--by", options->by, "with --budget: rel_l1, cos_sim or rmse")
      ->type_name("METRIC")
      ->needs(budget);
  command
      ->add_option("--layer", options->layer,
                   "calls are of one layer when this finds the same in their paths, e.g. 'block_[0-9]+'")
      ->type_name("REGEX");
  add_set_option(*command, options->settings);
  add_work_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return plan(*options); }; });
}

}  // namespace qattn::cli
