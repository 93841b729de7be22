#include "options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "attention/bound.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "lab/exceptions.h"
#include "lab/provenance.h"
#include "progress.h"

namespace qattn::cli {
namespace {

/// So many outputs that are not finite are told one by one on stderr.
constexpr std::size_t kToldBadOutputs = 5;

/// Keys for which FP16 sums that live for all keys are bounded.
constexpr std::int64_t kBoundKeys = 65536;
constexpr double kLargestFp16 = 65504.0;

}  // namespace

bool is_code(std::string_view text) { return text.starts_with("0x") || text.starts_with("0X"); }

std::optional<std::uint64_t> parse_code(std::string_view text, int bits) {
  std::uint64_t code = 0;
  if (!is_code(text)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), code, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return bits < 64 && code >> bits != 0 ? std::nullopt : std::optional(code);
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> mark_negative_words(std::vector<std::string> words) {
  for (std::string& word : words) {
    const std::string first = word.substr(0, word.find(','));
    if (first == "-inf" || first == "-infinity" || first == "-nan") word.insert(0, " ");
  }
  return words;
}

lab::Form OutputOptions::form() const {
  if (json) return lab::Form::json;
  if (csv) return lab::Form::csv;
  if (markdown) return lab::Form::markdown;
  if (latex) return lab::Form::latex;
  const std::string ending = std::filesystem::path(file).extension().string();
  if (ending == ".json") return lab::Form::json;
  if (ending == ".csv") return lab::Form::csv;
  if (ending == ".md") return lab::Form::markdown;
  if (ending == ".tex") return lab::Form::latex;
  return lab::Form::text;
}

void add_output_options(CLI::App& command, OutputOptions& options) {
  CLI::Option_group* forms = command.add_option_group("form");
  forms->add_flag("--json", options.json, "one JSON document");
  forms->add_flag("--csv", options.csv, "the rows as CSV, all digits");
  forms->add_flag("--markdown", options.markdown, "Markdown tables");
  forms->add_flag("--latex", options.latex, "LaTeX tables (booktabs)");
  forms->require_option(0, 1);
  command.add_option("--output", options.file, "write to this file, in one step, instead of stdout")->type_name("FILE");
  command.add_flag("--quiet", options.quiet, "no progress, no remarks on stderr");
}

void write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw Error(ErrorKind::input, fmt::format("stdout: cannot be written: {}", std::strerror(errno)));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void emit(const lab::Report& report, const OutputOptions& options) {
  const std::string text = lab::render(report, options.form());
  if (options.file.empty()) {
    write_stdout(text);
  } else {
    io::write_file(options.file, text);
  }
}

lab::ReferenceCache CacheOptions::open() const {
  if (off) return lab::ReferenceCache("");
  return lab::ReferenceCache(folder.empty() ? lab::ReferenceCache::default_folder() : folder);
}

void CacheOptions::remark(const lab::ReferenceCache& references) const {
  // Nobody asked for the default folder.
  if (const std::string trouble = references.trouble(); !folder.empty() && !trouble.empty()) {
    fmt::print(stderr, "qattn: --cache: {}; references were computed and are not kept\n", trouble);
  }
}

void add_cache_options(CLI::App& command, CacheOptions& options) {
  CLI::Option* folder = command.add_option("--cache", options.folder,
                                           "where float64 references of long calls are kept; default: "
                                           "$XDG_CACHE_HOME/qattn/references, or under ~/.cache");
  folder->type_name("DIR");
  command.add_flag("--no-cache", options.off, "compute every float64 reference, keep none")->excludes(folder);
}

lab::DumpSet WorkOptions::open(const OutputOptions& output) const {
  lab::DumpSelection wanted = selection;
  if (!heads.empty()) wanted.heads = lab::parse_heads(heads);
  lab::DumpSet dumps(wanted);
  std::int64_t most = 0;
  for (const lab::SelectedCall& call : dumps.calls()) most = std::max(most, call.call->q_heads);
  // "A:" has no end to ask for.
  if (wanted.heads && !heads.ends_with(':') && wanted.heads->last > most && !output.quiet) {
    fmt::print(stderr, "qattn: --heads {}: no call has more than {} query heads\n", heads, most);
  }
  return dumps;
}

void add_work_options(CLI::App& command, WorkOptions& options) {
  command.add_option("--calls", options.selection.calls, "only calls in whose path this is found")->type_name("REGEX");
  command.add_option("--heads", options.heads, "only query heads A to B - 1")->type_name("A:B");
  command.add_option("--threads", options.threads, "number of threads; 0: one for each core")
      ->type_name("N")
      ->check(CLI::Range(0, 4096));
  add_cache_options(command, options.cache);
}

void add_backward_options(CLI::App& command, WorkOptions& options) {
  CLI::Option* backward = command.add_flag(
      "--backward", options.backward,
      "gradients too: rows of o, dq, dk and dv; the upstream gradient is the dump's `do`, else seeded");
  add_upstream_seed_option(command, options);
  command.get_option("--upstream-seed")->needs(backward);
}

void add_upstream_seed_option(CLI::App& command, WorkOptions& options) {
  command.add_option("--upstream-seed", options.seed, "seed of the N(0, 1) upstream gradient of calls without `do`")
      ->type_name("N")
      ->check([](const std::string& text) {  // CLI11 takes -1 for 2^64 - 1
        return std::string(text.starts_with('-') ? "a seed is a number from 0 on" : "");
      });
}

std::vector<std::string> WorkOptions::with_output(std::vector<std::string> labels) const {
  if (backward) labels.emplace_back("output");
  return labels;
}

void add_set_option(CLI::App& command, std::vector<std::string>& settings) {
  command.add_option("--set", settings, "override a key of the recipe; repeatable (qattn recipes --keys)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

lab::RunResult run_with_progress(const lab::DumpSet& dumps, const std::vector<lab::Trial>& trials,
                                 const WorkOptions& work, const OutputOptions& output, const std::string& heads,
                                 const lab::Device* device) {
  const InterruptGuard interrupt;
  const lab::ReferenceCache references = work.cache.open();
  lab::RunResult result;
  {
    Progress progress(heads, output.quiet);
    lab::RunOptions options;
    options.threads = work.threads;
    options.references = &references;
    options.device = device;
    options.upstream_seed = work.upstream_seed();
    options.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    options.cancelled = InterruptGuard::requested;
    result = lab::run_trials(dumps, trials, options);
  }
  if (!output.quiet) {
    work.cache.remark(references);
    tell_idle_exceptions(lab::idle_exceptions(dumps, trials));
  }
  tell_bad_outputs(result.bad);
  return result;
}

void tell_idle_exceptions(const std::vector<std::string>& idle) {
  for (const std::string& text : idle) fmt::print(stderr, "qattn: {}\n", text);
}

void tell_bad_outputs(const std::vector<lab::BadOutput>& bad) {
  for (std::size_t i = 0; i < std::min(bad.size(), kToldBadOutputs); ++i) {
    fmt::print(stderr, "qattn: {}\n", lab::describe(bad[i]));
  }
  if (bad.size() > kToldBadOutputs) {
    fmt::print(stderr, "qattn: {} more outputs with NaN or Inf; the rows locate each\n", bad.size() - kToldBadOutputs);
  }
}

lab::Json run_context(std::string_view command, const lab::DumpSet& dumps, const std::vector<lab::Trial>& trials,
                      const WorkOptions& work, double seconds, const lab::Device* device) {
  lab::Json context = lab::tool_context();
  context["command"] = command;
  context["device"] = lab::device_name(device);
  context["inputs"] = lab::input_context(dumps.files());
  const lab::Json recipes = lab::recipe_context(trials);
  lab::Json options = {
      {"command", command}, {"calls", work.selection.calls}, {"heads", work.heads}, {"recipes", recipes}};
  if (work.backward) options["upstream_seed"] = work.seed;
  context["options_hash"] = lab::options_hash(options);
  context["calls"] = work.selection.calls;
  context["heads"] = work.heads;
  if (work.backward) context["upstream_seed"] = work.seed;
  context["threads"] = work.threads > 0 ? work.threads : static_cast<int>(std::thread::hardware_concurrency());
  context["seconds"] = seconds;
  context["recipes"] = recipes;
  if (const auto idle = lab::idle_exceptions(dumps, trials); !idle.empty()) context["idle_exceptions"] = idle;
  return context;
}

std::vector<std::string> evidence_notes(const std::vector<lab::Trial>& trials) {
  std::vector<std::string> notes;
  for (const lab::Trial& trial : trials) {
    std::string note = fmt::format("accumulators: {}", lab::Exceptions(trial.recipe).evidence());
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
    // FP16 sums alone: 32-bit ones never come near their limit.
    const std::optional<attention::SumBound> pv = attention::pv_bound(trial.recipe, kBoundKeys);
    if (!pv || pv->limit > kLargestFp16) continue;
    note = fmt::format("sums: {}", attention::describe(pv));
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
  }
  return notes;
}

int status_of(const lab::RunResult& result) { return result.bad.empty() ? 0 : 1; }

}  // namespace qattn::cli
