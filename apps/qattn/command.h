// What a subcommand is, and the list of them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>

namespace qattn::cli {

/// Exit status of a command that did its work: 0, or 1 when a check or threshold failed or NaN/Inf was met. Everything
/// else leaves as an exception.
using Action = std::function<int()>;

/// Adds one subcommand to `app`; its callback sets `action`, which main() runs after the whole command line was parsed.
using AddCommand = void (*)(CLI::App& app, Action& action);

void add_info(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_ablate(CLI::App& app, Action& action);
void add_sweep(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_table(CLI::App& app, Action& action);
void add_synth(CLI::App& app, Action& action);
void add_recipes(CLI::App& app, Action& action);
void add_formats(CLI::App& app, Action& action);
void add_instructions(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_mma(CLI::App& app, Action& action);
void add_gemm(CLI::App& app, Action& action);
void add_scalar(CLI::App& app, Action& action);

/// Every subcommand, in the order of the help.
inline constexpr AddCommand kCommands[] = {add_info,    add_run,   add_ablate, add_sweep,   add_plan,
                                           add_table,   add_check, add_synth,  add_recipes, add_instructions,
                                           add_formats, add_mma,   add_gemm,   add_scalar};

}  // namespace qattn::cli
