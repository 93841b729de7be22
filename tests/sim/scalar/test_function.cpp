// The table: names, builds, what proves an entry, and that nothing depends on the caller's floating-point environment.
#include <cfenv>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "inputs.h"
#include "scalar/function.h"
#include "scalar/ptx.h"
#include "support/catch.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace qattn;
using namespace qattn::scalar;

TEST_CASE("every function is found by its name and build, and no two answer to the same") {
  std::set<std::pair<std::string_view, Build>> keys;
  for (const Function& function : functions()) {
    INFO(function.name);
    CHECK(keys.insert({function.name, function.build}).second);
    CHECK(&find(function.name, function.build) == &function);
    if (function.build == Build::any) {
      CHECK(find_or_null(function.name, Build::plain) == &function);
      CHECK(find_or_null(function.name, Build::fast_math) == &function);
      CHECK(keys.count({function.name, Build::plain}) == 0);
    }
    CHECK((function.evidence == Evidence::measured || function.evidence == Evidence::ptx_manual ||
           !function.note.empty()));
  }
  CHECK(find("expf").build == Build::plain);
}

TEST_CASE("an unknown function is an error of usage that names similar ones") {
  CHECK(find_or_null("ex2.approx.f64") == nullptr);
  try {
    find("ex2.approx.fz.f32");
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()).find("ex2.approx.ftz.f32") != std::string::npos);
  }
}

TEST_CASE("nvcc's options decide the build") {
  CHECK(build_from_options("nvcc 13.0 -O2 -arch=sm_90a --use_fast_math") == Build::fast_math);
  CHECK(build_from_options("nvcc 13.0 -O2 -arch=sm_90a") == Build::plain);
}

TEST_CASE("input bits above a function's own are ignored, and results leave the bits above theirs zero") {
  for (const Function& function : functions()) {
    INFO(function.name);
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const auto x = static_cast<std::uint32_t>(random_bits(6, 3, i));
      const std::uint32_t y = function.plain(x);
      if (function.output->bits < 32) REQUIRE(y >> function.output->bits == 0);
      if (function.input_bits() < 32) REQUIRE(function.plain(x & ((1u << function.input_bits()) - 1)) == y);
    }
  }
}

TEST_CASE("no result depends on the caller's rounding mode or flush-to-zero flags") {
  const std::vector<std::uint32_t> x = spread_codes(1);
  std::vector<std::uint32_t> y(x.size());
  for (const Function& function : functions()) {
    INFO(function.name);
    if (function.input_bits() != 32) continue;
    std::vector<std::uint32_t> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = function.plain(x[i]);
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
#if defined(__x86_64__)
      _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ and DAZ
#endif
      function.span(x, y);
      std::uint64_t plain_differs = 0;
      for (std::size_t i = 0; i < x.size(); i += 7) plain_differs += function.plain(x[i]) != expected[i];
      const int kept = std::fegetround();
#if defined(__x86_64__)
      const bool flags_kept = (_mm_getcsr() & 0x8040) == 0x8040;
      _mm_setcsr(0x1F80);
#else
      const bool flags_kept = true;
#endif
      std::fesetround(FE_TONEAREST);
      CHECK(kept == mode);
      CHECK(flags_kept);
      CHECK(plain_differs == 0);
      CHECK(y == expected);
    }
  }
}

TEST_CASE("FlashAttention-4's polynomial: exact at whole numbers, within 8.9e-5 of 2^x, zero for what is below -127") {
  for (int n = -126; n <= 127; ++n) {
    CHECK(number(ex2_fa4_poly(code(static_cast<float>(n)))) == std::ldexp(1.0f, n));
  }
  double worst = 0;
  for (std::uint32_t x = code(1.0f); x < code(2.0f); x += 64) {
    const double exact = std::exp2(static_cast<double>(number(x)));
    worst = std::max(worst, std::fabs(static_cast<double>(number(ex2_fa4_poly(x))) / exact - 1));
    REQUIRE(ex2_fa4_poly(code(number(x) - 3.0f)) == ex2_fa4_poly(code(number(x) - 3.0f + 8.0f)) - (8u << 23));
  }
  CHECK(worst < 8.9e-5);
  CHECK(worst > 8.5e-5);  // the paper's figure for degree 3: 8.8e-5
  CHECK(ex2_fa4_poly(code(-127.0f)) == 0);
  CHECK(ex2_fa4_poly(kSign | kInf) == 0);
  CHECK(ex2_fa4_poly(kNaN) == 0);
  CHECK(ex2_fa4_poly(code(128.0f)) == kInf);
}

TEST_CASE("FlashAttention-4's polynomial has the published coefficients") {
  // arXiv 2603.05451: about 1, .6951, .2276, .0771 for the powers 0 to 3 of the fraction. Third differences of a cubic
  // give the last one, the values at 1/4 and 1/2 the others, as far as rounding to binary32 lets them.
  const auto p = [](double f) { return static_cast<double>(number(ex2_fa4_poly(code(static_cast<float>(f))))); };
  const double p0 = p(0), p1 = p(0.25), p2 = p(0.5), p3 = p(0.75);
  const double c3 = (p3 - 3 * p2 + 3 * p1 - p0) / (6 * 0.25 * 0.25 * 0.25);
  const double c2 = (p2 - 2 * p1 + p0) / (2 * 0.25 * 0.25) - 3 * 0.25 * c3;
  const double c1 = (p1 - p0) / 0.25 - c2 * 0.25 - c3 * 0.25 * 0.25;
  CHECK(p0 == 1);
  CHECK(std::fabs(c1 - 0.6951) < 5.1e-5);
  CHECK(std::fabs(c2 - 0.2276) < 5.1e-5);
  CHECK(std::fabs(c3 - 0.0771) < 5.1e-5);
}

TEST_CASE("__fdividef: a quotient within 2 ulp for ordinary divisors, and the documented corners") {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x = number((static_cast<std::uint32_t>(random_bits(6, 4, i)) & 0x807FFFFF) | 0x3F800000);
    const float y = number((static_cast<std::uint32_t>(random_bits(6, 5, i)) & 0x807FFFFF) | 0x3F000000);
    const double exact = static_cast<double>(x) / static_cast<double>(y);
    const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
    REQUIRE(std::fabs(static_cast<double>(number(cuda::fdividef(code(x), code(y)))) - exact) <= 2 * unit);
    REQUIRE(cuda_fast::fdividef(code(x), code(y)) == cuda::fdividef(code(x), code(y)));
  }
  const std::uint32_t huge = code(0x1.8p126f), subnormal = 0x00000400;
  CHECK(cuda::fdividef(code(1.0f), huge) == 0);  // above 2^126 the quotient is 0
  CHECK(cuda::fdividef(kInf, huge) == kNaN);
  CHECK(number(cuda::fdividef(subnormal, subnormal)) == 1.0f);
  CHECK(cuda_fast::fdividef(subnormal, subnormal) == kNaN);  // 0 * Inf: both were flushed
}
