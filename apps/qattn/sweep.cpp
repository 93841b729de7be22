// qattn sweep: a grid of recipes over dumps, with results that survive any kill.
#include "lab/sweep.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "command.h"
#include "lab/provenance.h"
#include "lab/results_file.h"
#include "lab/sweep_config.h"
#include "lab/sweep_cost.h"
#include "options.h"
#include "progress.h"
#include "stopwatch.h"

namespace qattn::cli {
namespace {

constexpr const char* kFooter = R"(A configuration:
  output = "results.h5"            # default: the configuration's name with .h5
  threads = 2                      # default: one for each core
  [dump]
  files = ["dump.h5", "folder"]    # beside the configuration, else in the working directory
  calls = "layer_0[0-3]"           # optional, searched for in a call's path
  heads = "0:4"                    # optional
  [[grid]]                         # one or more
  base = ["sage2-4b", "my.toml"]   # recipes by name or file, and/or
  recipes = "^sage"                # by a regular expression over their names
  smoothing = ["none", "qk"]       # any key of a recipe (qattn recipes --keys): lists multiply
  pv_format = "e4m3"               # one value is set in all
  skip_invalid = true              # leave out what does not fit together instead of refusing it
  [grid.zip]                       # lists that advance together; [[grid.zip]] for several such sets
  q_block = [64, 128]
  q_warp = [16, 32]

Each finished cell (call, batch, head, recipe) is on the disk, in OUTPUT.journal, before the next begins. After
Ctrl-C (status 130), a kill or a full disk the same command goes on from there; the rows are those of an undisturbed
sweep. Ctrl-C and SIGTERM finish the cells in hand.)";

constexpr double kMega = 1e6, kGiga = 1e9;

struct Options {
  std::string config;
  std::vector<std::string> merge;
  bool dry_run = false, restart = false, backward = false;
  int threads = -1;
  std::string device = "cpu";
  CacheOptions cache;
  OutputOptions output;
};

/// --output names the results file when it ends as one, else where the rows are printed.
bool names_results(const Options& options) { return lab::is_results_name(options.output.file); }

OutputOptions report_output(const Options& options) {
  OutputOptions output = options.output;
  if (names_results(options)) output.file.clear();
  return output;
}

/// The configuration with what the command line overrides.
lab::SweepConfig configuration(const Options& options) {
  if (options.config.empty()) throw Error(ErrorKind::usage, "sweep: give a CONFIG.toml, or --merge A B --output C.h5");
  lab::SweepConfig config = lab::load_sweep(options.config);
  if (options.threads >= 0) config.threads = options.threads;
  config.backward = config.backward || options.backward;
  if (names_results(options)) config.output = options.output.file;
  return config;
}

lab::SweepPlan plan_of(const lab::SweepConfig& config, const lab::DumpSet& dumps) {
  return lab::plan_sweep(dumps, config.trials, config.backward ? std::optional(config.seed) : std::nullopt);
}

lab::DumpSet open_dumps(const lab::SweepConfig& config) {
  try {
    return lab::DumpSet(config.selection);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: [dump]: {}", config.file, e.what()));
  }
}

void tell(const Options& options, const std::string& text) {
  if (!options.output.quiet) fmt::print(stderr, "qattn: {}\n", text);
}

lab::Json context_of(std::string_view config, const lab::Results& results, const std::string& hash) {
  lab::Json context = lab::tool_context();
  context["command"] = "sweep";
  context["config"] = config;
  context["configuration_hash"] = hash;
  if (results.upstream_seed) context["upstream_seed"] = *results.upstream_seed;
  context["inputs"] = lab::Json::array();
  for (const lab::ResultInput& input : results.inputs) {
    context["inputs"].push_back({{"file", input.file}, {"bytes", input.bytes}, {"sha256", input.sha256}});
  }
  lab::Json recipes = lab::Json::object();
  for (const lab::ResultRecipe& recipe : results.recipes) {
    recipes[recipe.name] = recipe.keys;
    recipes[recipe.name]["evidence"] = recipe.evidence;
  }
  context["recipes"] = std::move(recipes);
  return context;
}

/// Prints what the results hold; the exit status is run's.
int report(const Options& options, const lab::Results& results, lab::Json context, std::vector<std::string> notes) {
  const lab::RunResult found = lab::rows_of(results);
  const std::vector<lab::Trial> trials = lab::named_trials(results);
  context["sources"] = results.sources;
  lab::Report report;
  report.context = std::move(context);
  std::vector<std::string> labels;
  if (results.upstream_seed) labels.emplace_back("output");
  report.columns = lab::row_columns(labels, results.inputs.size() > 1);
  report.csv_keys = lab::row_keys({});
  report.rows = found.rows;
  report.row_table = lab::RowTable::text_calls;
  const std::vector<lab::Json> summary = lab::summary_rows(trials, found);
  report.summary = summary;
  report.tables.push_back({"Over all calls", lab::summary_columns(labels), summary});
  report.notes = std::move(notes);
  tell_bad_outputs(found.bad);
  emit(report, report_output(options));
  return status_of(found);
}

int run(const Options& options) {
  const Stopwatch time;
  const lab::SweepConfig config = configuration(options);
  const auto device = open_device(options.device);
  const lab::DumpSet dumps = open_dumps(config);
  const lab::SweepPlan plan = plan_of(config, dumps);
  const InterruptGuard interrupt;
  const lab::ReferenceCache references = options.cache.open();
  std::int64_t measured = 0, missing = 0;
  lab::Results results;
  try {
    Progress progress("cells", options.output.quiet);
    lab::SweepOptions sweep{config.output, config.threads, options.restart, &references, device.get()};
    sweep.progress = [&](std::int64_t done, std::int64_t total) {
      measured = done;
      missing = total;
      progress.show(done, total);
    };
    sweep.cancelled = InterruptGuard::requested;
    sweep.remark = [&](const std::string& text) { tell(options, text); };
    results = lab::run_sweep(dumps, config.trials, plan, sweep);
  } catch (const lab::Interrupted&) {
    fmt::print(stderr, "qattn: {} of {} missing cells were measured and are kept in {}; the same command goes on\n",
               measured, missing, lab::journal_path(config.output));
    throw;
  }
  if (!options.output.quiet) options.cache.remark(references);
  const std::vector<std::string> idle = lab::idle_exceptions(dumps, config.trials);
  if (!options.output.quiet) tell_idle_exceptions(idle);
  lab::Json context = context_of(config.file, results, plan.configuration);
  if (!idle.empty()) context["idle_exceptions"] = idle;
  context["results"] = config.output;
  context["cells"] = results.cells.size();
  context["cells_measured_now"] = measured;
  context["seconds"] = time.seconds();
  std::vector<std::string> notes = config.left_out;
  notes.push_back(fmt::format("{}: {} cells, {} measured now", config.output, results.cells.size(), measured));
  return report(options, results, std::move(context), std::move(notes));
}

std::string bytes_text(double bytes) {
  return bytes < kGiga ? fmt::format("{:.1f} MB", bytes / kMega) : fmt::format("{:.2f} GB", bytes / kGiga);
}

int dry_run(const Options& options) {
  const lab::SweepConfig config = configuration(options);
  const lab::DumpSet dumps = open_dumps(config);
  const lab::SweepPlan plan = plan_of(config, dumps);
  const std::size_t finished = options.restart ? 0 : lab::count_finished(plan, config.output);
  const std::vector<double> rates = lab::calibrate(dumps, config.trials, config.backward);
  const int threads =
      config.threads > 0 ? config.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::int64_t work = lab::multiply_adds(dumps, config.backward), memory = lab::head_bytes(dumps) * threads;
  lab::Report report;
  report.columns = {{"recipe", "recipe"},
                    {"cells", "cells"},
                    {"multiply_adds", "multiply-adds"},
                    {"estimated_seconds", "estimated s"}};
  double seconds = rates.back() * static_cast<double>(work) / kGiga;
  for (std::size_t t = 0; t < config.trials.size(); ++t) {
    const double of_recipe = rates[t] * static_cast<double>(work) / kGiga;
    seconds += of_recipe;
    report.rows.push_back({{"recipe", config.trials[t].recipe.name},
                           {"cells", plan.cells.size() / config.trials.size()},
                           {"multiply_adds", work},
                           {"estimated_seconds", of_recipe}});
  }
  const double share = 1 - static_cast<double>(finished) / static_cast<double>(plan.cells.size());
  const double left =
      seconds * share / std::min(threads, static_cast<int>(std::min<std::int64_t>(dumps.heads(), 4096)));
  report.context = context_of(config.file, plan.results, plan.configuration);
  report.context["results"] = config.output;
  report.summary = {{"calls", dumps.calls().size()},
                    {"heads", dumps.heads()},
                    {"recipes", config.trials.size()},
                    {"cells", plan.cells.size()},
                    {"finished", finished},
                    {"multiply_adds", work * static_cast<std::int64_t>(rates.size())},
                    {"threads", threads},
                    {"estimated_seconds", left},
                    {"estimated_bytes", memory}};
  report.notes = config.left_out;
  report.notes.push_back(fmt::format("{} calls, {} heads, {} recipes: {} cells, {} of them finished",
                                     dumps.calls().size(), dumps.heads(), config.trials.size(), plan.cells.size(),
                                     finished));
  report.notes.push_back(
      fmt::format("about {} on {} threads, from one small head of each recipe timed on this machine; "
                  "about {} of memory for heads",
                  duration_text(left), threads, bytes_text(static_cast<double>(memory))));
  report.notes.push_back(fmt::format("nothing was measured or written; results go to {}", config.output));
  emit(report, report_output(options));
  return 0;
}

int merge(const Options& options) {
  if (!names_results(options)) throw Error(ErrorKind::usage, "sweep --merge: give the merged file, --output C.h5");
  lab::Results merged = lab::read_results(options.merge.front());
  for (std::size_t i = 1; i < options.merge.size(); ++i) {
    const lab::Results next = lab::read_results(options.merge[i]);
    try {
      merged = lab::merge_results(merged, next);
    } catch (const Error& e) {
      throw Error(e.kind(),
                  fmt::format("{}: cannot be merged with what comes before it: {}", options.merge[i], e.what()));
    }
  }
  lab::write_results(options.output.file, merged);
  const std::string hash = lab::configuration_hash(merged, lab::cell_ids(merged));
  lab::Json context = context_of("", merged, hash);
  context["results"] = options.output.file;
  context["cells"] = merged.cells.size();
  const std::string note =
      fmt::format("{}: {} cells of {} files", options.output.file, merged.cells.size(), options.merge.size());
  return report(options, merged, std::move(context), {note});
}

int sweep(const Options& options) {
  if (!options.merge.empty()) return merge(options);
  return options.dry_run ? dry_run(options) : run(options);
}

}  // namespace

void add_sweep(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("sweep", "a grid of recipes over dumps; goes on where it was stopped");
  command->add_option("config", options->config, "the configuration: [dump], [[grid]], output, threads")
      ->type_name("CONFIG.toml");
  command->add_flag("--dry-run", options->dry_run, "print cells, cost and memory; measure and write nothing");
  command->add_flag("--restart", options->restart, "throw away the output's journal and results and begin anew");
  command->add_flag("--backward", options->backward, "gradients too, as `backward = true` of the configuration");
  command->add_option("--merge", options->merge, "merge results files into the one of --output")
      ->type_name("FILE")
      ->expected(2, 1 << 20)
      ->excludes("config");
  command->add_option("--threads", options->threads, "number of threads; 0: one for each core")
      ->type_name("N")
      ->check(CLI::Range(0, 4096));
  add_cache_options(*command, options->cache);
  add_device_option(*command, options->device);
  add_output_options(*command, options->output);
  command->get_option("--output")
      ->description(
          "FILE.h5: the results file, in place of the configuration's; any other name: print to it instead of stdout");
  command->footer(kFooter);
  command->callback([options, &action] { action = [options] { return sweep(*options); }; });
}

}  // namespace qattn::cli
