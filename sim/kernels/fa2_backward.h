// FlashAttention-2's backward pass, as PyTorch 2.11 ships it (aten._scaled_dot_product_flash_attention_backward).
//
// One thread block a key tile; the query tiles come from the last to the first, under a causal mask down to the first
// that sees a key of the tile. RN is rounding to nearest even in f32, c = RN(scale log2(e)):
//   delta = rowsum(dO o): a row's threads own 8 adjacent columns of each page of 64 (32 where 64 does not divide
//   head_dim), added page after page, then exchanged, the far threads first
//   S = Q K^T, dP = dO V^T, chains of m16n8k16 from zero; P = 2^(RN(RN(S c) - RN(lse log2(e)))), never fused;
//   dS = RN(P RN(dP - delta)) with the unrounded P
//   dV += P^T dO, dK += dS^T Q with P and dS rounded to 16 bits, each one chain over all query tiles, queries ascending
//   inside a tile; at the end dK = RN(dK scale)
//   dS K of one pair of tiles is a chain from zero, added to dQ by atomic additions; at the end RN(dQ scale).
// So the bits of dQ depend on the order in which thread blocks finish wherever more than two key tiles add.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/forward.h"
#include "kernels/kernel.h"
#include "mma/instruction.h"
#include "scalar/span.h"

namespace qattn::kernels {

/// MUFU without flushing: what exp2f is in this build.
void ex2_approx(scalar::Codes32 x, std::span<std::uint32_t> y);

/// The library's arithmetic. A test changes one member at a time to see what the recorded gradients decide.
struct Fa2Backward {
  const mma::Instruction* dot = nullptr;  ///< of every matrix product; nullptr: the architecture's m16n8k16
  int query_tile = 0, key_tile = 0;       ///< 0: the library's for the head_dim and the architecture
  bool fuse_exponent = false;             ///< P = 2^fma(S, c, -RN(lse log2(e)))
  bool fuse_ds = false;                   ///< dS = fma(P, dP, -RN(P delta))
  bool ds_from_rounded_p = false;
  bool delta_far_lanes_first = true;
  bool descending_queries = true;
  void (*ex2)(scalar::Codes32 x, std::span<std::uint32_t> y) = ex2_approx;
  TileRule rule;  ///< to try out another arithmetic of the matrix products; empty: the instruction's
};

/// Adds dq, dk and dv to what the forward pass returned, from its "o" and "lse" and the call's d_o. `dq` is the sum
/// with the key tiles ascending; where more than two tiles add, `order_free` says which other bits are right as well.
/// It keeps the terms, key tiles times the size of dq in f32. Grouped heads: dK and dV of each query head are rounded
/// to 16 bits, then added over the group in f32 as torch.sum does (four running sums), and rounded again. `evidence`
/// gets a word on the gradients where they are beyond the recordings (head_dim 64 and 128, one head a group, equal
/// lengths, one batch, sm90). Throws Error(usage) when the call has no d_o, and where a key tile of the library does
/// not exist.
void add_fa2_backward(const Call& call, Returned& returned, const Fa2Backward& arithmetic = {});

}  // namespace qattn::kernels
