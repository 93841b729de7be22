// Recorded instruction and matrix-product vectors against the models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/vectors.h"
#include "mma/instruction.h"
#include "mma/tile.h"

namespace qattn::mma {

/// The first element that came out differently.
struct Mismatch {
  std::vector<std::int64_t> index;  ///< [product, row, column], or [row, column] of a matrix product
  std::uint64_t expected = 0;       ///< recorded code
  std::uint64_t computed = 0;
  std::string detail;  ///< operands, exponents, the sum before and after the cut, as text
};

/// What came of one case.
struct ReplayResult {
  std::string name;       ///< the instruction, or the kernel's name of a matrix product
  std::string case_name;  ///< the group's path
  std::string output = "d";
  std::string evidence;  ///< how the instruction's entry is known
  std::int64_t elements = 0;
  std::int64_t mismatches = 0;
  std::uint64_t max_ulp = 0;  ///< in the output's own format; the largest number when NaN stands against a number
  std::optional<Mismatch> first;
};

/// Distance of two codes in units of the format's last place (integers: their difference); NaN is infinitely far.
std::uint64_t ulp_distance(const format::Format& format, std::uint64_t x, std::uint64_t y);

/// Executes every product of the case. Throws Error(input) that names the case when the instruction is unknown or the
/// shapes are not the instruction's.
ReplayResult replay(const io::InstructionCase& vectors, Path path = Path::fast);

/// The same against a rule of the caller's own, which need not be in the table.
ReplayResult replay(const Instruction& instruction, const io::InstructionCase& vectors, Path path = Path::fast);

/// One result for each recorded kernel of a GEMM case: cuBLASLt's FP8 product, by its attribute `use_fast_accum`, and
/// split into slices of `slice` elements of K where it has that attribute (0: not split; else as cublaslt_fp8_plan()).
std::vector<ReplayResult> replay_gemm(const io::RecordedCase& recorded, Path path = Path::fast);

}  // namespace qattn::mma
