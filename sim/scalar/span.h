// The functions over spans of floats, by SIMD with run-time dispatch (Highway): what the attention pipeline calls.
//
// Every one gives the bits of its plain form (scalar/mufu.h, scalar/ptx.h) on every SIMD target and holds a
// FpEnvironment of its own. x and y have the same length (else Error(internal)) and may be the same memory.
#pragma once

#include <span>

namespace qattn::scalar {

void ex2_approx_ftz(std::span<const float> x, std::span<float> y);
void rcp_approx_ftz(std::span<const float> x, std::span<float> y);

}  // namespace qattn::scalar
