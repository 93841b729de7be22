// Matrix products of tiles in shared memory by wgmma; the interface is that of mma_engine.cuh.
#pragma once

#include <type_traits>

#include "mma_engine.cuh"
#include "wgmma_instruction.cuh"

namespace qattn::gpu {

/// `Wide` and `Narrow` are one instruction in two widths N (wgmma_instruction.cuh); its operands take 32 bytes of K.
/// The block is one warpgroup, which computes 64 rows of C.
template <class Wide, class Narrow>
struct WgmmaEngine {
  static constexpr int kStep = Wide::kK, kBits = 8 * Wide::kOperandBytes;
  static_assert(kStep * kBits == 32 * kStepWords, "a step is 32 bytes of K");
  using Code = typename CodeOf<kBits>::Type;

  /// Core matrices of 8 lines of 4 words, along K first.
  static __host__ __device__ int word_index(int line, int word, int words) {
    return (line / 8 * (words / 4) + word / 4) * 32 + line % 8 * 4 + word % 4;
  }
  static __device__ void publish() { publish_to_wgmma(); }
  static __device__ float rescaled(float value, float factor) { return rescaled_in(Element{}, value, factor); }

  static __device__ void multiply_accumulate(const std::uint32_t* a, const std::uint32_t* b, int words, int columns,
                                             int first, int last, SharedMatrix c) {
    int column = 0;
    for (; column + Wide::kN <= columns; column += Wide::kN) chain<Wide>(a, b, words, column, first, last, c);
    for (; column < columns; column += Narrow::kN) chain<Narrow>(a, b, words, column, first, last, c);
  }

 private:
  using Element = std::conditional_t<Wide::kPerRegister == 2, F16Pair, typename Wide::Register>;

  /// A register of two f16 is a 32-bit word to wgmma, as one of s32 is.
  template <class Op>
  static __device__ void load(const float* c, typename Op::Register* d) {
    if constexpr (Op::kPerRegister == 2) {
      F16Pair pair;
      load_pair(c, &pair);
      *d = pair.bits;
    } else {
      load_pair(c, d);
    }
  }
  template <class Op>
  static __device__ void store(const typename Op::Register* d, float* c) {
    if constexpr (Op::kPerRegister == 2) {
      const F16Pair pair{*d};
      store_pair(&pair, c);
    } else {
      store_pair(d, c);
    }
  }

  template <class Op>
  static __device__ void chain(const std::uint32_t* a, const std::uint32_t* b, int words, int column, int first,
                               int last, SharedMatrix c) {
    constexpr int kPair = 2 / Op::kPerRegister;
    const int group = static_cast<int>(threadIdx.x % 32 / 4), quad = static_cast<int>(threadIdx.x % 4);
    const int row = static_cast<int>(threadIdx.x / 32) * 16 + group;
    const auto pair = [&](int i) { return &c.at(row + i % 2 * 8, column + i / 2 * 8 + quad * 2); };
    typename Op::Register d[Op::kRegisters];
#pragma unroll
    for (int i = 0; i < Op::kN / 4; ++i) load<Op>(pair(i), d + i * kPair);
    const auto down_rows = static_cast<std::uint32_t>(words / 4) * kCoreBytes;
    for (int step = first; step < last; ++step) {
      const int word = step * kStepWords;
      begin_wgmma();
      Op::run(d, wgmma_descriptor(a + word_index(0, word, words), kCoreBytes, down_rows),
              wgmma_descriptor(b + word_index(column, word, words), kCoreBytes, down_rows));
      finish_wgmma();
    }
#pragma unroll
    for (int i = 0; i < Op::kN / 4; ++i) store<Op>(d + i * kPair, pair(i));
  }
};

}  // namespace qattn::gpu
