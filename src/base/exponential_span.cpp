// exp and exp2 over spans; elementary.cpp has the plain twins, operation for operation.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/exponential_span.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <iterator>

#include "base/elementary.h"
#include "base/exponential_constants.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::elementary::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;

HWY_INLINE V bounded(V x, double bound) {
  const D d;
  // Comparisons, not Min and Max: a NaN stays.
  x = hn::IfThenElse(hn::Lt(x, hn::Set(d, -bound)), hn::Set(d, -bound), x);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, bound)), hn::Set(d, bound), x);
}

HWY_INLINE V nearest_integer(V x) {
  const auto shifter = hn::Set(D(), kRoundToInteger);
  return hn::Sub(hn::Add(x, shifter), shifter);
}

HWY_INLINE V power_of_two(V k) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto placed = hn::BitCast(du, hn::Add(k, hn::Set(d, kRoundToInteger + 1023.0)));
  return hn::BitCast(d, hn::ShiftLeft<52>(placed));
}

HWY_INLINE V scaled_exp(V high, V low, V k) {
  const D d;
  const auto r = hn::Sub(high, low);
  auto q = hn::Set(d, kExpPolynomial[0]);
  for (std::size_t i = 1; i < std::size(kExpPolynomial); ++i) {
    q = hn::Add(hn::Mul(q, r), hn::Set(d, kExpPolynomial[i]));
  }
  const auto correction = hn::Sub(hn::Mul(hn::Mul(r, r), q), low);
  const auto mantissa = hn::Add(hn::Set(d, 1.0), hn::Add(high, correction));
  const auto half_k = nearest_integer(hn::Mul(k, hn::Set(d, 0.5)));
  return hn::Mul(hn::Mul(mantissa, power_of_two(half_k)), power_of_two(hn::Sub(k, half_k)));
}

HWY_INLINE V exp_lanes(V x) {
  const D d;
  const auto argument = bounded(x, kExpBound);
  const auto k = nearest_integer(hn::Mul(argument, hn::Set(d, kLog2E)));
  return scaled_exp(hn::Sub(argument, hn::Mul(k, hn::Set(d, kLn2High))), hn::Mul(k, hn::Set(d, kLn2Low)), k);
}

HWY_INLINE V exp2_lanes(V x) {
  const D d;
  const auto argument = bounded(x, kExp2Bound);
  const auto k = nearest_integer(argument);
  const auto f = hn::Sub(argument, k);
  const auto shifter = hn::Set(d, kUpperHalf);
  const auto f_high = hn::Sub(hn::Add(f, shifter), shifter);
  const auto f_low = hn::Sub(f, f_high);
  const auto low = hn::Add(hn::Mul(f_high, hn::Set(d, kLn2Low26)), hn::Mul(f_low, hn::Set(d, kLn2)));
  return scaled_exp(hn::Mul(f_high, hn::Set(d, kLn2High26)), hn::Neg(low), k);
}

#endif  // HWY_TARGET != HWY_SCALAR

void exp_span(const double* x, double* y, std::size_t n) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(exp_lanes(hn::LoadU(d, x + i)), d, y + i);
#endif
  for (; i < n; ++i) y[i] = exp(x[i]);
}

void exp2_span(const double* x, double* y, std::size_t n) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(exp2_lanes(hn::LoadU(d, x + i)), d, y + i);
#endif
  for (; i < n; ++i) y[i] = exp2(x[i]);
}

void exp2_float_span(const float* x, float* y, std::size_t n) {
  std::size_t i = 0;
// Highway 1.0's emulation narrows what overflows to the largest float instead of infinity.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  const D d;
  const hn::Rebind<float, D> df;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::StoreU(hn::DemoteTo(df, exp2_lanes(hn::PromoteTo(d, hn::LoadU(df, x + i)))), df, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = exp2_float(x[i]);
}

}  // namespace qattn::elementary::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/error.h"

namespace qattn::elementary {
namespace {

HWY_EXPORT(exp_span);
HWY_EXPORT(exp2_span);
HWY_EXPORT(exp2_float_span);

template <class T>
void check_lengths(std::span<const T> x, std::span<T> y) {
  if (x.size() != y.size()) throw Error(ErrorKind::internal, "elementary: spans differ in length");
}

}  // namespace

void exp(std::span<const double> x, std::span<double> y) {
  check_lengths(x, y);
  HWY_DYNAMIC_DISPATCH(exp_span)(x.data(), y.data(), x.size());
}

void exp2(std::span<const double> x, std::span<double> y) {
  check_lengths(x, y);
  HWY_DYNAMIC_DISPATCH(exp2_span)(x.data(), y.data(), x.size());
}

void exp2_float(std::span<const float> x, std::span<float> y) {
  check_lengths(x, y);
  HWY_DYNAMIC_DISPATCH(exp2_float_span)(x.data(), y.data(), x.size());
}

}  // namespace qattn::elementary
#endif  // HWY_ONCE
