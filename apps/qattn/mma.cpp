// qattn mma: one output element of a matrix instruction, step by step.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/random.h"
#include "command.h"
#include "format/encode.h"
#include "lab/provenance.h"
#include "mma/fused_dot.h"
#include "options.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string instruction;
  std::vector<double> a, b;
  double c = 0.0;
  std::uint64_t seed = 0;
  bool trace = false;
  OutputOptions output;
};

constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::saturate,
                                    format::Subnormals::keep};

/// The given numbers rounded to the format, zeros behind them; without numbers, seeded ones in [-2, 2].
std::vector<std::uint64_t> codes_of(const std::vector<double>& values, const format::Format& format, int count,
                                    std::uint64_t seed, std::uint64_t stream) {
  if (values.size() > static_cast<std::size_t>(count)) {
    throw Error(ErrorKind::usage, fmt::format("mma: {} numbers for an operand of {} elements", values.size(), count));
  }
  std::vector<std::uint64_t> codes;
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    double value = 4.0 * random_unit(seed, stream, index) - 2.0;
    if (!values.empty()) value = index < values.size() ? values[index] : 0.0;
    codes.push_back(format::encode(format, value, kToNearest));
  }
  return codes;
}

int mma_command(const Options& options) {
  const mma::Instruction& instruction = mma::find_instruction(options.instruction);
  if (instruction.scale != nullptr) {
    throw Error(ErrorKind::usage, "mma: block-scaled instructions need scales, which the command line cannot give");
  }
  const auto a = codes_of(options.a, *instruction.a, instruction.k, options.seed, 0);
  const auto b = codes_of(options.b, *instruction.b, instruction.k, options.seed, 1);
  const std::uint64_t c = format::encode(*instruction.c, options.c, kToNearest);
  mma::Trace trace;
  const std::uint64_t d = mma::dot(instruction, {a, b, c}, &trace);
  double exact = format::decode(*instruction.c, c);
  for (std::size_t k = 0; k < a.size(); ++k) {
    exact += format::decode(*instruction.a, a[k]) * format::decode(*instruction.b, b[k]);
  }
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {
      {"name", "name"}, {"d", "d"}, {"d_code", "d code"}, {"f64_sum", "sum in f64"}, {"evidence", "evidence"}};
  report.rows.push_back({{"name", instruction.name},
                         {"d", format::decode(*instruction.d, d)},
                         {"d_code", fmt::format("0x{:X}", d)},
                         {"f64_sum", exact},
                         {"evidence", mma::evidence_text(instruction)}});
  if (options.trace) report.notes.push_back(mma::to_text(instruction, trace));
  emit(report, options.output);
  return 0;
}

}  // namespace

void add_mma(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("mma", "one output element of a matrix instruction, step by step");
  command->add_option("instruction", options->instruction, "a name of `qattn instructions`")
      ->required()
      ->type_name("INSTRUCTION");
  command->add_option("--a", options->a, "numbers of A's row (zeros behind them); default: seeded, in [-2, 2]")
      ->delimiter(',')
      ->type_name("X,X,...");
  command->add_option("--b", options->b, "numbers of B's column")->delimiter(',')->type_name("X,X,...");
  command->add_option("--c", options->c, "the accumulator")->type_name("X");
  command->add_option("--seed", options->seed, "of operands that are not given");
  command->add_flag("--trace", options->trace, "every term: exponent, value before and after the cut");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return mma_command(*options); }; });
}

}  // namespace qattn::cli
