// qattn check: recorded vectors against the models, bit for bit.
#include "lab/check.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "base/error.h"
#include "command.h"
#include "lab/provenance.h"
#include "options.h"
#include "progress.h"

namespace qattn::cli {
namespace {

struct Options {
  lab::CheckOptions check;
  std::string blocks;
  OutputOptions output;
};

/// "A:B", or "A" for one block.
void parse_blocks(const std::string& text, lab::CheckOptions& options) {
  if (text.empty()) return;
  const auto parse = [&](std::string_view part) {
    int value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size()) {
      throw Error(ErrorKind::usage, fmt::format("check: --blocks '{}' is not A:B with 0 <= A < B <= 256", text));
    }
    return value;
  };
  const auto colon = text.find(':');
  options.first_block = parse(std::string_view(text).substr(0, colon));
  options.last_block =
      colon == std::string::npos ? options.first_block + 1 : parse(std::string_view(text).substr(colon + 1));
}

int check(Options options) {
  parse_blocks(options.blocks, options.check);
  lab::Report report;
  report.context = lab::tool_context();
  report.context["command"] = "check";
  report.context["inputs"] = lab::input_context(options.check.files);
  const InterruptGuard interrupt;
  lab::CheckResult result;
  {
    Progress progress("check", options.output.quiet);
    options.check.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    options.check.cancelled = [] { return InterruptGuard::requested(); };
    result = lab::check_vectors(options.check);
  }
  report.columns = lab::check_columns();
  report.rows = result.rows;
  std::uint64_t elements = 0;
  std::uint64_t mismatches = 0;
  for (const lab::Json& row : result.rows) {
    elements += row["elements"].get<std::uint64_t>();
    mismatches += row["mismatches"].get<std::uint64_t>();
  }
  report.summary = {
      {"cases", result.rows.size()}, {"elements", elements}, {"mismatches", mismatches}, {"passed", result.passed}};
  report.notes = result.details;
  report.notes.push_back(fmt::format("{}: {} of {} elements differ in {} rows", result.passed ? "passed" : "FAILED",
                                     mismatches, elements, result.rows.size()));
  emit(report, options.output);
  return result.passed ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("check", "replays recorded vectors and compares bit for bit");
  command->add_option("files", options->check.files, "files of instruction, scalar or GEMM vectors, or of digests")
      ->required()
      ->type_name("FILE");
  command->add_option("--cases", options->check.cases, "only cases whose name this expression is found in")
      ->type_name("REGEX");
  command->add_option("--blocks", options->blocks, "digests of functions: only these of the 256 blocks of 2^24 inputs")
      ->type_name("A:B");
  command->add_option("--threads", options->check.threads, "0: one for each core")->check(CLI::NonNegativeNumber);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return check(*options); }; });
}

}  // namespace qattn::cli
