// A recipe: every choice that an attention method makes about its numbers, and the one table of its keys.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/format.h"
#include "quant/groups.h"
#include "quant/quantize.h"
#include "quant/scale.h"

namespace qattn::attention {

/// Which means are subtracted before quantization (SageAttention section 4.2, SageAttention2 section 3.1).
enum class Smoothing : std::uint8_t { none, k, q, qk };

/// The K of the correction row qbar K^T: SageAttention2's equation 2 takes the smoothed K before quantization, its
/// Algorithm 1 the quantized one.
enum class Correction : std::uint8_t { smoothed_k, quantized_k };

/// Which P the row sum adds: before its quantization (all published kernels) or after.
enum class RowSum : std::uint8_t { unrounded, rounded };

/// The exponential of the online softmax: ours, correctly rounded but for near-ties; the GPU's ex2.approx.ftz.f32;
/// FlashAttention-4's polynomial.
enum class Exp2 : std::uint8_t { exact, mufu, fa4_poly };

/// Arithmetic of scores, softmax and O outside the matrix products.
enum class Softmax : std::uint8_t { f32, f64 };

/// What the softmax scale multiplies: the scores (most kernels), Q before it is quantized (SageAttention, equation 4),
/// or Q and K by its square root each (PyTorch's math backend).
enum class ScalePlace : std::uint8_t { logits, q, qk };

/// The row maximum is that of the scores that the masks leave (all published kernels), or of all scores of the tile.
enum class RowMax : std::uint8_t { after_mask, before_mask };

/// The second, FP32 level of the scales of micro-scaled P: none, one for a tile (Attn-QAT), or one for a row of the
/// tile, from the largest weight that the row has there (SageAttention3).
enum class SecondLevel : std::uint8_t { none, tile, row };

/// From the first tile of keys to the last, or back (FlashAttention-3).
enum class TileOrder : std::uint8_t { ascending, descending };

/// The diagonal of a causal mask: where the dump says, or where a kernel puts it whatever the dump says.
enum class CausalStart : std::uint8_t { input, top_left, bottom_right };

/// Query heads that share the per-tensor scale of Q and SmoothQuant's factors: the head alone, or all that use one K
/// and V head (FlashAttention-3 takes one descale a KV head).
enum class QueryHeads : std::uint8_t { one, group };

/// Orthogonal rotation of Q and K (QuaRot, FlashAttention-3) and per-channel balance (SmoothQuant).
enum class Rotation : std::uint8_t { none, hadamard };
enum class Balance : std::uint8_t { none, smoothquant };

/// How an operand is stored: a format, and what shares a scale. A null format keeps the values as they are ("exact").
/// FP64, FP32, TF32, BF16 and FP16 are plain casts without a scale; the narrower formats are scaled.
struct OperandSpec {
  const format::Format* format = nullptr;
  quant::Granularity granularity = quant::Granularity::per_tensor;
  std::string scale_rule = "amax";                      ///< quant/scale.h
  const format::Format* scale_format = &format::kFP32;  ///< E4M3 for NVFP4, E8M0 for MX
  bool global_scale = false;                            ///< NVFP4's second FP32 scale, per tensor (of P: per tile)
  float range = 0;  ///< code magnitude that the largest element is mapped to; 0: the format's largest
  /// Elements are divided by the scale before it is rounded to its format (SageAttention3's P).
  bool unrounded_divisor = false;
  /// Where 1x16 and 1x32 groups lie; unset: along the axis that the matrix product sums over.
  std::optional<quant::Axis> micro_axis = std::nullopt;

  bool exact() const { return format == nullptr; }
  bool scaled() const { return format != nullptr && format->bits < 16; }
  bool integer() const { return format != nullptr && format->specials == format::Specials::integer; }
  /// A scale varies along the axis that the matrix product sums over.
  bool micro_scaled() const {
    return scaled() && (granularity == quant::Granularity::block_1x16 || granularity == quant::Granularity::block_1x32);
  }
  /// P alone: its scale follows from the row of the tile.
  bool row_scaled() const { return scaled() && granularity == quant::Granularity::per_token; }
};

/// Q, K or V in a product of the backward pass.
struct GradientOperand {
  enum class Source : std::uint8_t {
    forward,   ///< as the forward pass stores it
    original,  ///< the dump's values: neither rotated, balanced, smoothed nor quantized
    own,       ///< smoothed as in the forward pass, stored in `spec`
  };
  Source source = Source::forward;
  OperandSpec spec = {};
};

/// The backward pass of a training method: five products, dV = P^T dO, dP = dO V^T, dQ = dS K, dK = dS^T Q and S once
/// more, each with its own operands. P and dS are quantized tile by tile, dO by query blocks; "exact" keeps a value in
/// the softmax type. The defaults are straight-through gradients of the quantized forward pass, nothing else rounded.
struct BackwardSpec {
  GradientOperand qk;  ///< of S
  OperandSpec dv_p;
  OperandSpec dv_do;
  OperandSpec dp_do;
  GradientOperand dp_v;
  OperandSpec dq_ds;
  GradientOperand dq_k;
  OperandSpec dk_ds;
  GradientOperand dk_q;
  /// delta = rowsum(dO * O') with O' = P V of an unquantized P (Attn-QAT) in place of the output O.
  bool delta_o_prime = false;
  const format::Format* o_prime_p = nullptr;  ///< format that P is cast to in O'; nullptr: not at all
  bool k_mean = false;                        ///< dQ += rowsum(dS) mean(K), where K was smoothed (SageBwd, Algorithm 3)
  bool q_mean = true;                         ///< dK += colsum(dS) mean(Q), where Q was smoothed
};

/// Fields are in the order of the pipeline; recipe_keys() documents each as users see it.
struct Recipe {
  std::string name;
  std::string description;
  std::string source;
  std::string alias_of;  ///< a recipe that gives the same output under another name; empty: none

  ScalePlace scale_place = ScalePlace::logits;
  QueryHeads query_heads = QueryHeads::one;
  Rotation rotation = Rotation::none;
  std::uint64_t rotation_seed = 0;
  Balance balance = Balance::none;
  double balance_alpha = 0.5;
  Smoothing smoothing = Smoothing::none;
  bool smooth_v = false;
  Correction correction = Correction::smoothed_k;
  const format::Format* correction_format = &format::kFP32;

  OperandSpec q;
  OperandSpec k;
  OperandSpec v;
  /// P's scale is static (the row max of P is 1, so `p_scale` maps it to the top of the format) unless micro-scaled or
  /// per_token, one scale for a row of the tile from the row's own largest p. Those are taken from p * p_scale too
  /// (2688: SageAttention3's kernel, whose second level is relative to the running maximum).
  OperandSpec p;
  double p_scale = 0.0;  ///< 0: the largest code of P's format (448, 57344, 127, 7); 1 with other scales, or none
  SecondLevel p_second_level = SecondLevel::none;
  /// P is divided by its row sum before it is stored, as softmax() does where it is a step of its own; all keys must
  /// then lie in one tile.
  bool p_normalized = false;

  bool round_half_away = false;  ///< INT codes of Q and K: half away from zero (released kernels)
  quant::ZeroScale zero_scale = quant::ZeroScale::one;
  quant::Scaling scaling = quant::Scaling::divide;  ///< of Q, K, V and dynamically scaled P

  int q_block = 128;  ///< query rows of a tile; also the Q blocks that smoothing and per-block groups use
  int q_warp = 32;
  int k_block = 64;
  int k_warp = 64;

  /// "exact" (rounded once per tile), "f32" (a chain of rounded products and adds, k ascending), or an instruction
  /// family of sim/mma, with ".f16" behind it for an FP16 accumulator: "sm90.wgmma", "sm89.mma", "sm80.mma.f16".
  std::string qk_accumulator = "exact";
  std::string accumulator = "exact";  ///< of P V
  /// Instruction steps along the keys after which the partial sum is added to O with an f32 add: -1 once per tile,
  /// 0 never (O lives in the tensor core's accumulator), n > 0 every n steps.
  int promotion = -1;

  TileOrder tile_order = TileOrder::ascending;
  CausalStart causal_align = CausalStart::input;
  /// Format that scores are rounded to, dequantized and corrected, before the softmax scale; nullptr: none.
  const format::Format* s_format = nullptr;
  RowMax row_max = RowMax::after_mask;
  /// The running maximum is replaced only by one that exceeds it by more than this, in powers of two
  /// (FlashAttention-4: 8); weights then reach 2^threshold.
  double rescale_threshold = 0.0;
  Exp2 exp2 = Exp2::exact;
  RowSum row_sum = RowSum::unrounded;
  /// Format that a tile's row sum is added in: FP32 adds one p after the other, a narrower format as the fragments of a
  /// tensor core's row are reduced (narrow_row_sum() in pipeline.cpp).
  const format::Format* row_sum_format = &format::kFP32;
  Softmax softmax = Softmax::f32;
  /// Format that O is rounded to at the end; nullptr: the format of q in the dump.
  const format::Format* o_format = &format::kFP32;

  /// Where another recipe is used, "REGEX[ heads A:B]" separated by ';': calls in whose path the expression is found,
  /// and of them query heads A to B - 1. The dump's reader applies them (lab/exceptions.h), not the pipeline.
  std::string exceptions;
  std::string exception_recipe = "fa2-fp16";

  BackwardSpec backward;
};

/// One key of a recipe, as TOML files, `--set` and listings use it.
struct RecipeKey {
  std::string_view name;
  std::string_view values;  ///< what may be given
  std::string_view help;
  void (*set)(Recipe& recipe, std::string_view value);  ///< throws Error(usage) that says what may be given
  std::string (*get)(const Recipe& recipe);             ///< nullptr: a shorthand that sets several keys
};

/// Every key, in the order of the pipeline. Shorthands (`qk_format`, `pv_format`, `granularity`, `tiling`) have no get.
std::span<const RecipeKey> recipe_keys();

/// Sets one key from its text form. Throws Error(usage) for an unknown key (with the nearest names) or a bad value.
void set(Recipe& recipe, std::string_view key, std::string_view value);

/// Every key with its resolved value.
std::vector<std::pair<std::string, std::string>> resolved(const Recipe& recipe);

/// Throws Error(usage) when keys do not fit each other (per-thread groups with a tile that is no multiple of a warp,
/// an accumulator that has no instruction for these formats, ...), naming the recipe and the keys.
void validate(const Recipe& recipe);

/// What P is multiplied by before it is stored.
double resolved_p_scale(const Recipe& recipe);

/// What the accumulators rest on: "exact", or the instruction's name with its evidence, e.g.
/// "sm90.wgmma.m64n256k32.f32.e4m3.e4m3 (measured here)".
std::string accumulator_evidence(const Recipe& recipe);

}  // namespace qattn::attention
