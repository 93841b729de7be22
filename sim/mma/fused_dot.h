// The plain engine: one output element of any instruction, in integers that can be read; and its trace.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mma/instruction.h"
#include "tensor/matrix.h"

namespace qattn::mma {

/// Raw codes of one output element's operands: K codes of A's row and of B's column, the accumulator, and for
/// block-scaled instructions K / block scales of each.
struct DotOperands {
  std::span<const std::uint64_t> a;
  std::span<const std::uint64_t> b;
  std::uint64_t c = 0;
  std::span<const std::uint64_t> scale_a = {};
  std::span<const std::uint64_t> scale_b = {};
};

/// One term of a sum: a product, a scaled group, the accumulator or a partial sum.
struct TraceTerm {
  std::string name;    ///< "a[3] b[3]", "c", "a[16..31] b[16..31]"
  double value = 0;    ///< exact, unless it is beyond double's range
  int exponent = 0;    ///< as aligned: the sum of the operands' exponents
  double aligned = 0;  ///< value after the cut
};

/// One pass through the adder.
struct TraceStep {
  std::string what;  ///< "products 0..15 and c"
  std::vector<TraceTerm> terms;
  bool special = false;    ///< NaN or Inf decided the output; no alignment took place
  int e_max = 0;           ///< the exponent that terms were aligned to (fused kinds)
  int fraction_bits = -1;  ///< kept below 2^e_max; -1 where nothing is cut
  double sum_before = 0;   ///< of the terms' values, in double
  double sum_after = 0;    ///< of the aligned terms, exact
  std::uint64_t output = 0;
};

/// How an output came about, step by step.
struct Trace {
  std::vector<TraceStep> steps;
  std::uint64_t output = 0;
};

/// The output code of one element. NaN results are 0x7FFFFFFF (f32) and 0x7FFF (f16) on NVIDIA; see the sources of each
/// kind for the rest. Throws Error(usage) when the operands' lengths are not the instruction's.
std::uint64_t dot(const Instruction& instruction, const DotOperands& operands, Trace* trace = nullptr);

using CodeMatrix = Matrix<std::uint64_t>;

/// D = A B^T + C for whole operands: a [M, K], b [N, K], c [M, N], scales [M, K / block] and [N, K / block]. M and N
/// may be anything, K is the instruction's. Throws Error(usage) when shapes disagree.
CodeMatrix execute(const Instruction& instruction, const CodeMatrix& a, const CodeMatrix& b, const CodeMatrix& c,
                   const CodeMatrix& scale_a = {}, const CodeMatrix& scale_b = {});

/// The trace as text, one line a term.
std::string to_text(const Instruction& instruction, const Trace& trace);

}  // namespace qattn::mma
