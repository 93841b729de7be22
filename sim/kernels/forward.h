// One replay engine for the forward pass of the float attention kernels: FlashAttention-2 and -3, cuDNN's and the
// memory-efficient one. What tells them apart is data, the fields of Forward.
//
// Per row of the output and tile of keys, in this order (RN = rounded to nearest even in f32):
//   S = Q K^T, a chain of matrix instructions from zero along head_dim; S = RN(S * score_factor) where that is not 1
//   m_new = max(m, S); s = c times the descales, the factor that brings scores into powers of two
//   a = 2^(m - m_new), P = 2^(S - m_new + offset), each in one of the forms below
//   l, the sum of P, in lanes as the threads of a warp hold them
//   O = RN(O * a), then P V^T on top of it
// and at the end O / l and lse. A step that a kernel skips because it changes nothing (the rescaling of the first tile)
// is done here with numbers that change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "format/format.h"
#include "kernels/kernel.h"
#include "mma/instruction.h"
#include "mma/tile.h"

namespace qattn::kernels {

/// x = what P is the power of two of; M = fma(m_new, s, -offset).
enum class Exponent : std::uint8_t {
  fused,            ///< x = fma(S, s, -M)
  two_roundings,    ///< x = RN(RN(S * s) - M)
  difference_first  ///< x = fma(RN(S - m_new), s, offset)
};

/// What the rescaling factor a is the power of two of.
enum class Rescale : std::uint8_t {
  difference_first,  ///< RN(RN(m - m_new) * s)
  products_first,    ///< RN(RN(m * s) - RN(m_new * s))
  fused              ///< fma(m, s, -RN(m_new * s))
};

/// 2^x.
enum class PowerOfTwo : std::uint8_t {
  mufu,     ///< the MUFU instruction, ex2.approx.ftz.f32
  approx,   ///< exp2f without fast-math: results below 2^-126 exist
  rounded,  ///< the nearest float (to 2^-28 ulp); no kernel has it
};

enum class Reciprocal : std::uint8_t {
  mufu,      ///< O * rcp.approx.ftz.f32(l)
  rounded,   ///< O * RN(1 / l)
  division,  ///< RN(O / l)
};

/// How descales enter: s from c and those of q and k, the output from that of v.
enum class ScoreDescale : std::uint8_t {
  together,     ///< s = RN(c * RN(qd * kd))
  one_by_one,   ///< s = RN(RN(c * qd) * kd)
  of_the_score  ///< S = RN(S * RN(qd * kd)), s = c
};
enum class OutputDescale : std::uint8_t {
  of_the_reciprocal,  ///< RN(O * RN(rcp * vd))
  of_the_output,      ///< RN(RN(O * rcp) * vd)
  of_the_quotient,    ///< RN(O * RN(vd / l))
};

/// What one addition of a row sum adds. Lane t of four owns the columns with (column % 8) / 2 = t.
enum class SumTerms : std::uint8_t {
  elements,     ///< each P in turn, onto the lane's running sum
  tile_totals,  ///< the lane's sum over the tile, which starts from zero
  warp_totals,  ///< sums over 32 columns, their lanes exchanged; the running sum has one lane
};

struct RowSum {
  SumTerms terms = SumTerms::elements;
  bool contracted = true;          ///< a tile's first addition is fma(l, a, term), else RN(RN(l * a) + term)
  bool distance_2_first = true;    ///< lanes: (l0 + l2) + (l1 + l3), else (l0 + l1) + (l2 + l3)
  bool one_lane = false;           ///< one chain over all columns instead of four; no kernel has it
  bool descending = false;         ///< columns (warp totals: the warps) from the last to the first; nor this
  bool of_rounded_p = false;       ///< of P after it was rounded for the second product; nor this
  bool warps_added_first = false;  ///< RN(l * a) + (w0 + w1 + ...); nor this
};

/// How the second product joins O.
enum class Accumulate : std::uint8_t {
  chained,  ///< RN(O * a) is the accumulator of the first instruction
  fused,    ///< the chain starts from zero, O = fma(O, a, chain)
  rounded,  ///< the same, O = RN(RN(O * a) + chain)
};

/// The last tile where the chain starts from zero: how its scale by r = RN(1 / l) comes in.
enum class LastTile : std::uint8_t {
  like_others,       ///< O as in other tiles, then RN(O * r)
  scaled,            ///< fma(r, chain, RN(RN(r * a) * O))
  scaled_o_fused,    ///< fma(RN(r * a), O, RN(r * chain))
  scaled_rounded,    ///< RN(RN(r * chain) + RN(RN(r * a) * O))
  scaled_regrouped,  ///< fma(r, chain, RN(r * RN(a * O)))
};

/// How P is rounded to the operand type of the second product.
enum class RoundP : std::uint8_t { nearest, nearest_flushed, toward_zero };

/// lse = (what the row maximum gives) + (what l gives).
enum class LseMaximum : std::uint8_t {
  times_scale,          ///< m * RN(scale * RN(qd * kd))
  times_scaled_ln2,     ///< m * RN(s * ln 2)
  rounded_times_ln2,    ///< RN(m * s) * ln 2
  over_log2e,           ///< RN(RN(m * s) / log2 e)
  times_inverse_log2e,  ///< RN(m * s) * RN(1 / log2 e)
};
enum class LseJoin : std::uint8_t {
  fused_maximum,  ///< fma(maximum, factor, RN(log term))
  rounded,        ///< RN(RN(maximum * factor) + RN(log term))
  fused_log,      ///< fma(lg2(l), ln 2, RN(maximum * factor))
};
enum class Log : std::uint8_t {
  mufu,          ///< lg2.approx.ftz.f32(l) * ln 2
  approx,        ///< lg2.approx.f32(l) * ln 2
  logf,          ///< CUDA's logf(l)
  rounded,       ///< the nearest float of log2 l, times ln 2; no kernel has it
  logf_rounded,  ///< the nearest float of ln l; no kernel has it
};

/// What a row returns whose sum is 0 or NaN, as one that sees no key.
struct EmptyRow {
  bool guarded = false;  ///< whether the kernel looks for it at all
  float reciprocal = 0;  ///< stands for 1 / l
  float lse = 0;
};

/// D = C + A B^T by the caller's rule instead of the instruction's own: a [M, K], b [N, K] in the instruction's operand
/// types, c [M, N] the bits of C on entry and of D on exit.
using TileRule =
    std::function<void(const mma::Instruction&, const MatrixCodes& a, const MatrixCodes& b, MatrixCodes& c)>;

/// Splitting the keys over thread blocks, and the kernel that combines the parts.
struct Split {
  int parts = 1;             ///< 1: not split, no combining kernel
  int lse_rows = 32;         ///< parts whose lse one step of the combining kernel's exchange spans
  bool fused = true;         ///< o = fma(weight, part, o), else two roundings
  bool rounded_exp = false;  ///< expf correctly rounded instead of CUDA's; no kernel has it
  bool rounded_log = false;  ///< logf likewise
};

/// One kernel's choices for one call.
struct Forward {
  const mma::Instruction* qk = nullptr;
  const mma::Instruction* pv = nullptr;
  TileRule qk_rule, pv_rule;  ///< to try out another arithmetic; empty: the instruction's
  const format::Format* output = nullptr;
  int query_tile = 128;  ///< rows of a thread block; decides only which fully masked tiles are passed over
  int key_tile = 128;    ///< a multiple of 32
  bool keys_descending = false;
  bool is_causal = false;
  attention::CausalAlign causal_align = attention::CausalAlign::top_left;
  bool missing_keys_masked = true;  ///< keys behind the last one score -Inf; else 0, which no kernel has

  float score_factor = 1;
  float scale = 1;  ///< f32 of sm_scale, for lse
  float c = 1;      ///< log2 e times what of the scale score_factor leaves
  ScoreDescale score_descale = ScoreDescale::together;
  float offset = 0;          ///< P is scaled by 2^offset
  bool offset_fused = true;  ///< M = fma(m, s, -offset), else RN(RN(m * s) - offset)
  Exponent exponent = Exponent::fused;
  Rescale rescale = Rescale::difference_first;
  float rescale_threshold = 0;  ///< the maximum stays unless it grew by more than this times ln 2; 0 in all kernels
  PowerOfTwo power = PowerOfTwo::mufu;
  bool flush_products = false;  ///< subnormal products with O become zero (a fast-math build)
  RowSum row_sum;
  RoundP round_p = RoundP::nearest;
  Accumulate accumulate = Accumulate::chained;
  LastTile last_tile = LastTile::like_others;

  Reciprocal reciprocal = Reciprocal::mufu;
  OutputDescale output_descale = OutputDescale::of_the_reciprocal;
  LseMaximum lse_maximum = LseMaximum::times_scale;
  LseJoin lse_join = LseJoin::fused_maximum;
  Log log = Log::mufu;
  EmptyRow empty;
  Split split;

  mma::Path path = mma::Path::fast;  ///< decides nothing but the time
};

/// o [B, Hq, Nq, D] in `kernel.output` and lse [B, Hq, Nq] fp32. The call's formats must be those of the instructions.
/// The same bits for every number of threads. `evidence` is left to the caller.
Returned run_forward(const Forward& kernel, const Call& call);

/// Throws Error(usage) unless q, k and v fit each other: rank 4, one batch size, head_dim and format of `formats`,
/// Hq a multiple of Hkv, descales [B * Hkv] or none, do like q or none, nothing empty.
void check_call(const Call& call, std::string_view kernel, std::span<const format::Format* const> formats,
                std::int64_t largest_head_dim);

/// The instruction of `call.arch` for operands of type `type` with f32 results: that of `family` ("wgmma", "mma") on
/// sm90; elsewhere mma, or tcgen05 for wgmma on sm100. Throws Error(usage) when the architecture has none.
const mma::Instruction& instruction_of(const Call& call, std::string_view family, const format::Format& type, int k);

/// Fills `predicted` and `evidence`: "measured here (H200)" unless there is a `reason` or another architecture or an
/// instruction that was not measured computes. A `causal_align` of the call that the library does not have is named.
void state_evidence(Returned& returned, const Forward& kernel, const Call& call, std::string reason);

}  // namespace qattn::kernels
