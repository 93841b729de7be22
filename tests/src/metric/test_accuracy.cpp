// Metrics against 100-digit arithmetic; order, partition and threads against each other.
#include <algorithm>
#include <bit>
#include <boost/multiprecision/cpp_dec_float.hpp>
#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "format/encode.h"
#include "metric/accuracy.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::metric;

namespace {

using Big = boost::multiprecision::cpp_dec_float_100;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Pair {
  double o, r;
  Location where;
};

// Outputs as FP16 numbers over many binades, references nearby.
std::vector<Pair> pairs(std::int64_t n, std::uint64_t seed) {
  std::vector<Pair> result;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const double unit = 2 * random_unit(seed, 0, index) - 1;
    const double r = std::ldexp(unit, static_cast<int>(random_bits(seed, 1, index) % 20) - 14);
    const double noisy = r * (1 + (random_unit(seed, 2, index) - 0.5) / 100);
    const double o = format::decode(format::kFP16, format::encode(format::kFP16, noisy, {}));
    result.push_back({o, r, {0, i / 64 % 3, i / 8, i % 8}});
  }
  return result;
}

Accuracy accumulate(const std::vector<Pair>& data) {
  Accuracy accuracy(format::kFP16);
  for (const Pair& pair : data) accuracy.add(pair.o, pair.r, pair.where);
  return accuracy;
}

struct Slow {
  Big cos_sim, rel_l1, rel_l2, rmse;
  double max_abs = 0;
};

Slow slow(const std::vector<Pair>& data) {
  Big dot = 0, oo = 0, rr = 0, r1 = 0, e1 = 0, e2 = 0;
  Slow result;
  for (const Pair& pair : data) {
    const Big o = pair.o, r = pair.r;
    dot += o * r, oo += o * o, rr += r * r, r1 += abs(r), e1 += abs(Big(o - r)), e2 += (o - r) * (o - r);
    result.max_abs = std::max(result.max_abs, std::fabs(pair.o - pair.r));
  }
  result.cos_sim = dot / (sqrt(oo) * sqrt(rr));
  result.rel_l1 = e1 / r1;
  result.rel_l2 = sqrt(Big(e2 / rr));
  result.rmse = sqrt(Big(e2 / data.size()));
  return result;
}

void require_close(double value, const Big& expected) {
  INFO(value << " " << expected);
  REQUIRE(abs(Big(Big(value) / expected - 1)) < 8 * std::numeric_limits<double>::epsilon());
}

}  // namespace

TEST_CASE("CosSim, Relative L1 and L2 and RMSE agree with 100-digit sums to a few roundings") {
  for (const std::int64_t n : {1, 2, 100, 20000}) {
    const auto data = pairs(n, static_cast<std::uint64_t>(n));
    const Accuracy accuracy = accumulate(data);
    const Slow expected = slow(data);
    require_close(accuracy.cos_sim(), expected.cos_sim);
    require_close(accuracy.rel_l1(), expected.rel_l1);
    require_close(accuracy.rel_l2(), expected.rel_l2);
    require_close(accuracy.rmse(), expected.rmse);
    CHECK(accuracy.max_abs() == expected.max_abs);
    CHECK(accuracy.count() == n);
  }
}

TEST_CASE("Sums that cancel are still exact") {
  // The large terms cancel; a sum in doubles would lose the 1.
  Accuracy accuracy(format::kFP32);
  accuracy.add(0x1p100, 1, {0, 0, 0, 0});
  accuracy.add(1, 1, {0, 0, 0, 1});
  accuracy.add(-0x1p100, 1, {0, 0, 0, 2});
  const double norms = std::sqrt(0x1p201) * std::sqrt(3.0);
  CHECK(accuracy.cos_sim() == 1 / norms);
}

TEST_CASE("Any order and any partition give the same bits") {
  auto data = pairs(3000, 7);
  for (const std::size_t i : {2900, 1234, 600}) data[i].o = 8, data[i].r = 0;  // the largest error three times
  data[100].o = kNaN;
  data[2000].r = kInf;
  for (const bool with_bad : {true, false}) {
    if (!with_bad) data[100].o = 1, data[2000].r = 1;
    const Accuracy whole = accumulate(data);
    if (!with_bad) CHECK(whole.worst() == std::min({data[600].where, data[1234].where, data[2900].where}));
    for (std::uint64_t trial = 0; trial < 20; ++trial) {
      auto shuffled = data;
      std::sort(shuffled.begin(), shuffled.end(), [&](const Pair& a, const Pair& b) {
        const auto key = [&](const Pair& p) {
          return random_bits(trial, static_cast<std::uint64_t>(p.where.row),
                             static_cast<std::uint64_t>(p.where.column));
        };
        return key(a) < key(b);
      });
      std::vector<Accuracy> parts(1 + trial, Accuracy(format::kFP16));
      for (std::size_t i = 0; i < shuffled.size(); ++i)
        parts[random_bits(trial, 9, i) % parts.size()].add(shuffled[i].o, shuffled[i].r, shuffled[i].where);
      // Merge as a tree, and in the other direction one after another.
      auto tree = parts;
      for (std::size_t step = 1; step < tree.size(); step *= 2)
        for (std::size_t i = 0; i + step < tree.size(); i += 2 * step) tree[i].merge(tree[i + step]);
      Accuracy chain(format::kFP16);
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) chain.merge(*part);
      REQUIRE(tree[0] == whole);
      REQUIRE(chain == whole);
      if (with_bad) continue;
      REQUIRE(std::bit_cast<std::uint64_t>(chain.cos_sim()) == std::bit_cast<std::uint64_t>(whole.cos_sim()));
      REQUIRE(std::bit_cast<std::uint64_t>(chain.rmse()) == std::bit_cast<std::uint64_t>(whole.rmse()));
    }
  }
}

TEST_CASE("A block of a head counts like its elements one by one") {
  MatrixF o(5, 7);
  MatrixD r(5, 7);
  Accuracy one_by_one(format::kBF16);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 7; ++j) {
      o(i, j) = static_cast<float>(i * 7 + j) / 4;
      r(i, j) = static_cast<double>(o(i, j)) + static_cast<double>(j) / 128;
      one_by_one.add(static_cast<double>(o(i, j)), r(i, j), {2, 3, 10 + i, 20 + j});
    }
  Accuracy block(format::kBF16);
  block.add(o, r, {2, 3, 10, 20});
  CHECK(block == one_by_one);
  CHECK(block.worst() == Location{2, 3, 10, 26});
  CHECK_THROWS_AS(block.add(o, MatrixD(5, 6)), Error);
  CHECK_THROWS_AS(block.merge(Accuracy(format::kFP16)), Error);
}

TEST_CASE("NaN and Inf are counted, the first is located, and every metric becomes NaN") {
  const auto data = pairs(200, 3);
  for (const double bad : {kNaN, kInf, -kInf}) {
    for (const bool in_reference : {false, true}) {
      auto broken = data;
      for (const std::size_t i : {150, 77, 199}) (in_reference ? broken[i].r : broken[i].o) = bad;
      std::reverse(broken.begin(), broken.end());
      const Accuracy accuracy = accumulate(broken);
      const Location first = std::min({data[150].where, data[77].where, data[199].where});
      CHECK(accuracy.first_bad() == first);
      CHECK(accuracy.nan_count() == (std::isnan(bad) ? 3 : 0));
      CHECK(accuracy.inf_count() == (std::isnan(bad) ? 0 : 3));
      CHECK(accuracy.bad_reference_count() == (in_reference ? 3 : 0));
      CHECK(accuracy.count() == 200);
      for (const double metric : {accuracy.cos_sim(), accuracy.rel_l1(), accuracy.rel_l2(), accuracy.rmse(),
                                  accuracy.max_abs(), accuracy.percentile(50)})
        CHECK(std::isnan(metric));
      CHECK_FALSE(accuracy.max_ulp().has_value());
      CHECK_FALSE(accuracy.worst().has_value());
    }
  }
  CHECK_FALSE(accumulate(data).first_bad().has_value());
}

TEST_CASE("Numbers whose squares overflow count as Inf") {
  Accuracy accuracy(format::kFP64);
  accuracy.add(0x1p510, 1, {});
  CHECK(accuracy.inf_count() == 1);
  Accuracy below(format::kFP64);
  below.add(std::nextafter(0x1p510, 0), -std::nextafter(0x1p510, 0), {});
  CHECK(below.rmse() == std::nextafter(0x1p511, 0));
}

TEST_CASE("Degenerate inputs have the documented values") {
  const Accuracy empty(format::kFP16);
  for (const double metric :
       {empty.cos_sim(), empty.rel_l1(), empty.rel_l2(), empty.rmse(), empty.max_abs(), empty.percentile(99)})
    CHECK(std::isnan(metric));
  CHECK_FALSE(empty.max_ulp().has_value());

  Accuracy zero_reference(format::kFP16);
  zero_reference.add(1, 0, {});
  CHECK(std::isnan(zero_reference.cos_sim()));
  CHECK(zero_reference.rel_l1() == kInf);
  CHECK(zero_reference.rel_l2() == kInf);
  CHECK(zero_reference.rmse() == 1);

  Accuracy zero_output(format::kFP16);
  zero_output.add(0, 1, {});
  CHECK(std::isnan(zero_output.cos_sim()));
  CHECK(zero_output.rel_l1() == 1);
  CHECK(zero_output.rel_l2() == 1);

  Accuracy zeros(format::kFP16);
  zeros.add(0, -0.0, {});
  CHECK(std::isnan(zeros.cos_sim()));
  CHECK(std::isnan(zeros.rel_l1()));
  CHECK(std::isnan(zeros.rel_l2()));
  CHECK(zeros.rmse() == 0);
  CHECK(zeros.max_ulp() == 0u);
}

TEST_CASE("The largest ulp distance counts the numbers of the output's format between o and r") {
  const auto distance = [](const format::Format& format, double o, double r) {
    Accuracy accuracy(format);
    accuracy.add(o, r, {});
    return accuracy.max_ulp().value();
  };
  // Every pair of finite FP16 codes of a stride against a count on the sorted values.
  std::vector<double> values;
  for (std::uint32_t code = 0; code < 1u << 16; ++code) {
    const double value = format::decode(format::kFP16, code);
    if (std::isfinite(value) && code != 0x8000) values.push_back(value);
  }
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); i += 977)
    for (std::size_t j = 0; j < values.size(); j += 1013)
      REQUIRE(distance(format::kFP16, values[i], values[j]) == (i > j ? i - j : j - i));
  CHECK(distance(format::kFP16, 1, 1 + 0x1p-11) == 0);  // r is rounded first; a tie to even
  CHECK(distance(format::kFP16, 1, 1 + 0x1.8p-11) == 1);
  CHECK(distance(format::kFP16, 65504, 1e6) == 1);  // to Inf
  CHECK(distance(format::kE4M3, 448, 1e6) == 0);    // E4M3 has no Inf
  CHECK(distance(format::kBF16, -0x1p-133, 0x1p-133) == 2);
  CHECK(distance(format::kFP32, 1, static_cast<double>(std::nextafter(1.0f, 2.0f))) == 1);
  CHECK(distance(format::kFP64, -0x1p-1074, 1) == 1 + (std::uint64_t{1023} << 52));
}

TEST_CASE("The largest ulp distance of many pairs is the largest of their single distances") {
  for (const format::Format* format : {&format::kFP64, &format::kFP32, &format::kFP16, &format::kBF16, &format::kE5M2,
                                       &format::kE4M3, &format::kE4M3Fnuz, &format::kE2M1}) {
    Accuracy together(*format);
    std::uint64_t largest = 0;
    for (std::uint64_t i = 0; i < 20000; ++i) {
      // Neighbouring numbers of the format, around zero and in its subnormals too, and now and then a far one.
      const double r =
          (2 * random_unit(1, 0, i) - 1) * std::ldexp(1.0, static_cast<int>(random_bits(1, 1, i) % 40) - 30);
      const double shift = std::ldexp(random_unit(1, 2, i), -static_cast<int>(random_bits(1, 3, i) % 60));
      const double o = format::decode(*format, format::encode(*format, r + shift * (i % 2 ? r : shift), {}));
      Accuracy alone(*format);
      alone.add(o, r, {});
      together.add(o, r, {});
      largest = std::max(largest, alone.max_ulp().value());
      REQUIRE(together.max_ulp() == largest);
    }
    CHECK(largest > 0);
  }
}

TEST_CASE("Percentiles bound the sorted errors from above by at most an eighth") {
  const auto data = pairs(5000, 11);
  const Accuracy accuracy = accumulate(data);
  std::vector<double> errors;
  for (const Pair& pair : data) errors.push_back(std::fabs(pair.o - pair.r));
  std::sort(errors.begin(), errors.end());
  for (const double p : {0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0}) {
    const auto rank = std::max<std::size_t>(static_cast<std::size_t>(std::ceil(p * 5000 / 100)), 1);
    const double exact = errors[rank - 1];
    INFO("percentile " << p);
    CHECK(accuracy.percentile(p) >= exact);
    CHECK(accuracy.percentile(p) <= exact * 1.125);
  }
  CHECK(accuracy.percentile(100) == accuracy.max_abs());
  CHECK_THROWS_AS(accuracy.percentile(100.5), Error);
  CHECK_THROWS_AS(accuracy.percentile(kNaN), Error);
}

TEST_CASE("Histogram bins end at eighths of binades") {
  for (int e = -96; e < 32; ++e)
    for (int part = 0; part < 8; ++part) {
      const double lower = std::ldexp(1 + part / 8.0, e);
      const double upper = std::ldexp(1 + (part + 1) / 8.0, e);
      for (const double x : {lower, std::nextafter(upper, 0.0)}) {
        ErrorHistogram histogram;
        histogram.add(x);
        REQUIRE(histogram.percentile(50) == upper);
      }
    }
  ErrorHistogram outside;
  outside.add(0);
  outside.add(std::nextafter(0x1p-96, 0.0));
  CHECK(outside.percentile(100) == 0);
  outside.add(0x1p32);
  CHECK(outside.percentile(100) == kInf);
  CHECK(outside.count() == 3);
}

TEST_CASE("A summary has the mean and the worst call of each metric, in any order") {
  std::vector<std::pair<std::string, Accuracy>> calls;
  for (std::uint64_t i = 0; i < 7; ++i) calls.emplace_back("layer_" + std::to_string(i), accumulate(pairs(50, i)));
  Summary forward, backward, merged, second_half;
  for (const auto& [name, accuracy] : calls) forward.add(accuracy, name);
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) backward.add(call->second, call->first);
  for (std::size_t i = 0; i < calls.size(); ++i) (i < 3 ? merged : second_half).add(calls[i].second, calls[i].first);
  second_half.merge(merged);
  CHECK(forward == backward);
  CHECK(forward == second_half);

  std::string worst_cos, worst_l1;
  double lowest = 2, highest = -1;
  ExactSum sum;
  for (const auto& [name, accuracy] : calls) {
    if (accuracy.cos_sim() < lowest) lowest = accuracy.cos_sim(), worst_cos = name;
    if (accuracy.rel_l1() > highest) highest = accuracy.rel_l1(), worst_l1 = name;
    sum.add(accuracy.cos_sim());
  }
  CHECK(forward.cos_sim.worst() == lowest);
  CHECK(forward.cos_sim.worst_call() == worst_cos);
  CHECK(forward.rel_l1.worst() == highest);
  CHECK(forward.rel_l1.worst_call() == worst_l1);
  CHECK(forward.cos_sim.average() == sum.value() / 7);
  CHECK(forward.cos_sim.calls() == 7);
}

TEST_CASE("One call without a value makes average and worst NaN and is named") {
  MetricSummary summary(MetricSummary::Better::higher);
  CHECK(std::isnan(summary.average()));
  CHECK(std::isnan(summary.worst()));
  summary.add(0.5, "a");
  summary.add(kNaN, "c");
  summary.add(kNaN, "b");
  summary.add(0.25, "d");
  CHECK(std::isnan(summary.average()));
  CHECK(std::isnan(summary.worst()));
  CHECK(summary.worst_call() == "b");
  CHECK(summary.missing() == 2);
  MetricSummary infinite(MetricSummary::Better::lower);
  infinite.add(1, "a");
  infinite.add(kInf, "b");
  CHECK(infinite.average() == kInf);
  CHECK(infinite.worst_call() == "b");
  MetricSummary ties(MetricSummary::Better::lower);
  ties.add(1, "b");
  ties.add(1, "a");
  CHECK(ties.worst_call() == "a");
}

TEST_CASE("An accuracy that is saved and loaded is the same, merges alike, and has the same bytes for every order") {
  std::vector<Pair> data = pairs(3000, 21);
  const auto check = [&] {
    const Accuracy accuracy = accumulate(data);
    ByteWriter bytes;
    accuracy.save(bytes);
    CHECK(bytes.bytes().size() < 2000);
    ByteReader reader(bytes.bytes());
    Accuracy loaded = Accuracy::load(reader);
    CHECK(reader.at_end());
    CHECK(loaded == accuracy);
    Accuracy both = accumulate(pairs(500, 22)), expected = both;
    both.merge(loaded);
    expected.merge(accuracy);
    CHECK(both == expected);
    CHECK(std::bit_cast<std::uint64_t>(both.rmse()) == std::bit_cast<std::uint64_t>(expected.rmse()));
    std::reverse(data.begin(), data.end());
    ByteWriter reversed;
    accumulate(data).save(reversed);
    CHECK(reversed.bytes() == bytes.bytes());
  };
  check();
  data[100].o = kNaN;
  data[200].r = kInf;
  check();
  data.clear();
  check();
}

TEST_CASE("Saved bytes that are cut off or damaged are refused or read as something else, never a crash") {
  ByteWriter bytes;
  accumulate(pairs(200, 23)).save(bytes);
  const std::string& whole = bytes.bytes();
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    ByteReader reader(std::string_view(whole).substr(0, cut));
    CHECK_THROWS_AS(Accuracy::load(reader), Error);
  }
  std::size_t refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x80);
    ByteReader reader(damaged);
    try {
      Accuracy::load(reader);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > whole.size() / 10);
}
