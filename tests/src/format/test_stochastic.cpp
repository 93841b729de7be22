// Stochastic rounding: the exact threshold, the frequency, and that a result depends on its own random bits alone.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "format/encode.h"
#include "mismatches.h"
#include "oracle.h"
#include "probes.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::format;

namespace {

constexpr std::uint32_t kLargestRandom = std::numeric_limits<std::uint32_t>::max();

}  // namespace

TEST_CASE("stochastic rounding turns at the discarded fraction: below it up, from it on down") {
  for (const Format* format : formats()) {
    CAPTURE(format->name);
    Mismatches mismatches;
    const std::vector<double> inputs = probes(*format).doubles;
    const std::size_t step = inputs.size() / 20000 + 1;
    for (const Overflow overflow : {Overflow::saturate, Overflow::inf_or_nan}) {
      const Policy policy{.rounding = Rounding::stochastic, .overflow = overflow};
      for (std::size_t i = 0; i < inputs.size(); i += step) {
        // Away from the probe: any fraction, not only those beside 0 and one half.
        const double x = inputs[i] * (1 + random_unit(3, 0, i) / 8);
        if (!std::isfinite(x)) continue;
        const bool negative = std::signbit(x);
        const oracle::Exact magnitude = oracle::exact_magnitude(x);
        const oracle::Place where = oracle::place(*format, negative && format->has_sign, magnitude);
        for (const std::uint32_t random :
             {std::uint32_t{0}, where.fraction - 1, where.fraction, where.fraction + 1, kLargestRandom}) {
          mismatches.compare(*format, x, policy, format::encode(*format, x, policy, random),
                             oracle::choose(*format, negative, magnitude == 0, where, policy, random));
        }
      }
    }
    INFO(mismatches.text());
    CHECK(mismatches.count() == 0);
    CHECK(mismatches.compared() > 1000);
  }
}

TEST_CASE("stochastic rounding goes up as often as the discarded fraction says") {
  constexpr std::uint64_t kDraws = 100000;
  const Policy policy{.rounding = Rounding::stochastic};
  for (const Format* format : {&kE4M3, &kE5M2Fnuz, &kE2M1, &kFP16, &kBF16, &kE8M0, &kInt8, &kInt4}) {
    // In each of these formats 2 and 3, or 2 and 4 for E8M0, or numbers between them are neighbours.
    for (const float x : {2.00390625f, 2.1f, 2.5f, 2.875f, -2.7f}) {
      if (x < 0 && !format->has_sign) continue;
      CAPTURE(format->name, x);
      const oracle::Place where = oracle::place(*format, x < 0, oracle::exact_magnitude(static_cast<double>(x)));
      const std::uint64_t lower = oracle::code_at(*format, x < 0, where.lower);
      const double expected = static_cast<double>(where.fraction) * 0x1p-32;
      std::int64_t ups = 0;
      for (std::uint64_t i = 0; i < kDraws; ++i) {
        const auto random = static_cast<std::uint32_t>(random_bits(11, 5, i));
        ups += format::encode(*format, x, policy, random) == lower ? 0 : 1;
      }
      const double deviation = std::sqrt(expected * (1 - expected) / static_cast<double>(kDraws));
      CHECK(std::fabs(static_cast<double>(ups) / static_cast<double>(kDraws) - expected) <= 4.5 * deviation);
    }
  }
}

TEST_CASE("a stochastic result depends on its element's random bits, not on order or on the span it is in") {
  constexpr std::size_t kCount = 4096;
  const Policy policy{.rounding = Rounding::stochastic};
  std::vector<float> x(kCount);
  std::vector<std::uint32_t> random(kCount), whole(kCount), parts(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(16 * random_unit(1, 0, i) - 8);
    random[i] = static_cast<std::uint32_t>(random_bits(1, 1, i));
  }
  for (const Format* format : formats()) {
    if (format->bits > 32) continue;
    CAPTURE(format->name);
    encode_span(*format, x, policy, whole, random);
    for (std::size_t i = kCount; i-- > 0;) {
      const std::span<const float> element(&x[i], 1);
      encode_span(*format, element, policy, std::span(&parts[i], 1), std::span<const std::uint32_t>(&random[i], 1));
    }
    CHECK(whole == parts);
  }
}
