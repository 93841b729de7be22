// qattn scalar: one result of a GPU scalar function under the magnifying glass, or the table of functions.
#include <fmt/format.h>

#include <bit>
#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "command.h"
#include "format/encode.h"
#include "lab/provenance.h"
#include "options.h"
#include "progress.h"
#include "scalar/describe.h"
#include "scalar/digest.h"
#include "scalar/function.h"
#include "scalar/ulp_error.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string function;
  std::string x;
  bool fast_math = false;
  bool list = false;
  bool errors = false;
  int threads = 0;
  OutputOptions output;
};

scalar::Build build_of(const Options& options) {
  return options.fast_math ? scalar::Build::fast_math : scalar::Build::any;
}

/// "0x3F800000" is a code; anything else is a number that is rounded to the function's input format.
std::uint32_t parse_input(const std::string& text, const format::Format& format) {
  const auto bad = [&] {
    return Error(ErrorKind::usage,
                 fmt::format("scalar: X '{}' is neither a number nor a code 0x... of {} bits", text, format.bits));
  };
  if (is_code(text)) {
    const auto code = parse_code(text, format.bits);
    if (!code) throw bad();
    return static_cast<std::uint32_t>(*code);
  }
  const auto value = parse_number(text);
  if (!value) throw bad();
  return static_cast<std::uint32_t>(format::encode(
      format, *value, {format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep}));
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

/// The functions that --errors is asked for: the one named, or all.
std::vector<const scalar::Function*> functions_of(const Options& options) {
  if (!options.function.empty()) return {&scalar::find(options.function, build_of(options))};
  std::vector<const scalar::Function*> all;
  for (const scalar::Function& function : scalar::functions()) all.push_back(&function);
  return all;
}

/// Largest errors over all inputs of each function; functions that compute the same are measured once.
class ErrorTable {
 public:
  explicit ErrorTable(const Options& options)
      : functions_(functions_of(options)), threads_(options.threads), progress_("errors", options.output.quiet) {}

  std::vector<lab::Json> rows() {
    std::vector<lab::Json> rows;
    for (const scalar::Function* function : functions_) {
      rows.push_back(row(*function, measured(*function)));
      ++done_;
    }
    return rows;
  }

 private:
  using Key = std::tuple<decltype(scalar::Function::plain), scalar::Reference, const format::Format*>;

  const scalar::UlpErrors& measured(const scalar::Function& f) {
    const auto [entry, is_new] = known_.try_emplace(Key{f.plain, f.reference, f.input});
    if (is_new) entry->second = scalar::ulp_errors(f, threads_, [this](int blocks) { show(blocks); });
    return entry->second;
  }

  void show(int blocks) {
    if (InterruptGuard::requested()) throw lab::Interrupted();
    progress_.show(done_ * scalar::kDigestBlocks + blocks,
                   static_cast<std::int64_t>(functions_.size()) * scalar::kDigestBlocks);
  }

  static lab::Json row(const scalar::Function& f, const scalar::UlpErrors& errors) {
    const std::uint64_t inputs = std::uint64_t{1} << f.input_bits();
    const auto when = [](const scalar::UlpError& of, const auto& value) {
      return of.inputs > 0 ? lab::Json(value) : lab::Json();
    };
    const scalar::UlpError& normal = errors.normal;
    return {{"name", f.name},
            {"build", scalar::to_string(f.build)},
            {"reference", scalar::to_string(f.reference)},
            {"precision", f.precision().name},
            {"inputs", inputs},
            {"inputs_on_hardware", f.evidence == scalar::Evidence::measured ? inputs : 0},
            {"normal_inputs", normal.inputs},
            {"lowest", when(normal, normal.low)},
            {"lowest_at", when(normal, code_text(normal.at_low, *f.input))},
            {"highest", when(normal, normal.high)},
            {"highest_at", when(normal, code_text(normal.at_high, *f.input))},
            {"largest", when(normal, normal.largest())},
            {"subnormal_inputs", errors.subnormal.inputs},
            {"subnormal_largest", when(errors.subnormal, errors.subnormal.largest())},
            {"evidence", scalar::to_string(f.evidence)}};
  }

  std::vector<const scalar::Function*> functions_;
  int threads_;
  Progress progress_;
  std::map<Key, scalar::UlpErrors> known_;
  std::int64_t done_ = 0;
};

int errors(const Options& options) {
  const InterruptGuard interrupt;
  lab::Report report;
  report.context = lab::tool_context();
  report.context["command"] = "scalar --errors";
  report.columns = {{"name", "name"},
                    {"build", "build"},
                    {"reference", "of"},
                    {"precision", "in ulp of"},
                    {"inputs_on_hardware", "inputs checked on hardware"},
                    {"lowest", "lowest", 4},
                    {"highest", "highest", 4},
                    {"highest_at", "at"},
                    {"subnormal_largest", "subnormal", 4},
                    {"evidence", "evidence"}};
  report.csv_keys = {
      "name",    "build",     "reference", "precision",  "inputs",  "inputs_on_hardware", "normal_inputs",
      "lowest",  "lowest_at", "highest",   "highest_at", "largest", "subnormal_inputs",   "subnormal_largest",
      "evidence"};
  report.rows = ErrorTable(options).rows();
  report.notes.push_back(
      "lowest, highest: of (result - exact) in units in the last place of the exact value, over all normal inputs with "
      "a "
      "normal exact value within the format's range; subnormal: the largest magnitude over the inputs where either is "
      "subnormal");
  emit(report, options.output);
  return 0;
}

int describe(const Options& options) {
  if (options.list) return list(options);
  if (options.errors) return errors(options);
  if (options.function.empty() || options.x.empty()) {
    throw Error(ErrorKind::usage, "scalar: give FUNCTION and X, --list or --errors");
  }
  const scalar::Function& function = scalar::find(options.function, build_of(options));
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
  command->add_flag("--errors", options->errors,
                    "the largest error over every input of FUNCTION, or of all functions (minutes of one core)");
  command->add_option("--threads", options->threads, "of --errors; 0: one for each core")
      ->check(CLI::NonNegativeNumber);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return describe(*options); }; });
}

}  // namespace qattn::cli
