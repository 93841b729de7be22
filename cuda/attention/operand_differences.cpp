#include "attention/operand_differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <string_view>

namespace qattn::gpu {
namespace {

std::uint64_t bits(std::uint32_t x) { return x; }
std::uint64_t bits(float x) { return std::isnan(x) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(x); }
std::uint64_t bits(double x) { return std::isnan(x) ? 0x7FF8000000000000u : std::bit_cast<std::uint64_t>(x); }

template <class T>
std::span<const T> elements(const std::vector<T>& items) {
  return items;
}

template <class T>
std::span<const T> elements(const Matrix<T>& matrix) {
  return {matrix.data(), static_cast<std::size_t>(matrix.size())};
}

class Comparison {
 public:
  template <class Items>
  void part(std::string_view name, const Items& expected, const Items& found) {
    const auto a = elements(expected);
    const auto b = elements(found);
    counts_.elements += static_cast<std::int64_t>(std::max(a.size(), b.size()));
    if (a.size() != b.size()) {
      differ(static_cast<std::int64_t>(std::max(a.size(), b.size())),
             fmt::format("{}: expected {} elements, found {}", name, a.size(), b.size()));
      return;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (bits(a[i]) == bits(b[i])) continue;
      differ(1, fmt::format("{} {}: expected {:X}, found {:X}", name, i, bits(a[i]), bits(b[i])));
    }
  }

  void stored(const std::string& name, const attention::Stored& expected, const attention::Stored& found) {
    part(name + " code", expected.codes, found.codes);
    part(name + " value", expected.values, found.values);
    part(name + " scale of row", expected.row_scale, found.row_scale);
    part(name + " scale of column", expected.column_scale, found.column_scale);
  }

  OperandDifferences counts() const { return counts_; }

 private:
  void differ(std::int64_t count, const std::string& what) {
    if (counts_.differing == 0) counts_.first = what;
    counts_.differing += count;
  }

  OperandDifferences counts_;
};

}  // namespace

OperandDifferences compare_operands(const attention::Operands& expected, const attention::Operands& found) {
  Comparison comparison;
  comparison.stored("q", expected.q, found.q);
  comparison.stored("k", expected.k, found.k);
  comparison.stored("v", expected.v, found.v);
  comparison.part("scale factor", std::vector{expected.score_scale, expected.q_factor, expected.k_factor},
                  std::vector{found.score_scale, found.q_factor, found.k_factor});
  comparison.part("balance", expected.balance, found.balance);
  comparison.part("k mean", expected.k_mean, found.k_mean);
  comparison.part("q mean", expected.q_means, found.q_means);
  comparison.part("v mean", expected.v_mean, found.v_mean);
  comparison.part("correction", expected.correction, found.correction);
  comparison.part("lse shift", expected.lse_shift, found.lse_shift);
  return comparison.counts();
}

}  // namespace qattn::gpu
