#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "scalar/span.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks for.
#include "base/error.h"
#include "base/fp_environment.h"
#include "hwy/highway.h"
#include "scalar/lanes-inl.h"
#include "scalar/span.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::scalar {
namespace HWY_NAMESPACE {

// y[i] = kernel(x[i]); the last, partial vector goes through a padded copy.
template <class Kernel, class T>
HWY_INLINE void transform(const T* HWY_RESTRICT x, T* y, std::size_t count) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::Rebind<T, decltype(d)> dt;
  const Kernel kernel;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::BitCast(dt, kernel(d, hn::BitCast(d, hn::LoadU(dt, x + i)))), dt, y + i);
  }
  if (i == count) return;
  HWY_ALIGN T padded[hn::MaxLanes(d)] = {};
  for (std::size_t k = i; k < count; ++k) padded[k - i] = x[k];
  hn::Store(hn::BitCast(dt, kernel(d, hn::BitCast(d, hn::Load(dt, padded)))), dt, padded);
  for (std::size_t k = i; k < count; ++k) y[k] = padded[k - i];
}

void ex2_span(const float* x, float* y, std::size_t n) { transform<Ex2Lanes>(x, y, n); }
void rcp_span(const float* x, float* y, std::size_t n) { transform<RcpLanes>(x, y, n); }

}  // namespace HWY_NAMESPACE
}  // namespace qattn::scalar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qattn::scalar {

HWY_EXPORT(ex2_span);
HWY_EXPORT(rcp_span);

namespace {
void check_lengths(std::size_t x, std::size_t y) {
  if (x != y) throw Error(ErrorKind::internal, "scalar: input and output spans differ in length");
}
}  // namespace

void ex2_approx_ftz(std::span<const float> x, std::span<float> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(ex2_span)(x.data(), y.data(), x.size());
}

void rcp_approx_ftz(std::span<const float> x, std::span<float> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(rcp_span)(x.data(), y.data(), x.size());
}

}  // namespace qattn::scalar
#endif  // HWY_ONCE
