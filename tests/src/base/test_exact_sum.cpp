// ExactSum against exact rational arithmetic, and its independence of order and partition.
#include <algorithm>
#include <bit>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "base/byte_stream.h"
#include "base/error.h"
#include "base/exact_sum.h"
#include "base/random.h"
#include "support/catch.h"

namespace {

// 4,400 bits hold any sum of a few thousand doubles exactly.
using Wide = boost::multiprecision::number<boost::multiprecision::cpp_bin_float<4400>>;

double random_double(std::uint64_t stream, std::uint64_t i, int lowest, int highest) {
  const double mantissa = 2.0 * qattn::random_unit(11, stream, i) - 1.0;
  const auto span = static_cast<std::uint64_t>(highest - lowest + 1);
  return std::ldexp(mantissa, lowest + static_cast<int>(qattn::random_bits(12, stream, i) % span));
}

/// Rounds an exact value once to a double, below the normal range too.
double round_once(const Wide& exact) {
  if (exact == 0) return 0.0;
  const int unit = std::max(ilogb(exact) - 52, -1074);
  const Wide scaled = ldexp(abs(exact), -unit);
  Wide whole = floor(scaled);
  const Wide rest = scaled - whole;
  if (rest > 0.5 || (rest == 0.5 && fmod(whole, Wide(2)) == 1)) whole += 1;
  const double magnitude = std::ldexp(static_cast<double>(whole), unit);
  return exact < 0 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("ExactSum equals the exact sum rounded once, over narrow, wide and subnormal exponents") {
  const std::pair<int, int> ranges[] = {{-3, 3}, {-60, 60}, {-1080, -1000}, {-1074, 1000}, {900, 1020}, {-1074, -1070}};
  std::uint64_t stream = 0;
  for (const auto& [lowest, highest] : ranges) {
    for (const int count : {1, 2, 3, 17, 300}) {
      ++stream;
      qattn::ExactSum sum;
      Wide exact = 0;
      for (int i = 0; i < count; ++i) {
        const double x = random_double(stream, static_cast<std::uint64_t>(i), lowest, highest);
        sum.add(x);
        exact += Wide(x);
      }
      CHECK(sum.value() == round_once(exact));
    }
  }
}

TEST_CASE("ExactSum cancels completely and rounds ties to even") {
  qattn::ExactSum sum;
  for (const double x : {1e308, 1.0, -1e308, 5e-324, -1.0, -5e-324}) sum.add(x);
  CHECK(sum.value() == 0.0);
  sum.add(1.0);
  sum.add(0x1p-53);
  CHECK(sum.value() == 1.0);
  sum.add(5e-324);
  CHECK(sum.value() == 1.0 + 0x1p-52);
  qattn::ExactSum odd;
  odd.add(1.0 + 0x1p-52);
  odd.add(0x1p-53);
  CHECK(odd.value() == 1.0 + 0x1p-51);
}

TEST_CASE("ExactSum overflows to Inf and refuses NaN and Inf") {
  qattn::ExactSum sum;
  sum.add(std::numeric_limits<double>::max());
  sum.add(std::numeric_limits<double>::max());
  CHECK(sum.value() == std::numeric_limits<double>::infinity());
  sum.add(-std::numeric_limits<double>::max());
  CHECK(sum.value() == std::numeric_limits<double>::max());
  CHECK_THROWS_AS(sum.add(std::numeric_limits<double>::infinity()), qattn::Error);
  CHECK_THROWS_AS(sum.add(std::numeric_limits<double>::quiet_NaN()), qattn::Error);
}

TEST_CASE("ExactSum does not depend on order or partition, past many carries") {
  std::vector<double> terms;
  for (int i = 0; i < 20000; ++i) terms.push_back(random_double(77, static_cast<std::uint64_t>(i), -40, 40));
  qattn::ExactSum forward;
  for (const double x : terms) forward.add(x);
  std::reverse(terms.begin(), terms.end());
  for (const std::size_t parts : {1, 3, 64, 4999}) {
    std::vector<qattn::ExactSum> sums(parts);
    for (std::size_t i = 0; i < terms.size(); ++i) sums[i % parts].add(terms[i]);
    qattn::ExactSum total;
    for (const auto& part : sums) total.merge(part);
    CHECK(total == forward);
    CHECK(std::bit_cast<std::uint64_t>(total.value()) == std::bit_cast<std::uint64_t>(forward.value()));
  }
}

TEST_CASE("A sum that is saved and loaded goes on as if nothing had happened, and equal sums have equal bytes") {
  for (const int count : {0, 1, 2, 7, 5000}) {
    for (const bool negative : {false, true}) {
      qattn::ExactSum sum, reversed;
      for (int i = 0; i < count; ++i) {
        const double x = random_double(50, static_cast<std::uint64_t>(i), -1074, 1023);
        sum.add(negative ? -std::fabs(x) : x);
      }
      for (int i = count; i-- > 0;) {
        const double x = random_double(50, static_cast<std::uint64_t>(i), -1074, 1023);
        reversed.add(negative ? -std::fabs(x) : x);
      }
      qattn::ByteWriter bytes, again;
      sum.save(bytes);
      reversed.save(again);
      CHECK(bytes.bytes() == again.bytes());
      qattn::ByteReader reader(bytes.bytes());
      qattn::ExactSum loaded = qattn::ExactSum::load(reader);
      CHECK(reader.at_end());
      CHECK(loaded == sum);
      loaded.add(0.1);
      sum.add(0.1);
      CHECK(std::bit_cast<std::uint64_t>(loaded.value()) == std::bit_cast<std::uint64_t>(sum.value()));
      for (std::size_t cut = 0; cut < bytes.bytes().size(); ++cut) {
        qattn::ByteReader truncated(std::string_view(bytes.bytes()).substr(0, cut));
        CHECK_THROWS_AS(qattn::ExactSum::load(truncated), qattn::Error);
      }
    }
  }
}

TEST_CASE("A small sum takes few bytes, a negative one too") {
  qattn::ExactSum sum;
  sum.add(-1.5);
  sum.add(-0.25);
  qattn::ByteWriter bytes;
  sum.save(bytes);
  CHECK(bytes.bytes().size() <= 8);
}
