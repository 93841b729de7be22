// qattn scalar: one result of a GPU scalar function under the magnifying glass, or the table of functions.
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "command.h"
#include "format/encode.h"
#include "lab/provenance.h"
#include "options.h"
#include "scalar/describe.h"
#include "scalar/function.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string function;
  std::string x;
  bool fast_math = false;
  bool list = false;
  OutputOptions output;
};

/// "0x3F800000" is a code; anything else is a number that is rounded to the function's input format.
std::uint32_t parse_input(const std::string& text, const format::Format& format) {
  const auto bad = [&] {
    return Error(ErrorKind::usage,
                 fmt::format("scalar: X '{}' is neither a number nor a code 0x... of {} bits", text, format.bits));
  };
  if (text.starts_with("0x") || text.starts_with("0X")) {
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), code, 16);
    const bool fits = format.bits == 32 || code >> format.bits == 0;
    if (error != std::errc() || end != text.data() + text.size() || !fits) throw bad();
    return code;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw bad();
  return static_cast<std::uint32_t>(format::encode(
      format, value, {format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep}));
}

lab::Json code_text(std::uint32_t code, const format::Format& format) {
  return fmt::format("0x{:0{}X}", code, (format.bits + 3) / 4);
}

lab::Json segment_json(const std::optional<scalar::Segment>& segment) {
  if (!segment) return nullptr;
  return {{"table", scalar::to_string(segment->mufu)},
          {"index", segment->index},
          {"segments", segment->segments},
          {"w", segment->w},
          {"w_bits", segment->w_bits},
          {"c0", segment->c0},
          {"c1", segment->c1},
          {"c2", segment->c2},
          {"bias", segment->bias}};
}

lab::Json describe_row(const scalar::Description& d) {
  const scalar::Function& f = *d.function;
  return {{"name", f.name},
          {"build", scalar::to_string(f.build)},
          {"x", d.x_value},
          {"x_code", code_text(d.x, *f.input)},
          {"y", d.y_value},
          {"y_code", code_text(d.y, *f.output)},
          {"exact", d.exact},
          {"correctly_rounded", d.correctly_rounded ? code_text(*d.correctly_rounded, *f.output) : lab::Json()},
          {"ulps", d.ulps ? lab::Json(*d.ulps) : lab::Json()},
          {"evidence", scalar::to_string(f.evidence)},
          {"segment", segment_json(d.segment)}};
}

int list(const Options& options) {
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {{"name", "name"},           {"build", "build"},       {"input", "input"}, {"output", "output"},
                    {"reference", "reference"}, {"evidence", "evidence"}, {"note", "note"}};
  for (const scalar::Function& f : scalar::functions()) {
    report.rows.push_back({{"name", f.name},
                           {"build", scalar::to_string(f.build)},
                           {"input", f.input->name},
                           {"output", f.output->name},
                           {"reference", scalar::to_string(f.reference)},
                           {"evidence", scalar::to_string(f.evidence)},
                           {"note", f.note.empty() ? lab::Json() : lab::Json(f.note)}});
  }
  emit(report, options.output);
  return 0;
}

int describe(const Options& options) {
  if (options.list) return list(options);
  if (options.function.empty() || options.x.empty()) {
    throw Error(ErrorKind::usage, "scalar: give FUNCTION and X, or --list");
  }
  const scalar::Function& function =
      scalar::find(options.function, options.fast_math ? scalar::Build::fast_math : scalar::Build::any);
  const scalar::Description d = scalar::describe(function, parse_input(options.x, *function.input));
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {{"name", "name"},     {"x", "x"},
                    {"x_code", "x code"}, {"y", "y"},
                    {"y_code", "y code"}, {"correctly_rounded", "correctly rounded"},
                    {"ulps", "ulp off"},  {"evidence", "evidence"}};
  report.rows.push_back(describe_row(d));
  if (d.segment) {
    report.notes.push_back(fmt::format("{} segment {} of {}: c0 {}, c1 {}, c2 {}, bias {}, w {} of {} bits",
                                       scalar::to_string(d.segment->mufu), d.segment->index, d.segment->segments,
                                       d.segment->c0, d.segment->c1, d.segment->c2, d.segment->bias, d.segment->w,
                                       d.segment->w_bits));
  }
  emit(report, options.output);
  return 0;
}

}  // namespace

void add_scalar(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("scalar", "one result of a GPU scalar function, explained; or the functions");
  command->add_option("function", options->function, "a PTX or CUDA name, e.g. ex2.approx.ftz.f32")
      ->type_name("FUNCTION");
  command->add_option("x", options->x, "a number, or a code 0x...")->type_name("X");
  command->add_flag("--use_fast_math", options->fast_math, "a CUDA function as nvcc builds it with this option");
  command->add_flag("--list", options->list, "the table of functions");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return describe(*options); }; });
}

}  // namespace qattn::cli
