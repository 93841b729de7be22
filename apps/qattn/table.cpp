// qattn table: a paper's table, ours beside it.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "command.h"
#include "io/atomic_file.h"
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
  bool all = false;
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

/// A report and the command's exit status.
struct Measured {
  lab::Report report;
  int status = 0;
};

Measured print_paper(const lab::PaperTable& table) {
  Measured measured{lab::compare(table, nullptr, nullptr)};
  measured.report.context = lab::tool_context();
  measured.report.context["command"] = "table";
  return measured;
}

/// A table whose tensors are drawn; they are measured as run's are.
Measured draw(const Options& options, const lab::PaperTable& table) {
  if (!options.all && !options.work.selection.inputs.empty()) {
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
  return {std::move(report), status_of(result)};
}

Measured measure(const Options& options, const lab::PaperTable& table) {
  if (table.synthetic) return draw(options, table);
  if (options.work.selection.inputs.empty()) return print_paper(table);
  const Stopwatch time;
  const std::vector<lab::Trial> trials = lab::trials_of(table);
  const lab::DumpSet dumps = options.work.open();
  const lab::RunResult result = run_with_progress(dumps, trials, options.work, options.output);
  lab::Report report = lab::compare(table, &dumps, &result);
  report.context = run_context("table", dumps, trials, options.work, time.seconds());
  report.context["table"] = table.id;
  return {std::move(report), status_of(result)};
}

/// Every table in one Markdown and one LaTeX file, FILE.md and FILE.tex.
int all_tables(const Options& options) {
  if (!options.id.empty() || options.output.file.empty()) {
    throw Error(ErrorKind::usage, "table --all: give --output FILE (FILE.md and FILE.tex are written) and no ID");
  }
  std::string markdown, latex;
  int status = 0;
  for (const lab::PaperTable& table : lab::load_all_paper_tables()) {
    const Measured measured = measure(options, table);
    markdown += "## " + table.id + "\n\n" + lab::render(measured.report, lab::Form::markdown) + "\n";
    latex += "% " + table.id + "\n" + lab::render(measured.report, lab::Form::latex) + "\n";
    status = std::max(status, measured.status);
  }
  io::write_file(options.output.file + ".md", markdown);
  io::write_file(options.output.file + ".tex", latex);
  return status;
}

int table(const Options& options) {
  if (options.list) return list(options);
  if (options.all) return all_tables(options);
  if (options.id.empty()) throw Error(ErrorKind::usage, "table: give the ID of a table, --list or --all");
  const Measured measured = measure(options, lab::load_paper_table(options.id));
  emit(measured.report, options.output);
  return measured.status;
}

}  // namespace

void add_table(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("table", "a paper's table: the paper's figures beside ours");
  command->add_option("id", options->id, "the table, e.g. sage2-table4, or a .toml file")->type_name("ID");
  command->add_flag("--list", options->list, "the tables that are known");
  command->add_flag("--all", options->all, "every table in one report: --output FILE writes FILE.md and FILE.tex");
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
