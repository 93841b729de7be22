// Steps 2 to 7 of the pipeline (sim/attention/pipeline.cpp). A row's maxima, sums and factors go from tile to tile, but
// a tile's own part does not: only running_maxima() and running_sums() walk along a row, everything else runs over all
// tiles at once.
#include <cuda_runtime.h>

#include "base/exponential.h"
#include "emulator/kernels.h"
#include "scalar/fa4_exp2.h"
#include "scalar/mufu.h"

namespace qattn::emulator {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;                  // of a block of logits
constexpr int kSumRows = 32;               // rows of a block of weights, one thread of each sums
constexpr int kSumKeys = kMostNarrowKeys;  // keys of a row at once
constexpr int kSumThreads = 128;
constexpr int kRowThreads = 128;
constexpr int kThreadsOfTile = 256;

__constant__ scalar::MufuTable<64> ex2_table = scalar::kEx2Table;

__device__ float minus_infinity() { return std::bit_cast<float>(0xFF800000u); }

__device__ float exponential(Exponential kind, const scalar::MufuTable<64>& table, float x) {
  switch (kind) {
    case Exponential::exact:
      return static_cast<float>(elementary::detail::exp2(static_cast<double>(x)));
    case Exponential::mufu:
      return std::bit_cast<float>(scalar::mufu_ex2(std::bit_cast<std::uint32_t>(x), table));
    case Exponential::fa4:
      break;
  }
  return std::bit_cast<float>(scalar::detail::fa4_exp2(std::bit_cast<std::uint32_t>(x)));
}

/// std::max(a, b), which keeps a where b is NaN.
__device__ float larger(float a, float b) { return a < b ? b : a; }

/// Steps 2 to 4 for one element but the masks.
__device__ float logit(const Head& head, int row, int key, float score) {
  float x = score;
  if (head.q_scale != nullptr || head.k_scale != nullptr) {
    const float left = head.q_scale != nullptr ? head.q_scale[row] : 1.0f;
    const float right = head.k_scale != nullptr ? head.k_scale[key] : 1.0f;
    x *= left * right;
  }
  if (head.correction != nullptr) {
    x += head.correction[static_cast<std::size_t>(row / head.q_block) * head.keys + key];
  }
  if (head.rounds_scores) x = rounded(head.scores, x);
  return x * head.logit_scale;
}

__device__ float masked(const Head& head, int row, int key, float x) {
  if (head.mask != nullptr) {
    const float addend = head.mask[static_cast<std::size_t>(row) * head.keys + key];
    x = std::bit_cast<std::uint32_t>(addend) == kHiddenKey ? minus_infinity() : x + addend;
  }
  return key < head.visible_keys(row) ? x : minus_infinity();
}

/// A warp for one row of a tile: scores become logits, and their largest is kept.
__global__ void logits(const __grid_constant__ Head head) {
  const int local = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  if (local >= head.rows) return;
  const int row = head.first_row + local, visited = head.visited_tiles(row);
  float* const x = static_cast<float*>(head.p_tiles) + static_cast<std::size_t>(local) * head.keys;
  for (int tile = static_cast<int>(blockIdx.y); tile < visited; tile += static_cast<int>(gridDim.y)) {
    const int first = tile * head.k_block, end = min(first + head.k_block, head.keys);
    float largest = minus_infinity();
    for (int key = first + static_cast<int>(threadIdx.x) % kWarp; key < end; key += kWarp) {
      const float before = logit(head, row, key, x[key]), after = masked(head, row, key, before);
      x[key] = after;
      largest = larger(largest, head.max_before_mask ? before : after);
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      largest = larger(largest, __shfl_xor_sync(0xFFFFFFFF, largest, distance));
    }
    if (threadIdx.x % kWarp == 0) head.tile_max[static_cast<std::size_t>(tile) * head.rows + local] = largest;
  }
}

/// Step 5's maxima and factors, a thread for a row.
__global__ void running_maxima(const __grid_constant__ Head head) {
  const int local = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (local >= head.rows) return;
  const int visited = head.visited_tiles(head.first_row + local);
  float running = minus_infinity();
  for (int i = 0; i < visited; ++i) {
    const std::size_t at = static_cast<std::size_t>(head.tile_at(i, visited)) * head.rows + local;
    float next = larger(running, head.tile_max[at]);
    if (next - running <= head.rescale_threshold) next = running;
    const bool unseen = next == minus_infinity();
    head.rescale[at] = exponential(head.exponential, ex2_table, unseen ? 0.0f : running - next);
    head.subtracted[at] = unseen ? 0.0f : next;
    running = next;
  }
  head.row_max[head.first_row + local] = running;
}

/// Step 6's l, a thread for a row.
__global__ void running_sums(const __grid_constant__ Head head) {
  const int local = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (local >= head.rows) return;
  const int visited = head.visited_tiles(head.first_row + local);
  float sum = 0.0f;
  for (int i = 0; i < visited; ++i) {
    const std::size_t at = static_cast<std::size_t>(head.tile_at(i, visited)) * head.rows + local;
    sum = sum * head.rescale[at] + head.tile_sum[at];
  }
  head.row_sum[head.first_row + local] = sum;
}

/// Step 7 for one element: what P V takes, in 4 bytes; `value` is what a sum of rounded weights adds.
/// `sum` of the row divides it, unless that is 0.
__device__ std::uint32_t stored_weight(const Head& head, float sum, float p, float& value) {
  if (sum != 0.0f) p /= sum;
  value = p;
  if (head.stored_p == StoredP::exact) return std::bit_cast<std::uint32_t>(p);
  const std::uint32_t code = encode(head.p, head.p_scale != 1.0f ? p * head.p_scale : p);
  value = decode(head.p, code);
  if (head.stored_p == StoredP::decoded) return std::bit_cast<std::uint32_t>(value);
  return packed(element_of(head.p_format, code, head.pv.engine.interleaved));
}

/// A tile's sum in a narrow format, of kSumKeys values with zeros behind the tile's: neighbours, distances 4 and 2 of
/// the lanes of a quad, then columns, half of the tile apart first.
__device__ float narrow_sum(const Encoding& format, int count, float* p) {
  int size = 8;
  while (size < count) size *= 2;
  for (int i = 0; i < size; ++i) p[i] = rounded(format, p[i]);
  int reduced = 0;
  const auto reduce = [&](int distance) {
    reduced |= distance;
    for (int i = 0; i < size; ++i) {
      if ((i & reduced) == 0) p[i] = rounded(format, p[i] + p[i | distance]);
    }
  };
  reduce(1);
  reduce(4);
  reduce(2);
  for (int distance = size / 2; distance >= 8; distance /= 2) reduce(distance);
  return p[0];
}

/// The weights of a tile (`stores` false) or their codes (true), for kSumRows rows; the sums over the tile, keys
/// ascending, of what the recipe adds.
template <bool stores>
__global__ void weights(const __grid_constant__ Head head) {
  __shared__ scalar::MufuTable<64> table;
  __shared__ float values[kSumRows][kSumKeys + 1];
  if (!stores) {
    for (int i = static_cast<int>(threadIdx.x); i < 64; i += kSumThreads) {
      table.c0[i] = ex2_table.c0[i];
      table.c1[i] = ex2_table.c1[i];
      table.c2[i] = ex2_table.c2[i];
    }
    if (threadIdx.x == 0) table.bias = ex2_table.bias;
    __syncthreads();
  }
  const int first_local = static_cast<int>(blockIdx.x) * kSumRows;
  const bool sums = head.rounded_sums == stores, normalizes = head.normalized && !head.rounded_sums;
  const int thread = static_cast<int>(threadIdx.x);
  // Rows of one block may visit different tiles; hidden ones are not touched.
  const int last_row = head.first_row + min(first_local + kSumRows, head.rows) - 1;
  const int most = head.visited_tiles(last_row);
  for (int tile = static_cast<int>(blockIdx.y); tile < most; tile += static_cast<int>(gridDim.y)) {
    const int first = tile * head.k_block, end = min(first + head.k_block, head.keys);
    float sum = 0.0f;
    for (int start = first; start < end; start += kSumKeys) {
      for (int i = thread; i < kSumRows * kSumKeys; i += kSumThreads) {
        const int r = i / kSumKeys, local = first_local + r, key = start + i % kSumKeys;
        float value = 0.0f;
        if (local < head.rows && key < end && tile < head.visited_tiles(head.first_row + local)) {
          const std::size_t at = static_cast<std::size_t>(local) * head.keys + key;
          if (stores) {
            const float p = static_cast<const float*>(head.p_tiles)[at];
            const float row_sum = normalizes ? head.row_sum[head.first_row + local] : 0.0f;
            static_cast<std::uint32_t*>(head.p_tiles)[at] = stored_weight(head, row_sum, p, value);
          } else {
            const float subtracted = head.subtracted[static_cast<std::size_t>(tile) * head.rows + local];
            float* const x = static_cast<float*>(head.p_tiles) + at;
            value = exponential(head.exponential, table, *x - subtracted);
            *x = value;
          }
        }
        values[r][i % kSumKeys] = value;
      }
      __syncthreads();
      if (sums && thread < kSumRows) {
        if (head.narrow_sums) {
          sum = narrow_sum(head.sums, end - start, values[thread]);  // a tile has at most kSumKeys keys then
        } else {
          for (int j = 0; j < min(kSumKeys, end - start); ++j) sum += values[thread][j];
        }
      }
      __syncthreads();
    }
    const int local = first_local + thread;
    if (sums && thread < kSumRows && local < head.rows) {
      head.tile_sum[static_cast<std::size_t>(tile) * head.rows + local] = sum;
    }
  }
}

/// p as its scales see it.
__device__ float scaled_input(const Head& head, int row, float p) {
  const float sum = head.normalized ? head.row_sum[row] : 0.0f;
  if (sum != 0.0f) p /= sum;
  return head.p_scale != 1.0f ? p * head.p_scale : p;
}

/// The largest magnitude as its bits, which puts NaN above Inf.
__device__ unsigned magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF; }

template <int kLanes>
__device__ unsigned largest_of_lanes(unsigned x) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = max(x, __shfl_xor_sync(0xFFFFFFFF, x, distance));
  }
  return x;
}

/// The largest input of a tile of a block of queries, for OuterScale::tile: a block of threads each.
__global__ void largest_of_tiles(const __grid_constant__ Head head) {
  __shared__ unsigned largest;
  const int first = static_cast<int>(blockIdx.x) * head.q_block, rows = min(head.q_block, head.rows - first);
  const int visited = head.visited_tiles(head.first_row + first);
  for (int tile = static_cast<int>(blockIdx.y); tile < visited; tile += static_cast<int>(gridDim.y)) {
    const int key = tile * head.k_block, count = min(head.k_block, head.keys - key);
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    unsigned own = 0;
    for (int i = static_cast<int>(threadIdx.x); i < rows * count; i += static_cast<int>(blockDim.x)) {
      const int local = first + i / count;
      const float p =
          static_cast<const float*>(head.p_tiles)[static_cast<std::size_t>(local) * head.keys + key + i % count];
      own = max(own, magnitude_bits(scaled_input(head, head.first_row + local, p)));
    }
    atomicMax(&largest, own);
    __syncthreads();
    if (threadIdx.x == 0) {
      head.tile_largest[static_cast<std::size_t>(tile) * gridDim.x + blockIdx.x] = std::bit_cast<float>(largest);
    }
    __syncthreads();
  }
}

/// The scale that is kept and what elements are divided by or multiplied with.
__device__ float block_scale(const ScaledP& spec, float amax, float& factor) {
  const float exact = scale_of(spec.rule, amax, spec.range);
  float scale = exact == 0.0f ? 0.0f : round_scale(spec.format, exact);
  float divisor = spec.unrounded_divisor ? exact : scale;
  if (scale == 0.0f) scale = divisor = 1.0f;
  factor = spec.multiplies ? 1.0f / divisor : divisor;
  return scale;
}

/// One element's code as P V takes it.
__device__ std::uint32_t scaled_weight(const Head& head, float x, float scale, float factor) {
  const ScaledP& spec = head.scaled_p;
  float y = spec.multiplies ? x * factor : x / factor;
  if (head.p.integer) y = y > static_cast<float>(head.p.max_code) ? static_cast<float>(head.p.max_code) : y;
  const std::uint32_t code = encode(head.p, y);
  const bool in_blocks = spec.block != 0;
  switch (head.stored_p) {
    case StoredP::element: {
      const Element element = element_of(head.p_format, code, head.pv.engine.interleaved);
      return packed(in_blocks ? times_power(element, scale) : element);
    }
    case StoredP::group:
      return packed(scaled_element(scale, spec.format == ScaleFormat::e4m3 ? 3 : 0, code));
    default:
      return std::bit_cast<std::uint32_t>(in_blocks ? decode(head.p, code) * scale : decode(head.p, code));
  }
}

/// Step 7 of P with scales that follow from its values: a warp for one row of a tile.
__global__ void scaled_weights(const __grid_constant__ Head head) {
  const ScaledP& spec = head.scaled_p;
  const int local = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (local >= head.rows) return;
  const int row = head.first_row + local, visited = head.visited_tiles(row);
  auto* const words = static_cast<std::uint32_t*>(head.p_tiles) + static_cast<std::size_t>(local) * head.keys;
  for (int tile = static_cast<int>(blockIdx.y); tile < visited; tile += static_cast<int>(gridDim.y)) {
    const int first = tile * head.k_block, end = min(first + head.k_block, head.keys);
    const auto input = [&](int key) {
      return key < end ? scaled_input(head, row, std::bit_cast<float>(words[key])) : 0.0f;
    };
    unsigned of_row = 0;
    if (spec.block == 0 || spec.outer == OuterScale::row) {
      for (int key = first + lane; key < end; key += kWarp) of_row = max(of_row, magnitude_bits(input(key)));
      of_row = largest_of_lanes<kWarp>(of_row);
    }
    float outer = 1.0f;
    if (spec.outer != OuterScale::none) {
      const unsigned q_blocks = static_cast<unsigned>((head.rows + head.q_block - 1) / head.q_block);
      const float largest = spec.outer == OuterScale::row
                                ? std::bit_cast<float>(of_row)
                                : head.tile_largest[static_cast<std::size_t>(tile) * q_blocks + local / head.q_block];
      outer = largest / spec.outer_span;
      if (outer == 0.0f) outer = 1.0f;
    }
    float scale = 1.0f, factor = 1.0f;
    if (spec.block == 0) scale = block_scale(spec, std::bit_cast<float>(of_row), factor);
    for (int start = first; start < end; start += kWarp) {
      const int key = start + lane;
      float x = input(key);
      if (spec.outer != OuterScale::none) x /= outer;
      if (spec.block != 0) {
        const unsigned own = magnitude_bits(x);
        const unsigned amax = spec.block == 16 ? largest_of_lanes<16>(own) : largest_of_lanes<kWarp>(own);
        scale = block_scale(spec, std::bit_cast<float>(amax), factor);
      }
      if (key < end) words[key] = scaled_weight(head, x, scale, factor);
    }
    if (head.row_factor != nullptr && lane == 0) {
      head.row_factor[static_cast<std::size_t>(tile) * head.rows + local] = spec.block == 0 ? scale : outer;
    }
  }
}

unsigned blocks(int count, int each) { return static_cast<unsigned>((count + each - 1) / each); }

/// Tiles side by side in a grid; a block takes several where there are more.
unsigned tile_blocks(const Head& head) { return static_cast<unsigned>(min(head.tiles(), 65535)); }

}  // namespace

void run_softmax(const Head& head, cudaStream_t stream) {
  const unsigned rows = blocks(head.rows, kRowThreads);
  const dim3 weight_grid(blocks(head.rows, kSumRows), tile_blocks(head));
  logits<<<dim3(blocks(head.rows, kWarps), tile_blocks(head)), kWarps * kWarp, 0, stream>>>(head);
  running_maxima<<<rows, kRowThreads, 0, stream>>>(head);
  weights<false><<<weight_grid, kSumThreads, 0, stream>>>(head);
  if (!head.rounded_sums) running_sums<<<rows, kRowThreads, 0, stream>>>(head);
  if (head.scales_p) {
    if (head.scaled_p.outer == OuterScale::tile) {
      const dim3 grid(blocks(head.rows, head.q_block), tile_blocks(head));
      largest_of_tiles<<<grid, kThreadsOfTile, 0, stream>>>(head);
    }
    scaled_weights<<<dim3(blocks(head.rows, kWarps), tile_blocks(head)), kWarps * kWarp, 0, stream>>>(head);
    return;
  }
  weights<true><<<weight_grid, kSumThreads, 0, stream>>>(head);
  if (head.rounded_sums) running_sums<<<rows, kRowThreads, 0, stream>>>(head);
}

}  // namespace qattn::emulator
