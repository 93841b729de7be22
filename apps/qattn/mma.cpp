// qattn mma: one output element of a matrix instruction, step by step.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
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
  std::vector<std::string> a, b, scale_a, scale_b;
  std::string c = "0";
  std::uint64_t seed = 0;
  bool trace = false;
  OutputOptions output;
};

constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};

double value_of(const format::Format& format, std::uint64_t code) {
  code = mma::operand_code(format, code);
  return format.specials == format::Specials::integer ? static_cast<double>(mma::unpack_integer(format, code))
                                                      : format::decode(format, code);
}

/// A code as hexadecimal digits of the width that it is stored in.
std::string code_text(const format::Format& format, std::uint64_t code) {
  return fmt::format("0x{:0{}X}", code, (mma::stored_bits(format) + 3) / 4);
}

/// Whether rounding to the format leaves x within its range. NaN and Inf are where the format has them; E8M0 has powers
/// of two alone, anything else is no scale.
bool in_range(const format::Format& format, double x) {
  if (std::isnan(x)) return format::has_nan(format);
  if (std::isinf(x)) return format::has_inf(format);
  if (format.specials == format::Specials::power_of_two) {
    return x > 0 && value_of(format, format::encode(format, x, kToNearest)) == x;
  }
  const double largest = format::max_finite(format);
  double smallest = format.has_sign ? -largest : 0.0;
  if (format.has_sign && format.specials == format::Specials::integer) smallest -= 1;
  return x >= smallest && x <= largest;
}

/// The elements of one operand; what was rounded on the way is told on stderr.
class Encoder {
 public:
  Encoder(std::string_view option, const format::Format& format, bool quiet)
      : option_(option), format_(format), quiet_(quiet) {}

  /// "0x38" is a code as operands store it; anything else is a number, rounded to nearest even. Throws Error(usage)
  /// for what is neither, and for a number out of the format's range.
  std::uint64_t given(const std::string& text) const {
    if (is_code(text)) {
      const auto code = parse_code(text, mma::stored_bits(format_));
      if (code) return *code;
    } else if (const auto value = parse_number(text)) {
      return of_number(text, *value);
    }
    throw Error(ErrorKind::usage, fmt::format("mma: {} '{}' is neither a number nor a code 0x... of {} bits", option_,
                                              text, mma::stored_bits(format_)));
  }

  std::uint64_t rounded(double value) const {
    return mma::stored_code(format_, format::encode(format_, value, kToNearest));
  }

 private:
  std::uint64_t of_number(const std::string& text, double value) const {
    if (!in_range(format_, value)) {
      throw Error(ErrorKind::usage, fmt::format("mma: {} '{}' is not in the range of {}", option_, text, format_.name));
    }
    const std::uint64_t code = rounded(value);
    if (const double held = value_of(format_, code); !quiet_ && !std::isnan(value) && held != value) {
      fmt::print(stderr, "qattn: {} {} is rounded to {}, the nearest {} ({})\n", option_, text, held, format_.name,
                 code_text(format_, code));
    }
    return code;
  }

  std::string_view option_;
  const format::Format& format_;
  bool quiet_;
};

void check_count(const std::vector<std::string>& values, int count, std::string_view what) {
  if (values.size() <= static_cast<std::size_t>(count)) return;
  throw Error(ErrorKind::usage, fmt::format("mma: {} numbers for {} {}", values.size(), count, what));
}

/// The given elements, zeros behind them; without any, seeded numbers in [-2, 2].
std::vector<std::uint64_t> codes_of(const std::vector<std::string>& values, const Encoder& encoder, int count,
                                    std::uint64_t seed, std::uint64_t stream) {
  check_count(values, count, "elements of an operand");
  std::vector<std::uint64_t> codes;
  for (const std::string& text : values) codes.push_back(encoder.given(text));
  for (auto i = codes.size(); i < static_cast<std::size_t>(count); ++i) {
    codes.push_back(encoder.rounded(values.empty() ? 4.0 * random_unit(seed, stream, i) - 2.0 : 0.0));
  }
  return codes;
}

/// The given scales, ones behind them; none for an instruction without block scales.
std::vector<std::uint64_t> scales_of(const std::vector<std::string>& values, std::string_view option,
                                     const mma::Instruction& instruction, bool quiet) {
  const int blocks = instruction.block == 0 ? 0 : instruction.k / instruction.block;
  check_count(values, blocks, "scales of an operand");
  std::vector<std::uint64_t> codes;
  if (instruction.scale == nullptr) return codes;
  const Encoder encoder(option, *instruction.scale, quiet);
  for (const std::string& text : values) codes.push_back(encoder.given(text));
  codes.resize(static_cast<std::size_t>(blocks), encoder.rounded(1.0));
  return codes;
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

/// Every operand's code with its value, a line an element of K.
std::string operands_text(const mma::Instruction& x, const mma::DotOperands& operands) {
  const auto element = [](std::string_view name, std::size_t i, const format::Format& format, std::uint64_t code) {
    return fmt::format("{}[{}] {} = {}", name, i, code_text(format, code), value_of(format, code));
  };
  std::string text = fmt::format("operands: c {} = {}", code_text(*x.c, operands.c), value_of(*x.c, operands.c));
  for (std::size_t i = 0; i < operands.scale_a.size(); ++i) {
    text += fmt::format("\n  {}, {}", element("scale_a", i, *x.scale, operands.scale_a[i]),
                        element("scale_b", i, *x.scale, operands.scale_b[i]));
  }
  for (std::size_t k = 0; k < operands.a.size(); ++k) {
    text += fmt::format("\n  {}, {}", element("a", k, *x.a, operands.a[k]), element("b", k, *x.b, operands.b[k]));
  }
  return text;
}

int mma_command(const Options& options) {
  const mma::Instruction& instruction = mma::find_instruction(options.instruction);
  const bool quiet = options.output.quiet;
  const auto a = codes_of(options.a, Encoder("--a", *instruction.a, quiet), instruction.k, options.seed, 0);
  const auto b = codes_of(options.b, Encoder("--b", *instruction.b, quiet), instruction.k, options.seed, 1);
  const std::uint64_t c = Encoder("--c", *instruction.c, quiet).given(options.c);
  const auto scale_a = scales_of(options.scale_a, "--scale-a", instruction, quiet);
  const auto scale_b = scales_of(options.scale_b, "--scale-b", instruction, quiet);
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
  if (options.trace) report.notes = {operands_text(instruction, operands), mma::to_text(instruction, trace)};
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
  command
      ->add_option(
          "--a", options->a,
          "numbers (inf and nan too) or codes 0x... of A's row, zeros behind them; default: seeded, in [-2, 2]")
      ->delimiter(',')
      ->type_name("X,X,...");
  command->add_option("--b", options->b, "numbers or codes of B's column")->delimiter(',')->type_name("X,X,...");
  command->add_option("--c", options->c, "number or code of the accumulator")->type_name("X");
  command
      ->add_option("--scale-a", options->scale_a,
                   "numbers or codes of A's block scales, ones behind them; default: ones")
      ->delimiter(',')
      ->type_name("X,X,...");
  command->add_option("--scale-b", options->scale_b, "numbers or codes of B's block scales")
      ->delimiter(',')
      ->type_name("X,X,...");
  command->add_option("--seed", options->seed, "of operands that are not given");
  command->add_flag("--trace", options->trace,
                    "the code of every operand; every term: exponent, value before and after the cut");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return mma_command(*options); }; });
}

}  // namespace qattn::cli
