// qattn info: what a file holds, and how scales are shared.
#include <memory>

#include "base/error.h"
#include "command.h"
#include "io/vectors.h"
#include "lab/inspect.h"
#include "lab/provenance.h"
#include "options.h"

namespace qattn::cli {
namespace {

struct Options {
  WorkOptions work;
  bool groups = false;
  std::string operand = "q";
  std::string granularity = "per_thread";
  std::string tiling = "sm89";
  std::int64_t tokens = 128;
  std::int64_t channels = 64;
  std::string blocks;
  OutputOptions output;
};

quant::GroupSpec group_spec(const Options& options) {
  quant::GroupSpec spec;
  spec.granularity = quant::find_granularity(options.granularity);
  spec.tiling = quant::find_tiling(options.tiling);
  for (const quant::Operand operand : {quant::Operand::q, quant::Operand::k, quant::Operand::v, quant::Operand::p}) {
    if (quant::name(operand) == options.operand) spec.operand = operand;
  }
  return spec;
}

/// A single file may be one of recorded vectors; everything else is a dump.
bool holds_vectors(const std::vector<std::string>& inputs) {
  const std::vector<std::string> files = io::dump_files(inputs);
  return files.size() == 1 && io::schema(files.front()) != io::kDumpSchema;
}

lab::Report report_of(const Options& options) {
  if (options.groups) return lab::inspect_groups(group_spec(options), options.tokens, options.channels);
  const std::vector<std::string>& inputs = options.work.selection.inputs;
  if (inputs.empty()) throw Error(ErrorKind::usage, "info: give a FILE, or --groups");
  lab::Report report;
  if (options.blocks.empty() && holds_vectors(inputs)) {
    report = lab::inspect_vectors(io::dump_files(inputs).front());
  } else {
    const lab::DumpSet dumps = options.work.open(options.output);
    report = options.blocks.empty() ? lab::inspect_dump(dumps, options.work.threads)
                                    : lab::inspect_blocks(dumps, options.blocks, options.work.threads);
  }
  report.context = {{"inputs", lab::input_context(io::dump_files(inputs))}};
  return report;
}

int info(const Options& options) {
  lab::Report report = report_of(options);
  lab::Json context = lab::tool_context();
  context["command"] = "info";
  context.update(report.context);
  report.context = std::move(context);
  emit(report, options.output);
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "info", "calls, shapes, dtypes, ranges and channel statistics of a dump; cases of a vector file");
  command->add_option("file", options->work.selection.inputs, "dumps or folders of them, or a file of recorded vectors")
      ->type_name("FILE");
  command->add_option("--blocks", options->blocks, "scale spread, saturation and underflow of a micro-scaled format")
      ->type_name("nvfp4|mxfp4|mxfp6_e2m3|...")
      ->check([](const std::string& word) {
        const bool format = word.find_first_of("-./") == std::string::npos;
        return format ? "" : "'" + word + "' is no format; it stands behind the option: --blocks nvfp4";
      });
  command->add_flag("--groups", options->groups, "print which tokens and channels share a scale; needs no FILE");
  command->add_option("--operand", options->operand, "whose groups")->check(CLI::IsMember({"q", "k", "v", "p"}));
  command->add_option("--granularity", options->granularity,
                      "per_tensor, per_token, per_block, per_warp, per_thread, ...");
  command->add_option("--tiling", options->tiling, "sm80, sm89 or sm90");
  command->add_option("--tokens", options->tokens, "rows of the operand")->check(CLI::Range(1, 1 << 20));
  command->add_option("--channels", options->channels, "columns of the operand")->check(CLI::Range(1, 1 << 20));
  add_work_options(*command, options->work);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return info(*options); }; });
}

}  // namespace qattn::cli
