// FlashAttention-4's exp2 of one code, for the CPU and for the GPU; ptx.h says what it computes. The additions must not
// be contracted (-ffp-contract=off, nvcc: -fmad=false).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "scalar/constants.h"

namespace qattn::scalar::detail {

/// a + b rounded down, for a positive sum: the rounding error of the nearest sum tells its side.
QATTN_HOST_DEVICE inline float add_round_down(float a, float b) {
  const float sum = a + b;
  const float b_part = sum - a;
  const float error = (a - (sum - b_part)) + (b - b_part);
  return error < 0.0f ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) - 1) : sum;
}

QATTN_HOST_DEVICE inline std::uint32_t fa4_exp2(std::uint32_t code) {
  constexpr float c3 = constants::kFa4Polynomial[0], c2 = constants::kFa4Polynomial[1],
                  c1 = constants::kFa4Polynomial[2], c0 = constants::kFa4Polynomial[3];
  const bool subnormal = (code & 0x7F800000) == 0;
  const float x = subnormal ? 0.0f : std::bit_cast<float>(code);
  const float clamped = x > -127.0f ? x : -127.0f;  // max of PTX: NaN gives the other operand
  const float rounded = add_round_down(clamped, constants::kFa4Round);
  const float fraction = clamped - (rounded - constants::kFa4Round);
  const float power = std::fma(std::fma(std::fma(c3, fraction, c2), fraction, c1), fraction, c0);
  const auto bits = std::bit_cast<std::uint32_t>(power);
  const std::uint32_t canonical = power != power ? 0x7FFFFFFF : bits;
  return (std::bit_cast<std::uint32_t>(rounded) << 23) + canonical;
}

}  // namespace qattn::scalar::detail
