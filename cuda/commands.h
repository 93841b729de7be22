// The subcommands of qattn-gpu.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "lab/dump_set.h"
#include "lab/recipe_file.h"

namespace qattn::gpu {

struct Options {
  std::regex only{""};        ///< names that are taken: searched for, not matched whole
  std::uint64_t seed = 1;     ///< of the operands
  int products = 8;           ///< record: products of each operand family
  int blocks = 128;           ///< record --digests: blocks of 2^20 outputs of each instruction
  int threads = 0;            ///< of the CPU's side; 0: one for each core
  double seconds = 30;        ///< check: how long
  bool json = false;          ///< one JSON document on stdout instead of text
  std::string mismatch_file;  ///< check: where to write what differed, as vectors
};

/// Heads of dumps, and the recipes that they are computed under.
struct DumpOptions {
  lab::DumpSelection selection;
  std::vector<std::string> recipes;  ///< names or files
  std::vector<lab::Override> overrides;
  bool prepare_on_cpu = false;  ///< attention: Q, K and V are quantized by the CPU, not by the GPU
};

/// Writes instruction vectors (file formats, section 2).
void record_instructions(const std::string& path, const Options& options);
/// Writes instruction digests (section 8).
void record_instruction_digests(const std::string& path, const Options& options);
/// Writes scalar vectors (section 3): all inputs of 8 and 16 bits, a sample of 32-bit ones.
void record_scalar(const std::string& path, const Options& options);
/// Writes digests of all 2^32 results of each function (section 8).
void record_scalar_digests(const std::string& path, const Options& options);

/// Compare the device with the emulator on random operands and print the counts; false when something differed.
bool check_instructions(const Options& options);
bool check_scalar(const Options& options);

/// Compares operands that the device prepared with the CPU's, bit for bit: of the dumps' heads, or of synthetic ones
/// without dumps, under the given recipes (none: those of our own kernels) and `variants` drawn ones. `only`
/// chooses among files, or lengths as "65 tokens". False when something differed.
bool check_operands(const DumpOptions& dump, int variants, const Options& options);

/// Runs the one recipe's kernel on every head and writes a dump with o, lse and what they come from to `output`. Throws
/// Error(usage) when no kernel of ours does what the recipe says (attention/hardware_recipe.h).
void run_attention(const DumpOptions& dump, const std::string& output, const Options& options);

/// Writes kernel vectors (file formats, section 4) of the dumps' calls: what each recipe's kernel returns for them,
/// under the name "qattn_attention" with every key of the recipe. Throws Error(usage) as run_attention().
void record_attention(const DumpOptions& dump, const std::string& output, const Options& options);

/// Runs the recipes' kernels and the pipeline on every head and prints how many elements of o and lse differ; false
/// when any does.
bool check_attention(const DumpOptions& dump, const Options& options);

/// Computes every digest of a recording (either schema of section 8) on the CPU; false when a block differs. Needs no
/// GPU.
bool check_digest_file(const std::string& path, const Options& options);

/// Rediscovers the parameters of the floating-point instructions and prints them beside the table; false when a
/// parameter differs from the table's.
bool probe_instructions(const Options& options);

struct EmulateOptions {
  std::string recipe;
  std::int64_t tokens = 1024, head_dim = 64;
  int heads = 1;  ///< of the second timing, which does not prepare operands
  bool causal = false;
  bool compare = true;  ///< with the CPU
  std::uint64_t seed = 1;
  bool json = false;
};

/// Runs a recipe's emulator on the device with a drawn head, prints how long it took and how many numbers differ from
/// the CPU's; false when any does.
bool emulate(const EmulateOptions& options);

/// Prints what the device has.
void list_instructions(const Options& options);

}  // namespace qattn::gpu
