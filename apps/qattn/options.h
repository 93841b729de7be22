// Options that several subcommands share, and where their reports go.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/device.h"
#include "lab/dump_set.h"
#include "lab/reference_cache.h"
#include "lab/report.h"
#include "lab/runner.h"

namespace qattn::cli {

/// Whether a word is written as a code, "0x...".
bool is_code(std::string_view text);

/// The value of "0x38"; none where it is no code of at most `bits` bits.
std::optional<std::uint64_t> parse_code(std::string_view text, int bits);

/// The f64 next to a decimal number, inf or nan, with a sign or without; none for anything else and beyond f64's range.
std::optional<double> parse_number(std::string_view text);

/// A command line's words as CLI11 is to see them: "-inf" and "-nan" are numbers as "-1" is, no options. The blank that
/// tells it so is one that parse_number(), like strtod(), skips.
std::vector<std::string> mark_negative_words(std::vector<std::string> words);

/// How a report is printed, and where.
struct OutputOptions {
  bool json = false, csv = false, markdown = false, latex = false;
  bool quiet = false;
  std::string file;  ///< empty: stdout

  /// The form that was asked for; with --output alone, the one that its ending names (.json .csv .md .tex).
  lab::Form form() const;
};

void add_output_options(CLI::App& command, OutputOptions& options);

/// Renders the report to stdout or, in one step, to the file. Throws Error(input) when it cannot be written whole.
void emit(const lab::Report& report, const OutputOptions& options);

/// Writes all of `text` to stdout. Throws Error(input) on a closed stdout, a full disk, ...
void write_stdout(std::string_view text);

/// --cache and --no-cache: where float64 references are kept from run to run.
struct CacheOptions {
  std::string folder;
  bool off = false;

  lab::ReferenceCache open() const;
  /// Says on stderr that the folder of --cache could not keep a reference, and why.
  void remark(const lab::ReferenceCache& references) const;
};

void add_cache_options(CLI::App& command, CacheOptions& options);

/// --calls, --heads, --threads and where references are kept; --backward and --upstream-seed.
struct WorkOptions {
  lab::DumpSelection selection;
  std::string heads;
  int threads = 0;
  CacheOptions cache;
  bool backward = false;
  std::uint64_t seed = 0;

  /// The seed for upstream gradients; none without --backward.
  std::optional<std::uint64_t> upstream_seed() const { return backward ? std::optional(seed) : std::nullopt; }
  /// `labels`, and "output" where rows are of several outputs.
  std::vector<std::string> with_output(std::vector<std::string> labels) const;

  /// Opens the dumps, filters applied. Tells on stderr when --heads asks for heads that no call has.
  lab::DumpSet open(const OutputOptions& output) const;
};

void add_work_options(CLI::App& command, WorkOptions& options);
void add_backward_options(CLI::App& command, WorkOptions& options);
void add_upstream_seed_option(CLI::App& command, WorkOptions& options);

/// --set KEY=VALUE, in order.
void add_set_option(CLI::App& command, std::vector<std::string>& settings);

/// --device cpu|cuda.
void add_device_option(CLI::App& command, std::string& name);

/// nullptr for the CPU. Throws Error(usage) when this program was built without CUDA, Error(input) when there is no
/// device.
std::unique_ptr<lab::Device> open_device(const std::string& name);

/// Runs the trials with progress on a terminal ("3/54 heads, ..."), ends cleanly on Ctrl-C, and tells on stderr about
/// outputs that are not finite. On `device`, or on the CPU where it is nullptr.
lab::RunResult run_with_progress(const lab::DumpSet& dumps, const std::vector<lab::Trial>& trials,
                                 const WorkOptions& work, const OutputOptions& output,
                                 const std::string& heads = "heads", const lab::Device* device = nullptr);

/// lab::idle_exceptions(), one line each on stderr.
void tell_idle_exceptions(const std::vector<std::string>& idle);

/// The first few outputs that are not finite, one line each on stderr.
void tell_bad_outputs(const std::vector<lab::BadOutput>& bad);

/// Tool, command, inputs, recipes, device, threads, time, hash of the options.
lab::Json run_context(std::string_view command, const lab::DumpSet& dumps, const std::vector<lab::Trial>& trials,
                      const WorkOptions& work, double seconds, const lab::Device* device = nullptr);

/// What the accumulators of the trials rest on, a line each.
std::vector<std::string> evidence_notes(const std::vector<lab::Trial>& trials);

/// 1 when an output had a NaN or Inf, else 0.
int status_of(const lab::RunResult& result);

}  // namespace qattn::cli
