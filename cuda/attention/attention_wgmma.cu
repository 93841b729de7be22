// Attention through Hopper's wgmma (sm_90a); INT4, which wgmma lacks, through mma.sync.
#include "attention_kernel.cuh"
#include "wgmma_engine.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

QATTN_MMA(S4, QATTN_ASM_4_2_4, "m16n8k64.row.col.s32.s4.s4.s32", "r", "r", uint32_t, 16, 8, 64, 4, uint32_t);
QATTN_WGMMA_32(S8, 32, "s32.s8.s8", "r", "", 1, uint32_t);
QATTN_WGMMA_32(E4, 32, "f32.e4m3.e4m3", "f", ", 1, 1", 1, float);
QATTN_WGMMA_32(F16, 16, "f32.f16.f16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WGMMA_32(B16, 16, "f32.bf16.bf16", "f", ", 1, 1, 0, 0", 2, float);
QATTN_WGMMA_16(Half, 16, "f16.f16.f16", ", 1, 1, 0, 0", 2);

using S8Engine = WgmmaEngine<S8N64, S8N8>;
using E4Engine = WgmmaEngine<E4N64, E4N8>;
using F16Engine = WgmmaEngine<F16N64, F16N8>;
using B16Engine = WgmmaEngine<B16N64, B16N8>;
using HalfEngine = WgmmaEngine<HalfN64, HalfN8>;

constexpr const char *kS4 = "mma.m16n8k64.s32.s4.s4", *kS8 = "wgmma.m64nNk32.s32.s8.s8",
                     *kE4 = "wgmma.m64nNk32.f32.e4m3.e4m3", *kF16 = "wgmma.m64nNk16.f32.f16.f16",
                     *kB16 = "wgmma.m64nNk16.f32.bf16.bf16", *kHalf = "wgmma.m64nNk16.f16.f16.f16";

template <class Qk, class Pv, class PFormat>
constexpr AttentionKernel entry(const char* qk, const char* pv) {
  return attention_entry<Qk, Pv, PFormat, 64>(qk, pv, 90, 90);
}

constexpr AttentionKernel kKernels[] = {
    entry<S8Engine, E4Engine, E4m3>(kS8, kE4),       entry<MmaEngine<S4>, E4Engine, E4m3>(kS4, kE4),
    entry<E4Engine, E4Engine, E4m3>(kE4, kE4),       entry<S8Engine, F16Engine, Fp16>(kS8, kF16),
    entry<S8Engine, HalfEngine, Fp16>(kS8, kHalf),   entry<F16Engine, F16Engine, Fp16>(kF16, kF16),
    entry<F16Engine, HalfEngine, Fp16>(kF16, kHalf), entry<B16Engine, B16Engine, Bf16>(kB16, kB16),
};

}  // namespace

AttentionKernels attention_wgmma_kernels() {
  return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))};
}

}  // namespace qattn::gpu
