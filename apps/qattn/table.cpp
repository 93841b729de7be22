// qattn table: a paper's table, ours beside it.
#include <memory>

#include "base/error.h"
#include "command.h"
#include "lab/paper_table.h"
#include "lab/provenance.h"
#include "lab/synthetic_table.h"
#include "options.h"
#include "progress.h"
#include "stopwatch.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string id;
  bool list = false;
  std::int64_t seeds = 0;
  WorkOptions work;
  OutputOptions output;
};

int list(const Options& options) {
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {{"name", "name"}, {"title", "title"}, {"source", "source"}};
  report.csv_keys = {"name", "title", "statistic", "tensors", "source", "rows", "note"};
  for (const lab::PaperTable& table : lab::load_all_paper_tables()) {
    report.rows.push_back({{"name", table.id},
                           {"title", table.title},
                           {"statistic", table.statistic},
                           {"tensors", table.tensors},
                           {"source", table.source},
                           {"rows", table.rows.size()},
                           {"note", table.note}});
  }
  emit(report, options.output);
  return 0;
}

int print_paper(const Options& options, const lab::PaperTable& table) {
  lab::Report report = lab::compare(table, nullptr, nullptr);
  report.context = lab::tool_context();
  report.context["command"] = "table";
  emit(report, options.output);
  return 0;
}

/// A table whose tensors are drawn; they are measured as run's are.
int measure(const Options& options, const lab::PaperTable& table) {
  if (!options.work.selection.inputs.empty()) {
    throw Error(ErrorKind::usage, table.id + " draws its own tensors, as its paper describes them; leave --dump out");
  }
  const Stopwatch time;
  const InterruptGuard interrupt;
  lab::RunResult result;
  lab::Report report;
  {
    Progress progress("heads", options.output.quiet);
    lab::RunOptions run;
    run.threads = options.work.threads;
    run.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    run.cancelled = InterruptGuard::requested;
    report = lab::measure_synthetic(table, options.seeds, run, &result);
  }
  tell_bad_outputs(result.bad);
  report.context = lab::tool_context();
  report.context["command"] = "table";
  report.context["table"] = table.id;
  report.context["seconds"] = time.seconds();
  emit(report, options.output);
  return status_of(result);
}

int table(const Options& options) {
  if (options.list) return list(options);
  if (options.id.empty()) throw Error(ErrorKind::usage, "table: give the ID of a table, or --list");
  const Stopwatch time;
  const lab::PaperTable table = lab::load_paper_table(options.id);
  if (table.synthetic) return measure(options, table);
  if (options.work.selection.inputs.empty()) return print_paper(options, table);
  const std::vector<lab::Trial> trials = lab::trials_of(table);
  const lab::DumpSet dumps = options.work.open();
  const lab::RunResult result = run_with_progress(dumps, trials, options.work, options.output);
  lab::Report report = lab::compare(table, &dumps, &result);
  report.context = run_context("table", dumps, trials, options.work, time.seconds());
  report.context["table"] = table.id;
  emit(report, options.output);
  return status_of(result);
}

}  // namespace

void add_table(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("table", "a paper's table: the paper's figures beside ours");
  command->add_option("id", options->id, "the table, e.g. sage2-table4, or a .toml file")->type_name("ID");
  command->add_flag("--list", options->list, "the tables that are known");
  command->add_option("--dump", options->work.selection.inputs, "measure on these dumps (files or folders)")
      ->type_name("DUMP");
  command->add_option("--seeds", options->seeds, "draws of a synthetic table's tensors (default: as the table says)")
      ->type_name("N")
      ->check(CLI::Range(0, 10000));
  add_work_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return table(*options); }; });
}

}  // namespace qattn::cli
