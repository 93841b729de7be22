// The device's arithmetic of operand preparation, compiled for the host: element by element the bits of the format and
// quantizer rooms.
#include "attention/quantize_steps.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/fp_environment.h"
#include "base/random.h"
#include "format/encode.h"
#include "quant/quantize.h"
#include "quant/scale.h"
#include "support/catch.h"

namespace qattn::gpu {
namespace {

#ifdef QATTN_SANITIZED
constexpr std::uint64_t kSamples = 20'000;
#else
constexpr std::uint64_t kSamples = 400'000;
#endif

struct Case {
  ElementType type;
  const format::Format* format;
};

constexpr Case kCodes[] = {{ElementType::int8, &format::kInt8}, {ElementType::int4, &format::kInt4},
                           {ElementType::e4m3, &format::kE4M3}, {ElementType::e5m2, &format::kE5M2},
                           {ElementType::fp16, &format::kFP16}, {ElementType::bf16, &format::kBF16}};

bool is_integer(const format::Format& format) { return format.specials == format::Specials::integer; }

Encoding encoding_of(const Case& c, bool half_away) {
  const bool has_nan = format::has_nan(*c.format);
  return {c.type, half_away, quant::quantization_range(*c.format),
          static_cast<std::uint32_t>((std::uint64_t{1} << c.format->bits) - 1),
          has_nan ? static_cast<std::uint32_t>(format::nan_code(*c.format)) : 0};
}

/// A float of any bits, or one within a few units of a number that lies halfway between two codes.
float sample(const format::Format& format, std::uint64_t i) {
  const std::uint64_t bits = random_bits(1, 0, i);
  if (i % 2 == 0) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  const std::uint64_t code = bits % format::max_finite_code(format);
  const double middle = 0.5 * (format::decode(format, code) + format::decode(format, code + 1));
  const auto near = std::bit_cast<std::uint32_t>(static_cast<float>(middle)) + static_cast<std::uint32_t>(i % 7) - 3;
  const float x = std::bit_cast<float>(near);
  return (bits >> 60) % 2 == 0 ? x : -x;
}

/// The code that the rooms of the CPU give.
std::uint32_t expected_code(const Case& c, float y, bool half_away) {
  if (c.format->bits == 16) {
    const format::Policy cast{.overflow = format::Overflow::inf_or_nan};
    return static_cast<std::uint32_t>(format::encode(*c.format, y, cast));
  }
  return quant::encode_element(*c.format, y,
                               half_away ? format::Rounding::nearest_away : format::Rounding::nearest_even);
}

}  // namespace

TEST_CASE("codes of the device's kernels are those of the quantizer and of the cast") {
  const FpEnvironment environment;
  for (const Case& c : kCodes) {
    for (const bool half_away : {false, true}) {
      if (half_away && !is_integer(*c.format)) continue;
      const Encoding encoding = encoding_of(c, half_away);
      std::uint64_t wrong = 0;
      for (std::uint64_t i = 0; i < kSamples; ++i) {
        const float y = sample(*c.format, i);
        if (encode(encoding, y) != expected_code(c, y, half_away)) ++wrong;
      }
      for (const float y :
           {0.0f, -0.0f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
            std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
        if (encode(encoding, y) != expected_code(c, y, half_away)) ++wrong;
      }
      INFO(std::string(c.format->name) << (half_away ? ", half away" : ""));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the device's kernels decode every code of at most 16 bits exactly") {
  for (const Case& c : kCodes) {
    const std::uint64_t count = std::uint64_t{1} << c.format->bits;
    std::vector<std::uint8_t> bytes;
    for (std::uint64_t code = 0; code < count; ++code) {
      bytes.push_back(static_cast<std::uint8_t>(code));
      if (c.format->bits == 16) bytes.push_back(static_cast<std::uint8_t>(code >> 8));
    }
    std::uint64_t wrong = 0;
    for (std::uint64_t code = 0; code < count; ++code) {
      const double found = decode(c.type, bytes.data(), static_cast<std::int64_t>(code));
      const double expected = format::decode(*c.format, code);
      const bool same = std::isnan(expected)
                            ? std::isnan(found)
                            : std::bit_cast<std::uint64_t>(found) == std::bit_cast<std::uint64_t>(expected);
      if (!same) ++wrong;
    }
    INFO(std::string(c.format->name));
    CHECK(wrong == 0);
  }
}

TEST_CASE("scales and factors of the device's kernels are those of the scale rules") {
  const FpEnvironment environment;
  struct Rule {
    const char* name;
    ScaleFormula formula;
  };
  for (const Rule& rule : {Rule{"amax", ScaleFormula::amax}, Rule{"reciprocal", ScaleFormula::reciprocal},
                           Rule{"triton_eps", ScaleFormula::triton_eps}}) {
    const quant::ScaleRule& expected = quant::find_scale_rule(rule.name);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const float amax = std::bit_cast<float>(static_cast<std::uint32_t>(random_bits(2, 0, i)) & 0x7FFFFFFFu);
      if (!std::isfinite(amax)) continue;
      for (const float range : {7.0f, 127.0f, 448.0f, 2.25f}) {
        for (const bool multiply : {false, true}) {
          const ScaleSpec spec{rule.formula, range, 0.5f, multiply};
          const float exact = expected.scale(amax, range);
          const float scale = exact == 0.0f ? 0.5f : exact;
          const float factor = multiply ? 1.0f / scale : scale;
          const float found = scale_of(spec, amax);
          wrong += found != scale || factor_of(spec, found) != factor ? 1 : 0;
        }
      }
    }
    INFO(rule.name);
    CHECK(wrong == 0);
  }
  CHECK(scale_of({ScaleFormula::amax, 127.0f, 1e-7f, false}, 0.0f) == 1e-7f);
  CHECK(std::isnan(scale_of({ScaleFormula::amax, 127.0f, 1.0f, false}, std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("sums in f64 are rounded once to the format of a correction") {
  const FpEnvironment environment;
  const format::Policy nearest{.overflow = format::Overflow::inf_or_nan};
  for (const Case& c : {Case{ElementType::fp32, &format::kFP32}, kCodes[4], kCodes[5]}) {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      // A double next to a number halfway between two codes: rounding to f32 first would lose on which side it lies.
      const auto code = random_bits(3, 0, i) % format::max_finite_code(*c.format);
      double x = 0.5 * (format::decode(*c.format, code) + format::decode(*c.format, code + 1));
      x = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) + i % 3 - 1);
      const float expected = format::decode_float(*c.format, format::encode(*c.format, x, nearest));
      if (rounded(c.type, x) != expected) ++wrong;
    }
    INFO(std::string(c.format->name));
    CHECK(wrong == 0);
  }
}

}  // namespace qattn::gpu
