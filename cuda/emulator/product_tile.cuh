// Tiles of a product in shared memory and in registers: 64 x 64 outputs a block of 256 threads, 4 x 4 each.
#pragma once

#include <cuda_runtime.h>

#include "emulator/fused_engine.h"

namespace qattn::emulator {

constexpr int kSide = 64;    // rows and columns of a block's outputs
constexpr int kEach = 4;     // rows and columns of a thread's
constexpr int kChunk = 32;   // of the contraction axis in shared memory; every fused instruction's depth divides it
constexpr int kStride = 68;  // of a line in shared memory: aligned for 16 bytes, and lines start in other banks
constexpr int kThreads = 256;

/// Where a thread's outputs lie in the block's: a warp takes 16 rows of 32 columns.
struct Place {
  int row = 0, column = 0;
};

__device__ inline Place place_of_thread() {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  return {(warp / 2 * 4 + lane / 8) * kEach, (warp % 2 * 8 + lane % 8) * kEach};
}

/// A rows x depth part of a row-major matrix, or depth x columns; what lies beyond is padded.
template <class T>
struct Source {
  const T* data = nullptr;
  std::size_t stride = 0;
  int rows = 0, columns = 0;
};

/// put(line, place, element) for the kLines x kSide tile whose lines are columns [start, start + kLines) of `left`.
/// Lanes walk 8 columns of 4 rows, which fills whole sectors and meets no bank twice.
template <int kLines = kChunk, class T, class Put>
__device__ void load_left(const Source<T>& left, int start, T padding, const Put& put) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kSide * kLines / kThreads; ++i) {
    const int k = thread % 8 + 8 * (i % (kLines / 8)), row = thread / 8 + 32 * (i / (kLines / 8));
    const bool inside = row < left.rows && start + k < left.columns;
    put(k, row, inside ? left.data[row * left.stride + start + k] : padding);
  }
}

/// The same of lines [start, start + kLines) of `right`.
template <int kLines = kChunk, class T, class Put>
__device__ void load_right(const Source<T>& right, int start, T padding, const Put& put) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kSide * kLines / kThreads; ++i) {
    const int column = thread % kSide, k = thread / kSide + kThreads / kSide * i;
    const bool inside = start + k < right.rows && column < right.columns;
    put(k, column, inside ? right.data[(start + k) * right.stride + column] : padding);
  }
}

/// Four neighbours of a line.
template <class T>
__device__ void read_four(const T* line, T (&to)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = line[i];
}
template <>
__device__ inline void read_four<int>(const int* line, int (&to)[kEach]) {
  const int4 four = *reinterpret_cast<const int4*>(line);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

/// Chains of products and sums in T: the engine of Sum::f64, f32 and integer. Left and right come as floats, or left
/// and right of Q K as doubles where T is double.
template <class T>
struct PlainTile {
  T left[kChunk][kStride];
  T right[kChunk][kStride];
};

template <class T>
struct PlainSums {
  T value[kEach][kEach];

  __device__ void clear() {
#pragma unroll
    for (auto& row : value) {
#pragma unroll
      for (T& x : row) x = T{0};
    }
  }
  /// The chunk's `count` lines, ascending.
  __device__ void add(const PlainTile<T>& tile, const Place& place, int count) {
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      T a[kEach], b[kEach];
      read_four(&tile.left[k][place.row], a);
      read_four(&tile.right[k][place.column], b);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) value[i][j] += a[i] * b[j];
      }
    }
  }
  __device__ float read(int i, int j) const { return static_cast<float>(value[i][j]); }
  __device__ void rescale(int i, int j, float factor) { value[i][j] *= static_cast<T>(factor); }
};

/// Elements of a chunk, the positions of each instruction in the order of its groups.
struct FusedTile {
  int left_magnitude[kChunk][kStride];  ///< shifted up by product_shift
  int left_exponent[kChunk][kStride];
  int left_sign[kChunk][kStride];
  int right_magnitude[kChunk][kStride];
  int right_exponent[kChunk][kStride];
  int right_sign[kChunk][kStride];

  __device__ void put_left(const FusedEngine& engine, int k, int row, std::uint32_t word) {
    const Element x = unpacked(word);
    const int line = group_position(engine, k);
    left_magnitude[line][row] = x.magnitude << engine.product_shift;
    left_exponent[line][row] = x.exponent;
    left_sign[line][row] = x.sign;
  }
  __device__ void put_right(const FusedEngine& engine, int k, int column, std::uint32_t word) {
    const Element x = unpacked(word);
    const int line = group_position(engine, k);
    right_magnitude[line][column] = x.magnitude;
    right_exponent[line][column] = x.exponent;
    right_sign[line][column] = x.sign;
  }
};

/// The products of a group of kGroup lines from `first` with one pair of operands, taken for NaN and Inf alone.
template <int kGroup>
__device__ __noinline__ std::uint32_t special_group(const FusedTile& tile, int first, int row, int column, bool half,
                                                    Element c) {
  Specials specials;
  specials.add(c.exponent, c.magnitude != 0, c.sign);
  for (int k = first; k < first + kGroup; ++k) {
    specials.add_product({tile.left_magnitude[k][row], tile.left_exponent[k][row], tile.left_sign[k][row]},
                         {tile.right_magnitude[k][column], tile.right_exponent[k][column], tile.right_sign[k][column]});
  }
  return specials.code(half);
}

/// The codes of a thread's accumulators. One pass finds e_max, a second one sums: the products of 16 lines stay below
/// 2^31 in every instruction of the table.
template <int kGroup>
__device__ void add_group(const FusedEngine& engine, const FusedTile& tile, const Place& place, int first,
                          std::uint32_t (&codes)[kEach][kEach]) {
  constexpr int kSafe = 16;
  int e_max[kEach][kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) e_max[i][j] = first_exponent(engine, accumulator_element(engine, codes[i][j]));
  }
#pragma unroll 4
  for (int k = first; k < first + kGroup; ++k) {
    int a[kEach], b[kEach];
    read_four(&tile.left_exponent[k][place.row], a);
    read_four(&tile.right_exponent[k][place.column], b);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) e_max[i][j] = max(e_max[i][j], a[i] + b[j]);
    }
  }
  int sums[kGroup > kSafe ? 2 : 1][kEach][kEach] = {};
#pragma unroll
  for (int part = 0; part < (kGroup > kSafe ? 2 : 1); ++part) {
    const int start = first + part * kSafe;
#pragma unroll 4
    for (int k = start; k < start + (kGroup > kSafe ? kSafe : kGroup); ++k) {
      int a[kEach], b[kEach], a_exponent[kEach], b_exponent[kEach], a_sign[kEach], b_sign[kEach];
      read_four(&tile.left_magnitude[k][place.row], a);
      read_four(&tile.left_exponent[k][place.row], a_exponent);
      read_four(&tile.left_sign[k][place.row], a_sign);
      read_four(&tile.right_magnitude[k][place.column], b);
      read_four(&tile.right_exponent[k][place.column], b_exponent);
      read_four(&tile.right_sign[k][place.column], b_sign);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const int shift = e_max[i][j] - a_exponent[i] - b_exponent[j];
          sums[part][i][j] += aligned_product(a[i], b[j], shift, a_sign[i] * b_sign[j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const Element c = accumulator_element(engine, codes[i][j]);
      if (e_max[i][j] >= kSpecialFrom) {
        codes[i][j] = special_group<kGroup>(tile, first, place.row + i, place.column + j, engine.half, c);
        continue;
      }
      std::int64_t sum = sums[0][i][j];
      if (kGroup > kSafe) sum += sums[kGroup > kSafe ? 1 : 0][i][j];
      codes[i][j] = finish_group(engine, sum, e_max[i][j], c);
    }
  }
}

/// The accumulators of one step of the instruction, whose lines begin at `first`.
template <int kGroup>
__device__ void add_step(const FusedEngine& engine, const FusedTile& tile, const Place& place, int first,
                         std::uint32_t (&codes)[kEach][kEach]) {
  if (!engine.interleaved) {
    for (int k = 0; k < engine.depth; k += kGroup) add_group<kGroup>(engine, tile, place, first + k, codes);
    return;
  }
  std::uint32_t sums[kEach][kEach] = {};
  for (int k = 0; k < engine.depth; k += kGroup) add_group<kGroup>(engine, tile, place, first + k, sums);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) codes[i][j] = add_rounded(engine, sums[i][j], codes[i][j]);
  }
}

/// Lines of scaled groups in shared memory: the depth of every scaled group dot.
constexpr int kGroupLines = 64;
constexpr int kGroups = kGroupLines / kScaledGroup;

/// Values of a chunk and the scales of its groups.
struct GroupedTile {
  int left[kGroupLines][kStride];
  int right[kGroupLines][kStride];
  int left_scale[kGroups][kStride];
  int left_exponent[kGroups][kStride];
  int right_scale[kGroups][kStride];
  int right_exponent[kGroups][kStride];

  __device__ void put_left(int k, int row, std::uint32_t word) {
    const ScaledElement x = scaled_unpacked(word);
    left[k][row] = x.value;
    if (k % kScaledGroup != 0) return;
    left_scale[k / kScaledGroup][row] = x.scale;
    left_exponent[k / kScaledGroup][row] = x.exponent;
  }
  __device__ void put_right(int k, int column, std::uint32_t word) {
    const ScaledElement x = scaled_unpacked(word);
    right[k][column] = x.value;
    if (k % kScaledGroup != 0) return;
    right_scale[k / kScaledGroup][column] = x.scale;
    right_exponent[k / kScaledGroup][column] = x.exponent;
  }
};

/// One instruction for one output; its groups' exact sums are known.
__device__ inline std::uint32_t finish_scaled(const FusedEngine& engine, const GroupedTile& tile, int row, int column,
                                              const int (&sums)[kGroups], std::uint32_t code) {
  const Element c = accumulator_element(engine, code);
  int e_max = first_exponent(engine, c);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    e_max = max(e_max, tile.left_exponent[g][row] + tile.right_exponent[g][column]);
  }
  if (e_max >= kSpecialFrom) {
    Specials specials;
    specials.add(c.exponent, c.magnitude != 0, c.sign);
    for (int g = 0; g < kGroups; ++g) {
      specials.add(tile.left_exponent[g][row] + tile.right_exponent[g][column], false, 1);
    }
    return specials.code(engine.half);
  }
  std::int64_t groups = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    groups += aligned_group(engine, sums[g], tile.left_scale[g][row] * tile.right_scale[g][column],
                            tile.left_exponent[g][row] + tile.right_exponent[g][column], e_max);
  }
  return finish_groups(engine, groups, e_max, c);
}

/// One step of the instruction: the thread's exact sums of all groups, then each accumulator.
__device__ inline void add_scaled(const FusedEngine& engine, const GroupedTile& tile, const Place& place,
                                  std::uint32_t (&codes)[kEach][kEach]) {
  int sums[kEach][kEach][kGroups] = {};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll 4
    for (int k = g * kScaledGroup; k < (g + 1) * kScaledGroup; ++k) {
      int a[kEach], b[kEach];
      read_four(&tile.left[k][place.row], a);
      read_four(&tile.right[k][place.column], b);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j][g] += a[i] * b[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      codes[i][j] = finish_scaled(engine, tile, place.row + i, place.column + j, sums[i][j], codes[i][j]);
    }
  }
}

}  // namespace qattn::emulator
