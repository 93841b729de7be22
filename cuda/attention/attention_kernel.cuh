// Attention kernels of our own, one for every pair of matrix instructions.
//
// The order of operations is that of the recipe pipeline (the head of sim/attention/pipeline.cpp), whose bits every
// kernel here returns: steps 2 to 9 are tile_steps.cuh, steps 1 and 8's sums are chains of one instruction over its own
// depth K, ascending, the last step of a tile padded with zeros. What a kernel fixes:
//  - exp2 is the GPU's ex2.approx.ftz ("mufu"), the accumulators are instructions of this GPU;
//  - Q, K and V come as codes with their scales; nothing is quantized here but P;
//  - a block computes kRows rows of a q block. It visits the tiles that the whole q block visits, so that hidden tiles
//    meet V exactly where the pipeline lets them.
// It is written to be read: K, V, P, S, R and O all stand in shared memory, one phase ends before the next begins.
#pragma once

#include "attention_kernels.h"
#include "mma_engine.cuh"

namespace qattn::gpu {

/// Codes in device memory: element (line, k) at data[line * line_stride + k * depth_stride].
template <class Code>
struct CodeMatrix {
  const Code* data;
  int lines, depth;
  std::size_t line_stride, depth_stride;
};

/// Lines of `words` words each into an engine's order, zeros beyond the matrix; neighbouring threads read neighbours.
template <class Engine, class Code>
__device__ void load_operand(std::uint32_t* target, const CodeMatrix<Code>& source, int lines, int words) {
  constexpr int kPerWord = 32 / Engine::kBits;
  constexpr std::uint32_t kMask = ~0U >> (32 - Engine::kBits);
  const bool down_lines = source.line_stride == 1;
  for (int i = static_cast<int>(threadIdx.x); i < lines * words; i += static_cast<int>(blockDim.x)) {
    const int line = down_lines ? i % lines : i / words;
    const int word = down_lines ? i / lines : i % words;
    std::uint32_t packed = 0;
    for (int e = 0; e < kPerWord; ++e) {
      const int k = word * kPerWord + e;
      if (line >= source.lines || k >= source.depth) continue;
      packed |= (source.data[line * source.line_stride + k * source.depth_stride] & kMask) << (e * Engine::kBits);
    }
    target[Engine::word_index(line, word, words)] = packed;
  }
}

inline __host__ __device__ int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

/// Words of a line whose contraction axis has `depth` elements.
template <class Engine>
__host__ __device__ int words_of(int depth) {
  return round_up(depth, Engine::kStep) / Engine::kStep * kStepWords;
}

/// Where everything stands in shared memory, in words; all of it aligned as a wgmma operand must be.
struct SharedLayout {
  int q, kv, p, s, partial, o, running, words;
  int s_stride, o_stride;  ///< odd: threads a row apart meet different banks
};

template <class Qk, class Pv, int kRows>
__host__ __device__ SharedLayout shared_layout(const HeadTask& task) {
  const int keys = round_up(task.choices.k_block, 8), channels = round_up(task.operands.value_dim, 8);
  const int qk_words = words_of<Qk>(task.operands.head_dim), pv_words = words_of<Pv>(keys);
  const int k_size = Qk::word_index(keys, 0, qk_words), v_size = Pv::word_index(channels, 0, pv_words);
  SharedLayout layout{};
  layout.s_stride = keys + 1;
  layout.o_stride = channels + 1;
  const auto take = [&layout](int words) {
    const int at = layout.words;
    layout.words += round_up(words, 32);
    return at;
  };
  layout.q = take(Qk::word_index(kRows, 0, qk_words));
  layout.kv = take(k_size > v_size ? k_size : v_size);
  layout.p = take(Pv::word_index(kRows, 0, pv_words));
  layout.s = take(kRows * layout.s_stride);
  layout.partial = take(kRows * layout.o_stride);
  layout.o = take(kRows * layout.o_stride);
  layout.running = take(3 * kRows);
  return layout;
}

/// A block's part of a head: kRows queries, 2 * kRows threads.
template <class Qk, class Pv, class PFormat, int kRows>
class AttentionBlock {
 public:
  __device__ AttentionBlock(const HeadTask& task, std::uint32_t* shared)
      : task_(task), layout_(shared_layout<Qk, Pv, kRows>(task)), shared_(shared), channels_(task.operands.value_dim) {
    auto* floats = reinterpret_cast<float*>(shared);
    s_ = {floats + layout_.s, layout_.s_stride};
    partial_ = {floats + layout_.partial, layout_.o_stride};
    o_ = {floats + layout_.o, layout_.o_stride};
    float* running = floats + layout_.running;
    running_ = {running, running + kRows, running + 2 * kRows};
  }

  __device__ void run(QueryRows rows) {
    rows_ = rows;
    for (int i = static_cast<int>(threadIdx.x); i < layout_.words; i += static_cast<int>(blockDim.x)) shared_[i] = 0;
    __syncthreads();
    load_queries();
    start_rows(rows_.count, running_);
    const int tiles = visited_tiles(task_, rows_.first);
    for (int i = 0; i < tiles; ++i) {
      const KeyTile tile = visited_tile(task_, i, tiles);
      score(tile);
      weigh(tile);
      accumulate(tile);
    }
    __syncthreads();
    if (pending_ > 0) end_interval(1.0F);
    __syncthreads();
    finish_rows(task_, rows_, o_, running_);
  }

 private:
  using QkCode = typename Qk::Code;
  using PvCode = typename Pv::Code;

  __device__ std::uint32_t* words(int offset) const { return shared_ + offset; }

  __device__ void load_queries() {
    const auto stride = static_cast<std::size_t>(task_.operands.head_dim);
    const auto* codes = static_cast<const QkCode*>(task_.operands.q) + rows_.first * stride;
    load_operand<Qk>(words(layout_.q), CodeMatrix<QkCode>{codes, rows_.count, task_.operands.head_dim, stride, 1},
                     kRows, words_of<Qk>(task_.operands.head_dim));
  }

  /// Step 1.
  __device__ void score(KeyTile tile) {
    const int depth = task_.operands.head_dim, columns = round_up(tile.count, 8), qk_words = words_of<Qk>(depth);
    const auto stride = static_cast<std::size_t>(depth);
    const auto* codes = static_cast<const QkCode*>(task_.operands.k) + tile.first * stride;
    load_operand<Qk>(words(layout_.kv), CodeMatrix<QkCode>{codes, tile.count, depth, stride, 1}, columns, qk_words);
    for_each_element(kRows, columns, s_, [](int, int, float& element) { element = 0.0F; });
    Qk::publish();
    __syncthreads();
    Qk::multiply_accumulate(words(layout_.q), words(layout_.kv), qk_words, columns, 0, qk_words / kStepWords, s_);
    __syncthreads();
  }

  /// Steps 2 to 7, and V in place of K.
  __device__ void weigh(KeyTile tile) {
    constexpr int kPerWord = 4 / sizeof(PvCode);
    const int pv_words = words_of<Pv>(tile.count);
    auto* p = reinterpret_cast<PvCode*>(words(layout_.p));
    weigh_tile<PFormat>(task_, rows_, tile, pv_words * kPerWord, s_, running_, HardwareExp2{},
                        [&](int row, int column, PvCode code) {
                          p[Pv::word_index(row, column / kPerWord, pv_words) * kPerWord + column % kPerWord] = code;
                        });
    const auto stride = static_cast<std::size_t>(channels_);
    const auto* codes = static_cast<const PvCode*>(task_.operands.v) + tile.first * stride;
    load_operand<Pv>(words(layout_.kv), CodeMatrix<PvCode>{codes, channels_, tile.count, 1, stride},
                     round_up(channels_, 8), pv_words);
    Pv::publish();
    __syncthreads();
    add_row_sums(rows_.count, tile.count, s_, running_);
  }

  /// Step 8.
  __device__ void accumulate(KeyTile tile) {
    rescale_output(rows_.count, channels_, o_, running_);
    if (pending_ > 0) {
      for_each_element(rows_.count, channels_, partial_,
                       [&](int row, int, float& element) { element = Pv::rescaled(element, running_.rescale[row]); });
    }
    const int steps = words_of<Pv>(tile.count) / kStepWords, interval = task_.choices.promotion;
    for (int start = 0; start < steps;) {
      const int end = interval > 0 ? min(steps, start + interval - pending_) : steps;
      __syncthreads();
      Pv::multiply_accumulate(words(layout_.p), words(layout_.kv), words_of<Pv>(tile.count), round_up(channels_, 8),
                              start, end, partial_);
      pending_ += end - start;
      start = end;
      if (interval != 0 && (interval < 0 || pending_ == interval)) {
        __syncthreads();
        const float* block_scale = task_.operands.v_block_scale;
        end_interval(block_scale != nullptr ? block_scale[tile.first] : 1.0F);
      }
    }
    __syncthreads();
  }

  __device__ void end_interval(float block_scale) {
    promote(rows_.count, channels_, block_scale, partial_, o_);
    pending_ = 0;
  }

  const HeadTask& task_;
  const SharedLayout layout_;
  std::uint32_t* const shared_;
  const int channels_;
  SharedMatrix s_, partial_, o_;
  RunningRows running_;
  QueryRows rows_{};
  int pending_ = 0;  ///< steps in R since it was last added to O
};

template <class Qk, class Pv, class PFormat, int kRows>
__global__ void __launch_bounds__(2 * kRows) attention_kernel(const __grid_constant__ HeadTask task) {
  extern __shared__ __align__(128) std::uint32_t shared[];
  const int q_block = task.choices.q_block, parts = divided_up(q_block, kRows);
  const int part = static_cast<int>(blockIdx.x) % parts * kRows;
  const int first = static_cast<int>(blockIdx.x) / parts * q_block + part;
  const int count = min(kRows, min(q_block - part, task.operands.queries - first));
  if (count > 0) AttentionBlock<Qk, Pv, PFormat, kRows>(task, shared).run({first, count});
}

template <class Qk, class Pv, int kRows>
int shared_bytes(const HeadTask& task) {
  return shared_layout<Qk, Pv, kRows>(task).words * 4;
}

template <class Qk, class Pv, class PFormat, int kRows>
int load_attention(const HeadTask& task) {
  return cudaFuncSetAttribute(attention_kernel<Qk, Pv, PFormat, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes<Qk, Pv, kRows>(task));
}

template <class Qk, class Pv, class PFormat, int kRows>
int launch_attention(const HeadTask& task) {
  const int q_block = task.choices.q_block;
  const int q_blocks = (task.operands.queries + q_block - 1) / q_block, parts = (q_block + kRows - 1) / kRows;
  const auto bytes = static_cast<std::size_t>(shared_bytes<Qk, Pv, kRows>(task));
  attention_kernel<Qk, Pv, PFormat, kRows><<<q_blocks * parts, 2 * kRows, bytes>>>(task);
  return cudaGetLastError();
}

/// An entry of the tables below; the names are those of the instructions, without the architecture.
template <class Qk, class Pv, class PFormat, int kRows>
constexpr AttentionKernel attention_entry(const char* qk, const char* pv, int least_capability,
                                          int largest_capability = 9999) {
  return {qk,
          pv,
          least_capability,
          largest_capability,
          shared_bytes<Qk, Pv, kRows>,
          load_attention<Qk, Pv, PFormat, kRows>,
          launch_attention<Qk, Pv, PFormat, kRows>};
}

}  // namespace qattn::gpu
