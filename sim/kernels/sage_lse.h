// The correction that SageAttention adds to its lse when K was smoothed: q . k_mean, a matrix product of PyTorch's,
// whose order of additions is that of the kernel which cuBLAS picks for the shape.
#pragma once

#include <cstdint>
#include <vector>

#include "format/format.h"
#include "mma/instruction.h"
#include "tensor/matrix.h"

namespace qattn::kernels::sage {

/// An order in which cuBLAS (CUDA 13.0, sm_90) adds the products of one dot product. Products are exact in f32, sums
/// are f32 and start from zero.
struct DotOrder {
  enum class Kind : std::uint8_t {
    tensor_core,   ///< a chain of m16n8k16 instructions, ascending
    runs,          ///< `lanes` contiguous runs, added as a tree (distances lanes/2 ... 1)
    strided,       ///< element i in lane i mod lanes; lanes are added one after another, ascending
    strided_tree,  ///< the same lanes, added as a tree
  };
  Kind kind = Kind::tensor_core;
  int lanes = 0;
  /// Whether a shape was recorded on either side of this one that has the same order.
  bool recorded = true;
};

/// The order for `heads` (batch times query heads) products of [q_tokens, depth] by [depth, 1] in FP16 or BF16, depth
/// 64 or 128. Found on 880 recorded shapes; the limits between orders lie somewhere between two of them, and shapes in
/// such a gap are marked.
DotOrder correction_order(const format::Format& type, std::int64_t heads, std::int64_t q_tokens, std::int64_t depth);

/// [q_tokens]: q . k_mean for each row of q (codes of `type`, as k_mean), in that order, rounded once to `type`.
/// `instruction` is the m16n8k16 of the card.
std::vector<float> correction(const format::Format& type, const MatrixCodes& q, const MatrixCodes& k_mean,
                              const DotOrder& order, const mma::Instruction& instruction);

}  // namespace qattn::kernels::sage
