// Changes of the basis of Q and K on the device (quant/rotate.h); as quantize.h.
#pragma once

#include <cstdint>

#include "attention/quantize.h"

namespace qattn::gpu {

/// Each row times D H / sqrt(columns), the random-sign Hadamard rotation: butterflies in f64, times `factor`
/// (quant::rotation_factor), rounded once to f32. At most 4096 columns, a power of two.
int rotate_rows(const DeviceMatrix& x, std::uint64_t seed, double factor);

/// SmoothQuant's factors for alpha = 1/2 from the bits of the channels' largest magnitudes: RN(sqrt(RN(q / k))) in f64,
/// rounded to f32; 1 where one of the two is zero or not finite.
int find_balance(const std::uint32_t* q_amax, const std::uint32_t* k_amax, std::int64_t channels, float* factors);

/// x = RN(x / factor of its channel), and RN(x * factor).
int divide_channels(const DeviceMatrix& x, const float* factors);
int multiply_channels(const DeviceMatrix& x, const float* factors);

}  // namespace qattn::gpu
