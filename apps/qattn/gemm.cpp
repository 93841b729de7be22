// qattn gemm: what a matrix instruction's adder costs in a sum of K products.
#include "mma/gemm.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "command.h"
#include "format/encode.h"
#include "lab/gemm_error.h"
#include "lab/provenance.h"
#include "options.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string instruction;
  std::string distribution = "normal";
  std::string format = "fp32";
  bool descending = false;
  lab::GemmErrorOptions gemm{.k = {256, 512, 1024, 2048, 4096}, .promotion = {0, 128}, .slice = {0}};
  OutputOptions output;
};

int gemm_command(Options options) {
  options.gemm.instruction = &mma::find_instruction(options.instruction);
  options.gemm.positive = options.distribution == "positive";
  options.gemm.order = options.descending ? mma::KOrder::descending : mma::KOrder::ascending;
  options.gemm.output = &format::find(options.format);
  lab::Report report;
  report.context = lab::tool_context();
  report.context["command"] = "gemm";
  report.context["seed"] = options.gemm.seed;
  report.columns = {
      {"k", "K"},       {"promotion", "promotion"},  {"slice", "slice"},    {"mean_relative", "mean relative error"},
      {"bias", "bias"}, {"max_relative", "largest"}, {"rel_l1", "rel. L1"}, {"evidence", "evidence"}};
  report.csv_keys = {"name",   "k",         "promotion",     "slice",        "order", "distribution",
                     "output", "elements",  "mean_relative", "max_relative", "bias",  "rel_l1",
                     "rmse",   "nan_count", "inf_count",     "evidence"};
  report.rows = lab::gemm_errors(options.gemm);
  report.notes.push_back(
      fmt::format("{}: {} x {} sums of products of {} numbers; K, promotion (partial sums are added in f32 after that "
                  "many, 0: never) "
                  "and slice (split-K, 0: none) in elements; errors against exact sums of the rounded operands",
                  options.gemm.instruction->name, options.gemm.rows, options.gemm.columns,
                  options.gemm.positive ? "|N(0, 1)|" : "N(0, 1)"));
  emit(report, options.output);
  for (const lab::Json& row : report.rows) {
    if (row["nan_count"] != 0 || row["inf_count"] != 0) return 1;
  }
  return 0;
}

}  // namespace

void add_gemm(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("gemm", "error of a matrix product against K, by instruction and promotion");
  command->add_option("instruction", options->instruction, "a name of `qattn instructions`")
      ->required()
      ->type_name("INSTRUCTION");
  command->add_option("--k", options->gemm.k, "lengths of the sums")->delimiter(',')->type_name("N,N,...");
  command->add_option("--promotion", options->gemm.promotion, "elements between additions to an f32 sum; 0: never")
      ->delimiter(',')
      ->type_name("N,N,...");
  command->add_option("--slice", options->gemm.slice, "split-K: elements of K a slice; 0: no split")
      ->delimiter(',')
      ->type_name("N,N,...");
  command->add_flag("--descending", options->descending, "K from its end, within each slice");
  command->add_option("--distribution", options->distribution, "normal, or positive: |N(0, 1)|")
      ->check(CLI::IsMember({"normal", "positive"}));
  command->add_option("--format", options->format, "of the output")->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--rows", options->gemm.rows, "rows of the product")->check(CLI::Range(1, 4096));
  command->add_option("--columns", options->gemm.columns, "columns of the product")->check(CLI::Range(1, 4096));
  command->add_option("--seed", options->gemm.seed, "of the operands");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return gemm_command(*options); }; });
}

}  // namespace qattn::cli
