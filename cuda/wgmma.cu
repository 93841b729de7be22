// wgmma on batches: one warpgroup an instruction.
#include "kernels.h"
#include "wgmma_instruction.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

// The widest N too.
#define QATTN_WIDTHS_32(id, k, types, cc, tail, bytes, Type) \
  QATTN_WGMMA_32(id, k, types, cc, tail, bytes, Type);       \
  QATTN_WGMMA(id##N256, "m64n256k" #k "." types, 128, 128, 129, cc, tail, 256, k, bytes, Type, std::uint32_t)
#define QATTN_WIDTHS_16(id, k, types, tail, bytes) \
  QATTN_WGMMA_16(id, k, types, tail, bytes);       \
  QATTN_WGMMA(id##N256, "m64n256k" #k "." types, 64, 64, 65, "r", tail, 256, k, bytes, std::uint32_t, std::uint16_t)

QATTN_WIDTHS_32(Tf32, 8, "f32.tf32.tf32", "f", ", 1, 1", 4, float);
QATTN_WIDTHS_32(F16, 16, "f32.f16.f16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WIDTHS_32(Bf16, 16, "f32.bf16.bf16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WIDTHS_16(Half, 16, "f16.f16.f16", ", 1, 1, 0, 0", 2);

#define QATTN_WGMMA_FP8(a, b)                                                \
  QATTN_WIDTHS_32(F32##a##b, 32, "f32." #a "." #b, "f", ", 1, 1", 1, float); \
  QATTN_WIDTHS_16(F16##a##b, 32, "f16." #a "." #b, ", 1, 1", 1)
QATTN_WGMMA_FP8(e4m3, e4m3);
QATTN_WGMMA_FP8(e4m3, e5m2);
QATTN_WGMMA_FP8(e5m2, e4m3);
QATTN_WGMMA_FP8(e5m2, e5m2);

#define QATTN_WGMMA_INT8(a, b)                                            \
  QATTN_WIDTHS_32(S32##a##b, 32, "s32." #a "." #b, "r", "", 1, uint32_t); \
  QATTN_WIDTHS_32(S32##a##b##Saturating, 32, "s32." #a "." #b ".satfinite", "r", "", 1, uint32_t)
QATTN_WGMMA_INT8(s8, s8);
QATTN_WGMMA_INT8(s8, u8);
QATTN_WGMMA_INT8(u8, s8);
QATTN_WGMMA_INT8(u8, u8);

__device__ float register_of(float, uint32_t code) { return __uint_as_float(code); }
__device__ uint32_t register_of(uint32_t, uint32_t code) { return code; }
__device__ uint32_t code_of(float x) { return __float_as_uint(x); }
__device__ uint32_t code_of(uint32_t x) { return x; }

// The second half of K follows the first, then the next 8 rows.
constexpr uint32_t kAlongK = kCoreBytes, kDownRows = 2 * kCoreBytes;

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
  publish_to_wgmma();
  __syncthreads();
  begin_wgmma();
  Op::run(d, wgmma_descriptor(a, kAlongK, kDownRows), wgmma_descriptor(b, kAlongK, kDownRows));
  finish_wgmma();
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
