#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "scalar/span.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks for.
#include "base/error.h"
#include "base/fp_environment.h"
#include <hwy/highway.h>
#include "scalar/cast_lanes-inl.h"
#include "scalar/function_lanes-inl.h"
#include "scalar/span.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::scalar {
namespace HWY_NAMESPACE {

// The tag that a kernel runs on: its own, or whole vectors.
template <class Kernel>
struct TagOf {
  using type = hn::ScalableTag<std::int32_t>;
};
template <class Kernel>
requires requires { typename Kernel::Tag; }
struct TagOf<Kernel> {
  using type = typename Kernel::Tag;
};

// y[i] = kernel(x[i]...); the last, partial vector goes through padded copies.
template <class Kernel, class T, class... X>
HWY_INLINE void transform(const Kernel& kernel, std::size_t count, T* y, const X*... x) {
  const typename TagOf<Kernel>::type d;
  const hn::Rebind<T, decltype(d)> dt;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::BitCast(dt, kernel(d, hn::BitCast(d, hn::LoadU(dt, x + i))...)), dt, y + i);
  }
  if (i == count) return;
  const auto tail = [&](const T* from) {
    HWY_ALIGN T padded[hn::MaxLanes(d)] = {};
    for (std::size_t k = i; k < count; ++k) padded[k - i] = from[k];
    return hn::BitCast(d, hn::Load(dt, padded));
  };
  HWY_ALIGN T result[hn::MaxLanes(d)];
  hn::Store(hn::BitCast(dt, kernel(d, tail(x)...)), dt, result);
  for (std::size_t k = i; k < count; ++k) y[k] = result[k - i];
}

struct FdividefLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x, Codes<D> y) const {
    const auto tiny = is_tiny(d, y);
    const auto reciprocal = RcpLanes()(d, scale_if(d, tiny, y, 0x1p24f));
    return canonical(d, hn::Mul(as_floats(d, reciprocal), as_floats(d, scale_if(d, tiny, x, 0x1p24f))));
  }
};

struct FdividefFastMathLanes {
  template <class D>
  static HWY_INLINE Codes<D> flush(D d, Codes<D> v) {
    return hn::IfThenElse(is_tiny(d, v), sign_of(d, v), v);
  }
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x, Codes<D> y) const {
    const auto reciprocal = as_floats(d, RcpLanes()(d, y));
    return flush(d, canonical(d, hn::Mul(as_floats(d, flush(d, x)), reciprocal)));
  }
};

using In = const std::uint32_t*;
using Out = std::uint32_t*;

void run_function(SimdFunction function, std::size_t n, In x, Out y) {
  switch (function) {
    case SimdFunction::mufu_ex2:
      return transform(Ex2Lanes(), n, y, x);
    case SimdFunction::mufu_rcp:
      return transform(RcpLanes(), n, y, x);
    case SimdFunction::mufu_lg2:
      return transform(Lg2Lanes(), n, y, x);
    case SimdFunction::mufu_rsqrt:
      return transform(RsqrtLanes(), n, y, x);
    case SimdFunction::mufu_sqrt:
      return transform(SqrtLanes(), n, y, x);
    case SimdFunction::mufu_tanh:
      return transform(TanhLanes(), n, y, x);
    case SimdFunction::ex2_approx:
      return transform(Ex2ApproxLanes(), n, y, x);
    case SimdFunction::rcp_approx:
      return transform(RcpApproxLanes(), n, y, x);
    case SimdFunction::lg2_approx:
      return transform(Lg2ApproxLanes(), n, y, x);
    case SimdFunction::rsqrt_approx:
      return transform(RsqrtApproxLanes(), n, y, x);
    case SimdFunction::sqrt_approx:
      return transform(SqrtApproxLanes(), n, y, x);
    case SimdFunction::rcp_rn:
      return transform(RcpRnLanes(), n, y, x);
    case SimdFunction::ex2_fa4_poly:
      return transform(Fa4PolyLanes(), n, y, x);
    case SimdFunction::int2float_rz:
      return transform(Int2FloatRzLanes(), n, y, x);
    case SimdFunction::int2float_rn:
      return transform(Int2FloatRnLanes(), n, y, x);
    case SimdFunction::cuda_fast_expf:
      return transform(FastExpfLanes(), n, y, x);
    case SimdFunction::cuda_expf:
      return transform(ExpfLanes(), n, y, x);
    case SimdFunction::cuda_logf:
      return transform(LogfLanes(), n, y, x);
    case SimdFunction::cuda_log2f:
      return transform(Log2fLanes(), n, y, x);
    case SimdFunction::cuda_tanhf:
      return transform(TanhfLanes(), n, y, x);
    case SimdFunction::fast_math_expf:
      return transform(ExpfFastMathLanes(), n, y, x);
    case SimdFunction::fast_math_logf:
      return transform(LogfFastMathLanes(), n, y, x);
    case SimdFunction::cast_rna_tf32:
      return transform(RnaTf32Lanes(), n, y, x);
    case SimdFunction::cast_rna_satfinite_tf32:
      return transform(RnaSatfiniteTf32Lanes(), n, y, x);
  }
}

void run_ex2(std::size_t n, const float* x, float* y) { transform(Ex2Lanes(), n, y, x); }
void run_rcp(std::size_t n, const float* x, float* y) { transform(RcpLanes(), n, y, x); }
void run_fa4(std::size_t n, const float* x, float* y) { transform(Fa4PolyLanes(), n, y, x); }
void run_cast(const CastSpec& spec, std::size_t n, In x, Out y) { transform(CastLanes{spec}, n, y, x); }
void run_s8(IntegerRounding rounding, std::size_t n, In x, Out y) { transform(S8Lanes{rounding}, n, y, x); }
void run_ue8m0(bool up, bool satfinite, std::size_t n, In x, Out y) { transform(Ue8m0Lanes{up, satfinite}, n, y, x); }
void run_fdividef(std::size_t n, In x, In y, Out z) { transform(FdividefLanes(), n, z, x, y); }
void run_fdividef_fast_math(std::size_t n, In x, In y, Out z) { transform(FdividefFastMathLanes(), n, z, x, y); }
std::string_view run_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace qattn::scalar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qattn::scalar {

HWY_EXPORT(run_function);
HWY_EXPORT(run_ex2);
HWY_EXPORT(run_rcp);
HWY_EXPORT(run_fa4);
HWY_EXPORT(run_cast);
HWY_EXPORT(run_s8);
HWY_EXPORT(run_ue8m0);
HWY_EXPORT(run_fdividef);
HWY_EXPORT(run_fdividef_fast_math);
HWY_EXPORT(run_target);

namespace {
void check_lengths(std::size_t x, std::size_t y) {
  if (x != y) throw Error(ErrorKind::internal, "scalar: input and output spans differ in length");
}
}  // namespace

void ex2_approx_ftz(std::span<const float> x, std::span<float> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_ex2)(x.size(), x.data(), y.data());
}

void rcp_approx_ftz(std::span<const float> x, std::span<float> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_rcp)(x.size(), x.data(), y.data());
}

void ex2_fa4_poly(std::span<const float> x, std::span<float> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_fa4)(x.size(), x.data(), y.data());
}

void apply(SimdFunction function, Codes32 x, std::span<std::uint32_t> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_function)(function, x.size(), x.data(), y.data());
}

void apply(const CastSpec& spec, Codes32 x, std::span<std::uint32_t> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_cast)(spec, x.size(), x.data(), y.data());
}

void apply(IntegerRounding rounding, Codes32 x, std::span<std::uint32_t> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_s8)(rounding, x.size(), x.data(), y.data());
}

void apply_ue8m0(bool round_up, bool satfinite, Codes32 x, std::span<std::uint32_t> y) {
  check_lengths(x.size(), y.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_ue8m0)(round_up, satfinite, x.size(), x.data(), y.data());
}

void fdividef(Codes32 x, Codes32 y, std::span<std::uint32_t> quotient) {
  check_lengths(x.size(), y.size());
  check_lengths(x.size(), quotient.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_fdividef)(x.size(), x.data(), y.data(), quotient.data());
}

void fdividef_fast_math(Codes32 x, Codes32 y, std::span<std::uint32_t> quotient) {
  check_lengths(x.size(), y.size());
  check_lengths(x.size(), quotient.size());
  const FpEnvironment environment;
  HWY_DYNAMIC_DISPATCH(run_fdividef_fast_math)(x.size(), x.data(), y.data(), quotient.data());
}

std::string_view simd_target() { return HWY_DYNAMIC_DISPATCH(run_target)(); }

}  // namespace qattn::scalar
#endif  // HWY_ONCE
