// The build keeps contraction and fast-math off, and FpEnvironment undoes what a caller has set.
#include <cfenv>
#include <cmath>
#include <limits>

#if defined(__x86_64__)
#include <pmmintrin.h>
#include <xmmintrin.h>
#endif

#include "base/fp_environment.h"
#include "support/catch.h"

#ifdef __FAST_MATH__
#error "fast-math is on"
#endif

namespace {

// Volatile, so that the compiler can evaluate nothing in advance.
volatile float one_plus = 1.0F + 0x1p-12F;
volatile float minus_rounded = -(1.0F + 0x1p-11F);
volatile double smallest_normal = std::numeric_limits<double>::min();
volatile double nan_value = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("a * b + c is rounded twice: contraction is off") {
  const float x = one_plus;
  // x * x = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11; a fused operation would leave 2^-24.
  const float result = x * x + minus_rounded;
  CHECK(result == 0.0F);
  CHECK(std::fma(x, x, static_cast<float>(minus_rounded)) == 0x1p-24F);
}

TEST_CASE("NaN, signed zeros, subnormals and association survive the optimiser: fast-math is off") {
  const double nan = nan_value;
  CHECK(nan != nan);
  CHECK(std::signbit(-0.0 * 1.0));
  CHECK(smallest_normal * 0.5 != 0.0);
  volatile double big = 1e300;
  volatile double tiny = 1.0;
  CHECK((tiny + big) - big == 0.0);
}

#if defined(__x86_64__)
TEST_CASE("FpEnvironment restores nearest-even and subnormals, and gives the caller's settings back") {
  for (const int direction : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST}) {
    std::fesetround(direction);
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
    const unsigned before = _mm_getcsr() & 0xFFC0U;
    bool nearest = false;
    bool subnormal = false;
    {
      const qattn::FpEnvironment environment;
      volatile double one = 1.0;
      volatile double half_ulp = 0x1p-53;
      nearest = one + half_ulp == 1.0 && -one - half_ulp == -1.0;
      subnormal = smallest_normal * 0.5 != 0.0;
    }
    const unsigned after = _mm_getcsr() & 0xFFC0U;
    _mm_setcsr(0x1F80);
    CHECK(nearest);
    CHECK(subnormal);
    CHECK(after == before);
  }
}
#endif
