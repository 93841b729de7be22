// The arithmetic of operand preparation, one number at a time. Every rounding is an operation with a name: CUDA's
// intrinsics on the device, so that its compiler neither fuses nor approximates, plain operators on the host (built
// without contraction, under an FpEnvironment). Both give the bits of src/quant; the conversions are CUDA's own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>

namespace qattn::gpu {

// ---- operations, each rounded to nearest-even ----

__host__ __device__ inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

__host__ __device__ inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

__host__ __device__ inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// a b + c, rounded once.
__host__ __device__ inline float fused_multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

__host__ __device__ inline double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

__host__ __device__ inline double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

__host__ __device__ inline double divide(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

__host__ __device__ inline float to_float(double x) {
#ifdef __CUDA_ARCH__
  return __double2float_rn(x);
#else
  return static_cast<float>(x);
#endif
}

/// The nearest integer, ties to even.
__host__ __device__ inline int to_nearest_integer(float x) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(x);
#else
  return static_cast<int>(std::nearbyint(x));
#endif
}

/// x without its fraction.
__host__ __device__ inline int to_truncated_integer(float x) {
#ifdef __CUDA_ARCH__
  return __float2int_rz(x);
#else
  return static_cast<int>(x);
#endif
}

// ---- elements
// --------------------------------------------------------------------------------------------------------

/// What an element is stored as. INT4 has one byte to itself, the two's complement in its low four bits.
enum class ElementType : std::uint8_t { fp64, fp32, fp16, bf16, e4m3, e5m2, int8, int4 };

/// The exact value of element `index`.
__host__ __device__ inline double decode(ElementType type, const void* codes, std::int64_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(codes);
  const auto* words = static_cast<const std::uint16_t*>(codes);
  switch (type) {
    case ElementType::fp64:
      return static_cast<const double*>(codes)[index];
    case ElementType::fp32:
      return static_cast<double>(static_cast<const float*>(codes)[index]);
    case ElementType::fp16:
      return static_cast<double>(__half2float(__half(__half_raw{words[index]})));
    case ElementType::bf16:
      return static_cast<double>(__bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{words[index]})));
    case ElementType::e4m3:
      return static_cast<double>(__half2float(__half(__nv_cvt_fp8_to_halfraw(bytes[index], __NV_E4M3))));
    case ElementType::e5m2:
      return static_cast<double>(__half2float(__half(__nv_cvt_fp8_to_halfraw(bytes[index], __NV_E5M2))));
    case ElementType::int8:
      return static_cast<double>(static_cast<const std::int8_t*>(codes)[index]);
    case ElementType::int4:
      return static_cast<double>((bytes[index] ^ 8) - 8);
  }
  return 0.0;
}

/// How elements become codes.
struct Encoding {
  ElementType type;    ///< not fp64 and fp32
  bool half_away;      ///< integers: trunc(RN(y + copysign(0.5, y))), not to nearest-even
  float limit;         ///< integers: the largest magnitude, 127 or 7
  std::uint32_t mask;  ///< integers: the bits of a code
  std::uint32_t nan;   ///< the code of every NaN
};

/// The code of y: integers are clamped first, FP8 saturates (Inf too), FP16 and BF16 overflow to Inf.
__host__ __device__ inline std::uint32_t encode(const Encoding& encoding, float y) {
  if (y != y) return encoding.nan;
  switch (encoding.type) {
    case ElementType::int8:
    case ElementType::int4: {
      const float clamped = y < -encoding.limit ? -encoding.limit : (y > encoding.limit ? encoding.limit : y);
      const int integer = encoding.half_away ? to_truncated_integer(add(clamped, copysignf(0.5f, clamped)))
                                             : to_nearest_integer(clamped);
      return static_cast<std::uint32_t>(integer) & encoding.mask;
    }
    case ElementType::e4m3:
      return __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
    case ElementType::e5m2:
      return __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E5M2);
    case ElementType::fp16:
      return static_cast<__half_raw>(__float2half_rn(y)).x;
    case ElementType::bf16:
      return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(y)).x;
    case ElementType::fp64:
    case ElementType::fp32:
      break;
  }
  return encoding.nan;
}

/// x rounded once to FP32, FP16 or BF16.
__host__ __device__ inline float rounded(ElementType type, double x) {
  switch (type) {
    case ElementType::fp16:
      return __half2float(__double2half(x));
    case ElementType::bf16:
      return __bfloat162float(__double2bfloat16(x));
    default:
      return to_float(x);
  }
}

// ---- scales
// ----------------------------------------------------------------------------------------------------------

/// The rules of quant/scale.h that kernels with FP32 scales use.
enum class ScaleFormula : std::uint8_t { amax, reciprocal, triton_eps };

struct ScaleSpec {
  ScaleFormula formula;
  float range;    ///< the code magnitude that the largest element is mapped to
  float zero;     ///< what replaces a scale of zero
  bool multiply;  ///< elements are multiplied by RN(1 / scale), not divided by the scale
};

/// The scale of a group whose largest magnitude is `amax`.
__host__ __device__ inline float scale_of(const ScaleSpec& spec, float amax) {
  float scale = 0.0f;
  switch (spec.formula) {
    case ScaleFormula::amax:
      scale = divide(amax, spec.range);
      break;
    case ScaleFormula::reciprocal:
      scale = multiply(amax, divide(1.0f, spec.range));
      break;
    case ScaleFormula::triton_eps:
      scale = fused_multiply_add(amax, divide(1.0f, spec.range), 1e-7f);
      break;
  }
  return scale == 0.0f ? spec.zero : scale;
}

/// What an element of a group with this scale is divided by, or multiplied with.
__host__ __device__ inline float factor_of(const ScaleSpec& spec, float scale) {
  return spec.multiply ? divide(1.0f, scale) : scale;
}

__host__ __device__ inline float scaled(bool by_multiplication, float x, float factor) {
  return by_multiplication ? multiply(x, factor) : divide(x, factor);
}

}  // namespace qattn::gpu
