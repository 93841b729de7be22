// PTX's approximations and conversions, as inline assembly: no compiler flag changes them.
#include "scalar_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint16_t;
using std::uint32_t;

// One macro for each kind of operands; `text` is the instruction's name. A `.x2` form is applied to one element: the
// second source or the low half, the other is 0.
#define QATTN_F32_F32(id, text)                                 \
  struct id {                                                   \
    static __device__ uint32_t apply(uint32_t x) {              \
      float y;                                                  \
      asm(text " %0, %1;" : "=f"(y) : "f"(__uint_as_float(x))); \
      return __float_as_uint(y);                                \
    }                                                           \
  }
#define QATTN_B16_F32(id, text)                                 \
  struct id {                                                   \
    static __device__ uint32_t apply(uint32_t x) {              \
      uint16_t y;                                               \
      asm(text " %0, %1;" : "=h"(y) : "f"(__uint_as_float(x))); \
      return y;                                                 \
    }                                                           \
  }
#define QATTN_B32_F32(id, text, mask)                           \
  struct id {                                                   \
    static __device__ uint32_t apply(uint32_t x) {              \
      uint32_t y;                                               \
      asm(text " %0, %1;" : "=r"(y) : "f"(__uint_as_float(x))); \
      return y & mask;                                          \
    }                                                           \
  }
#define QATTN_B8X2_F32(id, text)                                               \
  struct id {                                                                  \
    static __device__ uint32_t apply(uint32_t x) {                             \
      uint16_t y;                                                              \
      asm(text " %0, %1, %2;" : "=h"(y) : "f"(0.0f), "f"(__uint_as_float(x))); \
      return y & 0xFF;                                                         \
    }                                                                          \
  }
#define QATTN_B16X2_F32(id, text)                                              \
  struct id {                                                                  \
    static __device__ uint32_t apply(uint32_t x) {                             \
      uint32_t y;                                                              \
      asm(text " %0, %1, %2;" : "=r"(y) : "f"(0.0f), "f"(__uint_as_float(x))); \
      return y & 0xFFFF;                                                       \
    }                                                                          \
  }
#define QATTN_F32_B16(id, text)                                       \
  struct id {                                                         \
    static __device__ uint32_t apply(uint32_t x) {                    \
      float y;                                                        \
      asm(text " %0, %1;" : "=f"(y) : "h"(static_cast<uint16_t>(x))); \
      return __float_as_uint(y);                                      \
    }                                                                 \
  }
#define QATTN_B16_B16(id, text)                                       \
  struct id {                                                         \
    static __device__ uint32_t apply(uint32_t x) {                    \
      uint16_t y;                                                     \
      asm(text " %0, %1;" : "=h"(y) : "h"(static_cast<uint16_t>(x))); \
      return y;                                                       \
    }                                                                 \
  }
#define QATTN_B16X2_B16X2(id, text)                     \
  struct id {                                           \
    static __device__ uint32_t apply(uint32_t x) {      \
      uint32_t y;                                       \
      asm(text " %0, %1;" : "=r"(y) : "r"(x & 0xFFFF)); \
      return y & 0xFFFF;                                \
    }                                                   \
  }
#define QATTN_B8X2_B16X2(id, text)                      \
  struct id {                                           \
    static __device__ uint32_t apply(uint32_t x) {      \
      uint16_t y;                                       \
      asm(text " %0, %1;" : "=h"(y) : "r"(x & 0xFFFF)); \
      return y & 0xFF;                                  \
    }                                                   \
  }
#define QATTN_B16X2_B8X2(id, text)                                           \
  struct id {                                                                \
    static __device__ uint32_t apply(uint32_t x) {                           \
      uint32_t y;                                                            \
      asm(text " %0, %1;" : "=r"(y) : "h"(static_cast<uint16_t>(x & 0xFF))); \
      return y & 0xFFFF;                                                     \
    }                                                                        \
  }
#define QATTN_S8_B16(id, text)                                        \
  struct id {                                                         \
    static __device__ uint32_t apply(uint32_t x) {                    \
      uint32_t y;                                                     \
      asm(text " %0, %1;" : "=r"(y) : "h"(static_cast<uint16_t>(x))); \
      return y & 0xFF;                                                \
    }                                                                 \
  }
#define QATTN_F32_S32(id, text)                    \
  struct id {                                      \
    static __device__ uint32_t apply(uint32_t x) { \
      float y;                                     \
      asm(text " %0, %1;" : "=f"(y) : "r"(x));     \
      return __float_as_uint(y);                   \
    }                                              \
  }

// What an architecture below `least` lacks traps there; the host never launches it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define QATTN_SM90(define, id, ...)              \
  struct id {                                    \
    static __device__ uint32_t apply(uint32_t) { \
      __trap();                                  \
      return 0;                                  \
    }                                            \
  }
#else
#define QATTN_SM90(define, id, ...) define(id, __VA_ARGS__)
#endif

QATTN_F32_F32(Ex2Ftz, "ex2.approx.ftz.f32");
QATTN_F32_F32(Ex2, "ex2.approx.f32");
QATTN_B16_B16(Ex2F16, "ex2.approx.f16");
QATTN_B16X2_B16X2(Ex2F16x2, "ex2.approx.f16x2");
QATTN_SM90(QATTN_B16_B16, Ex2Bf16, "ex2.approx.ftz.bf16");
QATTN_SM90(QATTN_B16X2_B16X2, Ex2Bf16x2, "ex2.approx.ftz.bf16x2");
QATTN_F32_F32(RcpFtz, "rcp.approx.ftz.f32");
QATTN_F32_F32(Rcp, "rcp.approx.f32");
QATTN_F32_F32(RcpRn, "rcp.rn.f32");
QATTN_F32_F32(Lg2Ftz, "lg2.approx.ftz.f32");
QATTN_F32_F32(Lg2, "lg2.approx.f32");
QATTN_F32_F32(RsqrtFtz, "rsqrt.approx.ftz.f32");
QATTN_F32_F32(Rsqrt, "rsqrt.approx.f32");
QATTN_F32_F32(SqrtFtz, "sqrt.approx.ftz.f32");
QATTN_F32_F32(Sqrt, "sqrt.approx.f32");
QATTN_F32_F32(Tanh, "tanh.approx.f32");
QATTN_B16_B16(TanhF16, "tanh.approx.f16");
QATTN_B16X2_B16X2(TanhF16x2, "tanh.approx.f16x2");
QATTN_SM90(QATTN_B16_B16, TanhBf16, "tanh.approx.bf16");
QATTN_SM90(QATTN_B16X2_B16X2, TanhBf16x2, "tanh.approx.bf16x2");

QATTN_B16_F32(RnF16, "cvt.rn.f16.f32");
QATTN_B16_F32(RzF16, "cvt.rz.f16.f32");
QATTN_SM90(QATTN_B16_F32, RnReluF16, "cvt.rn.relu.f16.f32");
QATTN_SM90(QATTN_B16_F32, RzReluF16, "cvt.rz.relu.f16.f32");
QATTN_SM90(QATTN_B16_F32, RnSatF16, "cvt.rn.satfinite.f16.f32");
QATTN_SM90(QATTN_B16_F32, RzSatF16, "cvt.rz.satfinite.f16.f32");
QATTN_SM90(QATTN_B16_F32, RnReluSatF16, "cvt.rn.relu.satfinite.f16.f32");
QATTN_SM90(QATTN_B16_F32, RzReluSatF16, "cvt.rz.relu.satfinite.f16.f32");
QATTN_SM90(QATTN_B16X2_F32, RnF16x2, "cvt.rn.f16x2.f32");
QATTN_SM90(QATTN_B16_F32, RnBf16, "cvt.rn.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RzBf16, "cvt.rz.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RnReluBf16, "cvt.rn.relu.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RzReluBf16, "cvt.rz.relu.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RnSatBf16, "cvt.rn.satfinite.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RzSatBf16, "cvt.rz.satfinite.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RnReluSatBf16, "cvt.rn.relu.satfinite.bf16.f32");
QATTN_SM90(QATTN_B16_F32, RzReluSatBf16, "cvt.rz.relu.satfinite.bf16.f32");
QATTN_SM90(QATTN_B16X2_F32, RnBf16x2, "cvt.rn.bf16x2.f32");
QATTN_B32_F32(RnaTf32, "cvt.rna.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B32_F32, RnaSatTf32, "cvt.rna.satfinite.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B32_F32, RnTf32, "cvt.rn.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B32_F32, RzTf32, "cvt.rz.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B32_F32, RnReluTf32, "cvt.rn.relu.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B32_F32, RzReluTf32, "cvt.rz.relu.tf32.f32", 0xFFFFFFFF);
QATTN_SM90(QATTN_B8X2_F32, E4m3, "cvt.rn.satfinite.e4m3x2.f32");
QATTN_SM90(QATTN_B8X2_F32, E4m3Relu, "cvt.rn.satfinite.relu.e4m3x2.f32");
QATTN_SM90(QATTN_B8X2_F32, E5m2, "cvt.rn.satfinite.e5m2x2.f32");
QATTN_SM90(QATTN_B8X2_F32, E5m2Relu, "cvt.rn.satfinite.relu.e5m2x2.f32");
QATTN_B32_F32(RniS8, "cvt.rni.s8.f32", 0xFF);
QATTN_B32_F32(RziS8, "cvt.rzi.s8.f32", 0xFF);
QATTN_B32_F32(RmiS8, "cvt.rmi.s8.f32", 0xFF);
QATTN_B32_F32(RpiS8, "cvt.rpi.s8.f32", 0xFF);

QATTN_F32_B16(F16ToF32, "cvt.f32.f16");
QATTN_SM90(QATTN_F32_B16, Bf16ToF32, "cvt.f32.bf16");
QATTN_SM90(QATTN_B16_B16, F16ToBf16, "cvt.rn.bf16.f16");
QATTN_SM90(QATTN_B16_B16, Bf16ToF16, "cvt.rn.f16.bf16");
QATTN_SM90(QATTN_B8X2_B16X2, E4m3F16, "cvt.rn.satfinite.e4m3x2.f16x2");
QATTN_SM90(QATTN_B8X2_B16X2, E4m3ReluF16, "cvt.rn.satfinite.relu.e4m3x2.f16x2");
QATTN_SM90(QATTN_B8X2_B16X2, E5m2F16, "cvt.rn.satfinite.e5m2x2.f16x2");
QATTN_SM90(QATTN_B8X2_B16X2, E5m2ReluF16, "cvt.rn.satfinite.relu.e5m2x2.f16x2");
QATTN_S8_B16(RniS8F16, "cvt.rni.s8.f16");
QATTN_S8_B16(RziS8F16, "cvt.rzi.s8.f16");
QATTN_S8_B16(RmiS8F16, "cvt.rmi.s8.f16");
QATTN_S8_B16(RpiS8F16, "cvt.rpi.s8.f16");
QATTN_SM90(QATTN_B16X2_B8X2, FromE4m3, "cvt.rn.f16x2.e4m3x2");
QATTN_SM90(QATTN_B16X2_B8X2, FromE4m3Relu, "cvt.rn.relu.f16x2.e4m3x2");
QATTN_SM90(QATTN_B16X2_B8X2, FromE5m2, "cvt.rn.f16x2.e5m2x2");
QATTN_SM90(QATTN_B16X2_B8X2, FromE5m2Relu, "cvt.rn.relu.f16x2.e5m2x2");
QATTN_F32_S32(RnF32S32, "cvt.rn.f32.s32");
QATTN_F32_S32(RzF32S32, "cvt.rz.f32.s32");

struct FromS8 {
  static __device__ uint32_t apply(uint32_t x) {
    float y;
    asm("cvt.rn.f32.s8 %0, %1;" : "=f"(y) : "r"(x));
    return __float_as_uint(y);
  }
};

/// FlashAttention-4's exp2 on the FMA units, the operations of flash_attn/cute/utils.py (ex2_emulation, degree 3), one
/// instruction each.
struct Fa4Poly {
  static __device__ uint32_t apply(uint32_t code) {
    const float round = 12582912.0f;  // 2^23 + 2^22
    float x, rounded;
    asm("max.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(__uint_as_float(code)), "f"(-127.0f));
    asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(rounded) : "f"(x), "f"(round));
    const float fraction = __fsub_rn(x, __fsub_rn(rounded, round));
    float p = 0.077119089663028717041015625f;
    p = __fmaf_rn(p, fraction, 0.227564394474029541015625f);
    p = __fmaf_rn(p, fraction, 0.695146143436431884765625f);
    p = __fmaf_rn(p, fraction, 1.0f);
    return (__float_as_uint(rounded) << 23) + __float_as_uint(p);
  }
};

template <class Function>
constexpr ScalarKernel entry(const char* name, int input_bits = 32, int least = 90, const char* model = nullptr) {
  return {name, model != nullptr ? model : name, input_bits, least, run_scalar<Function>};
}

constexpr ScalarKernel kKernels[] = {
    entry<Ex2Ftz>("ex2.approx.ftz.f32", 32, 80),
    entry<Ex2>("ex2.approx.f32", 32, 80),
    entry<Ex2F16>("ex2.approx.f16", 16, 80),
    entry<Ex2F16x2>("ex2.approx.f16x2", 16, 80, "ex2.approx.f16"),
    entry<Ex2Bf16>("ex2.approx.ftz.bf16", 16),
    entry<Ex2Bf16x2>("ex2.approx.ftz.bf16x2", 16, 90, "ex2.approx.ftz.bf16"),
    entry<RcpFtz>("rcp.approx.ftz.f32", 32, 80),
    entry<Rcp>("rcp.approx.f32", 32, 80),
    entry<RcpRn>("rcp.rn.f32", 32, 80),
    entry<Lg2Ftz>("lg2.approx.ftz.f32", 32, 80),
    entry<Lg2>("lg2.approx.f32", 32, 80),
    entry<RsqrtFtz>("rsqrt.approx.ftz.f32", 32, 80),
    entry<Rsqrt>("rsqrt.approx.f32", 32, 80),
    entry<SqrtFtz>("sqrt.approx.ftz.f32", 32, 80),
    entry<Sqrt>("sqrt.approx.f32", 32, 80),
    entry<Tanh>("tanh.approx.f32", 32, 80),
    entry<TanhF16>("tanh.approx.f16", 16, 80),
    entry<TanhF16x2>("tanh.approx.f16x2", 16, 80, "tanh.approx.f16"),
    entry<TanhBf16>("tanh.approx.bf16", 16),
    entry<TanhBf16x2>("tanh.approx.bf16x2", 16, 90, "tanh.approx.bf16"),
    entry<Fa4Poly>("fa4-poly", 32, 80),

    entry<RnF16>("cvt.rn.f16.f32", 32, 80),
    entry<RzF16>("cvt.rz.f16.f32", 32, 80),
    entry<RnReluF16>("cvt.rn.relu.f16.f32"),
    entry<RzReluF16>("cvt.rz.relu.f16.f32"),
    entry<RnSatF16>("cvt.rn.satfinite.f16.f32"),
    entry<RzSatF16>("cvt.rz.satfinite.f16.f32"),
    entry<RnReluSatF16>("cvt.rn.relu.satfinite.f16.f32"),
    entry<RzReluSatF16>("cvt.rz.relu.satfinite.f16.f32"),
    entry<RnF16x2>("cvt.rn.f16x2.f32", 32, 90, "cvt.rn.f16.f32"),
    entry<RnBf16>("cvt.rn.bf16.f32"),
    entry<RzBf16>("cvt.rz.bf16.f32"),
    entry<RnReluBf16>("cvt.rn.relu.bf16.f32"),
    entry<RzReluBf16>("cvt.rz.relu.bf16.f32"),
    entry<RnSatBf16>("cvt.rn.satfinite.bf16.f32"),
    entry<RzSatBf16>("cvt.rz.satfinite.bf16.f32"),
    entry<RnReluSatBf16>("cvt.rn.relu.satfinite.bf16.f32"),
    entry<RzReluSatBf16>("cvt.rz.relu.satfinite.bf16.f32"),
    entry<RnBf16x2>("cvt.rn.bf16x2.f32", 32, 90, "cvt.rn.bf16.f32"),
    entry<RnaTf32>("cvt.rna.tf32.f32", 32, 80),
    entry<RnaSatTf32>("cvt.rna.satfinite.tf32.f32"),
    entry<RnTf32>("cvt.rn.tf32.f32"),
    entry<RzTf32>("cvt.rz.tf32.f32"),
    entry<RnReluTf32>("cvt.rn.relu.tf32.f32"),
    entry<RzReluTf32>("cvt.rz.relu.tf32.f32"),
    entry<E4m3>("cvt.rn.satfinite.e4m3x2.f32"),
    entry<E4m3Relu>("cvt.rn.satfinite.relu.e4m3x2.f32"),
    entry<E5m2>("cvt.rn.satfinite.e5m2x2.f32"),
    entry<E5m2Relu>("cvt.rn.satfinite.relu.e5m2x2.f32"),
    entry<RniS8>("cvt.rni.s8.f32", 32, 80),
    entry<RziS8>("cvt.rzi.s8.f32", 32, 80),
    entry<RmiS8>("cvt.rmi.s8.f32", 32, 80),
    entry<RpiS8>("cvt.rpi.s8.f32", 32, 80),

    entry<F16ToF32>("cvt.f32.f16", 16, 80),
    entry<Bf16ToF32>("cvt.f32.bf16", 16),
    entry<F16ToBf16>("cvt.rn.bf16.f16", 16),
    entry<Bf16ToF16>("cvt.rn.f16.bf16", 16),
    entry<E4m3F16>("cvt.rn.satfinite.e4m3x2.f16x2", 16),
    entry<E4m3ReluF16>("cvt.rn.satfinite.relu.e4m3x2.f16x2", 16),
    entry<E5m2F16>("cvt.rn.satfinite.e5m2x2.f16x2", 16),
    entry<E5m2ReluF16>("cvt.rn.satfinite.relu.e5m2x2.f16x2", 16),
    entry<RniS8F16>("cvt.rni.s8.f16", 16, 80),
    entry<RziS8F16>("cvt.rzi.s8.f16", 16, 80),
    entry<RmiS8F16>("cvt.rmi.s8.f16", 16, 80),
    entry<RpiS8F16>("cvt.rpi.s8.f16", 16, 80),
    entry<FromE4m3>("cvt.rn.f16x2.e4m3x2", 8),
    entry<FromE4m3Relu>("cvt.rn.relu.f16x2.e4m3x2", 8),
    entry<FromE5m2>("cvt.rn.f16x2.e5m2x2", 8),
    entry<FromE5m2Relu>("cvt.rn.relu.f16x2.e5m2x2", 8),
    entry<FromS8>("cvt.rn.f32.s8", 8, 80),
    entry<RnF32S32>("cvt.rn.f32.s32", 32, 80),
    entry<RzF32S32>("cvt.rz.f32.s32", 32, 80),
};

}  // namespace

ScalarKernels scalar_ptx_kernels() { return {kKernels, static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]))}; }

}  // namespace qattn::gpu
