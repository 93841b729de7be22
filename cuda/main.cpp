// qattn-gpu: measures a real GPU's matrix instructions and scalar functions, and compares them with the emulator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "commands.h"

namespace {

using qattn::Error;
using qattn::ErrorKind;
using qattn::gpu::DumpOptions;
using qattn::gpu::Options;

struct Arguments {
  std::string output;
  std::string only;
  std::string digest_file;
  bool scalar = false;
  bool digests = false;
  bool operands = false;
  int variants = 8;
  bool attention = false;
  std::string heads;
  std::vector<std::string> overrides;
  DumpOptions dump;
  Options options;
};

void add_common(CLI::App& command, Arguments& arguments) {
  command.add_flag("--json", arguments.options.json, "One JSON document on stdout instead of text");
  command.add_option("--only", arguments.only, "Take only names in which this regular expression is found");
}

void add_dump_options(CLI::App& command, Arguments& arguments, const std::string& dump_help) {
  command.add_option("DUMP", arguments.dump.selection.inputs, dump_help);
  command.add_option("--recipe", arguments.dump.recipes, "Recipe, by name or file")->allow_extra_args(false);
  command.add_option("--set", arguments.overrides, "KEY=VALUE of the recipe")->allow_extra_args(false);
  command.add_option("--calls", arguments.dump.selection.calls, "Take only calls in which this expression is found");
  command.add_option("--heads", arguments.heads, "Query heads A:B (A to B - 1)");
}

void add_attention_options(CLI::App& command, Arguments& arguments, const std::string& dump_help) {
  add_dump_options(command, arguments, dump_help);
  command.add_flag("--prepare-on-cpu", arguments.dump.prepare_on_cpu,
                   "Attention: let the CPU quantize Q, K and V, to tell its kernels from the quantizers'");
}

CLI::App* add_record(CLI::App& app, Arguments& arguments) {
  CLI::App* record = app.add_subcommand("record", "Write what the GPU returns, as vectors or digests");
  record->add_option("OUT", arguments.output, "HDF5 file to write")->required();
  record->add_flag("--digests", arguments.digests, "Digests of many outputs instead of vectors");
  record->add_flag("--scalar", arguments.scalar, "Scalar functions instead of matrix instructions");
  record->add_option("--seed", arguments.options.seed, "Seed of the operands")->capture_default_str();
  record->add_option("--products", arguments.options.products, "Products of each operand family")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  record->add_option("--blocks", arguments.options.blocks, "Digest blocks of 2^20 outputs of each instruction")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  record->add_flag("--attention", arguments.attention, "What attention kernels of ours return for the calls of DUMPs");
  add_attention_options(*record, arguments, "--attention: dumps, files or folders of them");
  add_common(*record, arguments);
  return record;
}

CLI::App* add_run(CLI::App& app, Arguments& arguments) {
  CLI::App* run = app.add_subcommand("run", "Run an attention kernel of ours on a dump and write o and lse");
  add_attention_options(*run, arguments, "A dump, or a folder of them");
  run->get_option("DUMP")->expected(1);
  run->add_option("--output", arguments.output, "Dump to write")->required()->type_name("OUT");
  run->add_flag("--json", arguments.options.json, "One JSON document on stdout instead of text");
  return run;
}

CLI::App* add_check(CLI::App& app, Arguments& arguments) {
  CLI::App* check =
      app.add_subcommand("check", "Compare the GPU with the emulator: on random operands, or attention on dumps");
  check->add_flag("--scalar", arguments.scalar, "Scalar functions instead of matrix instructions");
  check->add_option("--digests", arguments.digest_file, "Recorded digests to compare with the emulator; needs no GPU");
  check->add_option("--seconds", arguments.options.seconds, "How long, one round at least")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  check->add_option("--seed", arguments.options.seed, "Seed of the operands")->capture_default_str();
  check->add_option("--threads", arguments.options.threads, "CPU threads of the emulator (0: one for each core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  check->add_flag("--operands", arguments.operands,
                  "Operand preparation instead, on the dumps' heads or on synthetic ones");
  check->add_option("--variants", arguments.variants, "--operands: recipes drawn beside the named ones")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  add_attention_options(*check, arguments, "Dumps, files or folders of them");
  check->add_option("--mismatches", arguments.options.mismatch_file, "HDF5 file for the outputs that differ");
  add_common(*check, arguments);
  return check;
}

CLI::App* add_emulate(CLI::App& app, qattn::gpu::EmulateOptions& options) {
  CLI::App* emulate = app.add_subcommand("emulate", "The emulator on the GPU: the CPU's bits, and how fast");
  emulate->add_option("--recipe", options.recipe, "A recipe's name, or a .toml file")->required();
  emulate->add_option("--tokens", options.tokens, "Queries and keys")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  emulate->add_option("--head-dim", options.head_dim, "Channels")->check(CLI::Range(1, 1024))->capture_default_str();
  emulate->add_option("--heads", options.heads, "Heads that are timed together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  emulate->add_option("--seed", options.seed, "Seed of Q, K and V")->capture_default_str();
  emulate->add_flag("--causal", options.causal, "With a causal mask");
  emulate->add_flag("!--no-compare", options.compare, "Do not run the CPU's emulator");
  emulate->add_flag("--json", options.json, "One JSON document on stdout instead of text");
  return emulate;
}

/// What a command does with the options at hand, and which of its options mean something then.
struct Mode {
  std::string_view name;
  std::vector<std::string_view> options;
};

Mode record_mode(const Arguments& arguments) {
  if (arguments.attention) {
    return {"record --attention",
            {"OUT", "--attention", "DUMP", "--recipe", "--set", "--calls", "--heads", "--prepare-on-cpu", "--json"}};
  }
  if (arguments.scalar && arguments.digests) {
    return {"record --scalar --digests", {"OUT", "--scalar", "--digests", "--only", "--json"}};
  }
  if (arguments.scalar) return {"record --scalar", {"OUT", "--scalar", "--seed", "--only", "--json"}};
  if (arguments.digests) {
    return {"record --digests", {"OUT", "--digests", "--seed", "--blocks", "--only", "--json"}};
  }
  return {"record of matrix instructions", {"OUT", "--seed", "--products", "--only", "--json"}};
}

Mode check_mode(const Arguments& arguments) {
  const bool dumps = !arguments.dump.selection.inputs.empty();
  if (arguments.operands && dumps) {
    return {"check --operands DUMP",
            {"--operands", "DUMP", "--calls", "--heads", "--variants", "--seed", "--recipe", "--set", "--threads",
             "--only", "--json"}};
  }
  if (arguments.operands) {
    return {"check --operands without a DUMP",
            {"--operands", "--variants", "--seed", "--recipe", "--set", "--threads", "--only", "--json"}};
  }
  if (dumps || !arguments.dump.recipes.empty()) {
    return {"check DUMP --recipe",
            {"DUMP", "--recipe", "--set", "--calls", "--heads", "--prepare-on-cpu", "--threads", "--json"}};
  }
  if (!arguments.digest_file.empty()) return {"check --digests", {"--digests", "--threads", "--only", "--json"}};
  if (arguments.scalar) {
    return {"check --scalar", {"--scalar", "--seconds", "--seed", "--threads", "--only", "--json"}};
  }
  return {"check of matrix instructions", {"--seconds", "--seed", "--threads", "--mismatches", "--only", "--json"}};
}

/// Throws Error(usage) for an option that was given and would be ignored.
void check_options(const CLI::App& command, const Mode& mode) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || std::find(mode.options.begin(), mode.options.end(), name) != mode.options.end()) {
      continue;
    }
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} has no part in it; it takes {}", mode.name, name, fmt::join(mode.options, ", ")));
  }
}

/// The dumps and recipes, taken apart.
DumpOptions dump_options(const Arguments& arguments) {
  DumpOptions dump = arguments.dump;
  if (!arguments.heads.empty()) dump.selection.heads = qattn::lab::parse_heads(arguments.heads);
  for (const std::string& text : arguments.overrides) dump.overrides.push_back(qattn::lab::parse_override(text));
  return dump;
}

void record(const CLI::App& command, const Arguments& arguments) {
  check_options(command, record_mode(arguments));
  if (arguments.attention) {
    if (arguments.dump.selection.inputs.empty() || arguments.dump.recipes.empty()) {
      throw Error(ErrorKind::usage, "record: --attention takes DUMPs and a --recipe NAME for each kernel");
    }
    return qattn::gpu::record_attention(dump_options(arguments), arguments.output, arguments.options);
  }
  if (arguments.scalar) {
    (arguments.digests ? qattn::gpu::record_scalar_digests : qattn::gpu::record_scalar)(arguments.output,
                                                                                        arguments.options);
  } else {
    (arguments.digests ? qattn::gpu::record_instruction_digests : qattn::gpu::record_instructions)(arguments.output,
                                                                                                   arguments.options);
  }
}

void run_attention(const Arguments& arguments) {
  if (arguments.dump.selection.inputs.size() != 1 || arguments.dump.recipes.size() != 1) {
    throw Error(ErrorKind::usage, "run: give one DUMP and one --recipe NAME");
  }
  qattn::gpu::run_attention(dump_options(arguments), arguments.output, arguments.options);
}

bool check(const CLI::App& command, const Arguments& arguments) {
  check_options(command, check_mode(arguments));
  if (arguments.operands) {
    return qattn::gpu::check_operands(dump_options(arguments), arguments.variants, arguments.options);
  }
  if (arguments.dump.selection.inputs.empty() != arguments.dump.recipes.empty()) {
    throw Error(ErrorKind::usage, "check: attention is checked on a DUMP with --recipe NAME; give both or neither");
  }
  if (!arguments.dump.recipes.empty()) {
    return qattn::gpu::check_attention(dump_options(arguments), arguments.options);
  }
  if (!arguments.digest_file.empty()) return qattn::gpu::check_digest_file(arguments.digest_file, arguments.options);
  return (arguments.scalar ? qattn::gpu::check_scalar : qattn::gpu::check_instructions)(arguments.options);
}

int run(int argc, char** argv) {
  CLI::App app{"Measures a GPU's matrix instructions and scalar functions and compares them with the emulator"};
  app.require_subcommand(1);
  Arguments arguments;
  const CLI::App* record_command = add_record(app, arguments);
  const CLI::App* run_command = add_run(app, arguments);
  const CLI::App* check_command = add_check(app, arguments);
  CLI::App* probe = app.add_subcommand("probe", "Rediscover how the GPU's matrix instructions add");
  add_common(*probe, arguments);
  CLI::App* list = app.add_subcommand("list", "The GPU's instructions that this program can run");
  add_common(*list, arguments);
  qattn::gpu::EmulateOptions emulate_options;
  const CLI::App* emulate_command = add_emulate(app, emulate_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorKind::usage);
  }
  try {
    arguments.options.only = std::regex(arguments.only);
  } catch (const std::regex_error& error) {
    throw Error(ErrorKind::usage, fmt::format("--only '{}': {}", arguments.only, error.what()));
  }
  bool passed = true;
  if (record_command->parsed()) {
    record(*record_command, arguments);
  } else if (run_command->parsed()) {
    run_attention(arguments);
  } else if (check_command->parsed()) {
    passed = check(*check_command, arguments);
  } else if (probe->parsed()) {
    passed = qattn::gpu::probe_instructions(arguments.options);
  } else if (emulate_command->parsed()) {
    passed = qattn::gpu::emulate(emulate_options);
  } else {
    qattn::gpu::list_instructions(arguments.options);
  }
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "qattn-gpu: {}\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    fmt::print(stderr, "qattn-gpu: {}\n", error.what());
    return static_cast<int>(ErrorKind::internal);
  }
}
