// Every SIMD form gives the bits of its plain form, on every target that this machine can run.
#include <hwy/targets.h>

#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "inputs.h"
#include "scalar/function.h"
#include "scalar/ptx.h"
#include "scalar/span.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;

namespace {

/// Runs `body` once for each SIMD target, with the dispatch forced to it.
template <class Body>
void on_every_target(const Body& body) {
  std::set<std::string_view> seen;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);
    CHECK(simd_target() == hwy::TargetName(target));
    seen.insert(simd_target());
    body();
  }
  hwy::GetChosenTarget().DeInit();
  CHECK(seen.size() == hwy::SupportedAndGeneratedTargets().size());
}

std::vector<std::uint32_t> plain_results(const Function& function, const std::vector<std::uint32_t>& x) {
  std::vector<std::uint32_t> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = function.plain(x[i]);
  return y;
}

/// The inputs at which the span form differs, as text for the report.
std::string differing(const Function& function, const std::vector<std::uint32_t>& x,
                      const std::vector<std::uint32_t>& expected) {
  std::vector<std::uint32_t> y(x.size());
  function.span(x, y);
  std::string list;
  int count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (y[i] != expected[i] && ++count <= 3) list += " x=" + std::to_string(x[i]) + " y=" + std::to_string(y[i]);
  }
  return count == 0 ? "" : std::to_string(count) + " differ:" + list;
}

}  // namespace

TEST_CASE("every span form equals its plain form for codes from each of the 2^16 upper halves, on every SIMD target") {
#ifdef QATTN_SANITIZED
  constexpr int kCodesEach = 1;
#else
  constexpr int kCodesEach = 7;
#endif
  const std::vector<std::uint32_t> spread = spread_codes(kCodesEach);
  for (const Function& function : functions()) {
    std::vector<std::uint32_t> x = spread;
    if (function.input_bits() < 32) {
      x.resize(std::size_t{1} << function.input_bits());
      std::iota(x.begin(), x.end(), 0);
    }
    const std::vector<std::uint32_t> expected = plain_results(function, x);
    INFO(function.name << " (" << to_string(function.build) << ")");
    on_every_target([&] {
      INFO(simd_target());
      CHECK(differing(function, x, expected).empty());
    });
  }
}

TEST_CASE("spans of every length up to 70 are right, and may be transformed in place") {
  const Function& function = find("expf");
  on_every_target([&] {
    for (std::size_t length = 0; length <= 70; ++length) {
      std::vector<std::uint32_t> x(length);
      for (std::size_t i = 0; i < length; ++i) x[i] = code(0.37f * static_cast<float>(i) - 9.0f);
      const std::vector<std::uint32_t> expected = plain_results(function, x);
      std::vector<std::uint32_t> y(length + 1, 0xDEADBEEF);
      function.span(x, std::span(y).first(length));
      CHECK(y.back() == 0xDEADBEEF);
      y.pop_back();
      CHECK(y == expected);
      function.span(x, x);
      CHECK(x == expected);
    }
  });
}

TEST_CASE("the spans of floats that attention calls equal the plain forms") {
  const std::vector<std::uint32_t> codes = spread_codes(1);
  std::vector<float> x(codes.size()), y(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) x[i] = number(codes[i] + 0x4321);
  const auto differing_from = [&](std::uint32_t (*plain)(std::uint32_t)) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) count += code(y[i]) != plain(codes[i] + 0x4321);
    return count;
  };
  on_every_target([&] {
    ex2_approx_ftz(x, y);
    CHECK(differing_from(mufu_ex2) == 0);
    rcp_approx_ftz(x, y);
    CHECK(differing_from(mufu_rcp) == 0);
    ex2_fa4_poly(x, y);
    CHECK(differing_from(scalar::ex2_fa4_poly) == 0);
  });
}

TEST_CASE("division over spans equals the plain forms on every SIMD target") {
  const std::vector<std::uint32_t> x = spread_codes(1);
  std::vector<std::uint32_t> y(x.size()), quotient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<std::uint32_t>(random_bits(6, 1, i));
  for (std::size_t i = 0; i < 4096; ++i) y[i] &= 0x807FFFFF;  // divisors that are subnormal
  on_every_target([&] {
    std::size_t differing = 0;
    fdividef(x, y, quotient);
    for (std::size_t i = 0; i < x.size(); ++i) differing += quotient[i] != cuda::fdividef(x[i], y[i]);
    fdividef_fast_math(x, y, quotient);
    for (std::size_t i = 0; i < x.size(); ++i) differing += quotient[i] != cuda_fast::fdividef(x[i], y[i]);
    CHECK(differing == 0);
  });
}

TEST_CASE("spans of different lengths are refused") {
  std::vector<float> x(3), y(4);
  CHECK_THROWS_AS(ex2_approx_ftz(x, y), Error);
  std::vector<std::uint32_t> a(3), b(4);
  for (const Function& function : functions()) CHECK_THROWS_AS(function.span(a, b), Error);
}
