#include "tile_rule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "format/encode.h"

namespace qattn::kernels {
namespace {

__extension__ typedef __int128 Wide;

constexpr int kGuard = 24;  // bits below F that an uncut C has
constexpr int kNoExponent = -5000;

struct Element {
  double value;
  int exponent;
};

Element element(const format::Format& format, std::uint32_t code, bool floored) {
  const double value = format::decode(format, code);
  if (value == 0) return {0, kNoExponent};
  const int own = std::ilogb(value);
  return {value, floored ? std::max(own, 1 - format.bias) : own};
}

std::vector<Element> elements(const format::Format& format, const MatrixCodes& codes, bool floored) {
  std::vector<Element> list;
  list.reserve(static_cast<std::size_t>(codes.size()));
  for (Eigen::Index i = 0; i < codes.size(); ++i) list.push_back(element(format, codes.data()[i], floored));
  return list;
}

/// units * 2^exponent with `bits` significant bits.
float rounded(Wide units, int exponent, int bits, bool nearest) {
  const bool negative = units < 0;
  Wide magnitude = negative ? -units : units;
  int width = 0;
  while (width < 120 && (magnitude >> width) != 0) ++width;
  if (const int drop = width - bits; drop > 0) {
    const Wide kept = magnitude >> drop, rest = magnitude - (kept << drop), half = Wide{1} << (drop - 1);
    const bool up = nearest && (rest > half || (rest == half && (kept & 1) != 0));
    magnitude = kept + (up ? 1 : 0);
    exponent += drop;
  }
  const double value = std::ldexp(static_cast<double>(magnitude), exponent);
  return static_cast<float>(negative ? -value : value);
}

/// One sum of products [first, last) and c.
float group_sum(const SlowRule& rule, const Element* a, const Element* b, Eigen::Index first, Eigen::Index last,
                float c) {
  int top = kNoExponent;
  for (Eigen::Index k = first; k < last; ++k) {
    if (a[k].value == 0 || b[k].value == 0) continue;
    const int sum = a[k].exponent + b[k].exponent;
    top = std::max(top, rule.normalised ? std::ilogb(a[k].value * b[k].value) : sum);
  }
  const bool joins = c != 0 && rule.c != CTerm::added_after;
  if (joins && (rule.c != CTerm::outside_e_max || top == kNoExponent)) top = std::max(top, std::ilogb(c));
  if (top == kNoExponent) return rule.c == CTerm::added_after ? c : 0.0f;
  const int unit = top - rule.fraction_bits;
  const double per_unit = std::ldexp(1.0, -unit);
  Wide sum = 0;
  for (Eigen::Index k = first; k < last; ++k) sum += static_cast<Wide>(a[k].value * b[k].value * per_unit);
  sum <<= kGuard;
  if (joins) {
    const double scaled = static_cast<double>(c) * per_unit;
    if (rule.c == CTerm::whole) {
      sum += static_cast<Wide>(std::ldexp(scaled, kGuard));
    } else {
      sum += static_cast<Wide>(rule.c == CTerm::rounded ? std::nearbyint(scaled) : scaled) << kGuard;
    }
  }
  const float output = rounded(sum, unit - kGuard, rule.mantissa_bits + 1, rule.nearest);
  return rule.c == CTerm::added_after ? c + output : output;
}

float chain(const SlowRule& rule, const Element* a, const Element* b, Eigen::Index depth, float c) {
  const Eigen::Index groups = (depth + rule.group - 1) / rule.group;
  float promoted = 0, d = c;
  for (Eigen::Index i = 0; i < groups; ++i) {
    const Eigen::Index first = (rule.descending ? groups - 1 - i : i) * rule.group;
    d = group_sum(rule, a, b, first, std::min<Eigen::Index>(first + rule.group, depth), d);
    if (rule.promote > 0 && (i + 1) * rule.group % rule.promote == 0) {
      promoted += d;
      d = 0;
    }
  }
  return rule.promote > 0 ? promoted + d : d;
}

}  // namespace

SlowRule slow_rule(const mma::Instruction& instruction) {
  return {.group = instruction.fusion.group,
          .fraction_bits = instruction.fusion.fraction_bits,
          .mantissa_bits = instruction.fusion.mantissa_bits};
}

TileRule tile_rule(const SlowRule& rule) {
  return [rule](const mma::Instruction& x, const MatrixCodes& a, const MatrixCodes& b, MatrixCodes& c) {
    const std::vector<Element> left = elements(*x.a, a, rule.subnormals_floored);
    const std::vector<Element> right = elements(*x.b, b, rule.subnormals_floored);
    for (Eigen::Index i = 0; i < c.rows(); ++i) {
      for (Eigen::Index j = 0; j < c.cols(); ++j) {
        const float d = chain(rule, &left[static_cast<std::size_t>(i * a.cols())],
                              &right[static_cast<std::size_t>(j * b.cols())], a.cols(), std::bit_cast<float>(c(i, j)));
        c(i, j) = std::bit_cast<std::uint32_t>(d);
      }
    }
  };
}

}  // namespace qattn::kernels
