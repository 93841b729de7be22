// mma.sync on INT8 and INT4, wrapping and saturating.
#include "mma_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

// Both ends of the range: wrapping (`id`) and ".satfinite" (`id`Saturating), for one shape and one pair of types.
#define QATTN_INTEGER(id, assembly, shape, a, b, ...)                                                               \
  QATTN_MMA(id##a##b, assembly, shape ".row.col.s32." #a "." #b ".s32", "r", "r", uint32_t, __VA_ARGS__, uint32_t); \
  QATTN_MMA(id##a##b##Saturating, assembly, shape ".row.col.satfinite.s32." #a "." #b ".s32", "r", "r", uint32_t,   \
            __VA_ARGS__, uint32_t)
#define QATTN_SHAPE(id, assembly, shape, s, u, ...)      \
  QATTN_INTEGER(id, assembly, shape, s, s, __VA_ARGS__); \
  QATTN_INTEGER(id, assembly, shape, s, u, __VA_ARGS__); \
  QATTN_INTEGER(id, assembly, shape, u, s, __VA_ARGS__); \
  QATTN_INTEGER(id, assembly, shape, u, u, __VA_ARGS__)

QATTN_SHAPE(Int8M8, QATTN_ASM_1_1_2, "m8n8k16", s8, u8, 8, 8, 16, 8);
QATTN_SHAPE(Int8K16, QATTN_ASM_2_1_4, "m16n8k16", s8, u8, 16, 8, 16, 8);
QATTN_SHAPE(Int8K32, QATTN_ASM_4_2_4, "m16n8k32", s8, u8, 16, 8, 32, 8);
QATTN_SHAPE(Int4M8, QATTN_ASM_1_1_2, "m8n8k32", s4, u4, 8, 8, 32, 4);
QATTN_SHAPE(Int4K32, QATTN_ASM_2_1_4, "m16n8k32", s4, u4, 16, 8, 32, 4);
QATTN_SHAPE(Int4K64, QATTN_ASM_4_2_4, "m16n8k64", s4, u4, 16, 8, 64, 4);

#define QATTN_ENTRY(id, shape, a, b)                       \
  mma_entry<id##a##b>("mma." shape ".s32." #a "." #b, 80), \
      mma_entry<id##a##b##Saturating>("mma." shape ".s32." #a "." #b ".satfinite", 80)
#define QATTN_ENTRIES(id, shape, s, u) \
  QATTN_ENTRY(id, shape, s, s), QATTN_ENTRY(id, shape, s, u), QATTN_ENTRY(id, shape, u, s), QATTN_ENTRY(id, shape, u, u)

constexpr MmaKernel kKernels[] = {
    QATTN_ENTRIES(Int8M8, "m8n8k16", s8, u8),   QATTN_ENTRIES(Int8K16, "m16n8k16", s8, u8),
    QATTN_ENTRIES(Int8K32, "m16n8k32", s8, u8), QATTN_ENTRIES(Int4M8, "m8n8k32", s4, u4),
    QATTN_ENTRIES(Int4K32, "m16n8k32", s4, u4), QATTN_ENTRIES(Int4K64, "m16n8k64", s4, u4),
};

}  // namespace

MmaKernels mma_integer_kernels() { return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))}; }

}  // namespace qattn::gpu
