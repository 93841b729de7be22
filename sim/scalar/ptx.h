// Functions that are more than one instruction: PTX's forms without .ftz, CUDA 13.0's math functions as nvcc builds
// them, and FlashAttention-4's software exp2. Plain forms, on binary32 codes.
//
// The operations are those of the SASS that nvcc 13.0 emits for sm_90a; each rounds once, to nearest-even unless said
// otherwise. All agree with an H200 on all 2^32 inputs (digests: data/vectors/scalar_digests.h5) but for those marked
// as not measured. A NaN result is always 0x7FFFFFFF. Every function holds a FpEnvironment: the caller's rounding mode
// and flush-to-zero flags do not matter.
#pragma once

#include <cstdint>

namespace qattn::scalar {

/// ex2.approx.f32: EX2(x); below -126 the square of EX2(x/2), so that subnormal results exist.
std::uint32_t ex2_approx(std::uint32_t x);
/// rcp.approx.f32: k RCP(k x), k = 1/4 above 2^126 and 2^24 below 2^-126, so that subnormals are kept.
std::uint32_t rcp_approx(std::uint32_t x);
/// lg2.approx.f32: LG2(x), of subnormals LG2(2^24 x) - 24.
std::uint32_t lg2_approx(std::uint32_t x);
/// rsqrt.approx.f32: RSQ(x), of subnormals 2^12 RSQ(2^24 x).
std::uint32_t rsqrt_approx(std::uint32_t x);
/// sqrt.approx.f32: SQRT(x), of subnormals 2^-12 SQRT(2^24 x).
std::uint32_t sqrt_approx(std::uint32_t x);
/// rcp.rn.f32: IEEE 754's 1/x, subnormals kept.
std::uint32_t rcp_rn(std::uint32_t x);

/// FlashAttention-4's exp2 on the FMA units (arXiv 2603.05451; flash_attn/cute/utils.py, ex2_emulation, degree 3):
/// clamp at -127, split at the floor by a rounded-down addition of 2^23 + 2^22, cubic by Horner in fma, and the floor
/// added to the exponent field as an integer. Inputs above 127 are outside its contract: 128 gives Inf, above it the
/// integer addition wraps. Below -126 the exponent field runs out: the result is no subnormal of the right value.
/// NaN gives 0. Subnormal inputs are flushed. The published operations, executed one by one on an H200, agree.
std::uint32_t ex2_fa4_poly(std::uint32_t x);

/// cvt.rz.f32.s32, CUDA's __int2float_rz: a signed 32-bit integer, truncated to 24 significant bits.
std::uint32_t int2float_rz(std::uint32_t x);
/// cvt.rn.f32.s32, CUDA's __int2float_rn.
std::uint32_t int2float_rn(std::uint32_t x);

/// CUDA's functions as built without fast-math. exp2f is ex2.approx.f32.
namespace cuda {
/// __expf: ex2.approx(RN(x log2(e))).
std::uint32_t fast_expf(std::uint32_t x);
std::uint32_t expf(std::uint32_t x);
std::uint32_t logf(std::uint32_t x);
std::uint32_t log2f(std::uint32_t x);
std::uint32_t tanhf(std::uint32_t x);
/// __fdividef(x, y), PTX's div.approx.f32: x RCP(y), both scaled by 2^24 when |y| < 2^-126. Measured on
/// 10^8 random pairs.
std::uint32_t fdividef(std::uint32_t x, std::uint32_t y);
}  // namespace cuda

/// The same with --use_fast_math: MUFU with multiplications that flush subnormals (FTZ) around it. exp2f is EX2, log2f
/// LG2, tanhf MUFU.TANH.
namespace cuda_fast {
/// expf and __expf: EX2(x log2(e)).
std::uint32_t expf(std::uint32_t x);
/// LG2(x) ln(2).
std::uint32_t logf(std::uint32_t x);
/// __fdividef(x, y), PTX's div.approx.ftz.f32: x RCP(y). Measured on 10^8 random pairs.
std::uint32_t fdividef(std::uint32_t x, std::uint32_t y);
}  // namespace cuda_fast

/// What these hand to MUFU first, for those who ask which segment of its table was used.
std::uint32_t ex2_approx_argument(std::uint32_t x);
std::uint32_t rcp_approx_argument(std::uint32_t x);
std::uint32_t lift_subnormal_argument(std::uint32_t x);  ///< lg2, rsqrt, sqrt: 2^24 x when x is subnormal
std::uint32_t expf_argument(std::uint32_t x);
std::uint32_t fast_expf_argument(std::uint32_t x);

}  // namespace qattn::scalar
