// Steps 2 to 9 of the recipe pipeline (the head of sim/attention/pipeline.cpp) on tiles in shared memory. The matrix
// products between them are the caller's. Every operation on floats is an intrinsic that names its rounding, so that
// the compiler has nothing to fuse or to reorder; row maxima alone are taken in any order, which decides nothing.
//
// All threads of a block call each function, with whole warps; the block synchronizes between two of them.
#pragma once

#include <cuda_runtime.h>

#include "code_formats.cuh"
#include "device_operands.h"

namespace qattn::gpu {

constexpr float kInfinity = __builtin_huge_valf();

/// The GPU's own 2^x, the recipes' exp2 = "mufu".
struct HardwareExp2 {
  __device__ float operator()(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

/// Element (row, column) at data[row * stride + column], in shared memory.
struct SharedMatrix {
  float* data;
  int stride;
  __device__ float& at(int row, int column) const { return data[row * stride + column]; }
};

/// What the online softmax carries from tile to tile, one element a row of the block.
struct RunningRows {
  float* max;      ///< m
  float* sum;      ///< l
  float* rescale;  ///< osc of the tile in hand
};

/// Queries [first, first + count) of the head, of one q block; rows of a block are counted from 0.
struct QueryRows {
  int first;
  int count;
};

/// Keys [first, first + count), one tile.
struct KeyTile {
  int first;
  int count;
};

inline __device__ int divided_up(int a, int b) { return (a + b - 1) / b; }

/// Keys [0, n) are visible to `query` as far as the causal mask goes.
inline __device__ int visible_keys(const HeadTask& task, int query) {
  if (!task.choices.causal) return task.operands.keys;
  return min(max(query + 1 + task.choices.causal_offset, 0), task.operands.keys);
}

/// Tiles that a q block visits, that of the query `first`: as many as its last query sees.
inline __device__ int visited_tiles(const HeadTask& task, int first) {
  const int q_block = task.choices.q_block;
  const int last = min((first / q_block + 1) * q_block, task.operands.queries) - 1;
  return divided_up(visible_keys(task, last), task.choices.k_block);
}

/// The `index`th tile that a q block visits, of `tiles`.
inline __device__ KeyTile visited_tile(const HeadTask& task, int index, int tiles) {
  const int tile = task.choices.descending ? tiles - 1 - index : index;
  const int first = tile * task.choices.k_block;
  return {first, min(task.choices.k_block, task.operands.keys - first)};
}

/// Before the first tile.
inline __device__ void start_rows(int rows, const RunningRows& running) {
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    running.max[row] = -kInfinity;
    running.sum[row] = 0.0F;
    running.rescale[row] = 1.0F;
  }
}

/// Steps 2 to 4 for one score, the masks left out.
inline __device__ float unmasked_logit(const HeadTask& task, int query, int key, float score) {
  const DeviceOperands& operands = task.operands;
  const float q_scale = operands.q_scale != nullptr ? operands.q_scale[query] : 1.0F;
  const float k_scale = operands.k_scale != nullptr ? operands.k_scale[key] : 1.0F;
  float s = __fmul_rn(score, __fmul_rn(q_scale, k_scale));
  if (operands.correction != nullptr) {
    const std::size_t row = static_cast<std::size_t>(query / task.choices.q_block) * operands.keys;
    s = __fadd_rn(s, operands.correction[row + key]);
  }
  return __fmul_rn(rounded(task.choices.s_format, s), operands.logit_scale);
}

/// The masks of step 4.
inline __device__ float masked(const HeadTask& task, int query, int key, int visible, float x) {
  if (key >= visible) return -kInfinity;
  if (task.operands.mask == nullptr) return x;
  const float mask = task.operands.mask[static_cast<std::size_t>(query) * task.operands.keys + key];
  return mask == -kInfinity ? mask : __fadd_rn(x, mask);
}

inline __device__ float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, distance));
  return x;
}

/// Steps 2 to 5 and 7, a warp a row: `s` holds the scores of the tile (step 1, integers as floats) and gets what the
/// row sum adds. `store(row, column, code)` gets P's codes, zeros from the tile's last key up to `padded_keys`. Sets m
/// and osc.
template <class PFormat, class Exp2, class Store>
__device__ void weigh_tile(const HeadTask& task, QueryRows rows, KeyTile tile, int padded_keys, SharedMatrix s,
                           const RunningRows& running, Exp2 exp2, Store store) {
  const TileChoices& choices = task.choices;
  const int lane = static_cast<int>(threadIdx.x % 32), warps = static_cast<int>(blockDim.x / 32);
  for (int row = static_cast<int>(threadIdx.x / 32); row < rows.count; row += warps) {
    const int query = rows.first + row;
    const int visible = visible_keys(task, query);
    float tile_max = -kInfinity;  // fmaxf leaves NaN out, as the pipeline does
    for (int j = lane; j < tile.count; j += 32) {
      const float unmasked = unmasked_logit(task, query, tile.first + j, s.at(row, j));
      const float x = masked(task, query, tile.first + j, visible, unmasked);
      s.at(row, j) = x;
      tile_max = fmaxf(tile_max, choices.max_before_mask ? unmasked : x);
    }
    const float old_max = running.max[row];
    float max = fmaxf(old_max, warp_max(tile_max));
    if (__fsub_rn(max, old_max) <= choices.rescale_threshold) max = old_max;
    const bool unseen = max == -kInfinity;
    const float subtracted = unseen ? 0.0F : max;
    for (int j = lane; j < padded_keys; j += 32) {
      const float p = j < tile.count ? exp2(__fsub_rn(s.at(row, j), subtracted)) : 0.0F;
      const typename PFormat::Code code = PFormat::encode(__fmul_rn(p, choices.p_scale));
      store(row, j, code);
      if (j < tile.count) s.at(row, j) = choices.sum_rounded ? PFormat::decode(code) : p;
    }
    __syncwarp();  // every lane has read the old maximum
    if (lane == 0) {
      running.max[row] = max;
      running.rescale[row] = exp2(unseen ? 0.0F : __fsub_rn(old_max, max));
    }
  }
}

/// Step 6, a thread a row: keys in ascending order.
inline __device__ void add_row_sums(int rows, int keys, SharedMatrix s, const RunningRows& running) {
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    float tile_sum = 0.0F;
    for (int j = 0; j < keys; ++j) tile_sum = __fadd_rn(tile_sum, s.at(row, j));
    running.sum[row] = __fadd_rn(__fmul_rn(running.sum[row], running.rescale[row]), tile_sum);
  }
}

/// What `change(row, column, element)` makes of each element of the first rows and columns.
template <class Change>
__device__ void for_each_element(int rows, int columns, SharedMatrix matrix, Change change) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += static_cast<int>(blockDim.x)) {
    const int row = i / columns, column = i % columns;
    change(row, column, matrix.at(row, column));
  }
}

/// Step 8, before the product: O = RN(O * osc).
inline __device__ void rescale_output(int rows, int columns, SharedMatrix o, const RunningRows& running) {
  for_each_element(rows, columns, o,
                   [&](int row, int, float& element) { element = __fmul_rn(element, running.rescale[row]); });
}

/// Step 8, where a promotion interval ends: O = RN(O + RN(R * V's scale of the block)), and R starts again from zero.
inline __device__ void promote(int rows, int columns, float block_scale, SharedMatrix partial, SharedMatrix o) {
  for_each_element(rows, columns, partial, [&](int row, int column, float& element) {
    o.at(row, column) = __fadd_rn(o.at(row, column), __fmul_rn(element, block_scale));
    element = 0.0F;
  });
}

/// Step 9: writes O, and m and l, of which the host makes the LSE.
inline __device__ void finish_rows(const HeadTask& task, QueryRows rows, SharedMatrix o, const RunningRows& running) {
  const DeviceOperands& operands = task.operands;
  const float p_scale = task.choices.p_scale;
  for_each_element(rows.count, operands.value_dim, o, [&](int row, int column, float& element) {
    float* target = task.output.o + static_cast<std::size_t>(rows.first + row) * operands.value_dim + column;
    const float sum = running.sum[row];
    if (sum == 0.0F) {
      *target = 0.0F;
      return;
    }
    const float divisor = task.choices.sum_rounded ? __fdiv_rn(sum, p_scale) : sum;
    const float v_scale = operands.v_scale != nullptr ? operands.v_scale[column] : 1.0F;
    float value = __fmul_rn(__fdiv_rn(element, divisor), __fdiv_rn(v_scale, p_scale));
    if (operands.v_mean != nullptr) value = __fadd_rn(value, operands.v_mean[column]);
    *target = rounded(task.choices.o_format, value);
  });
  for (int row = static_cast<int>(threadIdx.x); row < rows.count; row += static_cast<int>(blockDim.x)) {
    task.output.row_max[rows.first + row] = running.max[row];
    task.output.row_sum[rows.first + row] = running.sum[row];
  }
}

}  // namespace qattn::gpu
