// mma.sync that Ampere lacks: FP8 (Ada and later) and the deep FP64 shapes (Hopper and later).
#include "mma_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

#define QATTN_FP8(a, b)                                                                                                \
  QATTN_MMA(F32K16##a##b, QATTN_ASM_2_1_4, "m16n8k16.row.col.f32." #a "." #b ".f32", "f", "r", uint32_t, 16, 8, 16, 8, \
            float);                                                                                                    \
  QATTN_MMA(F32K32##a##b, QATTN_ASM_4_2_4, "m16n8k32.row.col.f32." #a "." #b ".f32", "f", "r", uint32_t, 16, 8, 32, 8, \
            float);                                                                                                    \
  QATTN_MMA(F16K16##a##b, QATTN_ASM_2_1_2, "m16n8k16.row.col.f16." #a "." #b ".f16", "r", "r", uint32_t, 16, 8, 16, 8, \
            F16Pair);                                                                                                  \
  QATTN_MMA(F16K32##a##b, QATTN_ASM_4_2_2, "m16n8k32.row.col.f16." #a "." #b ".f16", "r", "r", uint32_t, 16, 8, 32, 8, \
            F16Pair)
#define QATTN_FP8_ENTRIES(a, b)                                   \
  mma_entry<F32K16##a##b>("mma.m16n8k16.f32." #a "." #b, 89),     \
      mma_entry<F32K32##a##b>("mma.m16n8k32.f32." #a "." #b, 89), \
      mma_entry<F16K16##a##b>("mma.m16n8k16.f16." #a "." #b, 89), \
      mma_entry<F16K32##a##b>("mma.m16n8k32.f16." #a "." #b, 89)

QATTN_FP8(e4m3, e4m3);
QATTN_FP8(e4m3, e5m2);
QATTN_FP8(e5m2, e4m3);
QATTN_FP8(e5m2, e5m2);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define QATTN_FROM_SM90(assembly, text, cc, ca) __trap()
#else
#define QATTN_FROM_SM90(assembly, text, cc, ca) assembly(text, cc, ca)
#endif
#define QATTN_F64_2_1_4(text, cc, ca) QATTN_FROM_SM90(QATTN_ASM_2_1_4, text, cc, ca)
#define QATTN_F64_4_2_4(text, cc, ca) QATTN_FROM_SM90(QATTN_ASM_4_2_4, text, cc, ca)
#define QATTN_F64_8_4_4(text, cc, ca) QATTN_FROM_SM90(QATTN_ASM_8_4_4, text, cc, ca)
QATTN_MMA(F64K4, QATTN_F64_2_1_4, "m16n8k4.row.col.f64.f64.f64.f64", "d", "d", double, 16, 8, 4, 64, double);
QATTN_MMA(F64K8, QATTN_F64_4_2_4, "m16n8k8.row.col.f64.f64.f64.f64", "d", "d", double, 16, 8, 8, 64, double);
QATTN_MMA(F64K16, QATTN_F64_8_4_4, "m16n8k16.row.col.f64.f64.f64.f64", "d", "d", double, 16, 8, 16, 64, double);

constexpr MmaKernel kKernels[] = {
    QATTN_FP8_ENTRIES(e4m3, e4m3),
    QATTN_FP8_ENTRIES(e4m3, e5m2),
    QATTN_FP8_ENTRIES(e5m2, e4m3),
    QATTN_FP8_ENTRIES(e5m2, e5m2),
    mma_entry<F64K4>("mma.m16n8k4.f64.f64.f64", 90),
    mma_entry<F64K8>("mma.m16n8k8.f64.f64.f64", 90),
    mma_entry<F64K16>("mma.m16n8k16.f64.f64.f64", 90),
};

}  // namespace

MmaKernels mma_float8_kernels() { return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))}; }

}  // namespace qattn::gpu
