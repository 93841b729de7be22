// mma.sync of Ampere and later on FP16, BF16, TF32 and FP64; and Volta's m8n8k4 shape on FP16, which later GPUs keep.
#include "mma_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

QATTN_MMA(Tf32K4, QATTN_ASM_2_1_4, "m16n8k4.row.col.f32.tf32.tf32.f32", "f", "r", uint32_t, 16, 8, 4, 32, float);
QATTN_MMA(Tf32K8, QATTN_ASM_4_2_4, "m16n8k8.row.col.f32.tf32.tf32.f32", "f", "r", uint32_t, 16, 8, 8, 32, float);
QATTN_MMA(F16K8, QATTN_ASM_2_1_4, "m16n8k8.row.col.f32.f16.f16.f32", "f", "r", uint32_t, 16, 8, 8, 16, float);
QATTN_MMA(F16K16, QATTN_ASM_4_2_4, "m16n8k16.row.col.f32.f16.f16.f32", "f", "r", uint32_t, 16, 8, 16, 16, float);
QATTN_MMA(Bf16K8, QATTN_ASM_2_1_4, "m16n8k8.row.col.f32.bf16.bf16.f32", "f", "r", uint32_t, 16, 8, 8, 16, float);
QATTN_MMA(Bf16K16, QATTN_ASM_4_2_4, "m16n8k16.row.col.f32.bf16.bf16.f32", "f", "r", uint32_t, 16, 8, 16, 16, float);
QATTN_MMA(HalfK8, QATTN_ASM_2_1_2, "m16n8k8.row.col.f16.f16.f16.f16", "r", "r", uint32_t, 16, 8, 8, 16, F16Pair);
QATTN_MMA(HalfK16, QATTN_ASM_4_2_2, "m16n8k16.row.col.f16.f16.f16.f16", "r", "r", uint32_t, 16, 8, 16, 16, F16Pair);
QATTN_MMA(F64M8, QATTN_ASM_1_1_2, "m8n8k4.row.col.f64.f64.f64.f64", "d", "d", double, 8, 8, 4, 64, double);

/// m8n8k4 on FP16: a warp runs four of them, one for each quad pair (lanes 4q .. 4q + 3 and the 16 above). Row of A and
/// column of B: the lane's place in its quad, 4 more in the upper half.
template <class Result, class Source>
struct QuadPair {
  using ResultCode = typename AccumulatorOf<Result>::Code;
  using SourceCode = typename AccumulatorOf<Source>::Code;
};

struct QuadF32 : QuadPair<float, float> {
  static __device__ void run(float* d, const uint32_t* a, const uint32_t* b, const float* c) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%12,%13,%14,%15,%16,%17,%18,%19};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(c[4]), "f"(c[5]),
          "f"(c[6]), "f"(c[7]));
  }
};
struct QuadF16 : QuadPair<F16Pair, F16Pair> {
  static __device__ void run(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%8,%9,%10,%11};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
};
struct QuadMixed : QuadPair<float, F16Pair> {
  static __device__ void run(float* d, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%12,%13,%14,%15};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
};

/// Where element i of a thread's f32 accumulators stands in the 8 x 8 result.
__device__ int quad_row(int lane, int i) { return (lane & 1) + (i & 2) + (lane < 16 ? 0 : 4); }
__device__ int quad_column(int lane, int i) { return (i & 4) + (lane & 2) + (i & 1); }

template <class Op>
__global__ void quad_pair_kernel(MmaBatch batch, int fragments) {
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int own = warp * 4 + lane % 16 / 4;
  const int fragment = own < fragments ? own : fragments - 1;  // all lanes take part; only real fragments are stored
  const int across = batch.columns / 8, per_tile = batch.rows / 8 * across;
  const std::size_t tile = fragment / per_tile;
  const int row0 = fragment % per_tile / across * 8, column0 = fragment % across * 8;
  const int line = lane % 4 + (lane < 16 ? 0 : 4);
  const auto* a_codes = static_cast<const std::uint16_t*>(batch.a) + (tile * batch.rows + row0 + line) * 4;
  const auto* b_codes = static_cast<const std::uint16_t*>(batch.b) + (tile * batch.columns + column0 + line) * 4;
  const std::size_t offset = (tile * batch.rows + row0) * batch.columns + column0;
  uint32_t a[2], b[2];
  for (int i = 0; i < 2; ++i) {
    a[i] = a_codes[2 * i] | static_cast<uint32_t>(a_codes[2 * i + 1]) << 16;
    b[i] = b_codes[2 * i] | static_cast<uint32_t>(b_codes[2 * i + 1]) << 16;
  }
  const auto* c_codes = static_cast<const typename Op::SourceCode*>(batch.c) + offset;
  auto* d_codes = static_cast<typename Op::ResultCode*>(batch.d) + offset;
  constexpr bool kSourceIsF32 = sizeof(typename Op::SourceCode) == 4,
                 kResultIsF32 = sizeof(typename Op::ResultCode) == 4;
  float c32[8], d32[8];
  uint32_t c16[4] = {}, d16[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (kSourceIsF32) {
      c32[i] = __uint_as_float(c_codes[quad_row(lane, i) * batch.columns + quad_column(lane, i)]);
    } else {
      c16[i / 2] |= static_cast<uint32_t>(c_codes[line * batch.columns + i]) << (i % 2 * 16);
    }
  }
  if constexpr (kSourceIsF32) {
    Op::run(d32, a, b, c32);
  } else if constexpr (kResultIsF32) {
    Op::run(d32, a, b, c16);
  } else {
    Op::run(d16, a, b, c16);
  }
  if (own >= fragments) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (kResultIsF32) {
      d_codes[quad_row(lane, i) * batch.columns + quad_column(lane, i)] = __float_as_uint(d32[i]);
    } else {
      d_codes[line * batch.columns + i] = static_cast<std::uint16_t>(d16[i / 2] >> (i % 2 * 16));
    }
  }
}

template <class Op>
int launch_quad_pairs(const MmaBatch& batch) {
  const int fragments = batch.tiles * (batch.rows / 8) * (batch.columns / 8);
  quad_pair_kernel<Op><<<(fragments + 31) / 32, 256>>>(batch, fragments);
  return cudaGetLastError();
}

template <class Op>
constexpr MmaKernel quad_entry(const char* name) {
  return {name,
          8,
          8,
          4,
          2,
          sizeof(typename Op::SourceCode),
          sizeof(typename Op::ResultCode),
          70,
          9999,
          launch_quad_pairs<Op>};
}

constexpr MmaKernel kKernels[] = {
    mma_entry<Tf32K4>("mma.m16n8k4.f32.tf32.tf32", 80), mma_entry<Tf32K8>("mma.m16n8k8.f32.tf32.tf32", 80),
    mma_entry<F16K8>("mma.m16n8k8.f32.f16.f16", 80),    mma_entry<F16K16>("mma.m16n8k16.f32.f16.f16", 80),
    mma_entry<Bf16K8>("mma.m16n8k8.f32.bf16.bf16", 80), mma_entry<Bf16K16>("mma.m16n8k16.f32.bf16.bf16", 80),
    mma_entry<HalfK8>("mma.m16n8k8.f16.f16.f16", 80),   mma_entry<HalfK16>("mma.m16n8k16.f16.f16.f16", 80),
    mma_entry<F64M8>("mma.m8n8k4.f64.f64.f64", 80),     quad_entry<QuadF32>("mma.m8n8k4.f32.f16.f16"),
    quad_entry<QuadF16>("mma.m8n8k4.f16.f16.f16"),      quad_entry<QuadMixed>("mma.m8n8k4.f32.f16.f16.f16"),
};

}  // namespace

MmaKernels mma_float_kernels() { return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))}; }

}  // namespace qattn::gpu
