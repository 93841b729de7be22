// Attention through the mma.sync on FP8, which Ada and later have.
#include "attention_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

QATTN_MMA(S8, QATTN_ASM_4_2_4, "m16n8k32.row.col.s32.s8.s8.s32", "r", "r", uint32_t, 16, 8, 32, 8, uint32_t);
QATTN_MMA(S4, QATTN_ASM_4_2_4, "m16n8k64.row.col.s32.s4.s4.s32", "r", "r", uint32_t, 16, 8, 64, 4, uint32_t);
QATTN_MMA(E4, QATTN_ASM_4_2_4, "m16n8k32.row.col.f32.e4m3.e4m3.f32", "f", "r", uint32_t, 16, 8, 32, 8, float);

QATTN_MMA(E4Half, QATTN_ASM_4_2_2, "m16n8k32.row.col.f16.e4m3.e4m3.f16", "r", "r", uint32_t, 16, 8, 32, 8, F16Pair);

constexpr const char *kS8 = "mma.m16n8k32.s32.s8.s8", *kS4 = "mma.m16n8k64.s32.s4.s4",
                     *kE4 = "mma.m16n8k32.f32.e4m3.e4m3", *kE4Half = "mma.m16n8k32.f16.e4m3.e4m3";

template <class Qk, class Pv>
constexpr AttentionKernel entry(const char* qk, const char* pv) {
  return attention_entry<MmaEngine<Qk>, MmaEngine<Pv>, E4m3, 32>(qk, pv, 89);
}

constexpr AttentionKernel kKernels[] = {
    entry<S8, E4>(kS8, kE4),         entry<S4, E4>(kS4, kE4),         entry<E4, E4>(kE4, kE4),
    entry<S8, E4Half>(kS8, kE4Half), entry<S4, E4Half>(kS4, kE4Half),
};

}  // namespace

AttentionKernels attention_mma_float8_kernels() {
  return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))};
}

}  // namespace qattn::gpu
