// The casts of scalar/cast.h over SIMD lanes; included once a Highway target (so it has no #pragma once).
#if defined(QATTN_SCALAR_CAST_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QATTN_SCALAR_CAST_LANES_INL_H
#undef QATTN_SCALAR_CAST_LANES_INL_H
#else
#define QATTN_SCALAR_CAST_LANES_INL_H
#endif

#include <hwy/highway.h>
#include "scalar/cast.h"
#include "scalar/mufu_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::scalar {
namespace HWY_NAMESPACE {

HWY_INLINE std::int32_t lane(std::uint32_t code) { return std::bit_cast<std::int32_t>(code); }

struct CastLanes {
  const CastSpec& spec;

  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto zero = hn::Zero(d), one = hn::Set(d, 1);
    const auto magnitude = magnitude_of(d, x);
    const auto field = hn::ShiftRight<23>(magnitude);
    const auto implicit = hn::IfThenElseZero(hn::Gt(field, zero), hn::Set(d, 0x800000));
    const auto significand = hn::Or(hn::And(magnitude, hn::Set(d, kMantissaLane)), implicit);
    const auto exponent = hn::Sub(hn::Max(field, one), hn::Set(d, 127 + spec.min_exponent));
    const auto below = hn::Max(hn::Sub(zero, exponent), zero);
    const auto dropped = hn::Min(hn::Add(hn::Set(d, 23 - spec.mantissa_bits), below), hn::Set(d, 25));
    auto kept = hn::Shr(significand, dropped);
    if (spec.round_nearest) {
      const auto below_half = hn::Sub(hn::Shl(one, hn::Sub(dropped, one)), one);
      kept = hn::Shr(hn::Add(hn::Add(significand, below_half), hn::And(kept, one)), dropped);
    }
    auto code = hn::Add(kept, hn::ShiftLeftSame(hn::Max(exponent, zero), spec.mantissa_bits));
    code = hn::IfThenElse(hn::Gt(code, hn::Set(d, lane(spec.max_code))), hn::Set(d, lane(spec.overflow)), code);
    code = hn::IfThenElse(hn::Eq(magnitude, hn::Set(d, kInfLane)), hn::Set(d, lane(spec.infinite)), code);
    const auto negative = hn::Lt(x, zero);
    if (spec.relu) {
      code = hn::IfThenZeroElse(negative, code);
    } else {
      code = hn::Or(code, hn::IfThenElseZero(negative, hn::Set(d, lane(1u << spec.sign_bit))));
    }
    code = hn::ShiftLeftSame(code, spec.shift);
    return hn::IfThenElse(is_nan(d, x), hn::Set(d, lane(spec.nan)), code);
  }
};

struct RnaTf32Lanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto finite = hn::Lt(magnitude_of(d, x), hn::Set(d, kInfLane));
    const auto rounded = hn::Add(x, hn::IfThenElseZero(finite, hn::Set(d, 0x1000)));
    return hn::And(rounded, hn::Set(d, ~0x1FFF));
  }
};

struct RnaSatfiniteTf32Lanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto rounded = RnaTf32Lanes()(d, x);
    const auto is_largest = hn::Eq(hn::And(rounded, hn::Set(d, kInfLane)), hn::Set(d, kInfLane));
    return hn::Sub(rounded, hn::IfThenElseZero(is_largest, hn::Set(d, 0x2000)));
  }
};

struct S8Lanes {
  IntegerRounding rounding;

  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const hn::RebindToFloat<D> df;
    // Clamped to an exact range that the rounding cannot leave by more than the final clamp mends; NaN as 0.
    const auto number = hn::BitCast(df, hn::IfThenZeroElse(is_nan(d, x), x));
    const auto clamped = hn::Min(hn::Max(number, hn::Set(df, -256.0f)), hn::Set(df, 256.0f));
    auto whole = hn::ConvertTo(d, clamped);  // truncated
    const auto rest = hn::Sub(clamped, hn::ConvertTo(df, whole));
    const auto size = hn::Abs(rest);
    const auto half = hn::Set(df, 0.5f);
    const auto toward_sign = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, -1), hn::Set(d, 1));
    if (rounding == IntegerRounding::rni) {
      const auto odd = hn::RebindMask(df, hn::Eq(hn::And(whole, hn::Set(d, 1)), hn::Set(d, 1)));
      const auto away = hn::Or(hn::Gt(size, half), hn::And(hn::Eq(size, half), odd));
      whole = hn::Add(whole, hn::IfThenElseZero(hn::RebindMask(d, away), toward_sign));
    } else if (rounding == IntegerRounding::rmi) {
      const auto down = hn::RebindMask(d, hn::Lt(rest, hn::Zero(df)));
      whole = hn::Add(whole, hn::IfThenElseZero(down, hn::Set(d, -1)));
    } else if (rounding == IntegerRounding::rpi) {
      const auto up = hn::RebindMask(d, hn::Gt(rest, hn::Zero(df)));
      whole = hn::Add(whole, hn::IfThenElseZero(up, hn::Set(d, 1)));
    }
    return hn::And(hn::Min(hn::Max(whole, hn::Set(d, -128)), hn::Set(d, 127)), hn::Set(d, 0xFF));
  }
};

struct Ue8m0Lanes {
  bool round_up;
  bool satfinite;

  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto magnitude = magnitude_of(d, x);
    auto code = hn::ShiftRight<23>(magnitude);
    if (round_up) {
      const auto fraction = hn::Gt(hn::And(magnitude, hn::Set(d, kMantissaLane)), hn::Zero(d));
      const auto up = hn::And(fraction, hn::Gt(magnitude, hn::Set(d, 0x400000)));
      code = hn::Add(code, hn::IfThenElseZero(up, hn::Set(d, 1)));
    }
    code = hn::Min(code, hn::Set(d, satfinite ? 0xFE : 0xFF));
    return hn::IfThenElse(is_nan(d, x), hn::Set(d, 0xFF), code);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qattn::scalar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
