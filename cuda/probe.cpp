// Every question is asked with powers of two: a large pair that cancels, and a small term that the alignment to the
// large one either keeps or loses.
#include "probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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
  /// The exponent of the smallest sum that a term below it can change: f32's smallest subnormal, half of f16's.
  int smallest_sum() const { return is_f16_ ? -25 : -149; }
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

/// A pair that cancels, one half at `i` and the other at `partner` (k: in C), and a small term at `l`.
DotExperiment order_question(const Bench& bench, int i, int partner, int l) {
  if (partner == bench.k()) {
    return bench.experiment({{i, bench.high()}, {l, bench.low()}}, bench.accumulator(bench.high(), true));
  }
  return bench.experiment({{i, bench.high()}, {partner, bench.high(), true}, {l, bench.low()}});
}

/// later[l][i]: position l is added after position i. A pair that cancels, one of it at i, loses a small term at l
/// unless that comes in a later sum. The pair's other half stands at every other position by turns, and in C.
std::vector<std::vector<char>> find_order(const Bench& bench) {
  const int k = bench.k();
  std::vector<DotExperiment> experiments;
  std::vector<std::pair<int, int>> asked;
  for (int i = 0; i < k; ++i) {
    for (int l = 0; l < k; ++l) {
      if (l == i) continue;
      for (int partner = 0; partner <= k; ++partner) {
        if (partner == i || partner == l) continue;
        experiments.push_back(order_question(bench, i, partner, l));
        asked.emplace_back(l, i);
      }
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

  DotExperiment with(int exponent, bool negative = false, double third = 1, double pair = 1) const {
    const int high = bench_.high();
    return bench_.experiment(
        {{group_[0], high, false, pair}, {group_[1], high, true, pair}, {group_[2], exponent, negative, third}});
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

/// No products and C = 1.11..1 with `bits` ones.
DotExperiment write_through(const Bench& bench, int bits) {
  const CodeFormat& c = bench.recipe().c;
  const std::uint64_t ones = (std::uint64_t{1} << bits) - 1;
  return bench.experiment({}, static_cast<std::uint64_t>(c.bias) << c.mantissa_bits | ones << (c.mantissa_bits - bits));
}

int rounding_scale(const Bench& bench) { return std::min(10, bench.high() - 2); }

/// 3 * 2^scale and `units`, 1 or 1.5, in the last of `mantissa_bits` places, of three products.
DotExperiment last_place(const Bench& bench, const std::vector<int>& positions, int mantissa_bits, bool negative,
                         double units = 1.5) {
  const int scale = rounding_scale(bench);
  return bench.experiment({{positions[0], scale, negative, 1.5},
                           {positions[1], scale, negative, 1.5},
                           {positions[2], scale + 1 - mantissa_bits, negative, units}});
}

std::vector<int> positions_in_order(const std::vector<std::vector<int>>& groups) {
  std::vector<int> positions;
  for (const std::vector<int>& group : groups) positions.insert(positions.end(), group.begin(), group.end());
  return positions;
}

/// Where sums are so small that an exponent floor shows: beside 2^-149 (f32, which a smaller negative term takes to
/// zero) or 2^-25 (f16, a tie that a smaller term breaks). Empty where the operands do not reach that far down.
std::vector<DotExperiment> floor_questions(const Bench& bench, const std::vector<int>& group, int fraction_bits) {
  const mma::OperandRecipe& recipe = bench.recipe();
  const int top = bench.smallest_sum();
  const auto smallest = [](const CodeFormat& f) { return mma::families::min_exponent(f); };
  std::vector<DotExperiment> questions;
  if (smallest(recipe.a) + smallest(recipe.b) > top) return questions;
  const int reach = smallest(recipe.a) - recipe.a.mantissa_bits + smallest(recipe.b) - recipe.b.mantissa_bits;
  for (int j = 1; j <= fraction_bits && top - j >= reach; ++j) {
    questions.push_back(bench.experiment({{group[0], top}, {group[1], top - j, !bench.has_f16_output()}}));
  }
  return questions;
}

int find_fraction_bits(const Bench& bench, const Triple& triple) {
  int kept = -1;
  for (int j = 0; bench.high() - j >= bench.low() && bench.survives(triple.with(bench.high() - j)); ++j) kept = j;
  return kept;
}

/// What 1.5 units in the last kept place become, either sign.
std::string find_cut(const Bench& bench, const Triple& triple, int fraction_bits) {
  const int unit = bench.high() - fraction_bits;
  const std::uint64_t positive = bench.output(triple.with(unit, false, 1.5));
  const std::uint64_t negative = bench.output(triple.with(unit, true, 1.5));
  const bool up = positive == bench.accumulator(unit + 1), down = negative == bench.accumulator(unit + 1, true);
  if (!up && positive != bench.accumulator(unit)) return "?";
  if (!down && negative != bench.accumulator(unit, true)) return "?";
  if (up != down) return down ? "down" : "up";
  return up ? "to nearest" : "toward zero";
}

int find_mantissa_bits(const Bench& bench) {
  int kept = -1;
  for (int bits = 1; bits <= bench.recipe().c.mantissa_bits; ++bits) {
    const DotExperiment question = write_through(bench, bits);
    if (bench.output(question) == question.c) kept = bits;
  }
  return kept;
}

std::string find_rounding(const Bench& bench, const std::vector<std::vector<int>>& groups, int mantissa_bits) {
  const std::vector<int> positions = positions_in_order(groups);
  if (positions.size() < 3 || mantissa_bits < 2) return "?";
  const int spare = bench.recipe().c.mantissa_bits - mantissa_bits;
  // The half decides; to nearest even goes up.
  const auto last_places = [&](bool negative) {
    const std::uint64_t code = bench.output(last_place(bench, positions, mantissa_bits, negative));
    return (code - bench.accumulator(rounding_scale(bench) + 1, negative, true)) >> spare;
  };
  const std::uint64_t above = last_places(false), below = last_places(true);
  if (above == 1 && below == 1) return "toward zero";
  if (above == 2 && below == 2) return "to nearest even";
  if (above == 1 && below == 2) return "down";
  return above == 2 && below == 1 ? "up" : "?";
}

std::string find_floor(const Bench& bench, const std::vector<int>& group, int fraction_bits) {
  const std::vector<DotExperiment> questions = floor_questions(bench, group, fraction_bits);
  if (questions.empty()) return "?";
  int kept = 0;
  for (const DotExperiment& question : questions) {
    const bool lost = bench.survives(question) != bench.has_f16_output();
    const int floor = bench.smallest_sum() - kept + fraction_bits;
    if (lost) return std::to_string(floor);
    ++kept;
  }
  return "<= " + std::to_string(bench.smallest_sum() - kept + fraction_bits);
}

}  // namespace

Adder probe(const mma::Instruction& formats, const DotBackend& run) {
  const Bench bench(formats, run);
  Adder adder;
  adder.groups = find_groups(bench);
  const std::vector<int>& group = adder.groups.front();
  adder.mantissa_bits = find_mantissa_bits(bench);
  adder.rounding = find_rounding(bench, adder.groups, adder.mantissa_bits);
  const std::vector<int> pair = positions_in_order(adder.groups);
  // The pair cancels before C comes, or C has met the pair's first half.
  const bool kept = bench.survives(Triple(bench, pair).with_accumulator(bench.low()));
  adder.accumulator = kept ? "added after" : "in the sum";
  if (group.size() < 3) return adder;
  const Triple triple(bench, group);
  adder.fraction_bits = find_fraction_bits(bench, triple);
  const int unit = bench.high() - adder.fraction_bits;
  if (adder.fraction_bits >= 0 && unit > bench.low()) {
    adder.cut = find_cut(bench, triple, adder.fraction_bits);
    adder.normalises_products = !bench.survives(triple.with(unit, false, 1, 2.25));
    adder.floor = find_floor(bench, group, adder.fraction_bits);
  }
  return adder;
}

std::vector<DotExperiment> decisive_experiments(const mma::Instruction& formats, const Adder& adder) {
  const DotBackend nobody;
  const Bench bench(formats, nobody);
  const int k = bench.k();
  std::vector<DotExperiment> list;
  // Who is added with whom: positions that stand for the halves, the quarters and the pairs of K, and C.
  const std::set<int> sample{0, 1, 2, 3, k / 4, k / 2 - 1, k / 2, k - 2, k - 1};
  std::set<int> partners = sample;
  partners.insert(k);
  for (const int i : sample) {
    for (const int partner : partners) {
      for (const int l : sample) {
        if (i != l && partner != i && partner != l && i < partner) list.push_back(order_question(bench, i, partner, l));
      }
    }
  }
  for (int bits = 1; bits <= bench.recipe().c.mantissa_bits; ++bits) list.push_back(write_through(bench, bits));
  const CodeFormat& a = bench.recipe().a;
  list.push_back(bench.experiment({{0, mma::families::min_exponent(a) - 1}}));  // A's operand is subnormal
  const std::vector<int> positions = positions_in_order(adder.groups);
  for (const bool negative : {false, true}) {
    if (adder.mantissa_bits < 2) continue;
    for (const double units : {1.0, 1.5}) {
      list.push_back(last_place(bench, positions, adder.mantissa_bits, negative, units));
    }
  }
  const std::vector<int>& group = adder.groups.front();
  if (group.size() < 3 || adder.fraction_bits < 0) return list;
  const Triple triple(bench, group);
  const int unit = bench.high() - adder.fraction_bits;
  for (int exponent = unit - 2; exponent <= unit + 2; ++exponent) {
    list.push_back(triple.with(exponent));
    list.push_back(triple.with_accumulator(exponent));
  }
  list.push_back(triple.with_accumulator(bench.low()));
  for (const bool negative : {false, true}) list.push_back(triple.with(unit, negative, 1.5));
  list.push_back(triple.with(unit, false, 1, 2.25));
  for (DotExperiment& question : floor_questions(bench, group, adder.fraction_bits))
    list.push_back(std::move(question));
  return list;
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
