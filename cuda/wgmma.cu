// wgmma of Hopper (sm_90a), A and B from shared memory without swizzling, K-major (PTX ISA 9.0, "Asynchronous
// Warpgroup Level Matrix Instructions"; the layout's strides as in CUTLASS's mma_sm90_desc.hpp).
#include <cuda_runtime.h>

#include "kernels.h"

namespace qattn::gpu {
namespace {

using std::uint32_t;
using std::uint64_t;

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

#define QATTN_WGMMA(id, text, registers, first, second, cc, tail, ...) \
  struct id : WgmmaShape<__VA_ARGS__> {                                \
    static __device__ void run(Register* d, uint64_t a, uint64_t b) {  \
      QATTN_WGMMA_ASM(text, registers, first, second, cc, tail);       \
    }                                                                  \
  }
// N = 8, 64 and 256 of one type combination; f32 and s32 results, then f16 results.
#define QATTN_WGMMA_32(id, k, types, cc, tail, bytes, Type)                                         \
  QATTN_WGMMA(id##N8, "m64n8k" #k "." types, 4, 4, 5, cc, tail, 8, k, bytes, Type, uint32_t);       \
  QATTN_WGMMA(id##N64, "m64n64k" #k "." types, 32, 32, 33, cc, tail, 64, k, bytes, Type, uint32_t); \
  QATTN_WGMMA(id##N256, "m64n256k" #k "." types, 128, 128, 129, cc, tail, 256, k, bytes, Type, uint32_t)
#define QATTN_WGMMA_16(id, k, types, tail, bytes)                                                             \
  QATTN_WGMMA(id##N8, "m64n8k" #k "." types, 2, 2, 3, "r", tail, 8, k, bytes, uint32_t, std::uint16_t);       \
  QATTN_WGMMA(id##N64, "m64n64k" #k "." types, 16, 16, 17, "r", tail, 64, k, bytes, uint32_t, std::uint16_t); \
  QATTN_WGMMA(id##N256, "m64n256k" #k "." types, 64, 64, 65, "r", tail, 256, k, bytes, uint32_t, std::uint16_t)

QATTN_WGMMA_32(Tf32, 8, "f32.tf32.tf32", "f", ", 1, 1", 4, float);
QATTN_WGMMA_32(F16, 16, "f32.f16.f16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WGMMA_32(Bf16, 16, "f32.bf16.bf16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WGMMA_16(Half, 16, "f16.f16.f16", ", 1, 1, 0, 0", 2);

#define QATTN_WGMMA_FP8(a, b)                                               \
  QATTN_WGMMA_32(F32##a##b, 32, "f32." #a "." #b, "f", ", 1, 1", 1, float); \
  QATTN_WGMMA_16(F16##a##b, 32, "f16." #a "." #b, ", 1, 1", 1)
QATTN_WGMMA_FP8(e4m3, e4m3);
QATTN_WGMMA_FP8(e4m3, e5m2);
QATTN_WGMMA_FP8(e5m2, e4m3);
QATTN_WGMMA_FP8(e5m2, e5m2);

#define QATTN_WGMMA_INT8(a, b)                                           \
  QATTN_WGMMA_32(S32##a##b, 32, "s32." #a "." #b, "r", "", 1, uint32_t); \
  QATTN_WGMMA_32(S32##a##b##Saturating, 32, "s32." #a "." #b ".satfinite", "r", "", 1, uint32_t)
QATTN_WGMMA_INT8(s8, s8);
QATTN_WGMMA_INT8(s8, u8);
QATTN_WGMMA_INT8(u8, s8);
QATTN_WGMMA_INT8(u8, u8);

__device__ float register_of(float, uint32_t code) { return __uint_as_float(code); }
__device__ uint32_t register_of(uint32_t, uint32_t code) { return code; }
__device__ uint32_t code_of(float x) { return __float_as_uint(x); }
__device__ uint32_t code_of(uint32_t x) { return x; }

// Core matrices of 8 rows of 16 bytes: the second half of K follows the first, then the next 8 rows.
constexpr uint32_t kCoreBytes = 128, kAlongK = kCoreBytes, kDownRows = 2 * kCoreBytes;

__device__ uint64_t descriptor(const void* shared) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3FFFF) >> 4 | static_cast<uint64_t>(kAlongK >> 4) << 16 |
         static_cast<uint64_t>(kDownRows >> 4) << 32;
}

/// `rows` rows of 32 bytes into core matrices.
__device__ void load_core_matrices(uint4* shared, const uint4* source, int rows) {
  for (int i = threadIdx.x; i < rows * 2; i += blockDim.x) {
    const int row = i / 2, half = i % 2;
    shared[(row / 8 * kDownRows + half * kAlongK) / 16 + row % 8] = source[i];
  }
}

/// One block of 128 threads (a warpgroup) an instruction.
template <class Op>
__global__ void __launch_bounds__(128) wgmma_kernel(MmaBatch batch) {
  using Code = typename Op::Code;
  __shared__ alignas(128) uint4 a[64 * 2], b[Op::kN * 2];
  const int across = batch.columns / Op::kN, per_tile = batch.rows / 64 * across;
  const std::size_t tile = blockIdx.x / per_tile;
  const std::size_t row0 = tile * batch.rows + blockIdx.x % per_tile / across * 64;
  const int column0 = blockIdx.x % across * Op::kN;
  load_core_matrices(a, static_cast<const uint4*>(batch.a) + row0 * 2, 64);
  load_core_matrices(b, static_cast<const uint4*>(batch.b) + (tile * batch.columns + column0) * 2, Op::kN);

  const int group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4, warp_row = static_cast<int>(threadIdx.x / 32) * 16;
  const auto offset = [&](int element) {
    const std::size_t row = row0 + warp_row + group + (element >> 1 & 1) * 8;
    return row * batch.columns + column0 + (element >> 2) * 8 + quad * 2 + (element & 1);
  };
  const auto* c = static_cast<const Code*>(batch.c);
  typename Op::Register d[Op::kRegisters];
#pragma unroll
  for (int i = 0; i < Op::kRegisters; ++i) {
    uint32_t code = c[offset(i * Op::kPerRegister)];
    if constexpr (Op::kPerRegister == 2) code |= static_cast<uint32_t>(c[offset(i * 2 + 1)]) << 16;
    d[i] = register_of(typename Op::Register{}, code);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  Op::run(d, descriptor(a), descriptor(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  auto* out = static_cast<Code*>(batch.d);
#pragma unroll
  for (int i = 0; i < Op::kRegisters; ++i) {
    const uint32_t code = code_of(d[i]);
    out[offset(i * Op::kPerRegister)] = static_cast<Code>(code);
    if constexpr (Op::kPerRegister == 2) out[offset(i * 2 + 1)] = static_cast<Code>(code >> 16);
  }
}

template <class Op>
int launch_wgmma(const MmaBatch& batch) {
  wgmma_kernel<Op><<<batch.tiles*(batch.rows / 64) * (batch.columns / Op::kN), 128>>>(batch);
  return cudaGetLastError();
}

template <class Op>
constexpr MmaKernel wgmma_entry(const char* name) {
  return {name, 64, Op::kN,          Op::kK, Op::kOperandBytes, sizeof(typename Op::Code), sizeof(typename Op::Code),
          90,   90, launch_wgmma<Op>};
}

#define QATTN_WGMMA_ENTRIES(id, k, types)                                                               \
  wgmma_entry<id##N8>("wgmma.m64n8k" #k "." types), wgmma_entry<id##N64>("wgmma.m64n64k" #k "." types), \
      wgmma_entry<id##N256>("wgmma.m64n256k" #k "." types)
#define QATTN_WGMMA_FP8_ENTRIES(a, b) \
  QATTN_WGMMA_ENTRIES(F32##a##b, 32, "f32." #a "." #b), QATTN_WGMMA_ENTRIES(F16##a##b, 32, "f16." #a "." #b)
#define QATTN_WGMMA_INT8_ENTRIES(a, b)                  \
  QATTN_WGMMA_ENTRIES(S32##a##b, 32, "s32." #a "." #b), \
      QATTN_WGMMA_ENTRIES(S32##a##b##Saturating, 32, "s32." #a "." #b ".satfinite")

constexpr MmaKernel kKernels[] = {
    QATTN_WGMMA_ENTRIES(Tf32, 8, "f32.tf32.tf32"),
    QATTN_WGMMA_ENTRIES(F16, 16, "f32.f16.f16"),
    QATTN_WGMMA_ENTRIES(Bf16, 16, "f32.bf16.bf16"),
    QATTN_WGMMA_ENTRIES(Half, 16, "f16.f16.f16"),
    QATTN_WGMMA_FP8_ENTRIES(e4m3, e4m3),
    QATTN_WGMMA_FP8_ENTRIES(e4m3, e5m2),
    QATTN_WGMMA_FP8_ENTRIES(e5m2, e4m3),
    QATTN_WGMMA_FP8_ENTRIES(e5m2, e5m2),
    QATTN_WGMMA_INT8_ENTRIES(s8, s8),
    QATTN_WGMMA_INT8_ENTRIES(s8, u8),
    QATTN_WGMMA_INT8_ENTRIES(u8, s8),
    QATTN_WGMMA_INT8_ENTRIES(u8, u8),
};

}  // namespace

MmaKernels wgmma_kernels() { return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))}; }

}  // namespace qattn::gpu
