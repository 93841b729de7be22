// A whole matrix product as a library runs it: a chain of instructions over K, promoted and split as the plan says.
#pragma once

#include <cstdint>
#include <string>

#include "mma/instruction.h"
#include "mma/tile.h"
#include "tensor/matrix.h"

namespace qattn::mma {

enum class KOrder : std::uint8_t { ascending, descending };

/// How D = A B^T is computed. K is cut into slices; a slice is a chain of instructions; with promotion, chains of
/// `promotion_interval` instructions start from zero and are added to an f32 accumulator, rounded to nearest even (the
/// first to zero). Slices are added in f32, lowest K first, and the sum is rounded once to the output format.
struct GemmPlan {
  const Instruction* instruction = nullptr;
  int promotion_interval = 0;  ///< in instructions; 0: never
  std::int64_t slice = 0;      ///< elements of K a slice, a multiple of the instruction's K; 0: all of K (no split-K)
  KOrder k_order = KOrder::ascending;             ///< of the instructions within a slice
  const format::Format* output = &format::kFP32;  ///< fp32, bf16 or fp16, to nearest even; int32 for integers
};

/// a [M, K], b [N, K] raw codes; the result [M, N] in the output format's codes. Integer instructions return s32 and
/// ignore promotion. Throws Error(usage) when the plan does not fit the operands.
MatrixCodes gemm(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b,
                 Path path = Path::fast);

/// How one element of gemm() came about, as text: the accumulator that each chain left, in order, and the last
/// instruction step by step. a [1, K] and b [1, K] are its row and column; what gemm() refuses throws here too.
std::string explain(const GemmPlan& plan, const MatrixView<std::uint32_t>& a, const MatrixView<std::uint32_t>& b);

/// cuBLASLt's FP8 product on an H200 with unit scales (recorded, 0 mismatches): wgmma chains; without fast accumulation
/// a promotion after every 4 instructions (128 of K). K = 16384 was seen split into slices of 2816 (M = 64, N = 256);
/// every other recorded K (512, 4096) is one slice, and no rule beyond these is known.
GemmPlan cublaslt_fp8_plan(const format::Format& a, const format::Format& b, bool fast_accumulation, std::int64_t k,
                           const format::Format& output);

}  // namespace qattn::mma
