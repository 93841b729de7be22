// Every code, every midpoint and its neighbours, every policy, against the exact oracle; the fast paths beside them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/simd_target.h"
#include "format/encode.h"
#include "format/fast_encode.h"
#include "mismatches.h"
#include "oracle.h"
#include "probes.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::format;

namespace {

constexpr int kEnumerated = 19;  // all codes up to this width, a step through the codes of wider formats

std::uint64_t code_step(const Format& format) {
  return format.bits <= kEnumerated ? 1 : (std::uint64_t{1} << (format.bits - kEnumerated)) - 1;
}

std::uint64_t last_code(const Format& format) { return ~std::uint64_t{0} >> (64 - format.bits); }

/// Every code, or every code_step()-th.
std::vector<std::uint64_t> codes_of(const Format& format) {
  std::vector<std::uint64_t> codes{0};
  while (last_code(format) - codes.back() >= code_step(format)) codes.push_back(codes.back() + code_step(format));
  return codes;
}

/// What a code must become on its way through its value and back.
std::uint64_t round_trip(const Format& format, std::uint64_t code, const Policy& policy) {
  if (is_nan(format, code)) return nan_code(format);
  if (is_inf(format, code) && policy.overflow == Overflow::saturate) return code - 1;
  return format.has_sign || format.specials == Specials::power_of_two ? code : code & 0x7F;
}

/// Compares encode(x) with the oracle under every policy; `check` compares one code more.
template <class T, class Check>
void compare_with_oracle(const Format& format, T x, Mismatches& mismatches, const Check& check) {
  static const std::vector<Policy> policies = oracle::deterministic_policies();
  const bool negative = std::signbit(x);
  const oracle::Exact magnitude = oracle::exact_magnitude(static_cast<double>(x));
  const oracle::Place where = oracle::place(format, negative && format.has_sign, magnitude);
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const std::uint64_t expected = oracle::choose(format, negative, magnitude == 0, where, policies[i], 0);
    mismatches.compare(format, x, policies[i], format::encode(format, x, policies[i]), expected);
    check(i, expected);
  }
}

template <Rounding rounding>
std::uint64_t fast_code(const Format& format, float x, const Policy& policy) {
  return FastEncoder<rounding>(format, policy.overflow, policy.subnormals)(x);
}

/// One number through the scalar FastEncoder, whose baseline build encode_span may never take on this machine.
std::uint64_t fast_code(const Format& format, float x, const Policy& policy) {
  switch (policy.rounding) {
    case Rounding::nearest_even:
      return fast_code<Rounding::nearest_even>(format, x, policy);
    case Rounding::nearest_away:
      return fast_code<Rounding::nearest_away>(format, x, policy);
    case Rounding::toward_zero:
      return fast_code<Rounding::toward_zero>(format, x, policy);
    case Rounding::up:
      return fast_code<Rounding::up>(format, x, policy);
    default:
      return fast_code<Rounding::down>(format, x, policy);
  }
}

}  // namespace

TEST_CASE("decode gives every code the value of the format's definition") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    std::int64_t wrong = 0;
    for (const bool negative : {false, true}) {
      if (negative && !format->has_sign) continue;
      const std::uint64_t count = oracle::magnitudes(*format, negative);
      for (std::uint64_t index = 0; index < count; index += code_step(*format)) {
        const std::uint64_t code = oracle::code_at(*format, negative, index);
        const double value = decode(*format, code);
        const bool same = oracle::exact_magnitude(value) == oracle::magnitude_at(*format, index) &&
                          (std::signbit(value) == negative || value == 0) && !is_nan(*format, code) &&
                          !is_inf(*format, code);
        const bool zero_sign = value != 0 || std::signbit(value) == is_negative(*format, code);
        wrong += same && zero_sign ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every code that the definition gives no number is NaN or an infinity") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    if (format->bits > kEnumerated) continue;
    std::vector<bool> number(last_code(*format) + 1, false);
    for (const bool negative : {false, true}) {
      if (negative && !format->has_sign) continue;
      for (std::uint64_t i = 0; i < oracle::magnitudes(*format, negative); ++i) {
        number[oracle::code_at(*format, negative, i)] = true;
      }
    }
    if (format == &kUE4M3) std::copy_n(number.begin(), 128, number.begin() + 128);
    std::int64_t nans = 0, infinities = 0, wrong = 0;
    for (std::uint64_t code = 0; code <= last_code(*format); ++code) {
      const double value = decode(*format, code);
      nans += is_nan(*format, code) ? 1 : 0;
      infinities += is_inf(*format, code) ? 1 : 0;
      wrong += std::isnan(value) != is_nan(*format, code) || std::isinf(value) != is_inf(*format, code) ||
                       std::isfinite(value) != number[code]
                   ? 1
                   : 0;
    }
    CHECK(wrong == 0);
    CHECK(infinities == (format->specials == Specials::ieee ? 2 : 0));
    const std::int64_t ieee_nans = 2 * ((std::int64_t{1} << format->mantissa_bits) - 1);
    switch (format->specials) {
      case Specials::ieee:
        CHECK(nans == ieee_nans);
        break;
      case Specials::nan_all_ones:
        CHECK(nans == 2);
        break;
      case Specials::nan_neg_zero:
      case Specials::power_of_two:
        CHECK(nans == 1);
        break;
      default:
        CHECK(nans == 0);
    }
  }
}

TEST_CASE("encode takes every decoded code back to itself, whatever the rounding") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches;
    for (const Policy& policy : oracle::all_policies()) {
      if (policy.subnormals == Subnormals::flush) continue;
      for (const std::uint64_t code : codes_of(*format)) {
        const std::uint64_t expected = round_trip(*format, code, policy);
        const double value = decode(*format, code);
        mismatches.compare(*format, value, policy, format::encode(*format, value, policy, 0), expected);
        if (format->bits > 32) continue;
        const float narrow = decode_float(*format, code);
        mismatches.compare(*format, narrow, policy, format::encode(*format, narrow, policy, 0), expected);
      }
    }
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
  }
}

TEST_CASE("ordinals rise by one from each number to the next") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    if (format->bits > kEnumerated) continue;
    const auto first = -static_cast<std::int64_t>(format->has_sign ? oracle::magnitudes(*format, true) - 1 : 0);
    std::int64_t expected = first, wrong = 0;
    for (; expected < 0; ++expected) {
      const std::uint64_t code = oracle::code_at(*format, true, static_cast<std::uint64_t>(-expected));
      wrong += ordinal(*format, code) == expected ? 0 : 1;
    }
    for (; expected < static_cast<std::int64_t>(oracle::magnitudes(*format, false)); ++expected) {
      wrong += ordinal(*format, static_cast<std::uint64_t>(expected)) == expected ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
  CHECK(ordinal(kE4M3, 0x80) == 0);
  CHECK(ordinal(kE5M2, inf_code(kE5M2, true)) == ordinal(kE5M2, 0xFB) - 1);
}

TEST_CASE("numbers, midpoints and their neighbours: doubles, every deterministic policy") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches;
    for (const double x : probes(*format).doubles) {
      if (std::isfinite(x)) compare_with_oracle(*format, x, mismatches, [](std::size_t, std::uint64_t) {});
    }
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
    CHECK(mismatches.compared() > 1000);
  }
}

namespace {

/// encode_span on every SIMD target.
void compare_spans(const Format& format, const std::vector<float>& x, const Policy& policy,
                   const std::vector<std::uint32_t>& random, const std::vector<std::uint64_t>& expected,
                   Mismatches& mismatches) {
  if (format.bits > 32) return;
  std::vector<std::uint32_t> codes(x.size());
  for (const std::int64_t target : simd_targets()) {
    const ForcedSimdTarget forced(target);
    encode_span(format, x, policy, codes, random);
    for (std::size_t i = 0; i < x.size(); ++i) mismatches.compare(format, x[i], policy, codes[i], expected[i]);
  }
}

}  // namespace

TEST_CASE("numbers, midpoints and their neighbours: floats, every deterministic policy, plain and fast") {
  const std::vector<Policy> policies = oracle::deterministic_policies();
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches, scalar_mismatches, span_mismatches;
    std::vector<float> x;
    std::vector<std::vector<std::uint64_t>> expected(policies.size());
    for (const float probe : probes(*format).floats) {
      if (!std::isfinite(probe)) continue;
      x.push_back(probe);
      compare_with_oracle(*format, probe, mismatches, [&](std::size_t policy, std::uint64_t code) {
        expected[policy].push_back(code);
        if (!has_fast_encoder(*format, policies[policy].rounding)) return;
        const std::uint64_t fast = fast_code(*format, probe, policies[policy]);
        scalar_mismatches.compare(*format, probe, policies[policy], fast, code);
      });
    }
    for (std::size_t policy = 0; policy < policies.size() && format->bits <= 32; ++policy) {
      compare_spans(*format, x, policies[policy], {}, expected[policy], span_mismatches);
    }
    INFO(mismatches.text() + scalar_mismatches.text() + span_mismatches.text());
    CHECK(mismatches.count() == 0);
    CHECK(scalar_mismatches.count() == 0);
    CHECK(span_mismatches.count() == 0);
  }
}

TEST_CASE("zeros, infinities, NaNs and the ends of the range: every policy, plain and fast") {
  const Probes special = special_probes();
  std::vector<std::uint32_t> codes(special.floats.size());
  const std::vector<std::uint32_t> random(special.floats.size(), 0x12345678);
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches;
    for (const Policy& policy : oracle::all_policies()) {
      for (const double x : special.doubles) {
        const std::uint64_t expected = oracle::encode(*format, x, policy, random[0]);
        mismatches.compare(*format, x, policy, format::encode(*format, x, policy, random[0]), expected);
      }
      std::vector<std::uint64_t> expected(codes.size());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float x = special.floats[i];
        expected[i] = oracle::encode(*format, static_cast<double>(x), policy, random[i]);
        mismatches.compare(*format, x, policy, format::encode(*format, x, policy, random[i]), expected[i]);
      }
      compare_spans(*format, special.floats, policy, random, expected, mismatches);
    }
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
  }
}

TEST_CASE("random bit patterns: floats and doubles, every policy, plain and fast") {
  constexpr std::size_t kCount = 1500;
  std::vector<float> x(kCount);
  std::vector<std::uint32_t> random(kCount), codes(kCount);
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches;
    for (const Policy& policy : oracle::all_policies()) {
      for (std::size_t i = 0; i < kCount; ++i) {
        const std::uint64_t bits = random_bits(7, static_cast<std::uint64_t>(policy.rounding), i);
        x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        random[i] = static_cast<std::uint32_t>(bits >> 32);
        const double wide = std::bit_cast<double>(mix64(bits));
        mismatches.compare(*format, wide, policy, format::encode(*format, wide, policy, random[i]),
                           oracle::encode(*format, wide, policy, random[i]));
      }
      std::vector<std::uint64_t> expected(kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        expected[i] = oracle::encode(*format, static_cast<double>(x[i]), policy, random[i]);
        mismatches.compare(*format, x[i], policy, format::encode(*format, x[i], policy, random[i]), expected[i]);
      }
      compare_spans(*format, x, policy, random, expected, mismatches);
    }
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
  }
}

TEST_CASE("decode_span and decode_table give decode's bits") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    if (format->bits > 32) continue;
    std::vector<std::uint32_t> codes;
    for (const std::uint64_t code : codes_of(*format)) codes.push_back(static_cast<std::uint32_t>(code));
    std::vector<float> values(codes.size());
    for (const std::int64_t target : simd_targets()) {
      const ForcedSimdTarget forced(target);
      decode_span(*format, codes, values);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float value = decode_float(*format, codes[i]);
        const bool same_value = std::isnan(value) || static_cast<double>(value) == decode(*format, codes[i]);
        wrong += std::bit_cast<std::uint32_t>(values[i]) == std::bit_cast<std::uint32_t>(value) && same_value ? 0 : 1;
      }
      INFO(simd_target_name(target));
      CHECK(wrong == 0);
    }
    if (format->bits > 16) {
      CHECK_THROWS_AS(decode_table(*format), Error);
    } else {
      CHECK(decode_table(*format).size() == last_code(*format) + 1);
    }
  }
}

TEST_CASE("long spans, whose results go past the caches, at any alignment and length, on every SIMD target") {
  constexpr std::size_t kLong = (std::size_t{1} << 20) + 37;
  std::vector<float> x(kLong + 5), back(kLong + 5);
  std::vector<std::uint32_t> codes(kLong + 5), expected(kLong + 5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_bits(9, 1, i)));
    expected[i] = static_cast<std::uint32_t>(encode(kE5M2, x[i], Policy{}));
  }
  for (const std::int64_t target : simd_targets()) {
    const ForcedSimdTarget forced(target);
    for (const std::size_t first : {0, 1, 5}) {
      const std::size_t n = kLong - first;
      std::fill(codes.begin(), codes.end(), 0xAAAAAAAA);
      encode_span(kE5M2, std::span(x).subspan(first, n), Policy{}, std::span(codes).subspan(first, n));
      decode_span(kE5M2, std::span(codes).subspan(first, n), std::span(back).subspan(first, n));
      std::int64_t wrong = 0;
      for (std::size_t i = first; i < first + n; ++i) {
        const float value = decode_float(kE5M2, expected[i]);
        wrong +=
            codes[i] != expected[i] || std::bit_cast<std::uint32_t>(back[i]) != std::bit_cast<std::uint32_t>(value);
      }
      INFO(simd_target_name(target) << " from element " << first);
      CHECK(wrong == 0);
      CHECK(codes[first + n] == 0xAAAAAAAA);
    }
  }
}

TEST_CASE("spans of different sizes and codes that do not fit are refused") {
  std::vector<float> x(3);
  std::vector<std::uint32_t> codes(3), short_codes(2);
  CHECK_THROWS_AS(encode_span(kE4M3, x, {}, short_codes), Error);
  CHECK_THROWS_AS(encode_span(kFP64, x, {}, codes), Error);
  CHECK_THROWS_AS(encode_span(kE4M3, x, {.rounding = Rounding::stochastic}, codes), Error);
  CHECK_THROWS_AS(decode_span(kE4M3, short_codes, x), Error);
  CHECK_THROWS_AS(decode_span(kFP64, codes, x), Error);
  CHECK_NOTHROW(encode_span(kE4M3, {}, {}, {}));
}
