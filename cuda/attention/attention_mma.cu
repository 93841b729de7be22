// Attention through the mma.sync that Ampere has.
#include "attention_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

QATTN_MMA(S8, QATTN_ASM_4_2_4, "m16n8k32.row.col.s32.s8.s8.s32", "r", "r", uint32_t, 16, 8, 32, 8, uint32_t);
QATTN_MMA(S4, QATTN_ASM_4_2_4, "m16n8k64.row.col.s32.s4.s4.s32", "r", "r", uint32_t, 16, 8, 64, 4, uint32_t);
QATTN_MMA(F16, QATTN_ASM_4_2_4, "m16n8k16.row.col.f32.f16.f16.f32", "f", "r", uint32_t, 16, 8, 16, 16, float);
QATTN_MMA(Half, QATTN_ASM_4_2_2, "m16n8k16.row.col.f16.f16.f16.f16", "r", "r", uint32_t, 16, 8, 16, 16, F16Pair);
QATTN_MMA(B16, QATTN_ASM_4_2_4, "m16n8k16.row.col.f32.bf16.bf16.f32", "f", "r", uint32_t, 16, 8, 16, 16, float);

constexpr const char *kS8 = "mma.m16n8k32.s32.s8.s8", *kS4 = "mma.m16n8k64.s32.s4.s4",
                     *kF16 = "mma.m16n8k16.f32.f16.f16", *kHalf = "mma.m16n8k16.f16.f16.f16",
                     *kB16 = "mma.m16n8k16.f32.bf16.bf16";

/// 32 rows a block: with head_dim 128 it fits an Ada GPU's shared memory.
template <class Qk, class Pv, class PFormat>
constexpr AttentionKernel entry(const char* qk, const char* pv) {
  return attention_entry<MmaEngine<Qk>, MmaEngine<Pv>, PFormat, 32>(qk, pv, 80);
}

constexpr AttentionKernel kKernels[] = {
    entry<S8, F16, Fp16>(kS8, kF16),   entry<S8, Half, Fp16>(kS8, kHalf), entry<S4, F16, Fp16>(kS4, kF16),
    entry<S4, Half, Fp16>(kS4, kHalf), entry<F16, F16, Fp16>(kF16, kF16), entry<F16, Half, Fp16>(kF16, kHalf),
    entry<B16, B16, Bf16>(kB16, kB16), entry<S8, S8, Int8>(kS8, kS8),
};

}  // namespace

AttentionKernels attention_mma_kernels() {
  return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))};
}

}  // namespace qattn::gpu
