// The steps, compiled once for each target.
#include "kernels/softmax_steps.h"

#include <cmath>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_steps.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks for.
#include <hwy/highway.h>

#include "scalar/function_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = scalar::HWY_NAMESPACE;

using Tag = hn::RebindToFloat<lanes::FmaTag>;

void run_fma_row(std::size_t n, const float* x, const float* gain, float shift, float* y) {
  const Tag d;
  const std::size_t step = hn::Lanes(d);
  const auto c = hn::Set(d, shift);
  std::size_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(lanes::fma(hn::LoadU(d, x + i), hn::LoadU(d, gain + i), c), d, y + i);
  for (; i < n; ++i) y[i] = std::fma(x[i], gain[i], shift);
}

void run_rescale_add(std::size_t n, float* sum, float factor, const float* x) {
  const Tag d;
  const std::size_t step = hn::Lanes(d);
  const auto a = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(lanes::fma(hn::LoadU(d, sum + i), a, hn::LoadU(d, x + i)), d, sum + i);
  for (; i < n; ++i) sum[i] = std::fma(sum[i], factor, x[i]);
}

}  // namespace
}  // namespace qattn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qattn::kernels {

HWY_EXPORT(run_fma_row);
HWY_EXPORT(run_rescale_add);

void fma_row(std::span<const float> x, std::span<const float> gain, float shift, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(run_fma_row)(x.size(), x.data(), gain.data(), shift, y.data());
}

void rescale_add(std::span<float> sum, float factor, std::span<const float> x) {
  HWY_DYNAMIC_DISPATCH(run_rescale_add)(sum.size(), sum.data(), factor, x.data());
}

void rescale(std::span<float> sum, float factor) {
  for (float& value : sum) value *= factor;
}

}  // namespace qattn::kernels
#endif
