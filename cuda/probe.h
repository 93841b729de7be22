// Rediscovering how a matrix instruction adds, from its outputs alone. What computes the outputs is the caller's: a
// GPU, or the emulator (which must give back the parameters that its table states).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mma/instruction.h"

namespace qattn::gpu {

/// One output element: K codes of A's row and of B's column, and C.
struct DotExperiment {
  std::vector<std::uint64_t> a, b;
  std::uint64_t c = 0;
};
using DotBackend = std::function<std::vector<std::uint64_t>(const std::vector<DotExperiment>&)>;

/// What the outputs tell. "?" or -1 where they tell nothing.
struct Adder {
  /// Positions of K that are added in one go, in the order in which the sums follow each other.
  std::vector<std::vector<int>> groups;
  int fraction_bits = -1;  ///< F: a term 2^(e_max - F) is kept, 2^(e_max - F - 1) lost; -1 for rounded chains
  std::string cut = "?";   ///< of terms at the alignment: "toward zero", "down", "to nearest"
  bool normalises_products = false;
  std::string accumulator = "?";  ///< how C enters: "in the sum", "added after"
  int mantissa_bits = -1;         ///< of C that an instruction with zero products keeps
  std::string rounding = "?";     ///< of the output: "toward zero", "to nearest even", ...
  std::string floor = "?";        ///< the smallest exponent that terms are aligned to, as far as it is visible

  int group_size() const { return groups.empty() ? 0 : static_cast<int>(groups.front().size()); }
  friend bool operator==(const Adder&, const Adder&) = default;
};

/// Probes a floating-point instruction; only its formats and K are read, not its rule.
Adder probe(const mma::Instruction& formats, const DotBackend& run);

/// Experiments whose outputs decide `adder`'s parameters: another value of one of them changes an output. What is worth
/// recording of an instruction beside random operands.
std::vector<DotExperiment> decisive_experiments(const mma::Instruction& formats, const Adder& adder);

/// The emulator as a backend.
DotBackend emulator(const mma::Instruction& instruction);

/// "0-15 16-31", "0-1 4-5 8-9 ...": the groups in order.
std::string groups_text(const Adder& adder);

}  // namespace qattn::gpu
