// The functions over spans, by SIMD with run-time dispatch (Highway).
//
// Every form here gives the bits of its plain form (scalar/mufu.h, scalar/ptx.h, scalar/cast.h) on every SIMD target
// and holds a FpEnvironment of its own. Input and output have the same length (else Error(internal)) and may be the
// same memory, but must not overlap otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "scalar/cast.h"

namespace qattn::scalar {

/// What the attention pipeline calls: MUFU's 2^x and 1/x, and FlashAttention-4's software 2^x.
void ex2_approx_ftz(std::span<const float> x, std::span<float> y);
void rcp_approx_ftz(std::span<const float> x, std::span<float> y);
void ex2_fa4_poly(std::span<const float> x, std::span<float> y);

/// Functions with a SIMD form, by the name of their plain form.
enum class SimdFunction : std::uint8_t {
  mufu_ex2,
  mufu_rcp,
  mufu_lg2,
  mufu_rsqrt,
  mufu_sqrt,
  mufu_tanh,
  ex2_approx,
  rcp_approx,
  lg2_approx,
  rsqrt_approx,
  sqrt_approx,
  rcp_rn,
  ex2_fa4_poly,
  int2float_rz,
  int2float_rn,
  cuda_fast_expf,  ///< __expf
  cuda_expf,
  cuda_logf,
  cuda_log2f,
  cuda_tanhf,
  fast_math_expf,
  fast_math_logf,
  cast_rna_tf32,
  cast_rna_satfinite_tf32,
};

using Codes32 = std::span<const std::uint32_t>;

void apply(SimdFunction function, Codes32 x, std::span<std::uint32_t> y);
void apply(const CastSpec& spec, Codes32 x, std::span<std::uint32_t> y);
void apply(IntegerRounding rounding, Codes32 x, std::span<std::uint32_t> y);             ///< cast_s8()
void apply_ue8m0(bool round_up, bool satfinite, Codes32 x, std::span<std::uint32_t> y);  ///< cast_ue8m0()

/// __fdividef of corresponding elements, without and with fast-math.
void fdividef(Codes32 x, Codes32 y, std::span<std::uint32_t> quotient);
void fdividef_fast_math(Codes32 x, Codes32 y, std::span<std::uint32_t> quotient);

/// The SIMD target that these forms run on here, by Highway's name ("AVX2", ...). For provenance only: no result
/// depends on it.
std::string_view simd_target();

}  // namespace qattn::scalar
