// wgmma of Hopper (sm_90a) as code: one type an instruction, A and B from shared memory without swizzling, K-major (PTX
// ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions"; the layout's strides as in CUTLASS's mma_sm90_desc.hpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace qattn::gpu {

// Register names and asm operands of 2 to 128 accumulator registers.
#define QATTN_NAMES_2 "%0,%1"
#define QATTN_NAMES_4 QATTN_NAMES_2 ",%2,%3"
#define QATTN_NAMES_16 QATTN_NAMES_4 ",%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define QATTN_NAMES_32 QATTN_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define QATTN_NAMES_64                                               \
  QATTN_NAMES_32                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define QATTN_NAMES_128                                                          \
  QATTN_NAMES_64                                                                 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define QATTN_OUT_2(cc, i) "+" cc(d[i]), "+" cc(d[i + 1])
#define QATTN_OUT_4(cc, i) QATTN_OUT_2(cc, i), QATTN_OUT_2(cc, i + 2)
#define QATTN_OUT_8(cc, i) QATTN_OUT_4(cc, i), QATTN_OUT_4(cc, i + 4)
#define QATTN_OUT_16(cc, i) QATTN_OUT_8(cc, i), QATTN_OUT_8(cc, i + 8)
#define QATTN_OUT_32(cc, i) QATTN_OUT_16(cc, i), QATTN_OUT_16(cc, i + 16)
#define QATTN_OUT_64(cc, i) QATTN_OUT_32(cc, i), QATTN_OUT_32(cc, i + 32)
#define QATTN_OUT_128(cc, i) QATTN_OUT_64(cc, i), QATTN_OUT_64(cc, i + 64)

// `registers` accumulators, then the two descriptors; `tail` holds the immediates that the type asks for.
#define QATTN_WGMMA_ASM(text, registers, first, second, cc, tail)                                                     \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." text " {" QATTN_NAMES_##registers \
               "}, %" #first ", %" #second ", p" tail "; }"                                                           \
               : QATTN_OUT_##registers(cc, 0)                                                                         \
               : "l"(a), "l"(b)                                                                                       \
               : "memory")

/// The numbers of a wgmma. `Register` holds one f32 or s32, or two f16.
template <int n, int k, int bytes, class RegisterType, class ResultCode>
struct WgmmaShape {
  static constexpr int kN = n, kK = k, kOperandBytes = bytes;
  static constexpr int kPerRegister = 4 / sizeof(ResultCode);
  static constexpr int kRegisters = n / 2 / kPerRegister;
  using Register = RegisterType;
  using Code = ResultCode;
};

#define QATTN_WGMMA(id, text, registers, first, second, cc, tail, ...)          \
  struct id : WgmmaShape<__VA_ARGS__> {                                         \
    static __device__ void run(Register* d, std::uint64_t a, std::uint64_t b) { \
      QATTN_WGMMA_ASM(text, registers, first, second, cc, tail);                \
    }                                                                           \
  }
// N = 8 and 64 of one type combination; f32 and s32 results, then f16 results.
#define QATTN_WGMMA_32(id, k, types, cc, tail, bytes, Type)                                        \
  QATTN_WGMMA(id##N8, "m64n8k" #k "." types, 4, 4, 5, cc, tail, 8, k, bytes, Type, std::uint32_t); \
  QATTN_WGMMA(id##N64, "m64n64k" #k "." types, 32, 32, 33, cc, tail, 64, k, bytes, Type, std::uint32_t)
#define QATTN_WGMMA_16(id, k, types, tail, bytes)                                                            \
  QATTN_WGMMA(id##N8, "m64n8k" #k "." types, 2, 2, 3, "r", tail, 8, k, bytes, std::uint32_t, std::uint16_t); \
  QATTN_WGMMA(id##N64, "m64n64k" #k "." types, 16, 16, 17, "r", tail, 64, k, bytes, std::uint32_t, std::uint16_t)

constexpr std::uint32_t kCoreBytes = 128;  ///< a core matrix: 8 rows of 16 bytes

/// Of an operand whose core matrices lie `along_k` bytes apart along K and `down_rows` bytes apart down the rows.
inline __device__ std::uint64_t wgmma_descriptor(const void* shared, std::uint32_t along_k, std::uint32_t down_rows) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(along_k >> 4) << 16 |
         static_cast<std::uint64_t>(down_rows >> 4) << 32;
}

/// Between ordinary writes of operands in shared memory and the barrier before a wgmma, by every thread that wrote.
inline __device__ void publish_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Around the instructions of a warpgroup: before the first, and after the last, which it waits for.
inline __device__ void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void finish_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

}  // namespace qattn::gpu
