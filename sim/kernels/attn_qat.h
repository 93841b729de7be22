// Attn-QAT's training kernel: attention with fake NVFP4 quantization, forward and backward (FastVideo at 2f3d407,
// Triton 3.6, sm_90a).
//
// Everything is bfloat16 outside and f32 inside; every matrix product is a chain of m16n8k16 through its accumulator,
// all tiles are 32 x 32, and nothing depends on timing. ex2 and rcp are the special-function unit's, RN is rounding to
// nearest even, and a / b is PTX's div.full, RN(rcp(b) a).
//
// Fake quantization, groups of 16 along D (q, k, v) or along the keys (P), factors e = 2688 / max(g, 1e-8), d = 1 / e,
// both 1 without a factor; g is the largest magnitude of a 32 x D tile (q, k, v) or of a row of a tile (P, two levels):
//   s = E4M3(RN(RN(amax (1/6)) e)), y = RN(x (1 / RN(s d))), result = BF16(RN(E2M1(y) s d)).
// The E2M1 cast is Triton's integer code; for a bfloat16 source it does not see what it shifts out of |y| < 1, so that
// 0.25 < |y| <= 0.25 + 3 2^-25 becomes 0.
//
// Forward, key tiles ascending, c = RN(scale log2(e)):
//   m' = max(m, RN(rowmax(S) c)); p = ex2(fma(S, c, -m')); Pq = the quantized p, Ph = BF16(p);
//   a = ex2(m - m'); l = fma(l, a, sum of Ph with every addition rounded to BF16); O = RN(O a) + Pq V, O' alike with
//   Ph; at the end o = O / l, o' = O' / l in BF16 and M = RN(m + log2(l)), base 2.
// The quantized P meets the keys k mod 4 in {0, 1} of a tile before the others, Ph in their own order.
// Backward, from M and delta = rowsum(dO o), or o' where the option says so:
//   p = ex2(fma(S, c, -M)); dP = dO V^T; dS = BF16(RN(p RN(dP - delta)));
//   dV += Pq^T dO with p quantized anew; dK += dS^T Q; dQ += dS K; dK and dQ times the scale at the end.
// With smooth_k the mean of K, subtracted before, comes back in dQ only: fma(rowsum(p (dP - delta)), mean, dQ) after
// each key tile.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel.h"
#include "kernels/numbers.h"
#include "mma/instruction.h"
#include "scalar/mufu.h"
#include "scalar/span.h"

namespace qattn::kernels::attn_qat {

/// The kernel's keyword arguments, by the names of the file formats; the values are the library's defaults.
struct Options {
  bool qat_backward = true;           ///< use_qat_qkv_backward: the backward pass multiplies quantized q, k, v
  bool fake_quant_p_backward = true;  ///< fake_quant_P: and a quantized P in dV
  bool high_precision_o = false;      ///< use_high_prec_o: delta from the output of the unquantized P
  bool smooth_k = true;
  bool two_level_p = true;       ///< two_level_quant_P: P's factor from the row's maximum in the tile
  bool global_scale_p = true;    ///< use_global_sf_P: from the whole tile's; two_level_p goes before
  bool global_scale_qkv = true;  ///< use_global_sf_QKV
};

/// The special-function unit's 1/x.
inline float unit_reciprocal(float x) { return scalar::mufu_rcp(x); }

/// How the row sum of the k_mean term is formed.
enum class MeanTerm : std::uint8_t { fused, rounded_products, from_bf16, left_out };

/// The compiled kernel's arithmetic. A test changes one member at a time to see what the recorded outputs decide.
struct Arithmetic {
  const mma::Instruction* dot = nullptr;  ///< of every matrix product; nullptr: m16n8k16 of the call's architecture
  bool chain_tiles = true;                ///< the accumulator enters a tile's first product (else an f32 addition)
  bool interleave_p_forward = true;       ///< keys k mod 4 in {0, 1} first, where P is quantized
  bool interleave_p_backward = true;
  bool sum_in_bf16 = true;
  bool sum_far_lanes_first = true;
  bool fuse_forward_exponent = true;
  bool fuse_backward_exponent = true;
  bool fuse_sum = true;                                                ///< l = fma(l, a, sum)
  bool multiply_by_sixth = true;                                       ///< amax (1/6), else amax / 6
  bool forget_shifted_bits = true;                                     ///< the E2M1 cast of a bfloat16 source
  bool divide_output = false;                                          ///< o by a rounded division
  bool delta_far_lanes_first = true;                                   ///< else neighbours first
  bool fuse_ds = false;                                                ///< dS = fma(p, dP, -RN(p delta))
  bool ascending_dv = true, ascending_dk = true, ascending_dq = true;  ///< order of the tiles
  bool ds_from_quantized_p = false;
  MeanTerm mean_term = MeanTerm::fused;
  bool mean_far_warps_first = true;
  bool fuse_mean = true;  ///< dQ = fma(rowsum, mean, dQ)
  void (*ex2)(std::span<const float> x, std::span<float> y) = scalar::ex2_approx_ftz;
  float (*rcp)(float x) = unit_reciprocal;
  float (*log2)(float x) = library_log2;
};

/// What the kernel returns for q, k, v [B, H, N, D] bfloat16: o, with d_o also dq, dk, dv; beside them what the forward
/// pass saves: "saved/q", "saved/k", "saved/v" (quantized), "saved/high_prec_o" (o'), "saved/m" (M, fp32 [B, H, N]).
/// Throws Error(usage) that names the kernel for what its library refuses: other formats, shapes that disagree, fewer
/// key heads than query heads, head_dim other than 32, 64, 128 and 256; and for sm100 and sm120, which run another
/// kernel. Evidence: measured for head_dim 64, lengths that are equal multiples of 32, one batch, no causal mask and
/// the recorded options; else predicted from the published source.
Returned run(const Call& call, const Arithmetic& arithmetic);

}  // namespace qattn::kernels::attn_qat
