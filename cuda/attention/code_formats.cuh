// Formats that kernels make codes of: to nearest-even and back. The roundings are the instructions' own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "device_operands.h"

namespace qattn::gpu {

/// Each has the type of a code, encode() (FP8 and INT8 saturate, FP16 and BF16 overflow to Inf) and decode().
struct E4m3 {
  using Code = std::uint8_t;
  static __device__ Code encode(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
  static __device__ float decode(Code code) { return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)); }
};

struct Int8 {
  using Code = std::uint8_t;
  static __device__ Code encode(float x) {
    const int rounded = __float2int_rn(x);  // NaN: 0
    return static_cast<Code>(rounded < -128 ? -128 : rounded > 127 ? 127 : rounded);
  }
  static __device__ float decode(Code code) { return static_cast<float>(static_cast<std::int8_t>(code)); }
};

struct Fp16 {
  using Code = std::uint16_t;
  static __device__ Code encode(float x) { return __half_as_ushort(__float2half_rn(x)); }
  static __device__ float decode(Code code) { return __half2float(__ushort_as_half(code)); }
};

struct Bf16 {
  using Code = std::uint16_t;
  static __device__ Code encode(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
  static __device__ float decode(Code code) { return __bfloat162float(__ushort_as_bfloat16(code)); }
};

inline __device__ float rounded(FloatFormat format, float x) {
  switch (format) {
    case FloatFormat::fp16:
      return Fp16::decode(Fp16::encode(x));
    case FloatFormat::bf16:
      return Bf16::decode(Bf16::encode(x));
    default:
      return x;
  }
}

}  // namespace qattn::gpu
