// The MUFU models against multiple precision (with bounds of their own) and at their special values.
#include <algorithm>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>

#include "inputs.h"
#include "scalar/mufu.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;

namespace {

using Real = boost::multiprecision::cpp_bin_float_50;

struct Bounds {
  double low = 0, high = 0;
  void add(double error) {
    low = std::min(low, error);
    high = std::max(high, error);
  }
};

/// (y - exact) in units in the last place of a binary32 at the exact value.
double ulps(std::uint32_t y, const Real& exact) {
  const double unit = std::ldexp(1.0, std::ilogb(exact.convert_to<double>()) - 23);
  return ((Real(number(y)) - exact) / unit).convert_to<double>();
}

/// Errors on every `stride`-th code of [first, last).
template <class Function, class Exact>
Bounds errors(std::uint32_t first, std::uint32_t last, std::uint32_t stride, Function function, Exact exact) {
  Bounds bounds;
  for (std::uint32_t x = first; x < last; x += stride) bounds.add(ulps(function(x), exact(Real(number(x)))));
  return bounds;
}

}  // namespace

TEST_CASE("MUFU errors on a sample of the reduced range stay within their bounds in ulp, and reach near them") {
  // Measured over the whole reduced range: EX2 -0.77..1.36, RCP -0.83..0.85, RSQ -1.52..1.38, SQRT -0.95..0.89.
  const std::uint32_t one = 0x3F800000, two = 0x40000000, four = 0x40800000;
  const auto check = [](const Bounds& bounds, double low, double high) {
    CHECK(bounds.low >= low);
    CHECK(bounds.high <= high);
    CHECK(bounds.low <= 0.7 * low);
    CHECK(bounds.high >= 0.7 * high);
  };
  const auto exp2 = [](const Real& x) { return Real(exp(x * log(Real(2)))); };
  check(errors(
            one, two, 1021, [](std::uint32_t x) { return mufu_ex2(x); }, exp2),
        -1.4, 1.4);
  check(errors(
            one, two, 1021, [](std::uint32_t x) { return mufu_rcp(x); }, [](const Real& x) { return Real(1 / x); }),
        -1.0, 1.0);
  check(errors(
            one, four, 1021, [](std::uint32_t x) { return mufu_rsqrt(x); },
            [](const Real& x) { return Real(1 / sqrt(x)); }),
        -1.53, 1.39);
  check(errors(
            one, four, 1021, [](std::uint32_t x) { return mufu_sqrt(x); }, [](const Real& x) { return Real(sqrt(x)); }),
        -0.96, 0.90);
}

TEST_CASE("MUFU.LG2 is within 2^-22 of log2 on [1/2, 2), absolutely, and MUFU.TANH within 2^-16.9") {
  double lg2_error = 0, tanh_error = 0;
  for (std::uint32_t x = 0x3F000000; x < 0x40000000; x += 1021) {
    const Real exact = log(Real(number(x))) / log(Real(2));
    lg2_error = std::max(lg2_error, std::fabs((Real(number(mufu_lg2(x))) - exact).convert_to<double>()));
  }
  for (std::uint32_t x = 0x3B800000; x < 0x41000000; x += 4093) {
    const Real exact = tanh(Real(number(x)));
    tanh_error = std::max(tanh_error, std::fabs((Real(number(mufu_tanh(x))) - exact).convert_to<double>()));
  }
  CHECK(lg2_error < std::exp2(-22));
  CHECK(lg2_error > std::exp2(-26));
  CHECK(tanh_error < std::exp2(-16.9));
  CHECK(tanh_error > std::exp2(-18));
}

TEST_CASE("MUFU special values") {
  const std::uint32_t minus_inf = kSign | kInf, minus_zero = kSign, subnormal = 0x007FFFFF;
  for (const std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0xFF800001u}) {
    CHECK(mufu_ex2(nan) == kNaN);
    CHECK(mufu_rcp(nan) == kNaN);
    CHECK(mufu_lg2(nan) == kNaN);
    CHECK(mufu_rsqrt(nan) == kNaN);
    CHECK(mufu_sqrt(nan) == kNaN);
    CHECK(mufu_tanh(nan) == kNaN);
  }
  CHECK(mufu_ex2(kInf) == kInf);
  CHECK(mufu_ex2(minus_inf) == 0);
  CHECK(mufu_ex2(code(128.0f)) == kInf);
  CHECK(mufu_ex2(code(-126.0f)) == 0x00800000);
  CHECK(mufu_ex2(code(std::nextafter(-126.0f, -127.0f))) == 0);
  CHECK(mufu_ex2(code(-0x1p-30f)) == code(1.0f));
  CHECK(mufu_rcp(0u) == kInf);
  CHECK(mufu_rcp(kSign | subnormal) == minus_inf);
  CHECK(mufu_rcp(minus_inf) == minus_zero);
  CHECK(mufu_rcp(code(0x1p126f)) == 0x00800000);
  CHECK(mufu_rcp(code(std::nextafter(0x1p126f, 0x1p127f))) == 0);
  CHECK(mufu_lg2(subnormal) == minus_inf);
  CHECK(mufu_lg2(kSign | subnormal) == minus_inf);
  CHECK(mufu_lg2(code(-1.0f)) == kNaN);
  CHECK(mufu_lg2(minus_inf) == kNaN);
  CHECK(mufu_lg2(code(1.0f)) == 0);
  CHECK(mufu_rsqrt(minus_zero) == minus_inf);
  CHECK(mufu_rsqrt(kInf) == 0);
  CHECK(mufu_rsqrt(code(-1.0f)) == kNaN);
  CHECK(mufu_sqrt(minus_zero) == minus_zero);
  CHECK(mufu_sqrt(kSign | subnormal) == minus_zero);
  CHECK(mufu_sqrt(minus_inf) == kNaN);
  CHECK(mufu_tanh(minus_inf) == code(-1.0f));
  CHECK(mufu_tanh(kSign | subnormal) == (kSign | subnormal));
  CHECK(mufu_tanh(code(8.0f)) == code(1.0f));
}

TEST_CASE("MUFU is exact where hardware is: powers of two, and the squares of all integers below 4096") {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    const std::uint32_t power = code(std::ldexp(1.0f, exponent));
    CHECK(number(mufu_ex2(code(static_cast<float>(exponent)))) == std::ldexp(1.0f, exponent));
    CHECK(number(mufu_lg2(power)) == static_cast<float>(exponent));
    CHECK(number(mufu_rcp(power)) == std::ldexp(1.0f, -exponent));
    if (exponent % 2 == 0) CHECK(number(mufu_rsqrt(power)) == std::ldexp(1.0f, -exponent / 2));
  }
  for (int n = 1; n < 4096; ++n) {
    CHECK(number(mufu_sqrt(code(static_cast<float>(n * n)))) == static_cast<float>(n));
  }
}

TEST_CASE("MUFU.RSQ never goes up and MUFU.SQRT goes down four times on [1, 4), every step of it") {
  int rsqrt_up = 0, sqrt_down = 0;
  for (std::uint32_t x = 0x3F800000; x < 0x40800000; ++x) {
    rsqrt_up += mufu_rsqrt(x + 1) > mufu_rsqrt(x);
    sqrt_down += mufu_sqrt(x + 1) < mufu_sqrt(x);
  }
  CHECK(rsqrt_up == 0);
  CHECK(sqrt_down == 4);  // 508 over the 127 pairs of binades
}

TEST_CASE("the truncated square is a square but for the dropped columns") {
  for (std::uint32_t w = 0; w < 1u << 17; ++w) {
    const auto full = (std::int64_t{w} * w) >> 19;
    const std::int64_t square = truncated_square<17>(w);
    REQUIRE(square <= full);
    REQUIRE(square >= full - 9);
    REQUIRE(square < 1 << 15);
  }
  CHECK(truncated_square<16>(0x8000) == 1 << 13);
}
