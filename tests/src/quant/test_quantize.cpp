// Scales and codes against exact rational arithmetic; policies; the fast forms against the plain one.
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cfenv>
#include <limits>

#include "base/error.h"
#include "matrices.h"
#include "oracle.h"
#include "quant/quantize.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::quant;
using format::Rounding;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const std::vector<const format::Format*> kElementFormats{&format::kInt8, &format::kInt4, &format::kE4M3, &format::kE5M2,
                                                         &format::kE3M2, &format::kE2M3, &format::kE2M1};

// Enough floats to meet every binade and the neighbours of powers of two and of multiples of the ranges.
std::vector<float> amax_samples() {
  std::vector<float> samples{0, std::numeric_limits<float>::max(), 0x1p-149f, 0x1p-126f};
  for (int e = -149; e < 128; ++e)
    for (const float m : {1.0f, 1.1f, 1.25f, 1.3125f, 1.5f, 1.75f, 1.96875f}) samples.push_back(std::ldexp(m, e));
  for (const format::Format* format : kElementFormats) {
    for (const float factor : {0.5f, 1.0f, 1.5f, 0x1p-20f}) {
      const float value = quantization_range(*format) * factor;
      samples.insert(samples.end(), {value, std::nextafter(value, 0.0f), std::nextafter(value, kInf)});
    }
  }
  return samples;
}

QuantizerSpec spec_of(const format::Format& format, GroupSpec groups = {}) {
  QuantizerSpec spec;
  spec.format = &format;
  spec.groups = groups;
  return spec;
}

std::uint32_t negative_zero(const format::Format& format) {
  return format.specials == format::Specials::integer ? 0u : static_cast<std::uint32_t>(format::sign_mask(format));
}

// The oracle's quantization of x with the groups of `result`; only the group map is taken from the code under test.
void require_matches_oracle(const MatrixF& x, const QuantizerSpec& spec, const Quantized& result) {
  std::vector<float> amax(result.scales.size(), 0.0f);
  for (std::int64_t r = 0; r < x.rows(); ++r)
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      float& largest = amax[static_cast<std::size_t>(result.groups.index(r, c))];
      largest = std::max(largest, std::fabs(x(r, c)));
    }
  const auto scale_table = oracle::code_table(format::kE4M3);
  const float range = spec.range > 0 ? spec.range : quantization_range(*spec.format);
  for (std::size_t g = 0; g < amax.size(); ++g) {
    float scale = oracle::scale(spec.rule->name, amax[g], range);
    if (spec.scale_format == &format::kE4M3)
      scale = format::decode_float(format::kE4M3, oracle::nearest_code(scale_table, scale, 0));
    REQUIRE(result.scales[g] == (scale == 0 ? 1 : scale));
  }
  const auto table = oracle::code_table(*spec.format);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      const float y = oracle::to_float(oracle::exact(x(r, c)) / oracle::exact(result.scale(r, c)));
      const float signed_y = std::copysign(y, x(r, c));
      REQUIRE(result.codes(r, c) == oracle::nearest_code(table, signed_y, negative_zero(*spec.format)));
    }
  }
}

}  // namespace

TEST_CASE("Scale rules equal their definitions on exact rationals") {
  std::vector<float> ranges{1.0f, 2.25f, 4.5f};
  for (const format::Format* format : kElementFormats) ranges.push_back(quantization_range(*format));
  for (const float range : ranges) {
    std::vector<float> samples = amax_samples();
    samples.push_back(1.5f * range);
    for (const ScaleRule& rule : scale_rules())
      for (const float amax : samples) {
        INFO(rule.name << " of " << amax << " for range " << range);
        REQUIRE(rule.scale(amax, range) == oracle::scale(rule.name, amax, range));
      }
  }
}

TEST_CASE("Scale rules let NaN through") {
  for (const ScaleRule& rule : scale_rules()) CHECK(std::isnan(rule.scale(kNaN, 127)));
}

TEST_CASE("Quantization ranges and saturation thresholds are the formats'") {
  CHECK(quantization_range(format::kInt8) == 127);
  CHECK(quantization_range(format::kInt4) == 7);
  CHECK(quantization_range(format::kE4M3) == 448);
  CHECK(quantization_range(format::kE5M2) == 57344);
  CHECK(quantization_range(format::kE2M1) == 6);
  CHECK(quantization_range(format::kE3M2) == 28);
  CHECK(quantization_range(format::kE2M3) == 7.5f);
  CHECK(saturation_threshold(format::kInt8) == 127.5f);
  CHECK(saturation_threshold(format::kE4M3) == 464);
  CHECK(saturation_threshold(format::kE5M2) == 61440);
  CHECK(saturation_threshold(format::kE2M1) == 7);
  CHECK(saturation_threshold(format::kFP16) == 65520);
}

TEST_CASE("Every format, granularity and ragged shape quantizes as exact arithmetic says") {
  for (const format::Format* format : kElementFormats) {
    for (const Granularity granularity : granularities()) {
      const std::uint64_t seed = static_cast<std::uint64_t>(format->bits * 100 + static_cast<int>(granularity));
      const MatrixF x = matrices::wide(37, 24, seed, format->bits == 4 ? 4 : 12);
      for (const char* rule : {"amax", "triton_eps", "reciprocal"}) {
        QuantizerSpec spec = spec_of(*format, {.granularity = granularity, .operand = Operand::k});
        spec.rule = &find_scale_rule(rule);
        INFO(format->name << " " << name(granularity) << " " << rule);
        require_matches_oracle(x, spec, quantize(x, spec));
      }
    }
  }
}

TEST_CASE("Micro-scaled formats quantize as exact arithmetic says") {
  for (const char* form : {"nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2"}) {
    for (const Operand operand : {Operand::q, Operand::v}) {
      const MatrixF x = matrices::wide(37, 40, 77, 20);
      QuantizerSpec spec = micro_scaled(form, operand);
      INFO(form << " " << name(operand));
      require_matches_oracle(x, spec, quantize(x, spec));
      if (spec.scale_format != &format::kE8M0) continue;
      for (const char* rule : {"e8m0_ceil", "e8m0_nearest"}) {
        spec.rule = &find_scale_rule(rule);
        require_matches_oracle(x, spec, quantize(x, spec));
      }
    }
  }
  CHECK_THROWS_WITH(micro_scaled("mxfp5", Operand::q), Catch::Matchers::Contains("mxfp6_e3m2"));
}

TEST_CASE("The ceil rule never saturates and the floor rule does") {
  const MatrixF x = matrices::wide(64, 64, 5, 20);
  QuantizerSpec spec = micro_scaled("mxfp8_e4m3", Operand::q);
  CHECK(quantize(x, spec).stats.saturated > 0);
  spec.rule = &find_scale_rule("e8m0_ceil");
  CHECK(quantize(x, spec).stats.saturated == 0);
}

TEST_CASE("Outer scales: x is divided by amax / (448 * 6) first, dequantized values are multiplied by it last") {
  const MatrixF x = matrices::wide(20, 48, 9, 16);
  for (const Granularity outer : {Granularity::per_tensor, Granularity::per_token}) {
    QuantizerSpec spec = micro_scaled("nvfp4", Operand::p);
    spec.outer = outer;
    const Quantized result = quantize(x, spec);
    MatrixF divided = x;
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      float amax = 0;
      for (std::int64_t i = 0; i < x.rows(); ++i)
        for (std::int64_t c = 0; c < x.cols(); ++c)
          if (i == r || outer == Granularity::per_tensor) amax = std::max(amax, std::fabs(x(i, c)));
      const float scale = oracle::to_float(oracle::exact(amax) / 2688);
      for (std::int64_t c = 0; c < x.cols(); ++c) {
        REQUIRE(result.outer_scale(r, c) == scale);
        divided(r, c) = std::copysign(oracle::to_float(oracle::exact(x(r, c)) / oracle::exact(scale)), x(r, c));
      }
    }
    spec.outer.reset();
    require_matches_oracle(divided, spec, result);
    const MatrixF values = dequantize(result);
    for (std::int64_t r = 0; r < x.rows(); ++r)
      for (std::int64_t c = 0; c < x.cols(); ++c) {
        const float inner = oracle::to_float(oracle::exact(format::decode_float(format::kE2M1, result.codes(r, c))) *
                                             oracle::exact(result.scale(r, c)));
        const float both = oracle::to_float(oracle::exact(inner) * oracle::exact(result.outer_scale(r, c)));
        REQUIRE(std::fabs(values(r, c)) == std::fabs(both));
      }
  }
}

TEST_CASE("A reduced range maps amax to it") {
  const MatrixF x = matrices::plain(40, 16, 3);
  QuantizerSpec spec = spec_of(format::kE4M3, {.granularity = Granularity::per_channel, .operand = Operand::v});
  spec.range = 2.25f;
  const Quantized result = quantize(x, spec);
  require_matches_oracle(x, spec, result);
  float largest = 0;
  for (std::int64_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, format::decode_float(format::kE4M3, result.codes.data()[i]));
  CHECK(largest == 2.25f);
}

TEST_CASE("A static multiplier scales by a product and keeps its reciprocal as scale") {
  const MatrixF x = matrices::plain(8, 64, 4).cwiseAbs();
  QuantizerSpec spec = spec_of(format::kE4M3);
  spec.static_multiplier = 448.0f;
  const Quantized result = quantize(x, spec);
  CHECK(result.scales == std::vector<float>{1.0f / 448.0f});
  const auto table = oracle::code_table(format::kE4M3);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const float y = oracle::to_float(oracle::exact(x.data()[i]) * 448);
    REQUIRE(result.codes.data()[i] == oracle::nearest_code(table, y, 0x80));
  }
}

TEST_CASE("Scaling by the reciprocal and dividing by the unrounded scale do what they say") {
  const MatrixF x = matrices::wide(16, 32, 6, 6);
  QuantizerSpec spec = micro_scaled("nvfp4", Operand::q);
  const auto table = oracle::code_table(format::kE2M1);
  for (const bool reciprocal : {false, true}) {
    for (const bool unrounded : {false, true}) {
      spec.scaling = reciprocal ? Scaling::reciprocal : Scaling::divide;
      spec.unrounded_divisor = unrounded;
      const Quantized result = quantize(x, spec);
      const std::vector<float> amax = group_amax(x, result.groups);
      for (std::int64_t r = 0; r < x.rows(); ++r)
        for (std::int64_t c = 0; c < x.cols(); ++c) {
          const float scale = result.scale(r, c);
          const float exact = oracle::scale("amax", amax[static_cast<std::size_t>(result.groups.index(r, c))], 6);
          const auto divisor = oracle::exact(unrounded && exact != 0 ? exact : scale);
          const auto quotient = oracle::exact(x(r, c)) / divisor;
          const float y = reciprocal
                              ? oracle::to_float(oracle::exact(x(r, c)) * oracle::exact(oracle::to_float(1 / divisor)))
                              : oracle::to_float(quotient);
          REQUIRE(result.codes(r, c) == oracle::nearest_code(table, std::copysign(y, x(r, c)), 0x8));
        }
    }
  }
}

TEST_CASE("The fast integer forms equal the plain definition, and the plain one exact arithmetic") {
  MatrixF x(1, 1 << 20);
  for (std::int64_t i = 0; i < x.cols(); ++i) {
    const std::uint64_t bits = random_bits(1, 2, static_cast<std::uint64_t>(i));
    // Two thirds near a tie or an integer, the rest any float at all, NaN and Inf among them.
    const float near = static_cast<float>(static_cast<int>(bits % 520) - 260) / 2;
    const int steps = static_cast<int>(bits >> 32 & 3);
    float value = near;
    for (int s = 0; s < steps; ++s) value = std::nextafter(value, bits >> 40 & 1 ? kInf : -kInf);
    x(0, i) = i % 3 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32)) : value;
  }
  for (const format::Format* format : {&format::kInt8, &format::kInt4}) {
    const auto table = oracle::code_table(*format);
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::nearest_away}) {
      QuantizerSpec spec = spec_of(*format);
      spec.static_multiplier = 1.0f;
      spec.rounding = rounding;
      const Quantized fast = quantize(x, spec);
      std::int64_t saturated = 0;
      for (std::int64_t i = 0; i < x.cols(); ++i) {
        REQUIRE(fast.codes(0, i) == encode_element(*format, x(0, i), rounding));
        saturated += std::fabs(x(0, i)) >= quantization_range(*format) + 0.5f;
      }
      CHECK(fast.stats.saturated == saturated);
      for (std::int64_t i = 0; i < 20000; ++i) {
        if (std::isnan(x(0, i))) continue;
        const float y = std::clamp(x(0, i), -200.0f, 200.0f);
        // The published form: one f32 addition of a half, then truncation, which picks an integer exactly.
        const float integer =
            rounding == Rounding::nearest_even
                ? y
                : std::trunc(oracle::to_float(oracle::exact(y) + oracle::exact(std::copysign(0.5f, y))));
        REQUIRE(fast.codes(0, i) == oracle::nearest_code(table, integer, 0));
      }
    }
  }
}

TEST_CASE("The fast integer forms equal the plain definition for all 2^32 floats", "[.][exhaustive]") {
  MatrixF x(1, 1 << 16);
  QuantizerSpec spec = spec_of(format::kInt8);
  spec.static_multiplier = 1.0f;
  for (const Rounding rounding : {Rounding::nearest_even, Rounding::nearest_away}) {
    spec.rounding = rounding;
    for (std::uint32_t high = 0; high < 1 << 16; ++high) {
      for (std::uint32_t low = 0; low < 1 << 16; ++low) x(0, low) = std::bit_cast<float>(high << 16 | low);
      const Quantized fast = quantize(x, spec);
      for (std::int64_t i = 0; i < x.cols(); ++i)
        if (fast.codes(0, i) != encode_element(format::kInt8, x(0, i), rounding))
          FAIL("differs at " << high << " " << i);
    }
  }
}

TEST_CASE("The published rounding takes the float below one half up, IEEE rounding does not") {
  const float below_half = std::nextafter(0.5f, 0.0f);
  CHECK(encode_element(format::kInt8, below_half, Rounding::nearest_away) == 1);
  CHECK(encode_element(format::kInt8, below_half, Rounding::nearest_even) == 0);
  CHECK(encode_element(format::kInt8, -2.5f, Rounding::nearest_away) == 0xFD);
  CHECK(encode_element(format::kInt8, -2.5f, Rounding::nearest_even) == 0xFE);
  CHECK(encode_element(format::kInt8, -300.0f, Rounding::toward_zero) == 0x81);
}

TEST_CASE("Counts of saturation and underflow are those of a plain recount") {
  for (const format::Format* format : kElementFormats) {
    const MatrixF x = matrices::wide(50, 50, 12, 40);
    QuantizerSpec spec = spec_of(*format);
    spec.static_multiplier = quantization_range(*format) / 8;
    const Quantized result = quantize(x, spec);
    std::int64_t saturated = 0, underflowed = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      saturated += std::fabs(x.data()[i] * *spec.static_multiplier) >= saturation_threshold(*format);
      underflowed += x.data()[i] != 0 && format::decode_float(*format, result.codes.data()[i]) == 0;
    }
    CHECK(saturated > 0);
    CHECK(result.stats.saturated == saturated);
    CHECK(result.stats.underflowed == underflowed);
    CHECK(result.stats.elements == 2500);
  }
}

TEST_CASE("Zero groups follow the named policy") {
  MatrixF x = matrices::plain(4, 32, 8);
  x.row(2).setZero();
  const GroupSpec tokens{.granularity = Granularity::per_token};
  for (const format::Format* format : {&format::kInt8, &format::kE4M3}) {
    QuantizerSpec spec = spec_of(*format, tokens);
    for (const ZeroScale policy : {ZeroScale::one, ZeroScale::epsilon, ZeroScale::propagate}) {
      CHECK(find_zero_scale(name(policy)) == policy);
      spec.zero_scale = policy;
      const Quantized result = quantize(x, spec);
      CHECK(result.stats.zero_groups == 1);
      CHECK(result.scales[2] == (policy == ZeroScale::one ? 1.0f : policy == ZeroScale::epsilon ? 1e-7f : 0.0f));
      const bool is_nan = policy == ZeroScale::propagate && format == &format::kE4M3;
      CHECK(result.codes(2, 7) == (is_nan ? 0x7Fu : 0u));
    }
    spec.zero_scale = ZeroScale::error;
    CHECK_THROWS_WITH(quantize(x, spec), Catch::Matchers::Contains("group 2 (rows {2})"));
  }
}

TEST_CASE("A scale that underflows in its own format is a zero scale") {
  MatrixF x = MatrixF::Constant(2, 16, 0x1p-8f);
  x.row(1).setConstant(3.0f);
  QuantizerSpec spec = micro_scaled("nvfp4", Operand::q);
  const Quantized result = quantize(x, spec);
  CHECK(result.stats.zero_groups == 1);
  CHECK(result.scales == std::vector<float>{1.0f, 0.5f});
  CHECK(result.stats.underflowed == 16);
  spec.zero_scale = ZeroScale::epsilon;
  CHECK(quantize(x, spec).scales[0] == 0x1p-9f);
  CHECK(quantize(x, spec).codes(0, 0) == 0x4);  // 2^-8 / 2^-9
  QuantizerSpec mx = micro_scaled("mxfp4", Operand::q);
  mx.zero_scale = ZeroScale::epsilon;
  CHECK(quantize(MatrixF::Zero(1, 32), mx).scales[0] == 0x1p-127f);
}

TEST_CASE("Groups without tokens are no zero groups and never an error") {
  QuantizerSpec spec = spec_of(format::kInt8, {.granularity = Granularity::per_thread});
  spec.zero_scale = ZeroScale::error;
  const Quantized result = quantize(matrices::plain(3, 8, 1), spec);
  CHECK(result.scales.size() == 8);
  CHECK(result.stats.zero_groups == 0);
  spec.rule = &find_scale_rule("triton_eps");
  CHECK(quantize(matrices::plain(3, 8, 1), spec).scales[7] == 1e-7f);
}

TEST_CASE("NaN and Inf are counted, located and dequantize to NaN in their group only") {
  for (const format::Format* format : kElementFormats) {
    for (const float bad : {kNaN, kInf, -kInf}) {
      MatrixF x = matrices::plain(6, 32, 2);
      x(3, 5) = bad;
      x(4, 1) = bad;
      const Quantized result = quantize(x, spec_of(*format, {.granularity = Granularity::per_token}));
      CHECK(result.stats.nan_inputs == (std::isnan(bad) ? 2 : 0));
      CHECK(result.stats.inf_inputs == (std::isnan(bad) ? 0 : 2));
      CHECK(result.stats.first_bad_row == 3);
      CHECK(result.stats.first_bad_column == 5);
      const MatrixF values = dequantize(result);
      for (std::int64_t r = 0; r < 6; ++r)
        for (std::int64_t c = 0; c < 32; ++c) CHECK(std::isnan(values(r, c)) == (r == 3 || r == 4));
    }
  }
}

TEST_CASE("An infinite amax is a NaN scale where the scale format has no Inf") {
  MatrixF x = matrices::plain(1, 32, 2);
  x(0, 3) = kInf;
  for (const char* form : {"nvfp4", "mxfp8_e4m3"}) {
    const Quantized result = quantize(x, micro_scaled(form, Operand::q));
    CHECK(std::isnan(result.scales[0]));
    CHECK(scale_codes(result)[0] == format::nan_code(*result.scale_format));
  }
}

TEST_CASE("integer_codes and scale_codes decode to what was quantized") {
  const MatrixF x = matrices::plain(20, 32, 5);
  for (const format::Format* format : {&format::kInt8, &format::kInt4}) {
    const Quantized result = quantize(x, spec_of(*format));
    const Matrix<std::int8_t> codes = integer_codes(result);
    for (std::int64_t i = 0; i < x.size(); ++i)
      REQUIRE(static_cast<float>(codes.data()[i]) == format::decode_float(*format, result.codes.data()[i]));
    CHECK(codes.minCoeff() >= -static_cast<int>(quantization_range(*format)));
  }
  const Quantized nvfp4 = quantize(x, micro_scaled("nvfp4", Operand::q));
  const auto codes = scale_codes(nvfp4);
  for (std::size_t g = 0; g < codes.size(); ++g)
    REQUIRE(format::decode_float(format::kE4M3, codes[g]) == nvfp4.scales[g]);
  CHECK_THROWS_AS(integer_codes(nvfp4), Error);
}

TEST_CASE("Stochastic rounding is unbiased, repeats with its seed and hits only the two neighbours") {
  const MatrixF x = MatrixF::Constant(100, 100, 2.25f);
  QuantizerSpec spec = spec_of(format::kInt8);
  spec.static_multiplier = 1.0f;
  spec.rounding = Rounding::stochastic;
  spec.seed = 42;
  const MatrixCodes codes = quantize(x, spec).codes;
  std::int64_t ups = 0;
  for (std::int64_t i = 0; i < codes.size(); ++i) {
    REQUIRE((codes.data()[i] == 2 || codes.data()[i] == 3));
    ups += codes.data()[i] == 3;
  }
  CHECK(std::abs(ups - 2500) < 5 * 44);  // five standard deviations of a binomial with 10,000 draws of 1/4
  CHECK(quantize(x, spec).codes == codes);
  spec.seed = 43;
  CHECK(quantize(x, spec).codes != codes);
}

TEST_CASE("The caller's rounding mode and flush-to-zero flags change nothing") {
  const MatrixF x = matrices::wide(40, 64, 21, 140);
  for (const char* form : {"nvfp4", "mxfp8_e5m2"}) {
    const QuantizerSpec spec = micro_scaled(form, Operand::q);
    const Quantized expected = quantize(x, spec);
    const MatrixF values = dequantize(expected);
    std::fenv_t saved;
    std::fegetenv(&saved);
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#endif
    const Quantized hostile = quantize(x, spec);
    const MatrixF hostile_values = dequantize(hostile);
    std::fesetenv(&saved);
    CHECK(hostile.codes == expected.codes);
    CHECK(hostile.scales == expected.scales);
    CHECK(hostile_values == values);
  }
}

TEST_CASE("A contradictory spec is refused") {
  const MatrixF x = matrices::plain(4, 4, 1);
  const auto refused = [&](auto change) {
    QuantizerSpec spec;
    change(spec);
    CHECK_THROWS_AS(quantize(x, spec), Error);
  };
  refused([](QuantizerSpec& s) { s.format = &format::kE8M0; });
  refused([](QuantizerSpec& s) { s.format = &format::kFP64; });
  refused([](QuantizerSpec& s) { s.range = 128; });
  refused([](QuantizerSpec& s) { s.range = -1; });
  refused([](QuantizerSpec& s) { s.range = kNaN; });
  refused([](QuantizerSpec& s) { s.static_multiplier = 0.0f; });
  refused([](QuantizerSpec& s) { s.static_multiplier = 1.0f, s.scale_format = &format::kE4M3; });
  refused([](QuantizerSpec& s) { s.outer = Granularity::per_tensor; });
  CHECK_THROWS_WITH(find_scale_rule("amin"), Catch::Matchers::Contains("triton_eps"));
}
