// Every question is asked with powers of two: a large pair that cancels, and a small term that the alignment to the
// large one either keeps or loses.
#include "probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "mma/digest.h"
#include "mma/fused_dot.h"

namespace qattn::gpu {
namespace {

using mma::CodeFormat;
using mma::families::compose;

/// (-1)^negative * significand * 2^exponent as the product at one position; a significand is 1, 1.5 (one factor's) or
/// 2.25 (both factors').
struct ProductTerm {
  int position;
  int exponent;
  bool negative = false;
  double significand = 1;
};

/// Makes experiments for one instruction and asks the backend.
class Bench {
 public:
  Bench(const mma::Instruction& formats, const DotBackend& run) : recipe_(mma::operand_recipe(formats)), run_(run) {
    const CodeFormat& out = recipe_.c;
    const bool is_f16 = out.exponent_bits == 5;
    const int smallest = minimum(recipe_.a) + minimum(recipe_.b), largest = maximum(recipe_.a) + maximum(recipe_.b);
    low_ = std::max(smallest, is_f16 ? -24 : -60);
    high_ = std::min(largest - 2, is_f16 ? 15 : 30);
    is_f16_ = is_f16;
  }

  int k() const { return recipe_.k; }
  int low() const { return low_; }
  int high() const { return high_; }
  bool has_f16_output() const { return is_f16_; }
  const mma::OperandRecipe& recipe() const { return recipe_; }

  DotExperiment experiment(const std::vector<ProductTerm>& terms, std::uint64_t c = 0) const {
    DotExperiment result;
    result.a.assign(static_cast<std::size_t>(recipe_.k), 0);
    result.b = result.a;
    result.c = c;
    for (const ProductTerm& term : terms) {
      // The exponent is shared out so that both factors are normal where that is possible, and A is subnormal first.
      const int near = std::clamp(term.exponent / 2, minimum(recipe_.a), maximum(recipe_.a));
      const int of_b = std::clamp(term.exponent - near, minimum(recipe_.b), maximum(recipe_.b));
      const int of_a = std::max(term.exponent - of_b, minimum(recipe_.a) - recipe_.a.mantissa_bits);
      const auto at = static_cast<std::size_t>(term.position);
      result.a[at] = operand(recipe_.a, term.negative, of_a, term.significand > 1);
      result.b[at] = operand(recipe_.b, false, term.exponent - of_a, term.significand > 2);
    }
    return result;
  }

  /// The code of (-1)^negative * significand * 2^exponent in C's format.
  std::uint64_t accumulator(int exponent, bool negative = false, bool one_and_a_half = false) const {
    return operand(recipe_.c, negative, exponent, one_and_a_half);
  }

  std::vector<std::uint64_t> outputs(const std::vector<DotExperiment>& experiments) const { return run_(experiments); }
  std::uint64_t output(const DotExperiment& experiment) const { return run_({experiment}).front(); }
  bool is_nonzero(std::uint64_t code) const { return (code << (64 - recipe_.c.bits + 1)) != 0; }
  bool survives(const DotExperiment& experiment) const { return is_nonzero(output(experiment)); }

 private:
  static int minimum(const CodeFormat& f) { return mma::families::min_exponent(f); }
  static int maximum(const CodeFormat& f) { return mma::families::max_exponent(f); }
  static std::uint64_t operand(const CodeFormat& f, bool negative, int exponent, bool one_and_a_half) {
    const std::uint64_t half = one_and_a_half ? std::uint64_t{1} << (f.mantissa_bits - 1) : 0;
    return compose(f, negative, exponent, half) << f.unused_bits;
  }

  mma::OperandRecipe recipe_;
  const DotBackend& run_;
  int low_, high_;
  bool is_f16_;
};

/// later[l][i]: position l is added after position i. A pair that cancels, one of it at i, loses a small term at l
/// unless that comes in a later sum. The pair's other half stands at every other position by turns, and in C.
std::vector<std::vector<char>> find_order(const Bench& bench) {
  const int k = bench.k();
  std::vector<DotExperiment> experiments;
  std::vector<std::pair<int, int>> asked;
  for (int i = 0; i < k; ++i) {
    for (int l = 0; l < k; ++l) {
      if (l == i) continue;
      for (int j = 0; j < k; ++j) {
        if (j == i || j == l) continue;
        experiments.push_back(bench.experiment({{i, bench.high()}, {j, bench.high(), true}, {l, bench.low()}}));
        asked.emplace_back(l, i);
      }
      experiments.push_back(
          bench.experiment({{i, bench.high()}, {l, bench.low()}}, bench.accumulator(bench.high(), true)));
      asked.emplace_back(l, i);
    }
  }
  const std::vector<std::uint64_t> outputs = bench.outputs(experiments);
  std::vector<std::vector<char>> later(static_cast<std::size_t>(k), std::vector<char>(static_cast<std::size_t>(k)));
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    const auto [l, i] = asked[n];
    if (bench.is_nonzero(outputs[n])) later[static_cast<std::size_t>(l)][static_cast<std::size_t>(i)] = 1;
  }
  return later;
}

/// Positions with equally many others before them form a group.
std::vector<std::vector<int>> find_groups(const Bench& bench) {
  const std::vector<std::vector<char>> later = find_order(bench);
  std::vector<std::pair<std::ptrdiff_t, int>> ranks;
  for (int l = 0; l < bench.k(); ++l) {
    const auto& row = later[static_cast<std::size_t>(l)];
    ranks.emplace_back(std::count(row.begin(), row.end(), 1), l);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::vector<int>> groups;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 0 || ranks[i].first != ranks[i - 1].first) groups.emplace_back();
    groups.back().push_back(ranks[i].second);
  }
  return groups;
}

/// Three terms of the first group: +large and -large, which cancel, and a third.
class Triple {
 public:
  Triple(const Bench& bench, const std::vector<int>& group) : bench_(bench), group_(group) {}

  DotExperiment with(const ProductTerm& third, double significand = 1) const {
    const int high = bench_.high();
    return bench_.experiment({{group_[0], high, false, significand},
                              {group_[1], high, true, significand},
                              {group_[2], third.exponent, third.negative, third.significand}});
  }
  /// The same with C in place of the third product.
  DotExperiment with_accumulator(int exponent) const {
    const int high = bench_.high();
    return bench_.experiment({{group_[0], high}, {group_[1], high, true}}, bench_.accumulator(exponent));
  }

 private:
  const Bench& bench_;
  const std::vector<int>& group_;
};

int find_fraction_bits(const Bench& bench, const Triple& triple) {
  int kept = -1;
  for (int j = 0; bench.high() - j >= bench.low() && bench.survives(triple.with({0, bench.high() - j})); ++j) kept = j;
  return kept;
}

/// What 1.5 units in the last kept place become, either sign.
std::string find_cut(const Bench& bench, const Triple& triple, int fraction_bits) {
  const int unit = bench.high() - fraction_bits;
  const std::uint64_t positive = bench.output(triple.with({0, unit, false, 1.5}));
  const std::uint64_t negative = bench.output(triple.with({0, unit, true, 1.5}));
  const bool up = positive == bench.accumulator(unit + 1), down = negative == bench.accumulator(unit + 1, true);
  if (!up && positive != bench.accumulator(unit)) return "?";
  if (!down && negative != bench.accumulator(unit, true)) return "?";
  if (up != down) return down ? "down" : "up";
  return up ? "to nearest" : "toward zero";
}

int find_mantissa_bits(const Bench& bench) {
  const CodeFormat& c = bench.recipe().c;
  const std::uint64_t ones = (std::uint64_t{1} << c.mantissa_bits) - 1;
  const std::uint64_t one = static_cast<std::uint64_t>(c.bias) << c.mantissa_bits;
  int kept = -1;
  for (int bit = 1; bit <= c.mantissa_bits; ++bit) {
    const std::uint64_t code = one | (ones >> (c.mantissa_bits - bit) << (c.mantissa_bits - bit));
    if (bench.output(bench.experiment({}, code)) == code) kept = bit;
  }
  return kept;
}

/// 3 + 1.5 units in the last place, either sign: the half decides, and to nearest even goes up.
std::string find_rounding(const Bench& bench, const std::vector<std::vector<int>>& groups, int mantissa_bits) {
  std::vector<int> positions;
  for (const std::vector<int>& group : groups) positions.insert(positions.end(), group.begin(), group.end());
  if (positions.size() < 3 || mantissa_bits < 2) return "?";
  const int scale = std::min(10, bench.high() - 2);
  const CodeFormat& c = bench.recipe().c;
  const auto last_places = [&](bool negative) {
    const std::uint64_t code =
        bench.output(bench.experiment({{positions[0], scale, negative, 1.5},
                                       {positions[1], scale, negative, 1.5},
                                       {positions[2], scale + 1 - mantissa_bits, negative, 1.5}}));
    return (code - bench.accumulator(scale + 1, negative, true)) >> (c.mantissa_bits - mantissa_bits);
  };
  const std::uint64_t above = last_places(false), below = last_places(true);
  if (above == 1 && below == 1) return "toward zero";
  if (above == 2 && below == 2) return "to nearest even";
  if (above == 1 && below == 2) return "down";
  return above == 2 && below == 1 ? "up" : "?";
}

/// Where sums are so small that an exponent floor shows: beside 2^-149 (f32, which a smaller negative term takes to
/// zero) or 2^-25 (f16, a tie that a smaller term breaks).
std::string find_floor(const Bench& bench, const std::vector<int>& group, int fraction_bits) {
  const mma::OperandRecipe& recipe = bench.recipe();
  const bool is_f16 = bench.has_f16_output();
  const int top = is_f16 ? -25 : -149;
  const auto smallest = [](const CodeFormat& f) { return mma::families::min_exponent(f); };
  if (smallest(recipe.a) + smallest(recipe.b) > top) return "?";
  const int reach = smallest(recipe.a) - recipe.a.mantissa_bits + smallest(recipe.b) - recipe.b.mantissa_bits;
  int kept = 0;
  bool lost = false;
  for (int j = 1; j <= fraction_bits && top - j >= reach && !lost; ++j) {
    const std::uint64_t code = bench.output(bench.experiment({{group[0], top}, {group[1], top - j, !is_f16}}));
    lost = bench.is_nonzero(code) != is_f16;
    if (!lost) kept = j;
  }
  const int floor = top - kept + fraction_bits;
  if (lost) return std::to_string(floor);
  return "<= " + std::to_string(floor);
}

}  // namespace

Adder probe(const mma::Instruction& formats, const DotBackend& run) {
  const Bench bench(formats, run);
  Adder adder;
  adder.groups = find_groups(bench);
  const std::vector<int>& group = adder.groups.front();
  adder.mantissa_bits = find_mantissa_bits(bench);
  adder.rounding = find_rounding(bench, adder.groups, adder.mantissa_bits);
  const std::vector<int> pair = group.size() > 1 ? group : std::vector<int>{group[0], adder.groups[1][0]};
  // The pair cancels before C comes, or C has met the pair's first half.
  const bool kept = bench.survives(Triple(bench, pair).with_accumulator(bench.low()));
  adder.accumulator = kept ? "added after" : "in the sum";
  if (group.size() < 3) return adder;
  const Triple triple(bench, group);
  adder.fraction_bits = find_fraction_bits(bench, triple);
  const int unit = bench.high() - adder.fraction_bits;
  if (adder.fraction_bits >= 0 && unit > bench.low()) {
    adder.cut = find_cut(bench, triple, adder.fraction_bits);
    adder.normalises_products = !bench.survives(triple.with({0, unit}, 2.25));
    adder.floor = find_floor(bench, group, adder.fraction_bits);
  }
  return adder;
}

DotBackend emulator(const mma::Instruction& instruction) {
  return [&instruction](const std::vector<DotExperiment>& experiments) {
    std::vector<std::uint64_t> outputs;
    outputs.reserve(experiments.size());
    for (const DotExperiment& x : experiments) outputs.push_back(mma::dot(instruction, {x.a, x.b, x.c}));
    return outputs;
  };
}

std::string groups_text(const Adder& adder) {
  std::string text;
  for (const std::vector<int>& group : adder.groups) {
    for (std::size_t i = 0; i < group.size();) {
      std::size_t end = i;
      while (end + 1 < group.size() && group[end + 1] == group[end] + 1) ++end;
      text += text.empty() ? "" : i == 0 ? " | " : ",";
      text += end > i ? fmt::format("{}-{}", group[i], group[end]) : fmt::format("{}", group[i]);
      i = end + 1;
    }
  }
  return text;
}

}  // namespace qattn::gpu
