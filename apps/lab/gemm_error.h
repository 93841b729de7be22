// The error of a matrix product as a tensor core runs it, against the length of the sum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/report.h"
#include "mma/gemm.h"

namespace qattn::lab {

/// What is multiplied, and how. Every combination of k, promotion and slice makes a row.
struct GemmErrorOptions {
  const mma::Instruction* instruction = nullptr;
  std::vector<std::int64_t> k;          ///< lengths of the sums, in elements
  std::vector<std::int64_t> promotion;  ///< elements between additions to an f32 accumulator; 0: never
  std::vector<std::int64_t> slice;      ///< elements of K a slice (split-K); 0: all
  mma::KOrder order = mma::KOrder::ascending;
  bool positive = false;                          ///< |N(0, 1)| instead of N(0, 1)
  const format::Format* output = &format::kFP32;  ///< fp32, bf16 or fp16
  std::int64_t rows = 64, columns = 64;
  std::uint64_t seed = 1;
};

/// One row for each combination: name, k, promotion, slice, order, distribution, output, elements, mean_relative (the
/// mean of |d - e| / |e|, e the exact sum of the rounded operands' products), max_relative, bias (sum of d - e over
/// sum of |e|), rel_l1, rmse, nan_count, inf_count, evidence. A[i][k] is random_normal(seed, 0, i 2^24 + k) and B[j][k]
/// that of stream 1, rounded to nearest-even in the instruction's formats, so a shorter K is the beginning of a longer
/// one. Exact sums are base/exact_sum.h's, rounded once to double. Throws Error(usage) for a parameter that does not
/// fit the instruction, for integer instructions, whose sums are exact, and for FP64 and block-scaled ones.
std::vector<Json> gemm_errors(const GemmErrorOptions& options);

}  // namespace qattn::lab
