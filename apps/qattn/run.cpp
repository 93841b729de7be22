// qattn run: the accuracy of recipes on a dump.
#include <memory>

#include "command.h"
#include "lab/recipe_file.h"
#include "options.h"
#include "stopwatch.h"

namespace qattn::cli {
namespace {

struct Options {
  std::vector<std::string> recipes;
  std::vector<std::string> settings;
  std::string device = "cpu";
  WorkOptions work;
  OutputOptions output;
};

std::vector<lab::Trial> trials_of(const Options& options) {
  std::vector<lab::Override> overrides;
  for (const std::string& setting : options.settings) overrides.push_back(lab::parse_override(setting));
  std::vector<lab::Trial> trials;
  for (const std::string& name : options.recipes) {
    trials.push_back({lab::with_overrides(lab::load_recipe(name), overrides)});
  }
  return trials;
}

int run(const Options& options) {
  const Stopwatch time;
  const std::vector<lab::Trial> trials = trials_of(options);
  const auto device = open_device(options.device);
  const lab::DumpSet dumps = options.work.open(options.output);
  const lab::RunResult result = run_with_progress(dumps, trials, options.work, options.output, "heads", device.get());
  lab::Report report;
  report.context = run_context("run", dumps, trials, options.work, time.seconds(), device.get());
  const std::vector<std::string> labels = options.work.with_output({});
  report.columns = lab::row_columns(labels, dumps.files().size() > 1);
  report.csv_keys = lab::row_keys({});
  report.rows = result.rows;
  const std::vector<lab::Json> summary = lab::summary_rows(trials, result);
  report.summary = summary;
  report.tables.push_back({"Over all calls", lab::summary_columns(labels), summary});
  report.notes = evidence_notes(trials);
  emit(report, options.output);
  return status_of(result);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "accuracy of one or more recipes per call and head, then the summary");
  command->add_option("dump", options->work.selection.inputs, "dumps (HDF5, safetensors, npz) or folders of them")
      ->required()
      ->type_name("DUMP");
  command
      ->add_option("--recipe", options->recipes, "a recipe's name, or a .toml file; several are measured side by side")
      ->required()
      ->type_name("NAME");
  add_set_option(*command, options->settings);
  add_work_options(*command, options->work);
  add_device_option(*command, options->device);
  add_backward_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace qattn::cli
