// qattn: parses the command line, runs one subcommand, and turns every way to end into an exit status.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/simd_target.h"
#include "command.h"
#include "lab/provenance.h"
#include "options.h"
#include "progress.h"

namespace {

using namespace qattn;

/// A standard descriptor that the caller has closed would be given to the first file that is opened; one that
/// cannot be written stands in, so that writing to it fails as it should.
void occupy_closed_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) == -1) static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

/// Messages are one line, whatever a library put into them.
int fail(ErrorKind kind, std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "qattn: {}\n", message);
  return static_cast<int>(kind);
}

/// Help and version are output like any other; everything else that CLI11 throws is a wrong command line.
int end_of_parsing(const CLI::App& app, const CLI::ParseError& e, const std::string& first_word) {
  if (e.get_exit_code() == 0) {
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&e) != nullptr;
    cli::write_stdout(version ? std::string(e.what()) + "\n" : app.help());
    return 0;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (!first_word.starts_with('-') && std::find(names.begin(), names.end(), first_word) == names.end()) {
    return fail(ErrorKind::usage, fmt::format("{}; the subcommands are {} (see qattn --help)",
                                              first_word.empty() ? std::string("a subcommand is required")
                                                                 : fmt::format("no subcommand '{}'", first_word),
                                              fmt::join(names, ", ")));
  }
  return fail(ErrorKind::usage, fmt::format("{} (see qattn --help)", e.what()));
}

int run(int argc, char** argv) {
  CLI::App app("QAttn: the numerics of quantized attention on a CPU, bit for bit", "qattn");
  app.set_version_flag("--version", fmt::format("qattn {} ({})", lab::tool_version(), lab::git_commit()));
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 done and passed; 1 a check failed or NaN/Inf was met; 2 usage or configuration; 3 input "
      "unreadable or output not writable; 4 internal fault.\n"
      "QATTN_SIMD=AVX2 (or another target of this machine) in the environment keeps to that instruction set; no result "
      "depends on it.");
  cli::Action action;
  for (const cli::AddCommand add : cli::kCommands) add(app, action);
  try {
    std::vector<std::string> words = cli::mark_negative_words({argv + 1, argv + argc});
    std::reverse(words.begin(), words.end());  // the order that CLI11 takes a vector in
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    return end_of_parsing(app, e, argc > 1 ? argv[1] : "");
  }
  std::optional<ForcedSimdTarget> forced;
  if (const auto target = requested_simd_target()) forced.emplace(*target);
  return action();
}

/// Ends as the shell expects of a program that Ctrl-C or SIGTERM stopped: status 130 or 143.
[[noreturn]] void die_of_interrupt() {
  const int number = cli::InterruptGuard::received();
  fmt::print(stderr, "qattn: interrupted\n");
  signal(number, SIG_DFL);
  raise(number);
  std::_Exit(128 + number);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_descriptors();
  // A write beyond the limit on a file's size then fails like one on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const lab::Interrupted&) {
    die_of_interrupt();
  } catch (const Error& e) {
    return fail(e.kind(), e.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::input,
                "out of memory: a head needs more than this machine has; try one thread, or fewer heads or tokens");
  } catch (const std::exception& e) {
    return fail(ErrorKind::internal, fmt::format("internal fault: {}", e.what()));
  } catch (...) {
    return fail(ErrorKind::internal, "internal fault");
  }
}
