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
  // Over every input of the range: EX2 -0.684..1.390, RCP -0.975..0.973, RSQ -1.514..1.378, SQRT -0.944..0.886.
  const std::uint32_t one = 0x3F800000, two = 0x40000000, four = 0x40800000;
  const auto check = [](const Bounds& bounds, double low, double high) {
    CHECK(bounds.low >= low);
    CHECK(bounds.high <= high);
    CHECK(bounds.low <= 0.7 * low);
    CHECK(bounds.high >= 0.7 * high);
  };
  const auto ex2 = [](std::uint32_t x) { return mufu_ex2(x); };
  const auto rcp = [](std::uint32_t x) { return mufu_rcp(x); };
  const auto rsq = [](std::uint32_t x) { return mufu_rsqrt(x); };
  const auto root = [](std::uint32_t x) { return mufu_sqrt(x); };
  const auto exact_ex2 = [](const Real& x) { return Real(exp(x * log(Real(2)))); };
  const auto exact_rcp = [](const Real& x) { return Real(1 / x); };
  const auto exact_rsq = [](const Real& x) { return Real(1 / sqrt(x)); };
  const auto exact_root = [](const Real& x) { return Real(sqrt(x)); };
  check(errors(one, two, 1021, ex2, exact_ex2), -0.69, 1.40);
  check(errors(one, two, 127, rcp, exact_rcp), -0.98, 0.98);
  check(errors(one, four, 1021, rsq, exact_rsq), -1.52, 1.38);
  check(errors(one, four, 1021, root, exact_root), -0.95, 0.89);
}

TEST_CASE("MUFU.LG2 is within 2^-22 of log2 from 1/2 to 2, absolutely, and MUFU.TANH within 2^-16.9") {
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

TEST_CASE("MUFU is exact at powers of two, but for LG2 below 1, and at the squares of all integers below 4096") {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    const std::uint32_t power = code(std::ldexp(1.0f, exponent));
    CHECK(number(mufu_ex2(code(static_cast<float>(exponent)))) == std::ldexp(1.0f, exponent));
    // The table is 7377 units of 2^-36 above log2(1): lost by truncation, but for 1/2 and its 24 bits of -1 + 2^-23.
    const std::uint32_t short_of_whole = exponent == -1 ? 2 : (exponent < 0 ? 1 : 0);
    CHECK(mufu_lg2(power) == code(static_cast<float>(exponent)) - short_of_whole);
    CHECK(number(mufu_rcp(power)) == std::ldexp(1.0f, -exponent));
    if (exponent % 2 == 0) CHECK(number(mufu_rsqrt(power)) == std::ldexp(1.0f, -exponent / 2));
  }
  for (int n = 1; n < 4096; ++n) {
    CHECK(number(mufu_sqrt(code(static_cast<float>(n * n)))) == static_cast<float>(n));
  }
}

TEST_CASE("MUFU.RSQ never goes up and MUFU.SQRT goes down four times from 1 to 4, every step of it") {
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
