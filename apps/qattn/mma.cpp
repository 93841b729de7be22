// qattn mma: one output element of a matrix instruction, step by step.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/random.h"
#include "command.h"
#include "format/encode.h"
#include "lab/provenance.h"
#include "mma/fused_dot.h"
#include "mma/unpacked.h"
#include "options.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string instruction;
  std::vector<double> a, b, scale_a, scale_b;
  double c = 0.0;
  std::uint64_t seed = 0;
  bool trace = false;
  OutputOptions output;
};

constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::saturate,
                                    format::Subnormals::keep};

void check_count(const std::vector<double>& values, int count, std::string_view what) {
  if (values.size() <= static_cast<std::size_t>(count)) return;
  throw Error(ErrorKind::usage, fmt::format("mma: {} numbers for {} {}", values.size(), count, what));
}

/// The given numbers rounded to the format, zeros behind them; without numbers, seeded ones in [-2, 2].
std::vector<std::uint64_t> codes_of(const std::vector<double>& values, const format::Format& format, int count,
                                    std::uint64_t seed, std::uint64_t stream) {
  check_count(values, count, "elements of an operand");
  std::vector<std::uint64_t> codes;
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    double value = 4.0 * random_unit(seed, stream, index) - 2.0;
    if (!values.empty()) value = index < values.size() ? values[index] : 0.0;
    codes.push_back(mma::stored_code(format, format::encode(format, value, kToNearest)));
  }
  return codes;
}

/// The given scales rounded to the format, ones behind them; none for an instruction without block scales.
std::vector<std::uint64_t> scales_of(const std::vector<double>& values, const mma::Instruction& instruction) {
  check_count(values, instruction.block == 0 ? 0 : instruction.k / instruction.block, "scales of an operand");
  std::vector<std::uint64_t> codes;
  if (instruction.scale == nullptr) return codes;
  for (int i = 0; i < instruction.k / instruction.block; ++i) {
    const auto index = static_cast<std::size_t>(i);
    codes.push_back(format::encode(*instruction.scale, index < values.size() ? values[index] : 1.0, kToNearest));
  }
  return codes;
}

double value_of(const format::Format& format, std::uint64_t code) {
  return format::decode(format, mma::operand_code(format, code));
}

/// c plus the products, scaled, summed in f64 one after the other.
double sum_in_f64(const mma::Instruction& x, const mma::DotOperands& operands) {
  double sum = value_of(*x.c, operands.c);
  for (std::size_t k = 0; k < operands.a.size(); ++k) {
    double product = value_of(*x.a, operands.a[k]) * value_of(*x.b, operands.b[k]);
    if (x.scale != nullptr) {
      const std::size_t block = k / static_cast<std::size_t>(x.block);
      product *= value_of(*x.scale, operands.scale_a[block]) * value_of(*x.scale, operands.scale_b[block]);
    }
    sum += product;
  }
  return sum;
}

/// The code of a number that leaves the instruction, as hexadecimal digits of its width.
std::string code_text(const format::Format& format, std::uint64_t code) {
  return fmt::format("0x{:0{}X}", code, format.bits / 4);
}

int mma_command(const Options& options) {
  const mma::Instruction& instruction = mma::find_instruction(options.instruction);
  const auto a = codes_of(options.a, *instruction.a, instruction.k, options.seed, 0);
  const auto b = codes_of(options.b, *instruction.b, instruction.k, options.seed, 1);
  const std::uint64_t c = format::encode(*instruction.c, options.c, kToNearest);
  const auto scale_a = scales_of(options.scale_a, instruction);
  const auto scale_b = scales_of(options.scale_b, instruction);
  const mma::DotOperands operands{a, b, c, scale_a, scale_b};
  mma::Trace trace;
  const std::uint64_t d = mma::dot(instruction, operands, &trace);
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {
      {"name", "name"}, {"d", "d"}, {"d_code", "d code"}, {"f64_sum", "sum in f64"}, {"evidence", "evidence"}};
  report.rows.push_back({{"name", instruction.name},
                         {"d", format::decode(*instruction.d, d)},
                         {"d_code", code_text(*instruction.d, d)},
                         {"f64_sum", sum_in_f64(instruction, operands)},
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
  command->add_option("--scale-a", options->scale_a, "A's block scales (ones behind them); default: ones")
      ->delimiter(',')
      ->type_name("X,X,...");
  command->add_option("--scale-b", options->scale_b, "B's block scales")->delimiter(',')->type_name("X,X,...");
  command->add_option("--seed", options->seed, "of operands that are not given");
  command->add_flag("--trace", options->trace, "every term: exponent, value before and after the cut");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return mma_command(*options); }; });
}

}  // namespace qattn::cli
