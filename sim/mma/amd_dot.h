// AMD's own kinds of dot product: the rules published with MMA-Sim (arXiv 2511.10909, reference model c785138).
#pragma once

#include <cstdint>

#include "mma/fused_dot.h"

namespace qattn::mma {

/// The NaN that AMD's f32 results are given; the literature leaves payloads open.
inline constexpr std::uint64_t kAmdNan = 0x7FC00000u;

/// CDNA3: products of a group are cut toward zero to 24 fraction bits at their largest exponent and summed (FP8: the
/// even and the odd positions apart, then both cut down to the larger of their exponents); the sum, kept to 31 fraction
/// bits, and C, kept to 24, are cut toward -Inf at the larger of their exponents, and the result is rounded to nearest
/// even. A zero operand has exponent -126; a finite product of 2^128 or more counts as Inf.
std::uint64_t amd_fused_dot(const Instruction& instruction, const DotOperands& operands, Trace* trace);

/// CDNA1 and CDNA2: products rounded to f32, added in a binary tree within a group, then to the accumulator, each
/// addition rounded to nearest even. CDNA2 takes subnormal operands as +0 and flushes subnormal f32 results, keeping
/// their sign.
std::uint64_t amd_pairwise(const Instruction& instruction, const DotOperands& operands, Trace* trace);

}  // namespace qattn::mma
