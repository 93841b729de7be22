// What synthetic tensors can be drawn from: one table.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/matrix.h"

namespace qattn::lab {

/// One head of one tensor of a synthetic call.
struct SynthHead {
  std::uint64_t seed = 0;
  std::int64_t call = 0;
  std::string_view tensor;  ///< "q", "k", "v" or "do"
  std::int64_t batch = 0, head = 0;
  std::int64_t tokens = 0, head_dim = 0;
};

/// A number that shapes a distribution; the command line has an option of this name.
struct SynthParameter {
  std::string_view name;
  double standard;  ///< its value when the user gives none
  double lowest, highest;
  std::string_view help;
  bool counts_channels = false;  ///< a whole number, at most head_dim
  bool is_whole = false;         ///< a whole number
};

/// The values of a distribution's parameters, by name.
using SynthValues = std::map<std::string, double, std::less<>>;

struct Distribution {
  std::string_view name;
  std::string_view help;
  std::string_view source;
  std::vector<SynthParameter> parameters;
  std::vector<std::string_view> tensors;  ///< q, k, v, and do where an upstream gradient belongs to it
  /// The head's values [tokens, head_dim], each a function of seed, call, tensor, batch, head, token, channel and
  /// head_dim alone: more heads, tokens or calls leave the others as they are.
  MatrixD (*draw)(const SynthHead& head, const SynthValues& values);
};

/// normal, channel-bias, cogvideox-like, fa3-outlier, sagebwd. Adding one is adding one entry to the table in
/// synth_distribution.cpp.
std::span<const Distribution> distributions();

/// Throws Error(usage) that lists the names.
const Distribution& find_distribution(std::string_view name);

/// Every parameter of the distribution with its value: `given`, else the standard one (as many channels as there are,
/// if that is more). Throws Error(usage) for a parameter that the distribution does not have or a value out of its
/// range.
SynthValues resolve_values(const Distribution& distribution, const SynthValues& given, std::int64_t head_dim);

}  // namespace qattn::lab
