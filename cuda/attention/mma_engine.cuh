// Matrix products of tiles in shared memory by mma.sync.
//
// An engine multiplies an operand A of `lines` rows by the lines of B, both K-major, into C [rows of A, lines of B]. It
// has
//   kStep                      elements of the contraction axis that one instruction takes; always 8 words, 32 bytes
//   Code, kBits                the codes in device memory, and their bits in a word
//   word_index(line, word, n)  where word `word` of the `n` words of a line stands
//   publish()                  by every thread between its writes of operands and the block's barrier
//   multiply_accumulate(...)   C += A B^T over the steps [first, last), one instruction after the other through the
//                              accumulator; `columns` (lines of B) is a multiple of 8
//   rescaled(value, factor)    an element of C times a factor, as the accumulator's registers hold it
#pragma once

#include "mma_kernel.cuh"
#include "tile_steps.cuh"

namespace qattn::gpu {

constexpr int kStepWords = 8;

/// Two neighbours of C in the registers of an accumulator: f32 and s32 take one each, f16 half of one.
inline __device__ void load_pair(const float* c, float* d) {
  d[0] = c[0];
  d[1] = c[1];
}
inline __device__ void load_pair(const float* c, std::uint32_t* d) {
  d[0] = static_cast<std::uint32_t>(__float2int_rn(c[0]));
  d[1] = static_cast<std::uint32_t>(__float2int_rn(c[1]));
}
inline __device__ void load_pair(const float* c, F16Pair* d) {
  d->bits = Fp16::encode(c[0]) | static_cast<std::uint32_t>(Fp16::encode(c[1])) << 16;
}
inline __device__ void store_pair(const float* d, float* c) {
  c[0] = d[0];
  c[1] = d[1];
}
inline __device__ void store_pair(const std::uint32_t* d, float* c) {
  c[0] = __int2float_rn(static_cast<int>(d[0]));
  c[1] = __int2float_rn(static_cast<int>(d[1]));
}
inline __device__ void store_pair(const F16Pair* d, float* c) {
  c[0] = Fp16::decode(static_cast<std::uint16_t>(d->bits));
  c[1] = Fp16::decode(static_cast<std::uint16_t>(d->bits >> 16));
}

/// An f32 product, rounded to the register's format; an FP16 accumulator takes a factor in FP16.
inline __device__ float rescaled_in(float, float value, float factor) { return __fmul_rn(value, factor); }
inline __device__ float rescaled_in(F16Pair, float value, float factor) {
  return rounded(FloatFormat::fp16, __fmul_rn(value, rounded(FloatFormat::fp16, factor)));
}

/// `Op` is an instruction m16n8 of mma_kernel.cuh whose operands take 32 bytes of K. A warp computes 16 rows of C.
template <class Op>
struct MmaEngine {
  using Code = typename Op::Operand;
  static constexpr int kStep = Op::kK, kBits = Op::kBits;
  static_assert(Op::kM == 16 && Op::kN == 8 && Op::kB == 2, "a step is 32 bytes of K");
  /// Registers of two neighbours in a row of C.
  static constexpr int kPair = Op::kC / 2;

  /// Rows are four words apart beyond their length, so that the lanes of a fragment meet different banks.
  static __host__ __device__ int word_index(int line, int word, int words) { return line * (words + 4) + word; }
  static __device__ void publish() {}
  static __device__ float rescaled(float value, float factor) {
    return rescaled_in(typename Op::Register{}, value, factor);
  }

  static __device__ void multiply_accumulate(const std::uint32_t* a, const std::uint32_t* b, int words, int columns,
                                             int first, int last, SharedMatrix c) {
    const int group = static_cast<int>(threadIdx.x % 32 / 4), quad = static_cast<int>(threadIdx.x % 4);
    const int row = static_cast<int>(threadIdx.x / 32) * 16 + group;
    for (int column = 0; column < columns; column += 8) {
      float* upper = &c.at(row, column + quad * 2);
      float* lower = &c.at(row + 8, column + quad * 2);
      typename Op::Register d[Op::kC];
      load_pair(upper, d);
      load_pair(lower, d + kPair);
      for (int step = first; step < last; ++step) {
        const int word = step * kStepWords + quad;
        std::uint32_t left[4], right[2];
        for (int half = 0; half < 2; ++half) {
          left[half * 2] = a[word_index(row, word + half * 4, words)];
          left[half * 2 + 1] = a[word_index(row + 8, word + half * 4, words)];
          right[half] = b[word_index(column + group, word + half * 4, words)];
        }
        Op::run(d, left, right, d);
      }
      store_pair(d, upper);
      store_pair(d + kPair, lower);
    }
  }
};

}  // namespace qattn::gpu
