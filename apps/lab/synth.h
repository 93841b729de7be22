// Synthetic dumps: seeded, the same bits everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/format.h"
#include "io/dump.h"
#include "lab/report.h"
#include "lab/runner.h"
#include "lab/synth_distribution.h"

namespace qattn::lab {

/// A dump that is to be made. Sizes are at least 1, q_heads a multiple of kv_heads.
struct SynthRequest {
  const Distribution* distribution = nullptr;
  SynthValues values;  ///< those that are not the distribution's standard ones
  std::uint64_t seed = 0;
  std::int64_t calls = 1;
  std::int64_t batch = 1;
  std::int64_t q_heads = 8, kv_heads = 8;
  std::int64_t q_tokens = 1024, kv_tokens = 1024;
  std::int64_t head_dim = 64;
  const format::Format* format = &format::kFP16;
  bool is_causal = false;
  io::Layout layout = io::Layout::hnd;
};

/// The command line that makes the same dump again, every option spelled out; it stands in the dump's `source`.
std::string command_line(const SynthRequest& request);

/// Writes the dump: calls layer_00, layer_01, ... with q, k, v and, where the distribution has it, do. Elements are
/// rounded to nearest-even in the format, beyond its range to the largest number. One row a tensor: call, tensor,
/// shape, dtype, and the SHA-256 of its codes as [B, H, N, D] whatever the layout; the same for every number of
/// threads. The file appears complete or not at all. Throws Error(usage) for sizes or parameters that do not fit,
/// Error(input) when the file cannot be written, Interrupted.
std::vector<Json> synthesize(const std::string& path, const SynthRequest& request, const RunOptions& options);

}  // namespace qattn::lab
