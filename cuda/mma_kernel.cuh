// mma.sync on batches: one warp an instruction. The fragment layouts of all shapes but m8n8k4 (FP16) follow one rule
// (PTX ISA 9.0, "Matrix Fragments for mma"): a register holds neighbours along K, registers go down the rows first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels.h"

namespace qattn::gpu {

template <int bits>
struct CodeOf;
template <>
struct CodeOf<4> {
  using Type = std::uint8_t;
};
template <>
struct CodeOf<8> {
  using Type = std::uint8_t;
};
template <>
struct CodeOf<16> {
  using Type = std::uint16_t;
};
template <>
struct CodeOf<32> {
  using Type = std::uint32_t;
};
template <>
struct CodeOf<64> {
  using Type = std::uint64_t;
};

/// Accumulator registers: how a code gets in and out. `F16Pair` is a register with two f16.
struct F16Pair {
  std::uint32_t bits;
};
template <class Register>
struct AccumulatorOf;
template <>
struct AccumulatorOf<float> {
  using Code = std::uint32_t;
  static __device__ float load(Code code) { return __uint_as_float(code); }
  static __device__ Code store(float x) { return __float_as_uint(x); }
};
template <>
struct AccumulatorOf<std::uint32_t> {
  using Code = std::uint32_t;
  static __device__ std::uint32_t load(Code code) { return code; }
  static __device__ Code store(std::uint32_t x) { return x; }
};
template <>
struct AccumulatorOf<double> {
  using Code = std::uint64_t;
  static __device__ double load(Code code) { return __longlong_as_double(static_cast<long long>(code)); }
  static __device__ Code store(double x) { return static_cast<Code>(__double_as_longlong(x)); }
};
template <>
struct AccumulatorOf<F16Pair> {
  using Code = std::uint16_t;
};

/// The numbers of an mma.sync: m, n, k, bits of an operand, and the accumulator's register type.
template <int m, int n, int k, int bits, class AccumulatorRegister>
struct MmaShape {
  static constexpr int kM = m, kN = n, kK = k, kBits = bits;
  static constexpr bool kIsF16 = sizeof(typename AccumulatorOf<AccumulatorRegister>::Code) == 2;
  static constexpr int kPerWord = bits == 64 ? 1 : 32 / bits;
  static constexpr int kRowGroups = m / 8;
  static constexpr int kB = k / (4 * kPerWord), kA = kB * kRowGroups, kC = kRowGroups * (kIsF16 ? 1 : 2);
  using Operand = typename CodeOf<bits>::Type;
  using Accumulator = typename AccumulatorOf<AccumulatorRegister>::Code;
  using Register = AccumulatorRegister;
};

/// kPerWord neighbouring codes in one register.
template <class Shape, class Word>
__device__ Word load_word(const typename Shape::Operand* codes) {
  if constexpr (Shape::kBits == 64) {
    return __longlong_as_double(static_cast<long long>(codes[0]));
  } else {
    Word word = 0;
    for (int e = 0; e < Shape::kPerWord; ++e) {
      word |= (codes[e] & (~Word{0} >> (32 - Shape::kBits))) << (e * Shape::kBits);
    }
    return word;
  }
}

template <class Op>
__global__ void mma_kernel(MmaBatch batch, int fragments) {
  using Operand = typename Op::Operand;
  using Accumulator = typename Op::Accumulator;
  using Register = typename Op::Register;
  using Word = typename Op::Word;
  const int fragment = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (fragment >= fragments) return;
  const int across = batch.columns / Op::kN, per_tile = batch.rows / Op::kM * across;
  const std::size_t tile = fragment / per_tile;
  const int row0 = fragment % per_tile / across * Op::kM, column0 = fragment % across * Op::kN;
  const int group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
  const auto* a_codes = static_cast<const Operand*>(batch.a) + (tile * batch.rows + row0) * Op::kK;
  const auto* b_codes = static_cast<const Operand*>(batch.b) + (tile * batch.columns + column0) * Op::kK;
  const std::size_t c_offset = (tile * batch.rows + row0) * batch.columns + column0;
  const auto* c_codes = static_cast<const Accumulator*>(batch.c) + c_offset;
  auto* d_codes = static_cast<Accumulator*>(batch.d) + c_offset;

  Word a[Op::kA], b[Op::kB];
  Register c[Op::kC], d[Op::kC];
#pragma unroll
  for (int i = 0; i < Op::kA; ++i) {
    const int row = group + i % Op::kRowGroups * 8, k = (i / Op::kRowGroups * 4 + quad) * Op::kPerWord;
    a[i] = load_word<Op, Word>(a_codes + row * Op::kK + k);
  }
#pragma unroll
  for (int i = 0; i < Op::kB; ++i) {
    b[i] = load_word<Op, Word>(b_codes + group * Op::kK + (i * 4 + quad) * Op::kPerWord);
  }
#pragma unroll
  for (int i = 0; i < Op::kC; ++i) {
    if constexpr (Op::kIsF16) {
      const auto* at = c_codes + (group + i * 8) * batch.columns + quad * 2;
      c[i] = {at[0] | static_cast<std::uint32_t>(at[1]) << 16};
    } else {
      c[i] = AccumulatorOf<Register>::load(c_codes[(group + i / 2 * 8) * batch.columns + quad * 2 + i % 2]);
    }
  }
  Op::run(d, a, b, c);
#pragma unroll
  for (int i = 0; i < Op::kC; ++i) {
    if constexpr (Op::kIsF16) {
      auto* at = d_codes + (group + i * 8) * batch.columns + quad * 2;
      at[0] = static_cast<std::uint16_t>(d[i].bits);
      at[1] = static_cast<std::uint16_t>(d[i].bits >> 16);
    } else {
      d_codes[(group + i / 2 * 8) * batch.columns + quad * 2 + i % 2] = AccumulatorOf<Register>::store(d[i]);
    }
  }
}

template <class Op>
int launch_mma(const MmaBatch& batch) {
  constexpr int kWarps = 8;
  const int fragments = batch.tiles * (batch.rows / Op::kM) * (batch.columns / Op::kN);
  mma_kernel<Op><<<(fragments + kWarps - 1) / kWarps, kWarps * 32>>>(batch, fragments);
  return cudaGetLastError();
}

template <class Op>
constexpr MmaKernel mma_entry(const char* name, int least_capability, int largest_capability = 9999) {
  return {name,
          Op::kM,
          Op::kN,
          Op::kK,
          static_cast<int>(sizeof(typename Op::Operand)),
          static_cast<int>(sizeof(typename Op::Accumulator)),
          static_cast<int>(sizeof(typename Op::Accumulator)),
          least_capability,
          largest_capability,
          launch_mma<Op>};
}

inline __device__ float& asm_value(float& x) { return x; }
inline __device__ double& asm_value(double& x) { return x; }
inline __device__ std::uint32_t& asm_value(std::uint32_t& x) { return x; }
inline __device__ std::uint32_t& asm_value(F16Pair& x) { return x.bits; }

// One macro for each count of registers (A, B, C): `text` is the instruction after "mma.sync.aligned.", `cc` and `ca`
// are the constraints of accumulator and operand registers.
#define QATTN_ASM_4_2_4(text, cc, ca)                                                                                  \
  asm volatile("mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                   \
               : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1])), "=" cc(asm_value(d[2])), "=" cc(asm_value(d[3]))    \
               : ca(a[0]), ca(a[1]), ca(a[2]), ca(a[3]), ca(b[0]), ca(b[1]), cc(asm_value(c[0])), cc(asm_value(c[1])), \
                 cc(asm_value(c[2])), cc(asm_value(c[3])))
#define QATTN_ASM_2_1_4(text, cc, ca)                                                                               \
  asm volatile("mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"                            \
               : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1])), "=" cc(asm_value(d[2])), "=" cc(asm_value(d[3])) \
               : ca(a[0]), ca(a[1]), ca(b[0]), cc(asm_value(c[0])), cc(asm_value(c[1])), cc(asm_value(c[2])),       \
                 cc(asm_value(c[3])))
#define QATTN_ASM_4_2_2(text, cc, ca)                                                \
  asm volatile("mma.sync.aligned." text " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};" \
               : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1]))                    \
               : ca(a[0]), ca(a[1]), ca(a[2]), ca(a[3]), ca(b[0]), ca(b[1]), cc(asm_value(c[0])), cc(asm_value(c[1])))
#define QATTN_ASM_2_1_2(text, cc, ca)                                       \
  asm volatile("mma.sync.aligned." text " {%0,%1}, {%2,%3}, {%4}, {%5,%6};" \
               : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1]))           \
               : ca(a[0]), ca(a[1]), ca(b[0]), cc(asm_value(c[0])), cc(asm_value(c[1])))
#define QATTN_ASM_1_1_2(text, cc, ca)                                    \
  asm volatile("mma.sync.aligned." text " {%0,%1}, {%2}, {%3}, {%4,%5};" \
               : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1]))        \
               : ca(a[0]), ca(b[0]), cc(asm_value(c[0])), cc(asm_value(c[1])))
#define QATTN_ASM_8_4_4(text, cc, ca)                                                                                 \
  asm volatile(                                                                                                       \
      "mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%16,%17,%18,%19};"   \
      : "=" cc(asm_value(d[0])), "=" cc(asm_value(d[1])), "=" cc(asm_value(d[2])), "=" cc(asm_value(d[3]))            \
      : ca(a[0]), ca(a[1]), ca(a[2]), ca(a[3]), ca(a[4]), ca(a[5]), ca(a[6]), ca(a[7]), ca(b[0]), ca(b[1]), ca(b[2]), \
        ca(b[3]), cc(asm_value(c[0])), cc(asm_value(c[1])), cc(asm_value(c[2])), cc(asm_value(c[3])))

/// Defines the instruction `id` of a MmaShape (last argument). `assembly` is one of the macros above.
#define QATTN_MMA(id, assembly, text, cc, ca, word, ...)                                               \
  struct id : MmaShape<__VA_ARGS__> {                                                                  \
    using Word = word;                                                                                 \
    static __device__ void run(Register* d, Word* a, Word* b, Register* c) { assembly(text, cc, ca); } \
  }

}  // namespace qattn::gpu
