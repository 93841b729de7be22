// qattn check: recorded vectors against the models, and what kernels returned against recipes and replays.
#include "lab/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "command.h"
#include "io/atomic_file.h"
#include "io/vectors.h"
#include "kernels/kernel.h"
#include "lab/check_dump.h"
#include "lab/junit.h"
#include "lab/provenance.h"
#include "lab/recipe_file.h"
#include "options.h"
#include "progress.h"

namespace qattn::cli {
namespace {

struct Options {
  lab::CheckOptions vectors;
  std::string blocks;
  WorkOptions work;  ///< of dumps; the files are those of both kinds
  std::string recipe, kernel, arch, lse;
  std::vector<std::string> settings;
  double factor = 2;
  double lse_tolerance = 1e-4;
  std::int64_t ulp = -1;
  bool explain = false;
  std::string junit;
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

/// Files of recorded vectors, dumps, and what cannot be read.
struct Inputs {
  std::vector<std::string> vectors, dumps;
  std::vector<lab::NotCompared> errors;
};

Inputs sort_inputs(const std::vector<std::string>& files) {
  Inputs inputs;
  for (const std::string& file : io::dump_files(files)) {
    try {
      const bool is_dump = io::schema(file) == io::kDumpSchema;
      if (is_dump) io::DumpReader reader(file);
      (is_dump ? inputs.dumps : inputs.vectors).push_back(file);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::input) throw;
      inputs.errors.push_back({file, "", error.what(), error.kind()});
    }
  }
  return inputs;
}

/// Keyword arguments of a kernel from --set; a key that it does not have is refused.
io::Attributes kernel_arguments(const Options& options) {
  const kernels::Kernel& kernel = kernels::find_kernel(options.kernel);
  io::Attributes arguments;
  for (const std::string& setting : options.settings) {
    const auto [key, value] = lab::parse_override(setting);
    std::string known = fmt::format("{}{}causal_align sm_count", kernel.arguments, kernel.arguments.empty() ? "" : " ");
    if (fmt::format(" {} ", known).find(fmt::format(" {} ", key)) == std::string::npos) {
      throw Error(ErrorKind::usage, fmt::format("check: {} has no argument '{}'; it has {}", kernel.name, key, known));
    }
    arguments[key] = value;
  }
  return arguments;
}

lab::DumpCheckOptions dump_options(const Options& options) {
  if (options.recipe.empty() == options.kernel.empty()) {
    throw Error(
        ErrorKind::usage,
        "check: a dump needs either --recipe NAME (errors relative to that recipe's; `qattn recipes`) or --kernel "
        "NAME (bit for bit)");
  }
  if (!options.recipe.empty() && !options.arch.empty()) {
    throw Error(ErrorKind::usage,
                "check: --arch concerns kernels; a recipe names its instructions itself (--set accumulator=sm89.mma)");
  }
  lab::DumpCheckOptions check;
  if (!options.recipe.empty()) {
    std::vector<lab::Override> overrides;
    for (const std::string& setting : options.settings) {
      overrides.push_back(lab::parse_override(setting));
      check.keep_o_format = check.keep_o_format || overrides.back().first == "o_format";
    }
    check.recipe = lab::with_overrides(lab::load_recipe(options.recipe), overrides);
    attention::validate(*check.recipe);
  } else {
    check.kernel = options.kernel;
    check.arguments = kernel_arguments(options);
    if (!options.arch.empty()) check.arch = options.arch;
  }
  check.factor = options.factor;
  if (options.ulp >= 0) check.ulp = static_cast<std::uint64_t>(options.ulp);
  check.lse_tolerance = options.lse_tolerance;
  if (!options.lse.empty()) check.lse_demanded = lab::parse_lse_convention(options.lse);
  check.explain = options.explain;
  check.threads = options.work.threads;
  return check;
}

void append(lab::CheckResult& all, lab::CheckResult&& more) {
  std::move(more.rows.begin(), more.rows.end(), std::back_inserter(all.rows));
  std::move(more.details.begin(), more.details.end(), std::back_inserter(all.details));
  std::move(more.remarks.begin(), more.remarks.end(), std::back_inserter(all.remarks));
  std::move(more.skipped.begin(), more.skipped.end(), std::back_inserter(all.skipped));
  std::move(more.errors.begin(), more.errors.end(), std::back_inserter(all.errors));
  all.passed = all.passed && more.passed;
}

lab::CheckResult run_checks(Options& options, const Inputs& inputs) {
  const InterruptGuard interrupt;
  Progress progress("check", options.output.quiet);
  const auto show = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
  lab::CheckResult result;
  result.errors = inputs.errors;
  if (inputs.errors.empty() && inputs.dumps.empty() && !(options.recipe.empty() && options.kernel.empty())) {
    throw Error(ErrorKind::usage, "check: --recipe and --kernel concern dumps, and there is none among the files");
  }
  if (!inputs.dumps.empty()) {
    lab::DumpCheckOptions check = dump_options(options);
    check.progress = show;
    check.cancelled = InterruptGuard::requested;
    options.work.selection.inputs = inputs.dumps;
    append(result, lab::check_dump(options.work.open(options.output), check));
  }
  if (!inputs.vectors.empty()) {
    options.vectors.files = inputs.vectors;
    options.vectors.threads = options.work.threads;
    options.vectors.arch = options.arch;
    options.vectors.progress = show;
    options.vectors.cancelled = InterruptGuard::requested;
    append(result, lab::check_vectors(options.vectors));
  }
  return result;
}

/// One test for each row, for what could not be compared, and for what was skipped.
std::vector<lab::JunitCase> junit_cases(const lab::CheckResult& result) {
  std::vector<lab::JunitCase> cases;
  for (const lab::Json& row : result.rows) {
    std::string name = row["case"].get<std::string>();
    for (const char* key : {"batch", "head"}) {
      if (!lab::find(row, key).is_null()) name += fmt::format("/{} {}", key, row[key].get<std::int64_t>());
    }
    lab::JunitCase test{name + "/" + row["output"].get<std::string>(), row["name"].get<std::string>(), {}, {}, {}};
    if (row["reason"].is_string()) test.failure = fmt::format("{}: {}", name, row["reason"].get<std::string>());
    cases.push_back(std::move(test));
  }
  const auto name_of = [](const lab::NotCompared& each) {
    return each.name.empty() ? each.file : fmt::format("{}/{}", each.file, each.name);
  };
  for (const lab::NotCompared& each : result.errors) cases.push_back({name_of(each), "input", {}, each.reason, {}});
  for (const lab::NotCompared& each : result.skipped) cases.push_back({name_of(each), "skipped", {}, {}, each.reason});
  return cases;
}

lab::Json not_compared(const std::vector<lab::NotCompared>& all) {
  lab::Json list = lab::Json::array();
  for (const lab::NotCompared& each : all) {
    list.push_back({{"file", each.file}, {"case", each.name}, {"reason", each.reason}});
  }
  return list;
}

std::string verdict_text(const lab::CheckResult& result, bool dumps_only, std::uint64_t elements,
                         std::uint64_t mismatches) {
  const std::string_view word = !result.passed ? "FAILED" : result.errors.empty() ? "passed" : "INCOMPLETE";
  std::string text =
      dumps_only
          ? fmt::format("{}: {} of {} outputs", word, result.passed ? result.rows.size() : result.details.size(),
                        result.rows.size())
          : fmt::format("{}: {} of {} elements differ in {} rows", word, mismatches, elements, result.rows.size());
  if (!result.skipped.empty()) text += fmt::format(", {} skipped", result.skipped.size());
  if (!result.errors.empty()) text += fmt::format(", {} could not be checked", result.errors.size());
  return text;
}

lab::Report report_of(const Options& options, const Inputs& inputs, const lab::CheckResult& result) {
  lab::Report report;
  report.context = lab::tool_context();
  report.context["command"] = "check";
  std::vector<std::string> files = inputs.dumps;
  files.insert(files.end(), inputs.vectors.begin(), inputs.vectors.end());
  report.context["inputs"] = lab::input_context(files);
  if (!inputs.dumps.empty()) {
    report.context["recipe"] = options.recipe;
    report.context["kernel"] = options.kernel;
    report.context["set"] = options.settings;
    report.context["factor"] = options.factor;
    report.context["lse_tolerance"] = options.lse_tolerance;
    report.context["lse"] = options.lse;
    report.context["ulp"] = options.ulp >= 0 ? lab::Json(options.ulp) : lab::Json(nullptr);
  }
  report.context["arch"] = options.arch;
  if (!inputs.vectors.empty()) {
    report.context["cases"] = options.vectors.cases;
    report.context["kernels"] = options.vectors.kernels;
    report.context["blocks"] = {options.vectors.first_block, options.vectors.last_block};
  }
  const bool dumps_only = inputs.vectors.empty();
  report.columns = dumps_only ? lab::dump_check_columns() : lab::check_columns();
  report.csv_keys = dumps_only ? lab::dump_check_keys() : lab::check_keys();
  report.rows = result.rows;
  std::uint64_t elements = 0, mismatches = 0;
  for (const lab::Json& row : result.rows) {
    elements += row["elements"].get<std::uint64_t>();
    if (!row["mismatches"].is_null()) mismatches += row["mismatches"].get<std::uint64_t>();
  }
  report.summary = {{"cases", result.rows.size()},
                    {"elements", elements},
                    {"mismatches", mismatches},
                    {"passed", result.status() == 0},
                    {"skipped", not_compared(result.skipped)},
                    {"errors", not_compared(result.errors)}};
  report.notes = result.details;
  report.notes.insert(report.notes.end(), result.remarks.begin(), result.remarks.end());
  for (const lab::NotCompared& each : result.skipped) report.notes.push_back(each.reason);
  for (const lab::NotCompared& each : result.errors) report.notes.push_back("not checked: " + each.reason);
  report.notes.push_back(verdict_text(result, dumps_only, elements, mismatches));
  return report;
}

int check(Options options) {
  parse_blocks(options.blocks, options.vectors);
  const std::vector<std::string> files = options.work.selection.inputs;
  const auto write_junit = [&options](const std::vector<lab::JunitCase>& cases) {
    if (!options.junit.empty()) io::write_file(options.junit, lab::junit_xml("qattn check", cases));
  };
  Inputs inputs;
  lab::CheckResult result;
  try {
    inputs = sort_inputs(files);
    result = run_checks(options, inputs);
  } catch (const Error& error) {
    // A CI system that reads the JUnit file is to see why there was nothing to check.
    if (error.kind() == ErrorKind::input)
      write_junit({{fmt::format("{}", fmt::join(files, " ")), "input", {}, error.what(), {}}});
    throw;
  }
  write_junit(junit_cases(result));
  lab::require_comparison(result);
  emit(report_of(options, inputs, result), options.output);
  return result.status();
}

/// Numbers that are limits: finite, at least zero, and above it where `above_zero`.
CLI::Validator limit(bool above_zero) {
  return CLI::Validator(
      [above_zero](const std::string& text) -> std::string {
        const std::optional<double> value = parse_number(text);
        if (value && std::isfinite(*value) && (above_zero ? *value > 0 : *value >= 0)) return "";
        return fmt::format("{} is no finite number {} 0", text, above_zero ? "above" : "of at least");
      },
      above_zero ? "NUMBER > 0" : "NUMBER >= 0");
}

void add_dump_options(CLI::App& command, Options& options) {
  command.add_option("--recipe", options.recipe, "dumps: o may lose --factor times what this recipe loses")
      ->type_name("NAME");
  add_set_option(command, options.settings);
  command.add_option("--factor", options.factor, "dumps: how much more than the recipe a kernel may lose")
      ->check(limit(true))
      ->capture_default_str();
  command
      .add_option("--kernel", options.kernel,
                  "dumps: o and lse must be what this kernel returns, bit for bit; --set gives its arguments")
      ->type_name("NAME");
  command
      .add_option("--ulp", options.ulp, "dumps: o may be so many units in the last place from the kernel's or recipe's")
      ->check([](const std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits ? std::string() : fmt::format("{} is no whole number of at least 0", text);
      })
      ->type_name("N");
  command
      .add_option("--lse", options.lse,
                  "dumps: the convention that lse must follow: e or 2, then ,no-mean and ,p-scale")
      ->type_name("CONVENTION");
  command.add_option("--lse-tolerance", options.lse_tolerance, "dumps: absolute, with --recipe")
      ->check(limit(false))
      ->capture_default_str();
  command.add_flag("--explain", options.explain,
                   "dumps: which single change of the recipe comes nearest to the output");
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "check", "replays recorded vectors bit for bit, or judges what a kernel returned (a dump with o and lse)");
  command
      ->add_option("files", options->work.selection.inputs,
                   "files of recorded vectors or digests, and dumps that hold o; or folders of them")
      ->required()
      ->type_name("FILE");
  command->add_option("--cases", options->vectors.cases, "vectors: only cases whose name this expression is found in")
      ->type_name("REGEX");
  command
      ->add_option("--kernels", options->vectors.kernels, "vectors: only kernels in whose group or name this is found")
      ->type_name("REGEX");
  command->add_option("--arch", options->arch, "kernels as this architecture would run them, e.g. sm89: a prediction")
      ->type_name("ARCH");
  command->add_option("--blocks", options->blocks, "digests of functions: only these of the 256 blocks of 2^24 inputs")
      ->type_name("A:B");
  add_dump_options(*command, *options);
  add_work_options(*command, options->work);
  command->add_option("--junit", options->junit, "also write JUnit XML, whatever comes out")->type_name("FILE");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return check(*options); }; });
}

}  // namespace qattn::cli
