// Single results explained, the exact values behind them, and the largest errors.
#include <cmath>

#include "format/encode.h"
#include "inputs.h"
#include "scalar/describe.h"
#include "scalar/ulp_error.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;

TEST_CASE("a described MUFU result names its segment, and the segment's quadratic gives the result") {
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::uint32_t x = code(1.0f + static_cast<float>(random_unit(6, 6, i)));
    const Description d = describe(find("rcp.approx.ftz.f32"), x);
    REQUIRE(d.segment);
    const Segment& s = *d.segment;
    CHECK(s.index == (x >> 16 & 0x7F));
    CHECK(s.segments == 128);
    const std::int64_t square = truncated_square<16>(s.w);
    const std::int64_t value = ((std::int64_t{s.c0} << 13) + std::int64_t{s.c1} * s.w + s.c2 * square + s.bias) >> 15;
    CHECK(std::ldexp(static_cast<double>(value), -24) == d.y_value);
  }
  CHECK(!describe(find("rcp.approx.ftz.f32"), kInf).segment);
  CHECK(!describe(find("ex2.approx.ftz.f32"), code(128.0f)).segment);
  CHECK(!describe(find("cvt.rn.f16.f32"), code(1.5f)).segment);
}

TEST_CASE("a subnormal argument is described with what MUFU was given") {
  const Description d = describe(find("rcp.approx.f32"), 0x00400000);  // 2^-127, times 2^24
  REQUIRE(d.segment);
  CHECK(d.segment->argument == code(0x1p-103f));
  CHECK(d.y_value == 0x1p127);
  CHECK(d.ulps == 0.0);
}

TEST_CASE("described values: result, correctly rounded result and distance") {
  const Description ex2 = describe(find("ex2.approx.ftz.f32"), code(0.5f));
  CHECK(ex2.correctly_rounded == 0x3FB504F3u);  // sqrt(2)
  CHECK(std::fabs(ex2.exact - std::sqrt(2.0)) < 1e-15);
  const double error = (ex2.y_value - std::sqrt(2.0)) * 0x1p23;
  CHECK(std::fabs(*ex2.ulps - error) < 1e-6);

  const Description cast = describe(find("cvt.rz.f16.f32"), code(1.0f + 0x1.8p-11f));
  CHECK(cast.y == 0x3C00);
  CHECK(cast.correctly_rounded == 0x3C01u);
  CHECK(cast.ulps == -0.75);

  const Description tf32 = describe(find("cvt.rna.tf32.f32"), code(1.0f + 0x1p-11f));  // a tie
  CHECK(tf32.y == code(1.0f + 0x1p-10f));
  CHECK(tf32.correctly_rounded == code(1.0f));
  CHECK(tf32.ulps == 0.5);

  const Description negative = describe(find("lg2.approx.f32"), code(-1.0f));
  CHECK(negative.y == kNaN);
  CHECK(std::isnan(negative.exact));
  CHECK(!negative.correctly_rounded);
  CHECK(!negative.ulps);

  const Description overflow = describe(find("cvt.rn.satfinite.e4m3x2.f32"), code(1e9f));
  CHECK(overflow.y == 0x7E);
  CHECK(overflow.correctly_rounded == 0x7Eu);

  const Description power = describe(find("cvt.rz.ue8m0x2.f32"), code(-5.0f));  // the magnitude's, 2^2
  CHECK(power.y == 127 + 2);
  CHECK(power.exact == 5.0);
  CHECK(power.ulps == -0.25);

  CHECK(describe(find("expf"), code(1000.0f)).correctly_rounded == kInf);
  CHECK(describe(find("expf"), code(-1000.0f)).correctly_rounded == 0u);
  CHECK(describe(find("tanhf"), code(50.0f)).correctly_rounded == code(1.0f));
  CHECK(describe(find("rcp.rn.f32"), kSign).correctly_rounded == (kSign | kInf));
  CHECK(describe(find("cvt.rn.f16x2.e4m3x2"), 0x12345638).x == 0x38);
}

TEST_CASE("correctly rounded results agree with correctly rounding hardware and with doubles") {
  const Function& reciprocal = find("rcp.rn.f32");
  const Function& square_root = find("sqrt.approx.f32");
  const Function& exponential = find("expf");
  const Function& tangent = find("tanhf");
  const Function& logarithm = find("logf");
  const Function& binary_logarithm = find("log2f");
  int near_ties = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto bits = static_cast<std::uint32_t>(random_bits(6, 7, i));
    const std::uint32_t positive = bits & ~kSign;
    if (positive >= kInf) continue;
    const auto x = static_cast<double>(number(positive));
    CHECK(describe(reciprocal, bits).correctly_rounded == reciprocal.plain(bits));
    CHECK(describe(square_root, positive).correctly_rounded == code(std::sqrt(number(positive))));
    // A double's own error matters only within 2^-27 of a tie, which is rare.
    const std::uint32_t moderate =
        code(std::ldexp(number((bits & 0x807FFFFF) | 0x3F800000), static_cast<int>(i % 8) - 4));
    near_ties += describe(exponential, moderate).correctly_rounded !=
                 code(static_cast<float>(std::exp(static_cast<double>(number(moderate)))));
    near_ties += describe(tangent, moderate).correctly_rounded !=
                 code(static_cast<float>(std::tanh(static_cast<double>(number(moderate)))));
    near_ties += describe(logarithm, positive).correctly_rounded != code(static_cast<float>(std::log(x)));
    near_ties += describe(binary_logarithm, positive).correctly_rounded != code(static_cast<float>(std::log2(x)));
  }
  CHECK(near_ties == 0);
}

TEST_CASE("the largest errors of a block are those of its single results") {
  const Function& function = find("cvt.rn.satfinite.e4m3x2.f16x2");
  const UlpErrors errors = ulp_errors(function, 2);
  CHECK(errors.normal.low == -0.5);
  CHECK(errors.normal.high == 0.5);
  CHECK(errors.subnormal.largest() == 0.5);
  CHECK(*describe(function, errors.normal.at_low).ulps == -0.5);
  // f16 codes up to 448, both signs; of them ordinary: from 2^-6 on, and two zeros.
  const std::uint64_t in_range = 0x5F00 + 1, ordinary = in_range - 0x2400 + 1;
  CHECK(errors.normal.inputs == 2 * ordinary);
  CHECK(errors.subnormal.inputs == 2 * (in_range - ordinary));
}

TEST_CASE("errors found by runs of equal results are those of every input") {
  struct Block {
    const char* function;
    int block;
    double (*exact)(double);
  };
  const Block blocks[] = {{"cvt.rn.f16.f32", 0x38, [](double x) { return x; }},  // down to subnormal results
                          {"cvt.rzi.s8.f32", 0x42, [](double x) { return x; }},  // up to the clamped ones
                          {"ex2.approx.ftz.f32", 0x33, [](double x) { return std::exp2(x); }},   // results 1 and beyond
                          {"lg2.approx.ftz.f32", 0x7F, [](double x) { return std::log2(x); }}};  // and Inf, NaN
  for (const Block& b : blocks) {
    INFO(b.function);
    const Function& function = find(b.function);
    const UlpErrors found = ulp_errors_of_block(function, b.block);
    UlpErrors expected;
    for (std::uint32_t i = 0; i < 1u << 24; ++i) {
      const std::uint32_t x = static_cast<std::uint32_t>(b.block) << 24 | i;
      const auto value = static_cast<double>(number(x));
      const double exact = b.exact(value);
      if (!std::isfinite(value) || !(std::fabs(exact) <= format::max_finite(*function.output))) continue;
      const bool is_integer = function.output == &format::kInt8;
      const double smallest = format::min_normal(*function.output);
      const int exponent = std::ilogb(std::max(std::fabs(exact), smallest)) - function.output->mantissa_bits;
      const double y = format::decode(*function.output, function.plain(x));
      const double error = (y - exact) / (is_integer ? 1.0 : std::ldexp(1.0, exponent));
      (exact == 0 || std::fabs(exact) >= smallest ? expected.normal : expected.subnormal).add(error, x);
    }
    for (const auto& [ours, theirs] :
         {std::pair{found.normal, expected.normal}, {found.subnormal, expected.subnormal}}) {
      CHECK(ours.inputs == theirs.inputs);
      CHECK(ours.low == theirs.low);
      CHECK(ours.high == theirs.high);
      CHECK(ours.at_low == theirs.at_low);
      CHECK(ours.at_high == theirs.at_high);
    }
  }
}

TEST_CASE("the errors of ex2 from 1 to 2 in block 0x3F, every input, agree with those of single results") {
  const UlpErrors errors = ulp_errors_of_block(find("ex2.approx.ftz.f32"), 0x3F);
  CHECK(errors.normal.inputs == 1u << 24);
  CHECK(errors.subnormal.inputs == 0);
  CHECK(errors.normal.low < -0.5);
  CHECK(errors.normal.high > 0.5);
  CHECK(errors.normal.largest() < 2.0);
  const Description low = describe(find("ex2.approx.ftz.f32"), errors.normal.at_low);
  const Description high = describe(find("ex2.approx.ftz.f32"), errors.normal.at_high);
  CHECK(std::fabs(*low.ulps - errors.normal.low) < 1e-6);
  CHECK(std::fabs(*high.ulps - errors.normal.high) < 1e-6);
}
