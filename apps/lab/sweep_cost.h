// What a sweep will take, before it is run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/dump_set.h"
#include "lab/measurement.h"
#include "lab/results.h"

namespace qattn::lab {

/// Multiply-adds of Q K^T and P V (with gradients: of all seven products) over the keys that the causal mask and packed
/// sequences leave, summed over all pieces of the set: what one recipe costs. Additive and boolean masks hide keys
/// without saving work.
std::int64_t multiply_adds(const DumpSet& dumps, bool backward = false);

/// Bytes that the largest head needs while it is measured: inputs, mask, reference and output in float64, and the
/// recipe's operands. An estimate to a factor of two; every thread has its own.
std::int64_t head_bytes(const DumpSet& dumps);

/// Nanoseconds a multiply-add of each trial and, last, of the float64 reference, each measured once on this machine on
/// the first head, cut to at most 256 queries and keys.
std::vector<double> calibrate(const DumpSet& dumps, std::span<const Trial> trials, bool backward = false);

}  // namespace qattn::lab
