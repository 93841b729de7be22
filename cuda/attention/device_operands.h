// One head of an attention call as our own kernels take it. Plain structs that host code and kernels share.
#pragma once

#include <cstdint>

namespace qattn::gpu {

/// Q, K and V as a recipe stores them (attention::Operands, sim/attention/operands.h), in device memory, row-major and
/// without gaps. A code takes one byte (E4M3, INT8, and INT4 in the low four bits, whatever stands above them) or two
/// (FP16, BF16). A null pointer stands for what the recipe does not have.
struct DeviceOperands {
  const void* q = nullptr;               ///< [queries, head_dim]: codes
  const void* k = nullptr;               ///< [keys, head_dim]
  const void* v = nullptr;               ///< [keys, value_dim]
  const float* q_scale = nullptr;        ///< [queries]
  const float* k_scale = nullptr;        ///< [keys]
  const float* v_scale = nullptr;        ///< [value_dim]: per channel; per tensor, one for all
  const float* v_block_scale = nullptr;  ///< [keys]: per block
  const float* v_mean = nullptr;         ///< [value_dim]: what smoothing took from V
  const float* correction = nullptr;     ///< [q blocks, keys]: qbar K^T, in the units of Q K^T
  const float* mask = nullptr;           ///< [queries, keys]: RN(mask * log2(e)); -Inf hides a key
  int queries = 0;
  int keys = 0;
  int head_dim = 0;
  int value_dim = 0;
  float logit_scale = 1.0F;  ///< RN(log2(e) * what is left of the softmax scale)
};

/// The format that scores are rounded to, or O: FP32 is no rounding.
enum class FloatFormat : std::uint8_t { fp32, fp16, bf16 };

/// The recipe's choices that the tiles need; the fields of attention::Recipe (sim/attention/recipe.h), resolved.
struct TileChoices {
  int q_block = 128;  ///< queries that share the number of visited tiles and a correction row
  int k_block = 64;
  bool descending = false;       ///< tiles from the last key to the first
  bool causal = false;           ///< query i sees keys j <= i + causal_offset
  int causal_offset = 0;         ///< keys - queries for a diagonal that ends in the corner, else 0
  bool max_before_mask = false;  ///< the row maximum is over all scores of the tile
  bool sum_rounded = false;      ///< the row sum adds P's codes, not p
  float rescale_threshold = 0.0F;
  float p_scale = 1.0F;
  int promotion = -1;  ///< steps after which R is added to O; -1: after each tile, 0: never before the end
  FloatFormat s_format = FloatFormat::fp32;
  FloatFormat o_format = FloatFormat::fp32;
};

/// What a kernel writes, in device memory.
struct DeviceOutput {
  float* o = nullptr;        ///< [queries, value_dim], values of the output format
  float* row_max = nullptr;  ///< [queries]: m of the last tile, in powers of two; -Inf: the row saw no key
  float* row_sum = nullptr;  ///< [queries]: l, in units of P's codes where those are added; 0: the row saw no key
};

/// One launch: all queries of a head.
struct HeadTask {
  DeviceOperands operands;
  TileChoices choices;
  DeviceOutput output;
};

}  // namespace qattn::gpu
