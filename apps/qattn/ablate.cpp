// qattn ablate: one quantity of a recipe changed at a time.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "lab/ablation.h"
#include "lab/recipe_file.h"
#include "options.h"
#include "stopwatch.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string base;
  std::vector<std::string> axes;
  std::vector<std::string> settings;
  std::string device = "cpu";
  WorkOptions work;
  OutputOptions output;
};

const std::vector<std::string> kLabels = {"axis", "value"};

lab::Ablation trials_of(const Options& options) {
  std::vector<lab::Override> overrides;
  for (const std::string& setting : options.settings) overrides.push_back(lab::parse_override(setting));
  const attention::Recipe base = lab::with_overrides(lab::load_recipe(options.base), overrides);
  lab::Ablation all;
  for (const std::string& axis : options.axes) {
    lab::Ablation one = lab::ablate(base, axis);
    std::move(one.trials.begin(), one.trials.end(), std::back_inserter(all.trials));
    std::move(one.left_out.begin(), one.left_out.end(), std::back_inserter(all.left_out));
  }
  return all;
}

int ablate(const Options& options) {
  const Stopwatch time;
  const lab::Ablation ablation = trials_of(options);
  const auto device = open_device(options.device);
  const lab::DumpSet dumps = options.work.open(options.output);
  const lab::RunResult result =
      run_with_progress(dumps, ablation.trials, options.work, options.output, "heads", device.get());
  lab::Report report;
  report.context = run_context("ablate", dumps, ablation.trials, options.work, time.seconds(), device.get());
  report.context["left_out"] = ablation.left_out;
  const std::vector<std::string> columns = options.work.with_output(kLabels);
  report.columns = lab::row_columns(columns, dumps.files().size() > 1);
  report.csv_keys = lab::row_keys(kLabels);
  report.rows = result.rows;
  report.row_table = lab::RowTable::text_calls;
  const std::vector<lab::Json> summary = lab::summary_rows(ablation.trials, result);
  report.summary = summary;
  report.tables.push_back({"Over all calls", lab::summary_columns(columns), summary});
  report.notes = evidence_notes(ablation.trials);
  report.notes.insert(report.notes.end(), ablation.left_out.begin(), ablation.left_out.end());
  emit(report, options.output);
  return status_of(result);
}

std::string axis_help() {
  std::string help = "what to vary, or AXIS=VALUE,VALUE,... (then any recipe key may be an axis):";
  for (const lab::Axis& axis : lab::axes()) help += fmt::format(" {} ({});", axis.name, axis.help);
  help.pop_back();
  return help;
}

}  // namespace

void add_ablate(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("ablate", "one axis of a recipe at a time");
  command->add_option("dump", options->work.selection.inputs, "dumps (HDF5, safetensors, npz) or folders of them")
      ->required()
      ->type_name("DUMP");
  command->add_option("--base", options->base, "the recipe to vary: a name, or a .toml file")
      ->required()
      ->type_name("NAME");
  command->add_option("--axis", options->axes, axis_help())->required()->type_name("AXIS");
  add_set_option(*command, options->settings);
  add_work_options(*command, options->work);
  add_device_option(*command, options->device);
  add_backward_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return ablate(*options); }; });
}

}  // namespace qattn::cli
