// Steps of an online softmax over rows of f32, by SIMD with run-time dispatch (Highway).
//
// Every fma rounds once on every target. The caller holds a FpEnvironment; spans have the same length.
#pragma once

#include <span>

namespace qattn::kernels {

/// y = fma(x, gain, shift), element by element.
void fma_row(std::span<const float> x, std::span<const float> gain, float shift, std::span<float> y);

/// sum = fma(sum, factor, x): an accumulator that is rescaled and added to in one operation.
void rescale_add(std::span<float> sum, float factor, std::span<const float> x);

/// sum = RN(sum * factor).
void rescale(std::span<float> sum, float factor);

}  // namespace qattn::kernels
