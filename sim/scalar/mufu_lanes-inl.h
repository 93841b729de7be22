// MUFU over SIMD lanes, the counterpart of scalar/mufu.h; included once a Highway target (so it has no #pragma once).
#if defined(QATTN_SCALAR_MUFU_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QATTN_SCALAR_MUFU_LANES_INL_H
#undef QATTN_SCALAR_MUFU_LANES_INL_H
#else
#define QATTN_SCALAR_MUFU_LANES_INL_H
#endif

#include <hwy/highway.h>

#include "scalar/mufu.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::scalar {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Codes travel as int32_t lanes, D is a tag of such lanes: SSE compares signed lanes only, a negative lane is a
// negative number, and once the sign bit is cleared arithmetic and logical shifts are the same.
template <class D>
using Codes = hn::Vec<D>;

inline constexpr std::int32_t kSignLane = std::bit_cast<std::int32_t>(kSign);
inline constexpr std::int32_t kMagnitudeLane = 0x7FFFFFFF;
inline constexpr std::int32_t kInfLane = 0x7F800000;
inline constexpr std::int32_t kNaNLane = 0x7FFFFFFF;
inline constexpr std::int32_t kMantissaLane = 0x7FFFFF;

template <class D>
HWY_INLINE Codes<D> magnitude_of(D d, Codes<D> x) {
  return hn::And(x, hn::Set(d, kMagnitudeLane));
}

template <class D>
HWY_INLINE Codes<D> sign_of(D d, Codes<D> x) {
  return hn::And(x, hn::Set(d, kSignLane));
}

template <class D>
HWY_INLINE hn::Mask<D> is_nan(D d, Codes<D> x) {
  return hn::Gt(magnitude_of(d, x), hn::Set(d, kInfLane));
}

// What bit `i` of w brings to truncated_square() with the bits below the upper seven, `lower`.
template <int bits, int i, class D>
HWY_INLINE Codes<D> square_term(D d, Codes<D> w, Codes<D> lower) {
  return hn::IfThenElseZero(hn::TestBit(w, hn::Set(d, 1 << i)), hn::ShiftRight<2 * bits - 16 - i>(lower));
}

// truncated_square() of mufu.h. The products of the upper seven bits among themselves lie in kept columns all: twice
// their number's square. Those of one of them with lower bits are cut at the first kept column, each bit's by itself;
// lower bits among themselves meet no kept column.
template <int bits, class D>
HWY_INLINE Codes<D> truncated_square(D d, Codes<D> w) {
  constexpr int first = bits - 7;
  const auto upper = hn::ShiftRight<first>(w);
  const auto lower = hn::And(w, hn::Set(d, (1 << first) - 1));
  const auto whole = hn::Mul(hn::Add(upper, upper), upper);
  const auto a = hn::Add(square_term<bits, first>(d, w, lower), square_term<bits, first + 1>(d, w, lower));
  const auto b = hn::Add(square_term<bits, first + 2>(d, w, lower), square_term<bits, first + 3>(d, w, lower));
  const auto c = hn::Add(square_term<bits, first + 4>(d, w, lower), square_term<bits, first + 5>(d, w, lower));
  return hn::Add(hn::Add(a, b), hn::Add(hn::Add(c, square_term<bits, first + 6>(d, w, lower)), whole));
}

// table[index]. AVX-512 looks 32 elements up in two registers, several times as fast as a gather.
template <class D, std::size_t size>
HWY_INLINE Codes<D> lookup(D d, const std::array<std::int32_t, size>& table, Codes<D> index) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d) == 16 && (size == 64 || size == 128)) {
    const auto half = [&](std::size_t first) {
      const auto low = hn::LoadU(d, table.data() + first), high = hn::LoadU(d, table.data() + first + 16);
      return Codes<D>{_mm512_permutex2var_epi32(low.raw, index.raw, high.raw)};
    };
    const auto upper_half = hn::TestBit(index, hn::Set(d, 32));
    const auto first = hn::IfThenElse(upper_half, half(32), half(0));
    if constexpr (size == 64) return first;
    const auto second = hn::IfThenElse(upper_half, half(size - 32), half(size - 64));
    return hn::IfThenElse(hn::TestBit(index, hn::Set(d, 64)), second, first);
  }
#endif
  return hn::GatherIndex(d, table.data(), index);
}

// (c0 2^c0_shift + c1 w + c2_scale c2 sq(w) + bias) >> shift in 32-bit lanes, although the sum takes up to 42 bits:
// w is split as 8 wh + wl, and everything but c1 wh and the whole part of c0 goes into a low word, shifted down by 3
// before it meets c1 wh, which is a multiple of the same 8.
template <int w_bits, int c0_shift, int c2_scale, int shift, class D, int segments>
HWY_INLINE Codes<D> quadratic(D d, const MufuTable<segments>& table, Codes<D> segment, Codes<D> w) {
  const auto c0 = lookup(d, table.c0, segment);
  const auto c1 = lookup(d, table.c1, segment);
  const auto c2 = lookup(d, table.c2, segment);
  constexpr int c0_low_bits = shift - c0_shift;
  const auto c0_low = hn::ShiftLeft<c0_shift>(hn::And(c0, hn::Set(d, (1 << c0_low_bits) - 1)));
  auto square = truncated_square<w_bits>(d, w);
  if constexpr (c2_scale != 1) square = hn::Mul(square, hn::Set(d, c2_scale));
  auto low = hn::Add(c0_low, hn::Set(d, table.bias));
  low = hn::Add(low, hn::Mul(c2, square));
  low = hn::Add(low, hn::Mul(c1, hn::And(w, hn::Set(d, 7))));
  const auto sum = hn::Add(hn::Mul(c1, hn::ShiftRight<3>(w)), hn::ShiftRight<3>(low));
  return hn::Add(hn::ShiftRight<c0_low_bits>(c0), hn::ShiftRight<shift - 3>(sum));
}

// assemble() of mufu.h.
template <class D>
HWY_INLINE Codes<D> assemble(D d, Codes<D> significand, Codes<D> exponent) {
  return hn::Add(hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(d, 126))), significand);
}

// x < 2^31 cut to an integer; Highway's conversion would look for larger ones.
template <class D>
HWY_INLINE Codes<D> cut(D d, hn::Vec<hn::RebindToFloat<D>> x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d) == 16) return Codes<D>{_mm512_cvttps_epi32(x.raw)};
#endif
  return hn::ConvertTo(d, x);
}

struct Ex2Lanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const hn::RebindToFloat<D> df;
    const auto magnitude = magnitude_of(d, x);
    const auto negative = hn::Lt(x, hn::Zero(d));
    const auto in_range = hn::Lt(magnitude, hn::Set(d, 0x43000000));  // 128
    // A power of two scales exactly and the conversion truncates: no rounding mode matters.
    const auto scaled = hn::Mul(hn::BitCast(df, hn::IfThenElseZero(in_range, magnitude)), hn::Set(df, 0x1p23f));
    const auto fixed = cut(d, scaled);
    // Negative x: the one's complement, but the negation, which is one more, for whole numbers.
    const auto mantissa = hn::Set(d, kMantissaLane);
    const auto sign = hn::BroadcastSignBit(x);
    const auto is_whole = hn::Eq(hn::And(fixed, mantissa), hn::Zero(d));
    const auto position = hn::Sub(hn::Xor(fixed, sign), hn::IfThenElseZero(is_whole, sign));
    const auto n = hn::ShiftRight<23>(position);
    const auto fraction = hn::And(position, mantissa);
    const auto segment = hn::ShiftRight<17>(fraction);
    const auto value = quadratic<17, 13, 1, 15>(d, kEx2Table, segment, hn::And(fraction, hn::Set(d, 0x1FFFF)));
    const auto normal = hn::IfThenElseZero(hn::Gt(n, hn::Set(d, -127)), assemble(d, value, n));
    const auto overflow = hn::IfThenZeroElse(negative, hn::Set(d, kInfLane));
    const auto y = hn::IfThenElse(in_range, normal, overflow);
    return hn::IfThenElse(is_nan(d, x), hn::Set(d, kNaNLane), y);
  }
};

struct RcpLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto magnitude = magnitude_of(d, x);
    const auto segment = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(d, 0x7F));
    const auto value = quadratic<16, 13, 1, 15>(d, kRcpTable, segment, hn::And(x, hn::Set(d, 0xFFFF)));
    const auto exponent = hn::ShiftRight<23>(magnitude);
    const auto bits = assemble(d, value, hn::Sub(hn::Set(d, 126), exponent));
    // A normal result has a positive field above its mantissa, carry included.
    auto y = hn::IfThenElseZero(hn::Gt(bits, hn::Set(d, kMantissaLane)), bits);
    y = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), hn::Set(d, kInfLane), y);
    return hn::IfThenElse(is_nan(d, x), hn::Set(d, kNaNLane), hn::Or(sign_of(d, x), y));
  }
};

// Codes that LG2, RSQ and SQRT answer without a table: NaN, zeros and subnormals (`tiny`), negative numbers and +Inf.
template <class D>
HWY_INLINE Codes<D> root_or_log_specials(D d, Codes<D> x, Codes<D> regular, Codes<D> tiny, std::int32_t infinite) {
  const auto exponent = hn::And(x, hn::Set(d, kInfLane));
  auto y = hn::IfThenElse(hn::Eq(x, hn::Set(d, kInfLane)), hn::Set(d, infinite), regular);
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, kNaNLane), y);
  y = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), tiny, y);
  return hn::IfThenElse(is_nan(d, x), hn::Set(d, kNaNLane), y);
}

struct RsqrtLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto exponent = hn::Sub(hn::ShiftRight<23>(magnitude_of(d, x)), hn::Set(d, 127));
    const auto half = hn::ShiftRight<1>(exponent);
    const auto odd = hn::And(exponent, hn::Set(d, 1));
    const auto segment = hn::Or(hn::ShiftLeft<6>(odd), hn::And(hn::ShiftRight<17>(x), hn::Set(d, 0x3F)));
    const auto value = quadratic<17, 14, 4, 16>(d, kRsqTable, segment, hn::And(x, hn::Set(d, 0x1FFFF)));
    auto y = assemble(d, value, hn::Sub(hn::Set(d, -1), half));
    const auto power_of_4 = hn::Eq(hn::Or(odd, hn::And(x, hn::Set(d, kMantissaLane))), hn::Zero(d));
    y = hn::IfThenElse(power_of_4, hn::ShiftLeft<23>(hn::Sub(hn::Set(d, 127), half)), y);
    return root_or_log_specials(d, x, y, hn::Or(sign_of(d, x), hn::Set(d, kInfLane)), 0);
  }
};

struct SqrtLanes {
  template <class D>
  HWY_INLINE Codes<D> operator()(D d, Codes<D> x) const {
    const auto exponent = hn::Sub(hn::ShiftRight<23>(magnitude_of(d, x)), hn::Set(d, 127));
    const auto odd = hn::And(exponent, hn::Set(d, 1));
    const auto segment = hn::Or(hn::ShiftLeft<6>(odd), hn::And(hn::ShiftRight<17>(x), hn::Set(d, 0x3F)));
    const auto w = hn::And(x, hn::Set(d, 0x1FFFF));
    const auto even_value = quadratic<17, 15, 2, 17>(d, kSqrtTable, segment, w);
    const auto odd_value = quadratic<17, 14, 1, 16>(d, kSqrtTable, segment, w);
    const auto value = hn::IfThenElse(hn::Eq(odd, hn::Zero(d)), even_value, odd_value);
    const auto y = assemble(d, value, hn::ShiftRight<1>(exponent));
    return root_or_log_specials(d, x, y, sign_of(d, x), kInfLane);
  }
};

// The widest tag of int32_t lanes that convert to whole vectors of doubles.
using NarrowTag = hn::Rebind<std::int32_t, hn::ScalableTag<double>>;

// An integer in double lanes, times 2^unit, as a float with its significand truncated to 24 bits.
template <class D, class V>
HWY_INLINE Codes<D> truncate(D d, V magnitude, double unit) {
  const hn::ScalableTag<double> dd;
  const hn::RebindToUnsigned<decltype(dd)> du;
  const hn::RebindToFloat<D> df;
  const auto kept = hn::And(hn::BitCast(du, magnitude), hn::Set(du, ~((std::uint64_t{1} << 29) - 1)));
  return hn::BitCast(d, hn::DemoteTo(df, hn::Mul(hn::BitCast(dd, kept), hn::Set(dd, unit))));
}

// c0 2^c0_shift + c1 w + c2_scale c2 sq(w) + bias in double lanes: below 2^53, so every step is exact.
template <int c0_shift, int c2_scale, class D, int segments>
HWY_INLINE auto wide_quadratic(D d, const MufuTable<segments>& table, Codes<D> segment, Codes<D> w) {
  const hn::ScalableTag<double> dd;
  const auto c0 = hn::PromoteTo(dd, hn::GatherIndex(d, table.c0.data(), segment));
  const auto c1 = hn::PromoteTo(dd, hn::GatherIndex(d, table.c1.data(), segment));
  const auto c2 = hn::PromoteTo(dd, hn::GatherIndex(d, table.c2.data(), segment));
  const auto square = hn::PromoteTo(dd, hn::Mul(truncated_square<17>(d, w), hn::Set(d, c2_scale)));
  const auto constant =
      hn::Add(hn::Mul(c0, hn::Set(dd, double{1 << c0_shift})), hn::Set(dd, static_cast<double>(table.bias)));
  return hn::Add(hn::Add(constant, hn::Mul(c1, hn::PromoteTo(dd, w))), hn::Mul(c2, square));
}

struct Lg2Lanes {
  using Tag = NarrowTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    const hn::ScalableTag<double> dd;
    const auto exponent = hn::Sub(hn::ShiftRight<23>(magnitude_of(d, x)), hn::Set(d, 127));
    const auto segment = hn::And(hn::ShiftRight<17>(x), hn::Set(d, 0x3F));
    auto value = wide_quadratic<12, 2>(d, kLg2Table, segment, hn::And(x, hn::Set(d, 0x1FFFF)));
    value = hn::Add(value, hn::Mul(hn::PromoteTo(dd, exponent), hn::Set(dd, 0x1p38)));
    const auto fixed = hn::Floor(hn::Mul(value, hn::Set(dd, 0.25)));
    // Negative: the one's complement is truncated.
    const auto magnitude = hn::Max(fixed, hn::Sub(hn::Set(dd, -1.0), fixed));
    const auto negative = hn::Lt(x, hn::Set(d, 0x3F800000));
    auto y = truncate(d, magnitude, 0x1p-36);
    y = hn::Or(y, hn::IfThenElseZero(negative, hn::Set(d, kSignLane)));
    y = hn::IfThenElseZero(hn::Ne(x, hn::Set(d, 0x3F800000)), y);
    return root_or_log_specials(d, x, y, hn::Set(d, kSignLane | kInfLane), kInfLane);
  }
};

// 2^kTanhBits: multiplying the mantissa by it moves the segment's bits above bit 23.
inline constexpr std::array<std::int32_t, kTanhBits.size()> kTanhScale = [] {
  std::array<std::int32_t, kTanhBits.size()> scale{};
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = 1 << kTanhBits[i];
  return scale;
}();

struct TanhLanes {
  using Tag = NarrowTag;

  HWY_INLINE Codes<Tag> operator()(Tag d, Codes<Tag> x) const {
    const auto exponent = hn::Sub(hn::ShiftRight<23>(magnitude_of(d, x)), hn::Set(d, 119));  // from 2^-8
    const auto octave = hn::Min(hn::Max(exponent, hn::Zero(d)), hn::Set(d, 10));
    const auto mantissa = hn::And(x, hn::Set(d, kMantissaLane));
    const auto scaled = hn::Mul(mantissa, hn::GatherIndex(d, kTanhScale.data(), octave));
    const auto segment = hn::Add(hn::GatherIndex(d, kTanhOffset.data(), octave), hn::ShiftRight<23>(scaled));
    const auto w = hn::And(hn::ShiftRight<6>(scaled), hn::Set(d, 0x1FFFF));
    auto y = truncate(d, wide_quadratic<17, 4>(d, kTanhTable, segment, w), 0x1p-41);
    y = hn::IfThenElse(hn::Gt(exponent, hn::Set(d, 10)), hn::Set(d, 0x3F800000), y);
    y = hn::Or(y, sign_of(d, x));
    y = hn::IfThenElse(hn::Lt(exponent, hn::Zero(d)), x, y);
    return hn::IfThenElse(is_nan(d, x), hn::Set(d, kNaNLane), y);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qattn::scalar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
