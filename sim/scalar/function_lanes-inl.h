// The functions of scalar/ptx.h over SIMD lanes; included once a Highway target (so it has no #pragma once).
#if defined(QATTN_SCALAR_FUNCTION_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QATTN_SCALAR_FUNCTION_LANES_INL_H
#undef QATTN_SCALAR_FUNCTION_LANES_INL_H
#else
#define QATTN_SCALAR_FUNCTION_LANES_INL_H
#endif

#include <hwy/highway.h>
#include "scalar/constants.h"
#include "scalar/mufu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::scalar {
namespace HWY_NAMESPACE {

template <class D>
using Floats = hn::Vec<hn::RebindToFloat<D>>;

template <class D>
HWY_INLINE Floats<D> as_floats(D, Codes<D> x) {
  return hn::BitCast(hn::RebindToFloat<D>(), x);
}

template <class D>
HWY_INLINE Floats<D> constant(D, float value) {
  return hn::Set(hn::RebindToFloat<D>(), value);
}

template <class D>
HWY_INLINE Codes<D> canonical(D d, Floats<D> y) {
  const auto bits = hn::BitCast(d, y);
  return hn::IfThenElse(is_nan(d, bits), hn::Set(d, kNaNLane), bits);
}

template <class D>
HWY_INLINE hn::Mask<D> is_tiny(D d, Codes<D> x) {
  return hn::Eq(hn::And(x, hn::Set(d, kInfLane)), hn::Zero(d));
}

template <class D>
HWY_INLINE Codes<D> scale_if(D d, hn::Mask<D> condition, Codes<D> x, float factor) {
  const auto scaled = hn::BitCast(d, hn::Mul(as_floats(d, x), constant(d, factor)));
  return hn::IfThenElse(condition, scaled, x);
}

// a b + c, rounded once. Where the target has no such instruction, in doubles: the product is exact there, the sum is
// rounded to odd (its error, from a two-sum, decides the last bit), and 53 bits then leave the final rounding correct.
#if HWY_NATIVE_FMA
using FmaTag = hn::ScalableTag<std::int32_t>;

template <class V>
HWY_INLINE V fma(V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
#else
using FmaTag = NarrowTag;

template <class V>
HWY_INLINE V fma(V a, V b, V c) {
  const hn::ScalableTag<double> dd;
  const hn::RebindToSigned<decltype(dd)> di;
  const hn::Rebind<float, decltype(dd)> df;
  const auto product = hn::Mul(hn::PromoteTo(dd, a), hn::PromoteTo(dd, b)), addend = hn::PromoteTo(dd, c);
  const auto sum = hn::Add(product, addend);
  const auto part = hn::Sub(sum, product);
  const auto error = hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(addend, part));
  const auto bits = hn::BitCast(di, sum);
  const auto one = hn::Set(di, 1);
  // An inexact even sum moves one unit toward the exact one: up in magnitude if the error has the sum's sign.
  const auto inexact = hn::Or(hn::Lt(error, hn::Zero(dd)), hn::Gt(error, hn::Zero(dd)));
  const auto even = hn::Eq(hn::And(bits, one), hn::Zero(di));
  const auto opposed = hn::ShiftRight<63>(hn::Xor(bits, hn::BitCast(di, error)));  // -1 if the signs differ, else 0
  const auto step = hn::Or(hn::Add(opposed, opposed), one);                        // -1 or 1
  const auto moved = hn::IfThenElseZero(hn::And(hn::RebindMask(di, inexact), even), step);
  return hn::DemoteTo(df, hn::BitCast(dd, hn::Add(bits, moved)));
}
#endif

template <class D, std::size_t n>
HWY_INLINE Floats<D> polynomial(D d, const std::array<float, n>& coefficients, Floats<D> x) {
  auto p = constant(d, coefficients[0]);
  for (std::size_t i = 1; i < n; ++i) p = fma(p, x, constant(d, coefficients[i]));
  return p;
}

struct Ex2ApproxLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto low = hn::RebindMask(d, hn::Lt(as_floats(d, x), constant(d, -126.0f)));
    const auto y = as_floats(d, Ex2Lanes()(d, scale_if(d, low, x, 0.5f)));
    return canonical(d, hn::IfThenElse(hn::RebindMask(hn::RebindToFloat<D>(), low), hn::Mul(y, y), y));
  }
};

struct RcpApproxLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto large = hn::Gt(magnitude_of(d, x), hn::Set(d, 0x7E800000));  // 2^126
    auto k = hn::IfThenElse(large, hn::Set(d, 0x3E800000), hn::Set(d, 0x3F800000));
    k = hn::IfThenElse(is_tiny(d, x), hn::Set(d, 0x4B800000), k);  // 1/4, 1, 2^24
    const auto factor = as_floats(d, k);
    const auto y = RcpLanes()(d, hn::BitCast(d, hn::Mul(as_floats(d, x), factor)));
    return canonical(d, hn::Mul(as_floats(d, y), factor));
  }
};

struct Lg2ApproxLanes {
  using Tag = NarrowTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    const auto tiny = is_tiny(d, x);
    const auto y = Lg2Lanes()(d, scale_if(d, tiny, x, 0x1p24f));
    const auto shifted = canonical(d, hn::Sub(as_floats(d, y), constant(d, 24.0f)));
    return hn::IfThenElse(tiny, shifted, y);
  }
};

struct RsqrtApproxLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto tiny = is_tiny(d, x);
    const auto y = RsqrtLanes()(d, scale_if(d, tiny, x, 0x1p24f));
    return canonical(d, as_floats(d, scale_if(d, tiny, y, 0x1p12f)));
  }
};

struct SqrtApproxLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto tiny = is_tiny(d, x);
    const auto y = SqrtLanes()(d, scale_if(d, tiny, x, 0x1p24f));
    return canonical(d, as_floats(d, scale_if(d, tiny, y, 0x1p-12f)));
  }
};

struct RcpRnLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    return canonical(d, hn::Div(constant(d, 1.0f), as_floats(d, x)));
  }
};

struct FastExpfLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto product = hn::Mul(as_floats(d, x), constant(d, constants::kLog2E));
    return Ex2ApproxLanes()(d, hn::BitCast(d, product));
  }
};

// FTZ on the multiplication changes nothing here: EX2 takes a subnormal for zero, and LG2 returns none.
struct ExpfFastMathLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    return Ex2Lanes()(d, hn::BitCast(d, hn::Mul(as_floats(d, x), constant(d, constants::kLog2E))));
  }
};

struct LogfFastMathLanes {
  using Tag = NarrowTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    return canonical(d, hn::Mul(as_floats(d, Lg2Lanes()(d, x)), constant(d, constants::kLn2)));
  }
};

struct ExpfLanes {
  using Tag = FmaTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> code) const {
    const hn::RebindToFloat<Tag> df;
    const auto x = as_floats(d, code);
    auto j = fma(x, constant(d, constants::kExpRange), constant(d, 0.5f));
    j = hn::Min(hn::IfThenElseZero(hn::Gt(j, hn::Zero(df)), j), constant(d, 1.0f));
    // floor(252 j): the rounded product is too large by one where it is whole and its error, from an fma, negative.
    const auto range = constant(d, 252.0f);
    const auto product = hn::Mul(j, range);
    const auto error = fma(j, range, hn::Neg(product));
    const auto whole = hn::ConvertTo(d, product);
    const auto exceeds = hn::And(hn::Eq(hn::ConvertTo(df, whole), product), hn::Lt(error, hn::Zero(df)));
    const auto floor = hn::Add(whole, hn::IfThenElseZero(hn::RebindMask(d, exceeds), hn::Set(d, -1)));
    const auto power = hn::Sub(floor, hn::Set(d, 126));
    auto rest = fma(x, constant(d, constants::kLog2E), hn::Neg(hn::ConvertTo(df, power)));
    rest = fma(x, constant(d, constants::kLog2ELow), rest);
    const auto scale = as_floats(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(d, 127))));
    return canonical(d, hn::Mul(scale, as_floats(d, Ex2Lanes()(d, hn::BitCast(d, rest)))));
  }
};

// The frame of logf and log2f, as split_log() and log_special() of ptx.cpp.
template <class D>
struct LogSplitLanes {
  Floats<D> exponent;
  Floats<D> f;
};

template <class D>
HWY_INLINE LogSplitLanes<D> split_log(D d, Codes<D> x, std::int32_t split) {
  const hn::RebindToFloat<D> df;
  const auto is_small = hn::RebindMask(d, hn::Lt(as_floats(d, x), constant(d, 0x1p-126f)));
  const auto code = scale_if(d, is_small, x, 0x1p23f);
  const auto exponent = hn::And(hn::Sub(code, hn::Set(d, split)), hn::Set(d, ~kMantissaLane));
  const auto shift = hn::IfThenElseZero(hn::RebindMask(df, is_small), constant(d, -23.0f));
  return {fma(hn::ConvertTo(df, exponent), constant(d, 0x1p-23f), shift),
          hn::Sub(as_floats(d, hn::Sub(code, exponent)), constant(d, 1.0f))};
}

template <class D>
HWY_INLINE Codes<D> log_special(D d, Codes<D> x, Floats<D> regular) {
  auto y = canonical(d, regular);
  y = hn::IfThenElse(hn::Eq(x, hn::Set(d, kInfLane)), x, y);
  y = hn::IfThenElse(hn::Or(hn::Lt(x, hn::Zero(d)), is_nan(d, x)), hn::Set(d, kNaNLane), y);
  return hn::IfThenElse(hn::Eq(magnitude_of(d, x), hn::Zero(d)), hn::Set(d, kSignLane | kInfLane), y);
}

struct Log2fLanes {
  using Tag = FmaTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    const auto split = split_log(d, x, constants::kLog2Split);
    const auto f = split.f;
    const auto tail = hn::Mul(f, hn::Mul(f, polynomial(d, constants::kLog2Polynomial, f)));
    return log_special(d, x, hn::Add(split.exponent, fma(f, constant(d, constants::kLog2E), tail)));
  }
};

struct LogfLanes {
  using Tag = FmaTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    const auto split = split_log(d, x, constants::kLogSplit);
    const auto f = split.f;
    const auto p = hn::Mul(f, polynomial(d, constants::kLogPolynomial, f));
    return log_special(d, x, fma(split.exponent, constant(d, constants::kLn2), fma(f, p, f)));
  }
};

struct TanhfLanes {
  using Tag = FmaTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> code) const {
    const hn::RebindToFloat<Tag> df;
    const auto x = as_floats(d, code), magnitude = as_floats(d, magnitude_of(d, code));
    const auto s = hn::Mul(x, x);
    const auto p = fma(s, polynomial(d, constants::kTanhPolynomial, s), hn::Zero(df));
    const auto small = fma(x, p, x);

    const auto power = Ex2Lanes()(d, hn::BitCast(d, hn::Mul(magnitude, constant(d, constants::kTwoLog2E))));
    const auto divisor = hn::Add(as_floats(d, power), constant(d, 1.0f));
    const auto reciprocal = as_floats(d, RcpLanes()(d, hn::BitCast(d, divisor)));
    auto large = fma(reciprocal, constant(d, -2.0f), constant(d, 1.0f));
    const auto saturated = hn::Ge(magnitude, constant(d, constants::kTanhLarge));
    large = hn::IfThenElse(saturated, constant(d, 1.0f), large);
    large = hn::Or(large, as_floats(d, sign_of(d, code)));

    const auto is_large = hn::Ge(magnitude, constant(d, constants::kTanhSmall));
    return canonical(d, hn::IfThenElse(is_large, large, small));
  }
};

struct Fa4PolyLanes {
  using Tag = FmaTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> code) const {
    const hn::RebindToFloat<Tag> df;
    const auto x = as_floats(d, hn::IfThenZeroElse(is_tiny(d, code), code));
    const auto lowest = constant(d, -127.0f), addend = constant(d, constants::kFa4Round);
    const auto clamped = hn::IfThenElse(hn::Gt(x, lowest), x, lowest);
    // The sum rounded down, by the sign of the nearest sum's error (a two-sum).
    const auto sum = hn::Add(clamped, addend);
    const auto part = hn::Sub(sum, clamped);
    const auto error = hn::Add(hn::Sub(clamped, hn::Sub(sum, part)), hn::Sub(addend, part));
    const auto too_high = hn::RebindMask(d, hn::Lt(error, hn::Zero(df)));
    const auto rounded = hn::Add(hn::BitCast(d, sum), hn::IfThenElseZero(too_high, hn::Set(d, -1)));
    const auto fraction = hn::Sub(clamped, hn::Sub(as_floats(d, rounded), addend));
    const auto power = canonical(d, polynomial(d, constants::kFa4Polynomial, fraction));
    return hn::Add(hn::ShiftLeft<23>(rounded), power);
  }
};

// Truncation of a 32-bit integer to 24 significant bits: the bits below are cleared, then the conversion is exact.
struct Int2FloatRzLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const hn::RebindToFloat<D> df;
    const auto lowest = hn::Set(d, kSignLane);  // -2^31, exact as it is and without a magnitude
    const auto magnitude = hn::Abs(x);
    auto excess = hn::ShiftRight<24>(magnitude);
    excess = hn::Or(excess, hn::ShiftRight<1>(excess));
    excess = hn::Or(excess, hn::ShiftRight<2>(excess));
    excess = hn::Or(excess, hn::ShiftRight<4>(excess));
    const auto kept = hn::AndNot(excess, magnitude);
    const auto negative = hn::Lt(x, hn::Zero(d));
    const auto whole = hn::IfThenElse(negative, hn::Sub(hn::Zero(d), kept), kept);
    return hn::BitCast(d, hn::ConvertTo(df, hn::IfThenElse(hn::Eq(x, lowest), lowest, whole)));
  }
};

struct Int2FloatRnLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    return hn::BitCast(d, hn::ConvertTo(hn::RebindToFloat<D>(), x));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qattn::scalar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
