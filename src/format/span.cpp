// The fast conversions of whole spans; encode() and decode() are their plain twins.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "format/span.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

#include "format/encode.h"
#include "format/fast_encode.h"
#include "format/span_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qattn::format::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::ScalableTag<std::int32_t>;
using DF = hn::RebindToFloat<DI>;
using I = hn::Vec<DI>;

/// From so many elements on (4 MB) the result goes past the caches: it would be read from memory first otherwise.
constexpr std::size_t kStreamed = std::size_t{1} << 20;
/// Elements of such a result that are written together: reading and writing take turns at the memory.
constexpr std::size_t kBlock = 1024;

/// y[i] = kernel(x[i]) in lanes of 32 bits; partial vectors go through padded copies.
template <class Kernel>
HWY_INLINE void transform(const Kernel& kernel, const void* x, void* y, std::size_t n) {
  const DI d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* from = static_cast<const std::int32_t*>(x);
  auto* to = static_cast<std::int32_t*>(y);
  std::size_t i = 0;
  const auto take_few = [&](std::size_t count) {
    HWY_ALIGN std::int32_t few[hn::MaxLanes(d)] = {};
    std::memcpy(few, from + i, count * sizeof(*few));
    hn::Store(kernel(hn::Load(d, few)), d, few);
    std::memcpy(to + i, few, count * sizeof(*few));
    i += count;
  };
  if (n >= kStreamed) {
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) / sizeof(*to) % lanes;
    if (misaligned != 0) take_few(lanes - misaligned);
    HWY_ALIGN std::int32_t block[kBlock];
    for (; i + kBlock <= n; i += kBlock) {
      for (std::size_t j = 0; j < kBlock; j += lanes) hn::Store(kernel(hn::LoadU(d, from + i + j)), d, block + j);
      for (std::size_t j = 0; j < kBlock; j += lanes) hn::Stream(hn::Load(d, block + j), d, to + i + j);
    }
    hwy::FlushStream();
  }
  for (; i + lanes <= n; i += lanes) hn::StoreU(kernel(hn::LoadU(d, from + i)), d, to + i);
  if (i < n) take_few(n - i);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

/// Lanes with counts of their own shift in one operation, a count for all lanes takes two on Intel's cores.
HWY_INLINE I shift_count(int count) { return hn::Set(DI(), count); }
HWY_INLINE I shift_right(I x, I count) { return hn::Shr(x, count); }

#else

HWY_INLINE int shift_count(int count) { return count; }
HWY_INLINE I shift_right(I x, int count) { return hn::ShiftRightSame(x, count); }

#endif

/// `kSaturates`: what is too large becomes a number, not the code of Inf or NaN.
template <bool kSaturates>
HWY_INLINE void encode_narrow_as(const NarrowEncoder& e, const float* x, std::uint32_t* codes, std::size_t n) {
  const DI d;
  const DF df;
  const auto magnitude_mask = hn::Set(d, 0x7FFFFFFF);
  const auto exponent_mask = hn::Set(d, 0x7F800000);
  const auto bound = hn::Set(d, e.bound_bits);
  const auto least = hn::Set(d, e.least_bits);
  const auto to_unit = hn::Set(d, (23 - e.mantissa_bits) << 23);
  const auto overflow = hn::Set(d, e.overflow);
  const auto largest_number = hn::Set(d, e.largest_number);
  const auto nan = hn::Set(d, e.nan);
  const auto sign = hn::Set(d, e.sign_code);
  const auto mantissa_shift = shift_count(23 - e.mantissa_bits), sign_shift = shift_count(e.sign_shift);
  const auto kernel = [&](I bits) {
    const auto absolute = hn::And(bits, magnitude_mask);
    const auto bounded = hn::Min(absolute, bound);
    const auto exponent = hn::Max(hn::And(bounded, exponent_mask), least);
    const auto start = hn::Add(exponent, to_unit);
    const auto sum = hn::BitCast(d, hn::Add(hn::BitCast(df, bounded), hn::BitCast(df, start)));
    const auto binade = shift_right(hn::Sub(exponent, least), mantissa_shift);
    const auto magnitude = hn::Min(hn::Add(hn::Sub(sum, start), binade), overflow);
    const auto code = hn::OrAnd(magnitude, shift_right(bits, sign_shift), sign);
    if constexpr (kSaturates) return hn::IfThenElse(hn::Gt(absolute, exponent_mask), nan, code);
    const auto is_nan = hn::Or(hn::Gt(magnitude, largest_number), hn::Gt(absolute, exponent_mask));
    return hn::IfThenElse(is_nan, nan, code);
  };
  transform(kernel, x, codes, n);
}

void encode_narrow(const NarrowEncoder& e, const float* x, std::uint32_t* codes, std::size_t n) {
  e.overflow <= e.largest_number ? encode_narrow_as<true>(e, x, codes, n) : encode_narrow_as<false>(e, x, codes, n);
}

void decode_narrow(const NarrowDecoder& c, const std::uint32_t* codes, float* x, std::size_t n) {
  const DI d;
  const DF df;
  const auto magnitude_mask = hn::Set(d, c.magnitude_mask);
  const auto smallest_normal = hn::Set(d, c.smallest_normal);
  const auto largest_finite = hn::Set(d, c.largest_finite);
  const auto infinite = hn::Set(d, c.infinite);
  const auto rebias = hn::Set(d, c.rebias);
  const auto unit = hn::Set(df, c.unit);
  const auto sign = hn::Set(d, c.magnitude_mask + 1);
  const auto kernel = [&](I code) {
    const auto magnitude = hn::And(code, magnitude_mask);
    const auto subnormal = hn::BitCast(d, hn::Mul(hn::ConvertTo(df, magnitude), unit));
    auto bits = hn::Add(hn::ShiftLeftSame(magnitude, 23 - c.mantissa_bits), rebias);
    bits = hn::IfThenElse(hn::Lt(magnitude, smallest_normal), subnormal, bits);
    bits = hn::IfThenElse(hn::Eq(magnitude, infinite), hn::Set(d, 0x7F800000), bits);
    bits = hn::Or(bits, hn::ShiftLeftSame(hn::And(code, sign), c.sign_shift));
    const auto is_nan = hn::AndNot(hn::Eq(magnitude, infinite), hn::Gt(magnitude, largest_finite));
    return hn::IfThenElse(is_nan, hn::Set(d, 0x7FC00000), bits);
  };
  transform(kernel, codes, x, n);
}

/// Every NaN becomes `nan`, every Inf `infinite` of its sign; other bits stay. FP32 both ways.
void canonical_float(std::int32_t nan, std::int32_t infinite, const void* x, void* y, std::size_t n) {
  const DI d;
  const auto inf = hn::Set(d, 0x7F800000);
  const auto kernel = [&](I bits) {
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
    const auto as_infinite = hn::Or(hn::Xor(bits, magnitude), hn::Set(d, infinite));
    const auto code = hn::IfThenElse(hn::Eq(magnitude, inf), as_infinite, bits);
    return hn::IfThenElse(hn::Gt(magnitude, inf), hn::Set(d, nan), code);
  };
  transform(kernel, x, y, n);
}

/// The fast encoder's integer form; each target's compiler makes vector code of it where it has variable shifts.
template <Rounding rounding>
HWY_INLINE void encode_rounding(const Format& format, const Policy& policy, const float* x, std::uint32_t* codes,
                                std::size_t n) {
  const FastEncoder<rounding> encoder(format, policy.overflow, policy.subnormals);
  for (std::size_t i = 0; i < n; ++i) codes[i] = encoder(x[i]);
}

void encode_integers(const Format& format, const Policy& policy, const float* x, std::uint32_t* codes, std::size_t n) {
  switch (policy.rounding) {
    case Rounding::nearest_even:
      return encode_rounding<Rounding::nearest_even>(format, policy, x, codes, n);
    case Rounding::nearest_away:
      return encode_rounding<Rounding::nearest_away>(format, policy, x, codes, n);
    case Rounding::toward_zero:
      return encode_rounding<Rounding::toward_zero>(format, policy, x, codes, n);
    case Rounding::up:
      return encode_rounding<Rounding::up>(format, policy, x, codes, n);
    case Rounding::down:
      return encode_rounding<Rounding::down>(format, policy, x, codes, n);
    case Rounding::stochastic:
      break;
  }
}

}  // namespace qattn::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"

namespace qattn::format {
namespace {

HWY_EXPORT(encode_narrow);
HWY_EXPORT(decode_narrow);
HWY_EXPORT(canonical_float);
HWY_EXPORT(encode_integers);

void require(bool condition, const char* function, const Format& format, const char* rule) {
  if (condition) return;
  throw Error(ErrorKind::internal, std::string(function) + ": format '" + std::string(format.name) + "': " + rule);
}

void encode_plain(const Format& format, std::span<const float> x, const Policy& policy, std::span<std::uint32_t> codes,
                  std::span<const std::uint32_t> random_bits) {
  const bool stochastic = policy.rounding == Rounding::stochastic;
  for (std::size_t i = 0; i < x.size(); ++i) {
    codes[i] = static_cast<std::uint32_t>(encode(format, x[i], policy, stochastic ? random_bits[i] : 0));
  }
}

std::vector<float> make_table(const Format& format) {
  std::vector<float> table(std::size_t{1} << format.bits);
  for (std::size_t code = 0; code < table.size(); ++code) table[code] = decode_float(format, code);
  return table;
}

/// The table of the format at `index` of kFormats.
template <std::size_t index>
std::span<const float> table_at() {
  static const std::vector<float> table = make_table(*kFormats[index]);
  return table;
}

template <std::size_t... indices>
constexpr auto tables(std::index_sequence<indices...>) {
  return std::array{&table_at<indices>...};
}

bool is_fp32(const Format& format) { return format.exponent_bits == 8 && format.mantissa_bits == 23; }

std::int32_t fp32_nan() { return static_cast<std::int32_t>(nan_code(kFP32)); }

/// TF32 and E8M13 are the top bits of a float.
void decode_wide(const Format& format, std::span<const std::uint32_t> codes, std::span<float> values) {
  const float nan = std::bit_cast<float>(fp32_nan());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    values[i] = is_nan(format, codes[i]) ? nan : std::bit_cast<float>(codes[i] << (32 - format.bits));
  }
}

}  // namespace

void encode_span(const Format& format, std::span<const float> x, const Policy& policy, std::span<std::uint32_t> codes,
                 std::span<const std::uint32_t> random_bits) {
  require(format.bits <= 32, "encode_span", format, "a code does not fit 32 bits");
  require(x.size() == codes.size(), "encode_span", format, "as many codes as numbers are needed");
  require(policy.rounding != Rounding::stochastic || random_bits.size() == x.size(), "encode_span", format,
          "stochastic rounding needs random bits for each number");
  const FpEnvironment environment;
  if (NarrowEncoder::fits(format, policy)) {
    HWY_DYNAMIC_DISPATCH(encode_narrow)(NarrowEncoder(format, policy), x.data(), codes.data(), x.size());
  } else if (is_fp32(format) && policy.subnormals == Subnormals::keep) {
    const bool saturates = policy.overflow == Overflow::saturate;
    const std::uint64_t infinite = saturates ? max_finite_code(format) : inf_code(format);
    HWY_DYNAMIC_DISPATCH(canonical_float)
    (fp32_nan(), static_cast<std::int32_t>(infinite), x.data(), codes.data(), x.size());
  } else if (has_fast_encoder(format, policy.rounding)) {
    HWY_DYNAMIC_DISPATCH(encode_integers)(format, policy, x.data(), codes.data(), x.size());
  } else {
    encode_plain(format, x, policy, codes, random_bits);
  }
}

std::span<const float> decode_table(const Format& format) {
  require(format.bits <= 16, "decode_table", format, "more than 16 bits");
  static constexpr auto kTables = tables(std::make_index_sequence<kFormats.size()>());
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i]->name == format.name) return kTables[i]();
  }
  throw Error(ErrorKind::internal, "decode_table: '" + std::string(format.name) + "' is not in the list of formats");
}

void decode_span(const Format& format, std::span<const std::uint32_t> codes, std::span<float> values) {
  require(format.bits <= 32, "decode_span", format, "does not fit a float");
  require(codes.size() == values.size(), "decode_span", format, "as many numbers as codes are needed");
  const FpEnvironment environment;
  if (is_fp32(format)) {
    HWY_DYNAMIC_DISPATCH(canonical_float)(fp32_nan(), 0x7F800000, codes.data(), values.data(), codes.size());
  } else if (format.bits > 16) {
    decode_wide(format, codes, values);
  } else if (NarrowDecoder::fits(format)) {
    HWY_DYNAMIC_DISPATCH(decode_narrow)(NarrowDecoder(format), codes.data(), values.data(), codes.size());
  } else {
    const std::span<const float> table = decode_table(format);
    for (std::size_t i = 0; i < codes.size(); ++i) values[i] = table[codes[i] & (table.size() - 1)];
  }
}

}  // namespace qattn::format
#endif  // HWY_ONCE
