// Our exp, exp2, log and log2 against Boost.Multiprecision: within 1 ulp, exact where the result is exact, the same
// bits in scalar and vector form.
#include <bit>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/elementary.h"
#include "base/random.h"
#include "base/simd_target.h"
#include "support/catch.h"

namespace {

using Big = boost::multiprecision::number<boost::multiprecision::cpp_bin_float<200>>;
namespace el = qattn::elementary;

/// |got - exact| in units of the last place of the exact value (of the smallest subnormal below the normal range).
double error_in_ulp(double got, const Big& exact) {
  const int exponent = exact == 0 ? -1074 : std::max(ilogb(exact) - 52, -1074);
  return static_cast<double>(abs(Big(got) - exact) * pow(Big(2), -exponent));
}

double worst_error(double (*ours)(double), Big (*oracle)(const Big&), double low, double high, int samples) {
  double worst = 0.0;
  for (int i = 0; i < samples; ++i) {
    const double x = low + (high - low) * qattn::random_unit(7, 1, static_cast<std::uint64_t>(i));
    worst = std::max(worst, error_in_ulp(ours(x), oracle(Big(x))));
  }
  return worst;
}

Big big_exp(const Big& x) { return exp(x); }
Big big_exp2(const Big& x) { return pow(Big(2), x); }
Big big_log(const Big& x) { return log(x); }
Big big_log2(const Big& x) { return log(x) / log(Big(2)); }

}  // namespace

TEST_CASE("exp stays within 0.85 ulp over its whole range") {
  CHECK(worst_error(el::exp, big_exp, -1.0, 1.0, 20000) < 0.85);
  CHECK(worst_error(el::exp, big_exp, -60.0, 0.0, 20000) < 0.85);
  CHECK(worst_error(el::exp, big_exp, -708.0, 709.7, 20000) < 0.85);
  CHECK(worst_error(el::exp, big_exp, -745.2, -708.0, 5000) < 1.0);
}

TEST_CASE("exp2 stays within 0.85 ulp over its whole range and is exact at integers") {
  CHECK(worst_error(el::exp2, big_exp2, -1.0, 1.0, 20000) < 0.85);
  CHECK(worst_error(el::exp2, big_exp2, -1022.0, 1023.99, 20000) < 0.85);
  CHECK(worst_error(el::exp2, big_exp2, -1075.0, -1022.0, 5000) < 1.0);
  for (int k = -1074; k <= 1023; ++k) CHECK(el::exp2(k) == std::ldexp(1.0, k));
}

TEST_CASE("log and log2 stay within 0.65 ulp and are exact at powers of two") {
  for (const auto& [low, high] : {std::pair{0.5, 2.0}, {0.99, 1.01}, {1e-300, 1e300}, {2.0, 1e6}, {5e-324, 1e-308}}) {
    CHECK(worst_error(el::log, big_log, low, high, 10000) < 0.65);
    CHECK(worst_error(el::log2, big_log2, low, high, 10000) < 0.65);
  }
  for (int k = -1074; k <= 1023; ++k) CHECK(el::log2(std::ldexp(1.0, k)) == k);
  CHECK(el::log(1.0) == 0.0);
}

TEST_CASE("the elementary functions at their special values") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (auto* f : {+[](double x) { return el::exp(x); }, +[](double x) { return el::exp2(x); }}) {
    CHECK(f(0.0) == 1.0);
    CHECK(f(-0.0) == 1.0);
    CHECK(f(inf) == inf);
    CHECK(f(1e300) == inf);
    CHECK(f(-inf) == 0.0);
    CHECK(f(-1e300) == 0.0);
    CHECK(std::isnan(f(nan)));
  }
  for (auto* f : {+[](double x) { return el::log(x); }, +[](double x) { return el::log2(x); }}) {
    CHECK(f(0.0) == -inf);
    CHECK(f(-0.0) == -inf);
    CHECK(f(inf) == inf);
    CHECK(std::isnan(f(-1.0)));
    CHECK(std::isnan(f(-inf)));
    CHECK(std::isnan(f(nan)));
  }
}

TEST_CASE("the span forms give the bits of the scalar forms on every SIMD target") {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> x;
  for (int i = 0; i < 4099; ++i)
    x.push_back(-1100.0 + 2200.0 * qattn::random_unit(3, 2, static_cast<std::uint64_t>(i)));
  for (int i = 0; i < 999; ++i) x.push_back(-1.0 + 2.0 * qattn::random_unit(3, 3, static_cast<std::uint64_t>(i)));
  x.insert(x.end(),
           {-0.0, 0.0, 1e308, -1e308, inf, -inf, std::numeric_limits<double>::quiet_NaN(), 0.5, 1023.5, -1074.0});
  const std::vector<float> narrow(x.begin(), x.end());
  for (const std::int64_t target : qattn::simd_targets()) {
    const qattn::ForcedSimdTarget forced(target);
    std::vector<double> exp(x.size()), exp2(x.size());
    std::vector<float> exp2_float(x.size());
    el::exp(x, exp);
    el::exp2(x, exp2);
    el::exp2_float(narrow, exp2_float);
    int differences = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto same = [](auto a, auto b) { return std::memcmp(&a, &b, sizeof a) == 0; };
      differences += !same(exp[i], el::exp(x[i])) + !same(exp2[i], el::exp2(x[i]));
      differences += !same(exp2_float[i], el::exp2_float(narrow[i]));
    }
    INFO(qattn::simd_target_name(target));
    CHECK(differences == 0);
  }
}

TEST_CASE("exp2_float is the correctly rounded exp2 on every sampled float but for near-ties") {
  std::vector<float> x;
  for (int i = 0; i < 20000; ++i) {
    x.push_back(static_cast<float>(-150.0 + 160.0 * qattn::random_unit(5, 9, static_cast<std::uint64_t>(i))));
  }
  std::vector<float> y(x.size());
  el::exp2_float(x, y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Big exact = pow(Big(2), Big(x[i]));
    CHECK(y[i] == static_cast<float>(exact));
    CHECK(y[i] == el::exp2_float(x[i]));
  }
}
