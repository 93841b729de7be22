// Steps 1 and 8 of the pipeline (sim/attention/pipeline.cpp): the two matrix products, in every arithmetic.
#include <cuda_runtime.h>

#include <type_traits>

#include "emulator/kernels.h"
#include "emulator/product_tile.cuh"

namespace qattn::emulator {
namespace {

/// make_encoding() of FP16 with overflow to Inf.
__device__ Encoding half() { return {5, 10, 15, false, false, 0x8000, 0x7BFF, 0x7E00, 0x7C00, false}; }

/// The rows of a block: at most kSide, all of one block of queries.
struct Rows {
  int first = 0;  ///< of the head
  int count = 0;
};

__host__ __device__ int blocks_of_queries(const Head& head) { return (head.q_block + kSide - 1) / kSide; }

__device__ Rows rows_of_block(const Head& head, int block) {
  const int each = blocks_of_queries(head), inner = block % each * kSide;
  const int first = head.first_row + block / each * head.q_block + inner;
  const int end = min(head.first_row + head.rows, first - inner + head.q_block);
  return {first, min(kSide, end - first)};
}

template <class T>
__device__ Source<T> left_rows(const T* left, std::size_t stride, const Rows& rows, int columns) {
  return {left + static_cast<std::size_t>(rows.first) * stride, stride, rows.count, columns};
}

/// A thread's outputs that exist: use(row in the block, column in the block, i, j).
template <class Use>
__device__ void for_outputs(const Place& place, int rows, int columns, const Use& use) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (place.row + i < rows && place.column + j < columns) use(place.row + i, place.column + j, i, j);
    }
  }
}

/// The scores of a block: nothing where all of its keys lie in tiles that its rows do not visit.
template <class T, class Stored>
__global__ void __launch_bounds__(kThreads) plain_scores(const __grid_constant__ Head head) {
  extern __shared__ int4 memory[];
  auto& tile = *reinterpret_cast<PlainTile<T>*>(memory);
  const Rows rows = rows_of_block(head, static_cast<int>(blockIdx.x));
  const int column = static_cast<int>(blockIdx.y) * kSide;
  if (rows.count <= 0 || column >= head.visited_tiles(rows.first) * head.k_block) return;
  const int depth = head.qk.depth, columns = min(kSide, head.keys - column);
  const auto left = left_rows(static_cast<const Stored*>(head.qk.left), static_cast<std::size_t>(depth), rows, depth);
  const Source<Stored> right{static_cast<const Stored*>(head.qk.right) + column, static_cast<std::size_t>(head.keys),
                             depth, columns};
  const Place place = place_of_thread();
  PlainSums<T> sums;
  sums.clear();
  for (int start = 0; start < depth; start += kChunk) {
    __syncthreads();
    load_left(left, start, Stored{0}, [&](int k, int r, Stored x) { tile.left[k][r] = static_cast<T>(x); });
    load_right(right, start, Stored{0}, [&](int k, int c, Stored x) { tile.right[k][c] = static_cast<T>(x); });
    __syncthreads();
    sums.add(tile, place, min(kChunk, depth - start));
  }
  float* const x =
      static_cast<float*>(head.p_tiles) + static_cast<std::size_t>(rows.first - head.first_row) * head.keys;
  for_outputs(place, rows.count, columns, [&](int r, int c, int i, int j) {
    x[static_cast<std::size_t>(r) * head.keys + column + c] = sums.read(i, j);
  });
}

__device__ float accumulator_value(const FusedEngine& engine, std::uint32_t code) {
  return engine.half ? decode(half(), code) : std::bit_cast<float>(code);
}

/// What a tensor core's kernel is made of: a tile of kLines lines, how it is filled, and a step of the instruction.
template <int kGroup>
struct FusedCore {
  using Tile = FusedTile;
  static constexpr int kLines = kChunk;
  static constexpr int kBlocks = 2;  ///< of a multiprocessor at least
  static constexpr std::uint32_t kPadding = kPackedZero;

  __device__ static void put_left(const FusedEngine& engine, Tile& tile, int k, int row, std::uint32_t word) {
    tile.put_left(engine, k, row, word);
  }
  __device__ static void put_right(const FusedEngine& engine, Tile& tile, int k, int column, std::uint32_t word) {
    tile.put_right(engine, k, column, word);
  }
  __device__ static void step(const FusedEngine& engine, const Tile& tile, const Place& place, int first,
                              std::uint32_t (&codes)[kEach][kEach]) {
    add_step<kGroup>(engine, tile, place, first, codes);
  }
};

struct GroupedCore {
  using Tile = GroupedTile;
  static constexpr int kLines = kGroupLines;
  static constexpr int kBlocks = 1;
  static constexpr std::uint32_t kPadding = kPackedZeroGroup;

  __device__ static void put_left(const FusedEngine&, Tile& tile, int k, int row, std::uint32_t word) {
    tile.put_left(k, row, word);
  }
  __device__ static void put_right(const FusedEngine&, Tile& tile, int k, int column, std::uint32_t word) {
    tile.put_right(k, column, word);
  }
  __device__ static void step(const FusedEngine& engine, const Tile& tile, const Place& place, int,
                              std::uint32_t (&codes)[kEach][kEach]) {
    add_scaled(engine, tile, place, codes);
  }
};

template <class Core>
__device__ void load_core(const FusedEngine& engine, const Source<std::uint32_t>& left,
                          const Source<std::uint32_t>& right, int start, typename Core::Tile& tile) {
  load_left<Core::kLines>(left, start, Core::kPadding,
                          [&](int k, int r, std::uint32_t word) { Core::put_left(engine, tile, k, r, word); });
  load_right<Core::kLines>(right, start, Core::kPadding,
                           [&](int k, int c, std::uint32_t word) { Core::put_right(engine, tile, k, c, word); });
}

template <class Core>
__global__ void __launch_bounds__(kThreads, Core::kBlocks) core_scores(const __grid_constant__ Head head) {
  extern __shared__ int4 memory[];
  auto& tile = *reinterpret_cast<typename Core::Tile*>(memory);
  const FusedEngine& engine = head.qk.engine;
  const Rows rows = rows_of_block(head, static_cast<int>(blockIdx.x));
  const int column = static_cast<int>(blockIdx.y) * kSide;
  if (rows.count <= 0 || column >= head.visited_tiles(rows.first) * head.k_block) return;
  const int depth = head.qk.depth, columns = min(kSide, head.keys - column);
  const auto left =
      left_rows(static_cast<const std::uint32_t*>(head.qk.left), static_cast<std::size_t>(depth), rows, depth);
  const Source<std::uint32_t> right{static_cast<const std::uint32_t*>(head.qk.right) + column,
                                    static_cast<std::size_t>(head.keys), depth, columns};
  const Place place = place_of_thread();
  std::uint32_t codes[kEach][kEach] = {};
  for (int start = 0; start < depth; start += Core::kLines) {
    __syncthreads();
    load_core<Core>(engine, left, right, start, tile);
    __syncthreads();
    for (int k = 0; k < min(Core::kLines, depth - start); k += engine.depth) {
      Core::step(engine, tile, place, k, codes);
    }
  }
  float* const x =
      static_cast<float*>(head.p_tiles) + static_cast<std::size_t>(rows.first - head.first_row) * head.keys;
  for_outputs(place, rows.count, columns, [&](int r, int c, int i, int j) {
    x[static_cast<std::size_t>(r) * head.keys + column + c] = accumulator_value(engine, codes[i][j]);
  });
}

/// O of a thread's outputs, and what happens to it at the tiles' borders. Sums is what holds a partial sum.
template <class Sums>
struct Values {
  const Head& head;
  Rows rows;
  int columns;
  Place place;
  Sums& sums;
  float o[kEach][kEach] = {};
  int pending = 0;  ///< steps in the partial sums; whole tiles where there are none

  /// The factor of a tile for row i of the thread.
  __device__ float factor(const float* of_tiles, int tile, int i) const {
    const int r = min(place.row + i, rows.count - 1);
    return of_tiles[static_cast<std::size_t>(tile) * head.rows + (rows.first - head.first_row + r)];
  }
  __device__ void rescale(int tile) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float rescale = factor(head.rescale, tile, i);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        o[i][j] *= rescale;
        if (pending > 0) sums.rescale(i, j, rescale);
      }
    }
  }
  /// The partial sums join O; `tile` has the factors of P's rows, -1: none.
  __device__ void promote(int key, int tile) {
    const float scale = head.v_scale != nullptr ? head.v_scale[key] : 1.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool scaled = head.row_factor != nullptr && tile >= 0;
      const float of_row = scaled ? factor(head.row_factor, tile, i) : 1.0f;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const float sum = sums.read(i, j);
        o[i][j] += (scaled ? sum * of_row : sum) * scale;
      }
    }
    sums.clear();
    pending = 0;
  }
  __device__ void store(int column) const {
    for_outputs(place, rows.count, columns, [&](int r, int c, int i, int j) {
      head.o[static_cast<std::size_t>(rows.first + r) * head.value_channels + column + c] = o[i][j];
    });
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) plain_values(const __grid_constant__ Head head) {
  // Doubles of V where they were never rounded; P is a float.
  using Stored = std::conditional_t<std::is_same_v<T, double>, double, float>;
  extern __shared__ int4 memory[];
  auto& tile = *reinterpret_cast<PlainTile<T>*>(memory);
  const Rows rows = rows_of_block(head, static_cast<int>(blockIdx.x));
  if (rows.count <= 0) return;
  const int column = static_cast<int>(blockIdx.y) * kSide, channels = head.value_channels;
  PlainSums<T> sums;
  sums.clear();
  Values<PlainSums<T>> values{head, rows, min(kSide, channels - column), place_of_thread(), sums};
  const float* const p =
      static_cast<const float*>(head.p_tiles) + static_cast<std::size_t>(rows.first - head.first_row) * head.keys;
  const Stored* const v = static_cast<const Stored*>(head.pv.right) + column;
  const int visited = head.visited_tiles(rows.first);
  for (int i = 0; i < visited; ++i) {
    const int number = head.tile_at(i, visited), key = number * head.k_block,
              count = min(head.k_block, head.keys - key);
    values.rescale(number);
    const Source<float> left{p + key, static_cast<std::size_t>(head.keys), rows.count, count};
    const Source<Stored> right{v + static_cast<std::size_t>(key) * channels, static_cast<std::size_t>(channels), count,
                               values.columns};
    for (int start = 0; start < count; start += kChunk) {
      __syncthreads();
      load_left(left, start, 0.0f, [&](int k, int r, float x) { tile.left[k][r] = static_cast<T>(x); });
      load_right(right, start, Stored{0}, [&](int k, int c, Stored x) { tile.right[k][c] = static_cast<T>(x); });
      __syncthreads();
      sums.add(tile, values.place, min(kChunk, count - start));
    }
    ++values.pending;
    if (head.promotes_every_tile) values.promote(key, number);
  }
  if (values.pending > 0) values.promote(0, -1);
  values.store(column);
}

/// The accumulators of a tensor core: codes, which a rescale rounds.
struct FusedSums {
  const FusedEngine& engine;
  std::uint32_t codes[kEach][kEach] = {};

  __device__ void clear() {
#pragma unroll
    for (auto& row : codes) {
#pragma unroll
      for (std::uint32_t& code : row) code = 0;
    }
  }
  __device__ float read(int i, int j) const { return accumulator_value(engine, codes[i][j]); }
  __device__ void rescale(int i, int j, float factor) {
    if (engine.half) {
      codes[i][j] = encode(half(), read(i, j) * rounded(half(), factor));
    } else {
      codes[i][j] = std::bit_cast<std::uint32_t>(read(i, j) * factor);
    }
  }
};

template <class Core>
__global__ void __launch_bounds__(kThreads, Core::kBlocks) core_values(const __grid_constant__ Head head) {
  extern __shared__ int4 memory[];
  auto& tile = *reinterpret_cast<typename Core::Tile*>(memory);
  const FusedEngine& engine = head.pv.engine;
  const Rows rows = rows_of_block(head, static_cast<int>(blockIdx.x));
  if (rows.count <= 0) return;
  const int column = static_cast<int>(blockIdx.y) * kSide, channels = head.value_channels;
  FusedSums sums{engine};
  Values<FusedSums> values{head, rows, min(kSide, channels - column), place_of_thread(), sums};
  const std::uint32_t* const p = static_cast<const std::uint32_t*>(head.p_tiles) +
                                 static_cast<std::size_t>(rows.first - head.first_row) * head.keys;
  const std::uint32_t* const v = static_cast<const std::uint32_t*>(head.pv.right) + column;
  const int visited = head.visited_tiles(rows.first);
  for (int i = 0; i < visited; ++i) {
    const int number = head.tile_at(i, visited), key = number * head.k_block,
              count = min(head.k_block, head.keys - key);
    values.rescale(number);
    const Source<std::uint32_t> left{p + key, static_cast<std::size_t>(head.keys), rows.count, count};
    const Source<std::uint32_t> right{v + static_cast<std::size_t>(key) * channels, static_cast<std::size_t>(channels),
                                      count, values.columns};
    for (int start = 0; start < count; start += Core::kLines) {
      __syncthreads();
      load_core<Core>(engine, left, right, start, tile);
      __syncthreads();
      for (int k = 0; k < min(Core::kLines, count - start); k += engine.depth) {
        Core::step(engine, tile, values.place, k, sums.codes);
        ++values.pending;
        if (head.promotion > 0 && values.pending == head.promotion) values.promote(key, number);
      }
    }
    if (head.promotes_every_tile) values.promote(key, number);
  }
  if (values.pending > 0) values.promote(0, -1);
  values.store(column);
}

struct Grid {
  dim3 blocks;
  cudaStream_t stream;
};

/// A kernel with a tile of `bytes` in shared memory, which may be more than a kernel has unasked.
template <class Kernel>
void launch(Kernel kernel, const Grid& grid, std::size_t bytes, const Head& head) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  kernel<<<grid.blocks, kThreads, bytes, grid.stream>>>(head);
}

static_assert(kMostColumns <= std::int64_t{65535} * kSide, "as many columns as lie side by side in a grid");

Grid grid_of(const Head& head, int columns, cudaStream_t stream) {
  const int queries = (head.rows + head.q_block - 1) / head.q_block;
  return {dim3(static_cast<unsigned>(queries * blocks_of_queries(head)),
               static_cast<unsigned>((columns + kSide - 1) / kSide)),
          stream};
}

/// use(core) for the core that the product takes; only of Sum::fused and Sum::grouped.
template <class Use>
void with_core(const Product& product, const Use& use) {
  if (product.sum == Sum::grouped) return use(GroupedCore());
  switch (product.engine.group) {
    case 4:
      return use(FusedCore<4>());
    case 8:
      return use(FusedCore<8>());
    case 16:
      return use(FusedCore<16>());
    default:
      return use(FusedCore<32>());
  }
}

}  // namespace

void run_scores(const Head& head, cudaStream_t stream) {
  const Grid grid = grid_of(head, head.keys, stream);
  switch (head.qk.sum) {
    case Sum::f64:
      return launch(plain_scores<double, double>, grid, sizeof(PlainTile<double>), head);
    case Sum::f32:
      return launch(plain_scores<float, float>, grid, sizeof(PlainTile<float>), head);
    case Sum::integer:
      return launch(plain_scores<int, float>, grid, sizeof(PlainTile<int>), head);
    default:
      with_core(head.qk, [&](auto core) {
        using Core = decltype(core);
        launch(core_scores<Core>, grid, sizeof(typename Core::Tile), head);
      });
  }
}

void run_values(const Head& head, cudaStream_t stream) {
  const Grid grid = grid_of(head, head.value_channels, stream);
  switch (head.pv.sum) {
    case Sum::f64:
      return launch(plain_values<double>, grid, sizeof(PlainTile<double>), head);
    case Sum::f32:
      return launch(plain_values<float>, grid, sizeof(PlainTile<float>), head);
    case Sum::integer:
      return launch(plain_values<int>, grid, sizeof(PlainTile<int>), head);
    default:
      with_core(head.pv, [&](auto core) {
        using Core = decltype(core);
        launch(core_values<Core>, grid, sizeof(typename Core::Tile), head);
      });
  }
}

}  // namespace qattn::emulator
