// qattn table: a paper's table, ours beside it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "command.h"
#include "io/atomic_file.h"
#include "lab/exceptions.h"
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
  bool has_upstream_seed = false;  ///< given, whatever it is
  WorkOptions work;
  OutputOptions output;
};

int list(const Options& options) {
  const WorkOptions& work = options.work;
  if (options.seeds > 0 || options.has_upstream_seed || !work.selection.inputs.empty() ||
      !work.selection.calls.empty() || !work.heads.empty()) {
    throw Error(
        ErrorKind::usage,
        "table --list measures nothing: leave --dump, --calls, --heads, --seeds and --upstream-seed out, or name "
        "a table");
  }
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

/// A table whose tensors are drawn; they are measured as run's are.
Measured draw(const Options& options, const lab::PaperTable& table, const std::string& heads) {
  const Stopwatch time;
  const InterruptGuard interrupt;
  lab::RunResult result;
  lab::Report report;
  {
    Progress progress(heads, options.output.quiet);
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

/// Takes the recipe from rows that cannot run on these dumps, whose figures are then the paper's alone; a note on each.
/// Throws Error(usage) where none is left.
std::vector<std::string> drop_misfits(lab::PaperTable& table, const lab::DumpSet& dumps) {
  std::vector<std::string> notes;
  bool any = false;
  std::string why;
  for (lab::PaperRow& row : table.rows) {
    if (!row.recipe) continue;
    const std::string misfit = lab::Exceptions(*row.recipe).misfit(dumps);
    any = any || misfit.empty();
    if (misfit.empty()) continue;
    why = misfit;
    notes.push_back(fmt::format("'{}' is not measured: {}", row.label, misfit));
    row.recipe.reset();
  }
  if (!any && !why.empty()) throw Error(ErrorKind::usage, fmt::format("{}: no row can be measured: {}", table.id, why));
  return notes;
}

/// A table whose tensors were a model's, on dumps.
Measured measure(const Options& options, lab::PaperTable table, const lab::DumpSet& dumps, const std::string& heads) {
  const Stopwatch time;
  const std::vector<std::string> misfits = drop_misfits(table, dumps);
  const std::vector<lab::Trial> trials = lab::trials_of(table);
  WorkOptions work = options.work;
  work.backward = lab::needs_gradients(table);
  const lab::RunResult result = run_with_progress(dumps, trials, work, options.output, heads);
  Measured measured{lab::compare(table, dumps, result, work.upstream_seed()), status_of(result)};
  measured.report.context = run_context("table", dumps, trials, work, time.seconds());
  measured.report.context["table"] = table.id;
  measured.report.notes.insert(measured.report.notes.end(), misfits.begin(), misfits.end());
  if (options.work.selection.inputs.empty()) {
    measured.report.notes.emplace_back("ours are the dumps that come with QAttn; --dump DUMP measures others");
  }
  return measured;
}

lab::DumpSet open_dumps(const Options& options) {
  WorkOptions work = options.work;
  if (work.selection.inputs.empty()) work.selection.inputs = lab::default_dumps();
  return work.open(options.output);
}

/// Every table in one Markdown and one LaTeX file, FILE.md and FILE.tex.
int all_tables(const Options& options) {
  if (!options.id.empty() || options.output.file.empty() || options.output.form() != lab::Form::text) {
    throw Error(
        ErrorKind::usage,
        "table --all: give --output FILE without an ending (FILE.md and FILE.tex are written), no ID and no form");
  }
  const std::string folder = std::filesystem::absolute(options.output.file).parent_path().string();
  if (!std::filesystem::is_directory(folder)) {  // minutes before the report is written
    throw Error(ErrorKind::input, folder + ": no such folder, where the report is to be written");
  }
  const lab::DumpSet dumps = open_dumps(options);
  const std::vector<lab::PaperTable> tables = lab::load_all_paper_tables();
  std::vector<lab::Section> sections;
  int status = 0;
  for (const lab::PaperTable& table : tables) {
    const std::string heads = fmt::format("heads of {} ({} of {})", table.id, sections.size() + 1, tables.size());
    Measured measured = table.synthetic ? draw(options, table, heads) : measure(options, table, dumps, heads);
    status = std::max(status, measured.status);
    sections.push_back({table.id, std::move(measured.report)});
  }
  const std::string title =
      fmt::format("Tables of the papers and ours (qattn {}, {})", lab::tool_version(), lab::git_commit());
  for (const auto& [ending, form] : {std::pair(".md", lab::Form::markdown), std::pair(".tex", lab::Form::latex)}) {
    io::write_file(options.output.file + ending, lab::render_document(title, sections, form));
  }
  return status;
}

Measured one_table(const Options& options) {
  const lab::PaperTable table = lab::load_paper_table(options.id);
  const WorkOptions& work = options.work;
  if (options.has_upstream_seed && (table.synthetic || !lab::needs_gradients(table))) {
    const char* why = table.synthetic ? "draws its own tensors" : "has no gradients";
    throw Error(ErrorKind::usage, fmt::format("{} {}: leave --upstream-seed out", table.id, why));
  }
  if (!table.synthetic) {
    if (options.seeds > 0) {
      throw Error(ErrorKind::usage, table.id + " is measured on dumps; --seeds is of tables that draw their tensors");
    }
    return measure(options, table, open_dumps(options), "heads");
  }
  if (!work.selection.inputs.empty() || !work.selection.calls.empty() || !work.heads.empty()) {
    throw Error(
        ErrorKind::usage,
        table.id + " draws its own tensors, as its paper describes them; leave --dump, --calls and --heads out");
  }
  return draw(options, table, "heads");
}

int table(const Options& options) {
  if (options.list) return list(options);
  if (options.all) return all_tables(options);
  if (options.id.empty()) throw Error(ErrorKind::usage, "table: give the ID of a table, --list or --all");
  const Measured measured = one_table(options);
  emit(measured.report, options.output);
  return measured.status;
}

}  // namespace

void add_table(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("table", "a paper's table: the paper's figures beside ours");
  CLI::Option* id = command->add_option("id", options->id, "the table, e.g. sage2-table4, or a .toml file");
  id->type_name("ID");
  CLI::Option* list = command->add_flag("--list", options->list, "the tables that are known")->excludes(id);
  command->add_flag("--all", options->all, "every table in one report: --output FILE writes FILE.md and FILE.tex")
      ->excludes(id)
      ->excludes(list);
  command
      ->add_option("--dump", options->work.selection.inputs,
                   "tables of models: measure on these dumps (files or folders; default: SmolLM2 in QAttn's data)")
      ->type_name("DUMP");
  command->add_option("--seeds", options->seeds, "draws of a synthetic table's tensors (default: as the table says)")
      ->type_name("N")
      ->check(CLI::Range(0, 10000));
  add_upstream_seed_option(*command, options->work);
  add_work_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, command, &action] {
    options->has_upstream_seed = command->count("--upstream-seed") > 0;
    action = [options] { return table(*options); };
  });
}

}  // namespace qattn::cli
