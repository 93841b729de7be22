// The SIMD kernels, compiled once for each target.
#include "mma/tile_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mma/tile_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qattn::mma::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kColumns = kTileColumns;
/// The exponent that NaN and Inf accumulators are given: above kLargestFastExponent in every format.
constexpr std::int32_t kSpecialExponent = 128;
/// Below every exponent: a zero accumulator.
constexpr std::int32_t kNoExponent = -30000;

/// A few operands, decoded: magnitude bits of a float, exponent, the sign bit in place, and which are NaN or Inf.
template <class DI>
struct Elements {
  hn::Vec<DI> magnitude, exponent, sign;
  hn::Mask<DI> special;
};

template <class DI>
HWY_INLINE Elements<DI> decode_wide(DI di, const ElementDecoder& decoder, hn::Vec<DI> code) {
  const auto bits = hn::And(hn::ShiftLeftSame(code, decoder.wide_shift), hn::Set(di, ~0x1FFF));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  return {magnitude, hn::Zero(di), hn::Xor(bits, magnitude), hn::Gt(magnitude, hn::Set(di, 0x7F7FFFFF))};
}

template <class DI>
HWY_INLINE Elements<DI> decode_narrow(DI di, const format::NarrowDecoder& decoder, hn::Vec<DI> code) {
  const hn::RebindToFloat<DI> df;
  const auto magnitude = hn::And(code, hn::Set(di, decoder.magnitude_mask));
  const auto subnormal = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, decoder.unit));
  const auto normal = hn::Add(hn::ShiftLeftSame(magnitude, 23 - decoder.mantissa_bits), hn::Set(di, decoder.rebias));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, decoder.smallest_normal));
  const auto bits = hn::IfThenElse(is_subnormal, hn::BitCast(di, subnormal), normal);
  const auto sign = hn::And(hn::ShiftLeftSame(code, decoder.sign_shift), hn::Set(di, INT32_MIN));
  return {bits, hn::Zero(di), sign, hn::Gt(magnitude, hn::Set(di, decoder.largest_finite))};
}

template <class DI>
HWY_INLINE Elements<DI> decode(DI di, const ElementDecoder& decoder, const std::uint32_t* codes, std::int32_t mark) {
  const auto code = hn::LoadU(di, reinterpret_cast<const std::int32_t*>(codes));
  auto x = decoder.is_wide ? decode_wide(di, decoder, code) : decode_narrow(di, decoder.narrow, code);
  x.magnitude = hn::IfThenZeroElse(x.special, x.magnitude);
  const auto exponent = hn::Sub(hn::ShiftRight<23>(x.magnitude), hn::Set(di, 127));
  const auto is_zero = hn::Eq(x.magnitude, hn::Zero(di));
  x.exponent = hn::IfThenElse(is_zero, hn::Set(di, mark), hn::Max(exponent, hn::Set(di, decoder.lowest_exponent)));
  return x;
}

/// Stores the magnitudes of the lanes in the arithmetic's type.
template <class DI, class T>
HWY_INLINE void store_magnitudes(DI /*di*/, hn::Vec<DI> magnitudes, T* to) {
  const hn::Rebind<T, DI> d;
  const auto values = hn::BitCast(hn::RebindToFloat<DI>(), magnitudes);
  if constexpr (sizeof(T) == 4) {
    hn::StoreU(values, d, to);
  } else {
    hn::StoreU(hn::PromoteTo(d, values), d, to);
  }
}

/// Lanes of int32 of which the arithmetic's type fills one vector.
template <class T>
using DecodeTag = hn::Rebind<std::int32_t, hn::CappedTag<T, 16>>;

template <class T, class E>
HWY_INLINE bool left_elements(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, T* magnitudes,
                              E* exponents, std::uint8_t* offsets) {
  const DecodeTag<T> di;
  const std::size_t lanes = hn::Lanes(di);
  const hn::Rebind<E, DecodeTag<T>> de;
  const hn::Rebind<std::uint8_t, DecodeTag<T>> du8;
  bool special = false;
  const auto some = [&](const std::uint32_t* from, T* values, E* exponent, std::uint8_t* offset) {
    const auto x = decode(di, decoder, from, kZeroMark<E>);
    store_magnitudes(di, x.magnitude, values);
    hn::StoreU(hn::DemoteTo(de, x.exponent), de, exponent);
    const auto negative = hn::And(hn::BroadcastSignBit(x.sign), hn::Set(di, static_cast<int>(kColumns)));
    hn::StoreU(hn::DemoteTo(du8, negative), du8, offset);
    special |= !hn::AllFalse(di, x.special);
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) some(codes + i, magnitudes + i, exponents + i, offsets + i);
  if (i == n) return special;
  std::uint32_t last[16] = {};
  T values[16];
  E exponent[16];
  std::uint8_t offset[16];
  std::copy_n(codes + i, n - i, last);
  some(last, values, exponent, offset);
  std::copy_n(values, n - i, magnitudes + i);
  std::copy_n(exponent, n - i, exponents + i);
  std::copy_n(offset, n - i, offsets + i);
  return special;
}

template <class T, class E>
HWY_INLINE std::uint64_t right_elements(const ElementDecoder& decoder, const std::uint32_t* codes, T* parts,
                                        E* exponents) {
  const DecodeTag<T> di;
  const hn::Rebind<E, DecodeTag<T>> de;
  std::uint64_t special = 0;
  for (std::size_t j = 0; j < kColumns; j += hn::Lanes(di)) {
    const auto x = decode(di, decoder, codes + j, kZeroMark<E>);
    const auto negative = hn::BroadcastSignBit(x.sign);
    store_magnitudes(di, hn::AndNot(negative, x.magnitude), parts + j);
    store_magnitudes(di, hn::And(negative, x.magnitude), parts + kColumns + j);
    hn::StoreU(hn::DemoteTo(de, x.exponent), de, exponents + j);
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(di, x.special, bits);
    for (std::size_t byte = 0; byte < (hn::Lanes(di) + 7) / 8; ++byte) {
      special |= static_cast<std::uint64_t>(bits[byte]) << (j + 8 * byte);
    }
  }
  return special;
}

/// Exponent bias of the arithmetic's type.
template <class T>
constexpr std::int32_t kBias = sizeof(T) == 4 ? 127 : 1023;

/// The power of two with these biased exponents (int32 lanes), in the arithmetic's type.
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, hn::Vec<hn::Rebind<std::int32_t, D>> biased) {
  const hn::RebindToSigned<D> di;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::BitCast(d, hn::ShiftLeft<23>(biased));
  } else {
    return hn::BitCast(d, hn::ShiftLeft<52>(hn::PromoteTo(di, biased)));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> from_f32(D d, hn::Vec<hn::Rebind<float, D>> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return x;
  } else {
    return hn::PromoteTo(d, x);
  }
}

/// An exact sum as f32 rounded toward zero; with `sticky` to odd, so that a second rounding to f16 is the only one.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::int32_t, D>> to_f32_bits(D d, hn::Vec<D> x, bool sticky) {
  const hn::Rebind<float, D> df;
  const hn::Rebind<std::int32_t, D> di;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::BitCast(di, x);
  } else {
    const auto rounded = hn::DemoteTo(df, x);
    const auto bits = hn::BitCast(di, rounded);
    if (!sticky) return bits;
    const auto inexact = hn::Ne(hn::PromoteTo(d, rounded), x);
    const auto odd = hn::IfThenElseZero(inexact, hn::Set(d, 1.0));
    return hn::Or(bits, hn::DemoteTo(di, odd));
  }
}

/// f32 bits rounded to the nearest f16, ties to even; a zero result is +0, overflow Inf.
template <class DI>
HWY_INLINE hn::Vec<DI> f16_from_f32_bits(DI di, hn::Vec<DI> bits) {
  const hn::RebindToUnsigned<DI> du;
  const auto magnitude = hn::BitCast(du, hn::And(bits, hn::Set(di, 0x7FFFFFFF)));
  const auto one = hn::Set(du, 1u);
  // Normal results: the exponent rebased, 13 mantissa bits rounded away.
  const auto rebased = hn::Sub(magnitude, hn::Set(du, 0x38000000u));
  const auto odd = hn::And(hn::ShiftRight<13>(rebased), one);
  const auto normal =
      hn::Min(hn::ShiftRight<13>(hn::Add(rebased, hn::Add(odd, hn::Set(du, 0xFFFu)))), hn::Set(du, 0x7C00u));
  // Subnormal results: the significand in units of 2^-24.
  const auto significand = hn::Or(hn::And(magnitude, hn::Set(du, 0x7FFFFFu)), hn::Set(du, 0x800000u));
  const auto exponent = hn::ShiftRight<23>(magnitude);
  const auto shift =
      hn::Min(hn::Max(hn::Sub(hn::Set(du, 126u), hn::Min(exponent, hn::Set(du, 112u))), one), hn::Set(du, 31u));
  const auto last = hn::And(hn::Shr(significand, shift), one);
  const auto below_half = hn::Sub(hn::Shl(one, hn::Sub(shift, one)), one);
  const auto subnormal = hn::Shr(hn::Add(significand, hn::Add(below_half, last)), shift);
  const auto is_normal = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x387FFFFF));
  const auto code = hn::IfThenElse(hn::RebindMask(du, is_normal), normal, subnormal);
  const auto sign = hn::BitCast(du, hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000)));
  return hn::BitCast(di, hn::IfThenZeroElse(hn::Eq(code, hn::Zero(du)), hn::Or(code, sign)));
}

/// An accumulator's exponent (kNoExponent for zero, kSpecialExponent for NaN and Inf) and its value as f32 bits.
struct Accumulator {
  template <class DI>
  static HWY_INLINE hn::Vec<DI> exponent(DI di, hn::Vec<DI> code, bool half) {
    const auto magnitude = hn::And(code, hn::Set(di, half ? 0x7FFF : 0x7FFFFFFF));
    const auto field = half ? hn::ShiftRight<10>(magnitude) : hn::ShiftRight<23>(magnitude);
    const auto biased = hn::Sub(hn::Max(field, hn::Set(di, 1)), hn::Set(di, half ? 15 : 127));
    const auto special = hn::Eq(field, hn::Set(di, half ? 31 : 255));
    const auto nonzero = hn::IfThenElse(special, hn::Set(di, kSpecialExponent), biased);
    return hn::IfThenElse(hn::Eq(magnitude, hn::Zero(di)), hn::Set(di, kNoExponent), nonzero);
  }

  template <class DI>
  static HWY_INLINE hn::Vec<hn::Rebind<float, DI>> value(DI di, hn::Vec<DI> code, bool half) {
    const hn::Rebind<float, DI> df;
    if (!half) return hn::BitCast(df, code);
    const auto magnitude = hn::And(code, hn::Set(di, 0x7FFF));
    const auto rebased = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(di, 112 << 23));
    const auto is_special = hn::Gt(magnitude, hn::Set(di, 0x7BFF));
    const auto normal = hn::Add(rebased, hn::And(hn::VecFromMask(di, is_special), hn::Set(di, 112 << 23)));
    const auto subnormal = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-24f));
    const auto is_normal = hn::Gt(magnitude, hn::Set(di, 0x3FF));
    const auto bits = hn::IfThenElse(is_normal, normal, hn::BitCast(di, subnormal));
    const auto sign = hn::ShiftLeft<16>(hn::And(code, hn::Set(di, 0x8000)));
    return hn::BitCast(df, hn::Or(bits, sign));
  }
};

/// The largest product exponent of each column. All columns advance together, even and odd positions apart: each
/// maximum waits for the one before it.
template <class E>
HWY_INLINE void largest_exponents(const E* HWY_RESTRICT a, const E* HWY_RESTRICT b, std::size_t depth,
                                  E* HWY_RESTRICT largest) {
  const hn::CappedTag<E, kColumns> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr std::size_t kVectors = kColumns / kLanes;
  hn::Vec<decltype(d)> e_max[2][kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) e_max[0][v] = e_max[1][v] = hn::Set(d, static_cast<E>(2 * kZeroMark<E>));
  const auto take = [&](std::size_t k, std::size_t parity) {
    const auto x = hn::Set(d, a[k]);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto sum = hn::Add(x, hn::Load(d, b + k * kColumns + v * kLanes));
      e_max[parity][v] = hn::Max(e_max[parity][v], sum);
    }
  };
  std::size_t k = 0;
  for (; k + 2 <= depth; k += 2) {
    take(k, 0);
    take(k + 1, 1);
  }
  if (k < depth) take(k, 0);
  for (std::size_t v = 0; v < kVectors; ++v) {
    hn::Store(hn::Max(e_max[0][v], e_max[1][v]), d, largest + v * kLanes);
  }
}

/// e_max of some columns, C and the floor among them.
template <class DI, class E>
HWY_INLINE hn::Vec<DI> align_exponent(DI di, const E* largest, const std::uint32_t* c, bool half, int floor) {
  const hn::Rebind<E, DI> de;
  const auto code = hn::Load(di, reinterpret_cast<const std::int32_t*>(c));
  auto products = hn::PromoteTo(di, hn::Load(de, largest));
  // The narrow mark is no lower than what C may be: where all products are zero, their sums of marks say nothing.
  if (sizeof(E) == 1) {
    products = hn::IfThenElse(hn::Lt(products, hn::Set(di, kLowestNarrowProduct)), hn::Set(di, floor), products);
  }
  return hn::Max(hn::Max(products, hn::Set(di, floor)), Accumulator::exponent(di, code, half));
}

/// What fused and scaled passes have in common for one row: where C is, and what becomes of columns that only the plain
/// path can compute.
struct RowTarget {
  const std::uint32_t* c;
  std::uint64_t* plain;
  std::uint32_t* saved;  ///< nullptr: not wanted
  bool half;
  int floor;

  template <class Pass>
  RowTarget(const Pass& pass, std::size_t row, bool is_half)
      : c(pass.c + row * kColumns),
        plain(pass.plain + row),
        saved(pass.saved == nullptr ? nullptr : pass.saved + row * kColumns),
        half(is_half),
        floor(pass.exponent_floor) {}
};

/// Stores e_max + shift of each column, held at what the fast path can do. Saves the row of C and marks its columns
/// when the plain path has to compute some of them.
template <class E>
HWY_INLINE void align_row(const E* HWY_RESTRICT largest, const RowTarget& row, std::int32_t shift,
                          std::int32_t* HWY_RESTRICT shifted) {
  const hn::CappedTag<std::int32_t, 16> di;
  const std::size_t lanes = hn::Lanes(di);
  const auto limit = hn::Set(di, kLargestFastExponent);
  auto any = limit;
  for (std::size_t j = 0; j < kColumns; j += lanes) {
    const auto e_max = align_exponent(di, largest + j, row.c + j, row.half, row.floor);
    any = hn::Max(any, e_max);
    hn::Store(hn::Add(hn::Min(e_max, limit), hn::Set(di, shift)), di, shifted + j);
  }
  if (*row.plain == 0 && hn::AllFalse(di, hn::Gt(any, limit))) return;
  HWY_ALIGN std::int32_t e_max[kColumns];
  for (std::size_t j = 0; j < kColumns; j += lanes) {
    hn::Store(align_exponent(di, largest + j, row.c + j, row.half, row.floor), di, e_max + j);
  }
  for (std::size_t j = 0; j < kColumns; ++j) {
    if (e_max[j] > kLargestFastExponent) *row.plain |= std::uint64_t{1} << j;
  }
  if (row.saved != nullptr) std::memcpy(row.saved, row.c, kColumns * sizeof(*row.c));
}

/// Turns the difference of the two accumulators into codes and stores them.
template <class D>
HWY_INLINE void store_codes(D d, hn::Vec<D> sum, bool half, std::uint32_t output_mask, std::uint32_t* c) {
  const hn::Rebind<std::int32_t, D> di;
  auto bits = to_f32_bits(d, sum, half);
  if (half) {
    bits = f16_from_f32_bits(di, bits);
  } else {
    bits = hn::And(bits, hn::Set(di, static_cast<std::int32_t>(output_mask)));
    const auto zero = hn::Eq(hn::Add(bits, bits), hn::Zero(di));  // -0 too
    bits = hn::IfThenZeroElse(zero, bits);
  }
  hn::Store(bits, di, reinterpret_cast<std::int32_t*>(c));
}

/// Rows that go over B together. With AVX-512's 32 registers two rows have their sixteen accumulators in them.
constexpr std::size_t kRowsAtOnce = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 ? 2 : 1;

/// Four vectors of columns of kRows rows: the sums of the positive terms, and of the negative ones.
template <std::size_t kRows, class D>
struct SignedSums {
  hn::Vec<D> positive[kRows][4];
  hn::Vec<D> negative[kRows][4];

  /// Adds the products of `depth` positions, each cut as it is added; `b` is at the first of the columns. kShared: no
  /// row has a negative element, so that all rows read the same part of B and each load serves them all.
  template <bool kShared, class T>
  HWY_INLINE void add(D d, const T* HWY_RESTRICT a, const std::uint8_t* HWY_RESTRICT offset, std::size_t stride,
                      const T* HWY_RESTRICT b, std::size_t depth) {
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t k = 0; k < depth; ++k, b += 2 * kColumns) {
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto x = hn::Set(d, a[r * stride + k]);
        const std::size_t negative_at = kShared ? 0 : offset[r * stride + k];
        const T* HWY_RESTRICT same = b + negative_at;
        const T* HWY_RESTRICT opposite = b + (kColumns - negative_at);
        for (std::size_t v = 0; v < 4; ++v) {
          positive[r][v] = hn::MulAdd(x, hn::Load(d, same + v * lanes), positive[r][v]);
          negative[r][v] = hn::MulAdd(x, hn::Load(d, opposite + v * lanes), negative[r][v]);
        }
      }
    }
  }
};

/// Whether one of kRows rows has a negative element.
template <std::size_t kRows>
HWY_INLINE bool has_negative(const std::uint8_t* offset, std::size_t stride, std::size_t depth) {
  const hn::CappedTag<std::uint8_t, 16> d;
  auto any = hn::Zero(d);
  std::uint8_t rest = 0;
  for (std::size_t r = 0; r < kRows; ++r) {
    std::size_t k = 0;
    for (; k + hn::Lanes(d) <= depth; k += hn::Lanes(d)) any = hn::Or(any, hn::LoadU(d, offset + r * stride + k));
    for (; k < depth; ++k) rest |= offset[r * stride + k];
  }
  return rest != 0 || !hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}

template <bool kHalf, std::size_t kRows, class T, class E>
HWY_INLINE void fused_rows(const FusedPass<T, E>& pass, std::size_t row) {
  const hn::CappedTag<T, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const int start = kBias<T> + (sizeof(T) == 4 ? 23 : 52) - pass.fraction_bits;
  const T* HWY_RESTRICT a = pass.a + row * pass.a_stride;
  const std::uint8_t* HWY_RESTRICT offset = pass.a_offset + row * pass.a_stride;
  std::uint32_t* HWY_RESTRICT c = pass.c + row * kColumns;
  HWY_ALIGN E largest[kColumns];
  HWY_ALIGN std::int32_t starts[kRows * kColumns];
  for (std::size_t r = 0; r < kRows; ++r) {
    largest_exponents(pass.a_exponent + (row + r) * pass.a_stride, pass.b_exponent, pass.depth, largest);
    align_row(largest, RowTarget(pass, row + r, kHalf), start, starts + r * kColumns);
  }
  const bool shared = kRows > 1 && !has_negative<kRows>(offset, pass.a_stride, pass.depth);
  for (std::size_t j = 0; j < kColumns; j += 4 * lanes) {
    SignedSums<kRows, decltype(d)> sums;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < 4; ++v) {
        const std::size_t at = r * kColumns + j + v * lanes;
        const auto begin = power_of_two(d, hn::Load(di, starts + at));
        const auto code = hn::Load(di, reinterpret_cast<const std::int32_t*>(c) + at);
        const auto accumulator = from_f32(d, Accumulator::value(di, code, kHalf));
        sums.positive[r][v] = hn::Add(begin, hn::Max(accumulator, hn::Zero(d)));
        sums.negative[r][v] = hn::Add(begin, hn::Max(hn::Neg(accumulator), hn::Zero(d)));
      }
    }
    if (shared) {
      sums.template add<true>(d, a, offset, pass.a_stride, pass.b + j, pass.depth);
    } else {
      sums.template add<false>(d, a, offset, pass.a_stride, pass.b + j, pass.depth);
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < 4; ++v) {
        store_codes(d, hn::Sub(sums.positive[r][v], sums.negative[r][v]), kHalf, pass.output_mask,
                    c + r * kColumns + j + v * lanes);
      }
    }
  }
}

template <bool kHalf, class T, class E>
HWY_INLINE void fused_pass(const FusedPass<T, E>& pass) {
  std::size_t row = 0;
  for (; row + kRowsAtOnce <= pass.rows; row += kRowsAtOnce) fused_rows<kHalf, kRowsAtOnce>(pass, row);
  for (; row < pass.rows; ++row) fused_rows<kHalf, 1>(pass, row);
}

/// c + x in s32, clamped or modulo 2^32.
template <class DI>
HWY_INLINE void add_integer(DI di, hn::Vec<DI> x, bool saturate, std::uint32_t* c) {
  auto* codes = reinterpret_cast<std::int32_t*>(c);
  const auto old = hn::Load(di, codes);
  auto sum = hn::Add(old, x);
  if (saturate) {
    const auto overflow = hn::And(hn::Xor(old, sum), hn::Xor(x, sum));
    const auto limit = hn::Xor(hn::Set(di, 0x7FFFFFFF), hn::BroadcastSignBit(x));
    sum = hn::IfThenElse(hn::Lt(overflow, hn::Zero(di)), limit, sum);
  }
  hn::Store(sum, di, codes);
}

// Where x86 has the instruction: Highway's stand-ins for it (HWY_EMU128 under Clang, HWY_SCALAR under GCC) leave the
// odd products in the second sum, which the instruction does not touch.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// Rows together, so that each load of B serves them all; vpmaddwd.
template <std::size_t kRows>
HWY_INLINE void integer_rows(const IntegerPass& pass, std::size_t row) {
  const hn::CappedTag<std::int32_t, 16> di;
  const hn::Repartition<std::int16_t, decltype(di)> dw;
  using V = hn::Vec<decltype(di)>;
  const std::size_t lanes = hn::Lanes(di);
  const std::int16_t* HWY_RESTRICT a = pass.a + row * pass.a_stride;
  for (std::size_t j = 0; j < kColumns; j += 4 * lanes) {
    V sums[kRows][4];
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < 4; ++v) sums[r][v] = hn::Zero(di);
    }
    V unused = hn::Zero(di);
    const std::int16_t* HWY_RESTRICT b = pass.b + 2 * j;
    for (std::size_t k = 0; k < pass.depth; k += 2, b += 2 * kColumns) {
      hn::Vec<decltype(dw)> columns[4];
      for (std::size_t v = 0; v < 4; ++v) columns[v] = hn::Load(dw, b + 2 * lanes * v);
      for (std::size_t r = 0; r < kRows; ++r) {
        std::int32_t two;
        std::memcpy(&two, a + r * pass.a_stride + k, sizeof two);
        const auto x = hn::BitCast(dw, hn::Set(di, two));
        for (std::size_t v = 0; v < 4; ++v) {
          sums[r][v] = hn::ReorderWidenMulAccumulate(di, x, columns[v], sums[r][v], unused);
        }
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t v = 0; v < 4; ++v) {
        add_integer(di, sums[r][v], pass.saturate, pass.c + (row + r) * kColumns + j + lanes * v);
      }
    }
  }
}

void run_integer(const IntegerPass& pass) {
  std::size_t row = 0;
  for (; row + 2 <= pass.rows; row += 2) integer_rows<2>(pass, row);
  if (row < pass.rows) integer_rows<1>(pass, row);
}

#else

void run_integer(const IntegerPass& pass) {
  const hn::CappedTag<std::int32_t, 16> di;
  for (std::size_t row = 0; row < pass.rows; ++row) {
    HWY_ALIGN std::int32_t sums[kColumns] = {};
    for (std::size_t k = 0; k < pass.depth; ++k) {
      const std::int16_t* HWY_RESTRICT b = pass.b + 2 * (k / 2 * kColumns) + k % 2;
      const int a = pass.a[row * pass.a_stride + k];
      // Modulo 2^32, as the vector instructions are.
      for (std::size_t j = 0; j < kColumns; ++j) {
        const auto product = static_cast<std::uint32_t>(a * b[2 * j]);
        sums[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[j]) + product);
      }
    }
    for (std::size_t j = 0; j < kColumns; j += hn::Lanes(di)) {
      add_integer(di, hn::Load(di, sums + j), pass.saturate, pass.c + row * kColumns + j);
    }
  }
}

#endif  // vpmaddwd

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL

constexpr bool kHasByteDot = true;

/// vpdpbusd: to each lane of `sums` four products of u8 and s8. Highway's target lacks the compiler's name for the
/// extension, not the check for it.
HWY_INLINE void add_four_products(__m512i& sums, __m512i u8, __m512i s8) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u8), "v"(s8));
}

template <std::size_t kRows>
HWY_INLINE void byte_rows(const BytePass& pass, std::size_t row) {
  const hn::CappedTag<std::int32_t, 16> di;
  const std::uint8_t* HWY_RESTRICT a = pass.a + row * pass.a_stride;
  hn::Vec<decltype(di)> sums[kRows][4];
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto start = hn::Set(di, pass.row_start[row + r]);
    for (std::size_t v = 0; v < 4; ++v) sums[r][v] = hn::Add(start, hn::Load(di, pass.column_start + 16 * v));
  }
  const std::int8_t* HWY_RESTRICT b = pass.b;
  for (std::size_t k = 0; k < pass.depth; k += 4, b += 4 * kColumns) {
    __m512i columns[4];
    for (std::size_t v = 0; v < 4; ++v) columns[v] = _mm512_load_si512(b + 64 * v);
    for (std::size_t r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, a + r * pass.a_stride + k, sizeof four);
      const __m512i x = _mm512_set1_epi32(four);
      for (std::size_t v = 0; v < 4; ++v) add_four_products(sums[r][v].raw, x, columns[v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < 4; ++v) {
      add_integer(di, sums[r][v], pass.saturate, pass.c + (row + r) * kColumns + 16 * v);
    }
  }
}

void run_bytes(const BytePass& pass) {
  std::size_t row = 0;
  for (; row + 4 <= pass.rows; row += 4) byte_rows<4>(pass, row);
  for (; row < pass.rows; ++row) byte_rows<1>(pass, row);
}

#else

constexpr bool kHasByteDot = false;

/// For operands that were decoded while a target with the instruction was in use.
void run_bytes(const BytePass& pass) {
  const hn::CappedTag<std::int32_t, 16> di;
  for (std::size_t row = 0; row < pass.rows; ++row) {
    HWY_ALIGN std::int32_t sums[kColumns];
    for (std::size_t j = 0; j < kColumns; ++j) {
      auto sum = static_cast<std::uint32_t>(pass.row_start[row]) + static_cast<std::uint32_t>(pass.column_start[j]);
      for (std::size_t k = 0; k < pass.depth; ++k) {
        const int product = pass.a[row * pass.a_stride + k] * pass.b[(k / 4 * kColumns + j) * 4 + k % 4];
        sum += static_cast<std::uint32_t>(product);
      }
      sums[j] = static_cast<std::int32_t>(sum);
    }
    for (std::size_t j = 0; j < kColumns; j += hn::Lanes(di)) {
      add_integer(di, hn::Load(di, sums + j), pass.saturate, pass.c + row * kColumns + j);
    }
  }
}

#endif  // HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL

bool byte_dot() { return kHasByteDot; }

bool left_f32(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, float* magnitudes,
              std::int8_t* exponents, std::uint8_t* offsets) {
  return left_elements(decoder, codes, n, magnitudes, exponents, offsets);
}

bool left_f64(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, double* magnitudes,
              std::int16_t* exponents, std::uint8_t* offsets) {
  return left_elements(decoder, codes, n, magnitudes, exponents, offsets);
}

std::uint64_t right_f32(const ElementDecoder& decoder, const std::uint32_t* codes, float* parts,
                        std::int8_t* exponents) {
  return right_elements(decoder, codes, parts, exponents);
}

std::uint64_t right_f64(const ElementDecoder& decoder, const std::uint32_t* codes, double* parts,
                        std::int16_t* exponents) {
  return right_elements(decoder, codes, parts, exponents);
}

void run_fused_f32(const FusedPass<float, std::int8_t>& pass) {
  pass.type == AccumulatorType::f16 ? fused_pass<true>(pass) : fused_pass<false>(pass);
}

void run_fused_f64(const FusedPass<double, std::int16_t>& pass) {
  pass.type == AccumulatorType::f16 ? fused_pass<true>(pass) : fused_pass<false>(pass);
}

/// Exact dot products of each group of 16, for the columns of one vector of doubles from column j on.
template <class D>
HWY_INLINE hn::Vec<D> exact_group(D d, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b) {
  const hn::Rebind<float, D> df;
  auto even = hn::Zero(df), odd = hn::Zero(df);
  for (std::size_t k = 0; k < 16; k += 2) {
    even = hn::MulAdd(hn::Set(df, a[k]), hn::Load(df, b + k * kColumns), even);
    odd = hn::MulAdd(hn::Set(df, a[k + 1]), hn::Load(df, b + (k + 1) * kColumns), odd);
  }
  return hn::PromoteTo(d, hn::Add(even, odd));
}

void run_scaled(const ScaledPass& pass) {
  const hn::CappedTag<double, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::int16_t largest[kColumns];
  HWY_ALIGN std::int32_t starts[kColumns];
  for (std::size_t row = 0; row < pass.rows; ++row) {
    const float* HWY_RESTRICT a = pass.a + row * pass.a_stride;
    const double* HWY_RESTRICT a_scale = pass.a_scale + row * pass.a_scale_stride;
    std::uint32_t* HWY_RESTRICT c = pass.c + row * kColumns;
    largest_exponents(pass.a_scale_exponent + row * pass.a_scale_stride, pass.b_scale_exponent, pass.groups, largest);
    align_row(largest, RowTarget(pass, row, false), kBias<double> + 52 - pass.fraction_bits, starts);
    for (std::size_t j = 0; j < kColumns; j += lanes) {
      const auto start = power_of_two(d, hn::Load(di, starts + j));
      const auto code = hn::Load(di, reinterpret_cast<const std::int32_t*>(c) + j);
      const auto accumulator = from_f32(d, Accumulator::value(di, code, false));
      auto positive = hn::Add(start, hn::Max(accumulator, hn::Zero(d)));
      auto negative = hn::Add(start, hn::Max(hn::Neg(accumulator), hn::Zero(d)));
      for (std::size_t g = 0; g < pass.groups; ++g) {
        const auto group = exact_group(d, a + g * 16, pass.b + g * 16 * kColumns + j);
        const auto scale = hn::Mul(hn::Set(d, a_scale[g]), hn::Load(d, pass.b_scale + g * kColumns + j));
        const auto term = hn::Mul(group, scale);
        positive = hn::Add(positive, hn::Max(term, hn::Zero(d)));
        negative = hn::Add(negative, hn::Max(hn::Neg(term), hn::Zero(d)));
      }
      store_codes(d, hn::Sub(positive, negative), false, 0xFFFFFFFFu, c + j);
    }
  }
}

void run_add_rounded(std::uint32_t* HWY_RESTRICT c, const std::uint32_t* HWY_RESTRICT t, std::size_t n,
                     AccumulatorType type) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> di;
  const bool half = type == AccumulatorType::f16;
  const auto all_ones = hn::Set(di, half ? 0x7FFF : 0x7FFFFFFF);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    auto* codes = reinterpret_cast<std::int32_t*>(c + i);
    const auto x = hn::Load(di, codes);
    const auto y = hn::Load(di, reinterpret_cast<const std::int32_t*>(t + i));
    // An f32 sum of two f16 numbers, rounded again to f16, is the rounded sum: 24 >= 2 * 11 + 2 bits.
    const auto sum = hn::Add(Accumulator::value(di, x, half), Accumulator::value(di, y, half));
    auto bits = hn::BitCast(di, sum);
    if (half) bits = f16_from_f32_bits(di, bits);
    bits = hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(sum)), all_ones, bits);
    hn::Store(bits, di, codes);
  }
}

}  // namespace
}  // namespace qattn::mma::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <string>

#include "base/error.h"

namespace qattn::mma {

HWY_EXPORT(left_f32);
HWY_EXPORT(left_f64);
HWY_EXPORT(right_f32);
HWY_EXPORT(right_f64);
HWY_EXPORT(run_fused_f32);
HWY_EXPORT(run_fused_f64);
HWY_EXPORT(run_integer);
HWY_EXPORT(run_bytes);
HWY_EXPORT(byte_dot);
HWY_EXPORT(run_scaled);
HWY_EXPORT(run_add_rounded);

namespace {

format::NarrowDecoder narrow_decoder(const format::Format& format) {
  return format::NarrowDecoder(format::NarrowDecoder::fits(format) ? format : format::kFP16);
}

}  // namespace

ElementDecoder::ElementDecoder(const format::Format& format, bool through_fp16)
    : is_wide(format.exponent_bits == 8),
      wide_shift(format.bits == 16 ? 16 : 0),
      narrow(narrow_decoder(format)),
      lowest_exponent(1 - (through_fp16 ? format::kFP16 : format).bias) {
  if (!is_wide && !format::NarrowDecoder::fits(format)) {
    throw Error(ErrorKind::internal, std::string("tile operands of format ") + std::string(format.name));
  }
}

bool decode_left(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, float* magnitudes,
                 std::int8_t* exponents, std::uint8_t* offsets) {
  return HWY_DYNAMIC_DISPATCH(left_f32)(decoder, codes, n, magnitudes, exponents, offsets);
}

bool decode_left(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, double* magnitudes,
                 std::int16_t* exponents, std::uint8_t* offsets) {
  return HWY_DYNAMIC_DISPATCH(left_f64)(decoder, codes, n, magnitudes, exponents, offsets);
}

std::uint64_t decode_right(const ElementDecoder& decoder, const std::uint32_t* codes, float* parts,
                           std::int8_t* exponents) {
  return HWY_DYNAMIC_DISPATCH(right_f32)(decoder, codes, parts, exponents);
}

std::uint64_t decode_right(const ElementDecoder& decoder, const std::uint32_t* codes, double* parts,
                           std::int16_t* exponents) {
  return HWY_DYNAMIC_DISPATCH(right_f64)(decoder, codes, parts, exponents);
}

void run(const FusedPass<float, std::int8_t>& pass) { HWY_DYNAMIC_DISPATCH(run_fused_f32)(pass); }
void run(const FusedPass<double, std::int16_t>& pass) { HWY_DYNAMIC_DISPATCH(run_fused_f64)(pass); }
void run(const IntegerPass& pass) { HWY_DYNAMIC_DISPATCH(run_integer)(pass); }
void run(const BytePass& pass) { HWY_DYNAMIC_DISPATCH(run_bytes)(pass); }
bool has_byte_dot() { return HWY_DYNAMIC_DISPATCH(byte_dot)(); }
void run(const ScaledPass& pass) { HWY_DYNAMIC_DISPATCH(run_scaled)(pass); }
void add_rounded(std::uint32_t* c, const std::uint32_t* t, std::size_t n, AccumulatorType type) {
  HWY_DYNAMIC_DISPATCH(run_add_rounded)(c, t, n, type);
}

}  // namespace qattn::mma
#endif
