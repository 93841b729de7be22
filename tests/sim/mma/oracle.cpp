// The oracle: fixed-point numbers of unlimited length in Boost.Multiprecision.
#include "oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <optional>
#include <vector>

#include "format/encode.h"

namespace qattn::mma {
namespace {

using boost::multiprecision::cpp_int;

/// Every number is an integer times 2^-kScale: fine enough for a product of two f64 subnormals.
constexpr int kScale = 2400;

enum class Direction { toward_zero, nearest_even, down };

/// x / 2^bits as an integer.
cpp_int divide(const cpp_int& x, int bits, Direction direction) {
  const cpp_int unit = cpp_int(1) << bits;
  cpp_int quotient = abs(x) / unit;
  const cpp_int rest = abs(x) - quotient * unit;
  const bool negative = x < 0;
  if (direction == Direction::nearest_even) {
    const cpp_int twice = 2 * rest;
    if (twice > unit || (twice == unit && quotient % 2 != 0)) ++quotient;
  } else if (direction == Direction::down && negative && rest != 0) {
    ++quotient;
  }
  return negative ? cpp_int(-quotient) : quotient;
}

/// x cut to a multiple of 2^exponent.
cpp_int cut(const cpp_int& x, int exponent, Direction direction) {
  const int bits = exponent + kScale;
  return bits <= 0 ? x : cpp_int(divide(x, bits, direction) << bits);
}

struct Number {
  double special = 0;  ///< NaN or Inf, else 0
  cpp_int value;
  int exponent = 0;  ///< floor(log2), not below the format's smallest normal
  bool is_zero() const { return special == 0 && value == 0; }
};

cpp_int fixed(double x) {
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(x), &exponent);
  cpp_int value = static_cast<std::uint64_t>(std::ldexp(mantissa, 53));
  value <<= kScale + exponent - 53;
  return x < 0 ? cpp_int(-value) : value;
}

Number read(const format::Format& format, std::uint64_t code, bool flush = false) {
  if (format.name == "xf32" || format.name == "tf32") code >>= 13;
  Number x;
  // xf32 is not a format that the format room lists, but it is laid out as tf32.
  const double value = format::decode(format, code);
  if (!std::isfinite(value)) {
    x.special = value;
    return x;
  }
  const int smallest = format.specials == format::Specials::power_of_two ? -format.bias : 1 - format.bias;
  if (value == 0 || (flush && std::abs(value) < std::ldexp(1.0, smallest))) return x;
  x.exponent = std::max(std::ilogb(value), smallest);
  x.value = fixed(value);
  return x;
}

/// The code of an exact value in f16, f32 or f64.
std::uint64_t round_code(const format::Format& format, const cpp_int& exact, int mantissa_bits, Direction direction) {
  if (exact == 0) return 0;
  const int leading = static_cast<int>(msb(abs(exact))) - kScale;
  const int quantum = std::max(leading, 1 - format.bias) - mantissa_bits;
  const cpp_int units = divide(exact, quantum + kScale, direction);
  if (units == 0) return 0;
  const double value = std::ldexp(units.convert_to<double>(), quantum);
  const double limit = std::ldexp(1.0, format.bias + 1);
  const double out = std::abs(value) >= limit ? std::copysign(HUGE_VAL, value) : value;
  const format::Policy policy{format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep};
  return format::encode(format, out, policy);
}

std::uint64_t special_code(const format::Format& format, double special, bool amd) {
  if (!std::isnan(special)) {
    const format::Policy policy{format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep};
    return format::encode(format, special, policy);
  }
  if (amd) return 0x7FC00000;
  return format.bits == 16 ? 0x7FFF : 0x7FFFFFFF;
}

/// a * b of numbers one of which may be special; IEEE's rules.
double special_product(const Number& a, const Number& b) {
  const auto representative = [](const Number& x) {
    if (x.special != 0) return x.special;
    return x.value == 0 ? 0.0 : x.value < 0 ? -1.0 : 1.0;
  };
  const double product = representative(a) * representative(b);
  return std::isfinite(product) ? 0 : product;
}

struct Summand {
  cpp_int value;
  int exponent = 0;
  bool counts = false;  ///< for e_max
};

int magnitude_exponent(const cpp_int& x) { return static_cast<int>(msb(abs(x))) - kScale; }

/// One pass of NVIDIA's adder.
class Pass {
 public:
  Pass(const Instruction& x, const DotOperands& operands, Mutation mutation)
      : x_(x), operands_(operands), mutation_(mutation) {}

  std::uint64_t operator()(const std::vector<int>& positions, std::uint64_t c) {
    const bool flush = mutation_ == Mutation::flushed_operands;
    const Number accumulator = read(*x_.d, c, flush);
    std::vector<Summand> products;
    double special = accumulator.special;
    for (const int k : positions) add_product(products, special, static_cast<std::size_t>(k), flush);
    if (special != 0) return special_code(*x_.d, special, false);
    return sum(products, accumulator);
  }

  /// `special` is a running IEEE sum of the NaN and Inf terms.
  void add_product(std::vector<Summand>& products, double& special, std::size_t k, bool flush) {
    const Number a = operand(*x_.a, operands_.a[k], flush);
    const Number b = operand(*x_.b, operands_.b[k], flush);
    special += special_product(a, b);
    Summand product;
    product.value = a.special == 0 && b.special == 0 ? cpp_int((a.value * b.value) >> kScale) : cpp_int(0);
    product.exponent = a.exponent + b.exponent;
    if (x_.scale != nullptr) apply_scales(product, special, k);
    product.counts = product.value != 0;
    if (product.counts && mutation_ == Mutation::normalised_product) {
      product.exponent = std::max(product.exponent, magnitude_exponent(product.value));
    }
    products.push_back(product);
  }

  /// FP8 of an interleaved instruction is converted to FP16, whose smallest exponent is -14.
  Number operand(const format::Format& format, std::uint64_t code, bool flush) const {
    Number number = read(format, code, flush);
    if (x_.kind == Kind::interleaved_dot && number.value != 0) {
      number.exponent = std::max(magnitude_exponent(number.value), -14);
    }
    return number;
  }

  void apply_scales(Summand& product, double& special, std::size_t k) {
    const std::size_t block = k / static_cast<std::size_t>(x_.block);
    for (const std::uint64_t code : {operands_.scale_a[block], operands_.scale_b[block]}) {
      const Number scale = read(*x_.scale, code);
      special += scale.special;
      product.value = (product.value * scale.value) >> kScale;
      product.exponent += scale.exponent;
    }
  }

  std::uint64_t sum(const std::vector<Summand>& products, const Number& accumulator) {
    const bool late = mutation_ == Mutation::accumulator_late;
    const int change = mutation_ == Mutation::one_bit_less ? -1 : mutation_ == Mutation::one_bit_more ? 1 : 0;
    int e_max = x_.fusion.exponent_floor;
    for (const Summand& product : products) {
      if (product.counts) e_max = std::max(e_max, product.exponent);
    }
    const bool joins = mutation_ != Mutation::accumulator_unaligned && !late;
    if (joins && !accumulator.is_zero()) e_max = std::max(e_max, accumulator.exponent);
    const int last = e_max - (x_.fusion.fraction_bits + change);
    const Direction direction = mutation_ == Mutation::nearest_cut ? Direction::nearest_even : Direction::toward_zero;
    cpp_int total;
    for (const Summand& product : products) total += cut(product.value, last, direction);
    if (!late) total += joins ? cut(accumulator.value, last, direction) : accumulator.value;
    const std::uint64_t code = finish(total);
    return late ? finish(read(*x_.d, code).value + accumulator.value) : code;
  }

  std::uint64_t finish(const cpp_int& total) const {
    Direction direction =
        x_.fusion.rounding == Rounding::toward_zero ? Direction::toward_zero : Direction::nearest_even;
    if (mutation_ == Mutation::nearest_output) direction = Direction::nearest_even;
    if (mutation_ == Mutation::truncated_output) direction = Direction::toward_zero;
    const int kept = mutation_ == Mutation::full_mantissa ? x_.d->mantissa_bits : x_.fusion.mantissa_bits;
    return round_code(*x_.d, total, kept, direction);
  }

 private:
  const Instruction& x_;
  const DotOperands& operands_;
  Mutation mutation_;
};

std::vector<int> positions(int begin, int end) {
  std::vector<int> list;
  for (int k = begin; k < end; ++k) list.push_back(k);
  return list;
}

std::uint64_t fused(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  Pass pass(x, operands, mutation);
  const int group = mutation == Mutation::halved_groups ? x.fusion.group / 2 : x.fusion.group;
  // An f16 accumulator of an f32 instruction is widened first.
  std::uint64_t c = operands.c;
  if (x.c != x.d) {
    const Number widened = read(*x.c, c);
    c = widened.special != 0 ? special_code(*x.d, widened.special, false)
                             : round_code(*x.d, widened.value, x.d->mantissa_bits, Direction::nearest_even);
  }
  for (int k = 0; k < x.k; k += group) c = pass(positions(k, std::min(k + group, x.k)), c);
  return c;
}

std::uint64_t interleaved(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  std::vector<int> first;
  std::vector<int> second;
  for (int k = 0; k < x.k; ++k) {
    const bool is_first = mutation == Mutation::halves_in_order ? k < x.k / 2 : k % 4 < 2;
    (is_first ? first : second).push_back(k);
  }
  if (mutation == Mutation::swapped_halves) std::swap(first, second);
  Pass pass(x, operands, mutation == Mutation::accumulator_inside ? Mutation::none : mutation);
  const std::uint64_t begin = mutation == Mutation::accumulator_inside ? operands.c : 0;
  std::uint64_t sum = begin;
  if (mutation == Mutation::doubled_group) {
    sum = pass(positions(0, x.k), sum);
  } else if (mutation == Mutation::halved_groups) {
    for (const auto* half : {&first, &second}) {
      const auto middle = half->begin() + static_cast<std::ptrdiff_t>(half->size() / 2);
      sum = pass({half->begin(), middle}, sum);
      sum = pass({middle, half->end()}, sum);
    }
  } else {
    sum = pass(second, pass(first, sum));
  }
  if (mutation == Mutation::accumulator_inside) return sum;
  const Number x0 = read(*x.d, sum);
  const Number x1 = read(*x.d, operands.c, mutation == Mutation::flushed_operands);
  if (x0.special != 0 || x1.special != 0) return special_code(*x.d, x0.special + x1.special, false);
  return round_code(*x.d, x0.value + x1.value, x.d->mantissa_bits, Direction::nearest_even);
}

/// MXFP4 and NVFP4: (exact group sum) * (scale significands), aligned by the scales' exponents.
std::uint64_t scaled(const Instruction& x, const DotOperands& operands) {
  const Number accumulator = read(*x.c, operands.c);
  double special = accumulator.special;
  int e_max = std::max(x.fusion.exponent_floor, accumulator.value != 0 ? accumulator.exponent : -10000);
  std::vector<cpp_int> terms{accumulator.value};
  for (int k = 0; k < x.k; k += 16) {
    cpp_int term;
    for (int i = k; i < k + 16; ++i) {
      const auto at = static_cast<std::size_t>(i);
      term += (read(*x.a, operands.a[at]).value * read(*x.b, operands.b[at]).value) >> kScale;
    }
    const auto block = static_cast<std::size_t>(k / x.block);
    const Number s0 = read(*x.scale, operands.scale_a[block]);
    const Number s1 = read(*x.scale, operands.scale_b[block]);
    special += s0.special + s1.special;
    if (!s0.is_zero() && !s1.is_zero()) e_max = std::max(e_max, s0.exponent + s1.exponent);
    terms.push_back((((term * s0.value) >> kScale) * s1.value) >> kScale);
  }
  if (special != 0) return special_code(*x.d, special, false);
  cpp_int total;
  for (const cpp_int& term : terms) total += cut(term, e_max - x.fusion.fraction_bits, Direction::toward_zero);
  return round_code(*x.d, total, x.fusion.mantissa_bits, Direction::toward_zero);
}

/// The sign of a zero that IEEE arithmetic returns for x + y, both zero, to nearest.
bool negative_zero(bool x, bool y) { return x && y; }

/// AMD's canonical NaN; of NVIDIA's operands the first NaN in the order B, accumulator, A, made quiet.
std::uint64_t chain_nan(const Instruction& x, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  if (x.d->bits == 32) return 0x7FC00000u;
  if (!x.family.starts_with("sm")) return 0x7FF8000000000000u;
  for (const std::uint64_t code : {b, c, a}) {
    if ((code << 1) > 0xFFE0000000000000u) return code | std::uint64_t{1} << 51;
  }
  return 0xFFF8000000000000u;
}

/// The positions of K in the order in which a chain takes them.
std::vector<std::size_t> chain_order(const DotOperands& operands, Mutation mutation) {
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < operands.a.size(); ++k) order.push_back(k);
  if (mutation == Mutation::descending_k) std::reverse(order.begin(), order.end());
  return order;
}

std::uint64_t fma_chain(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  const bool amd = !x.family.starts_with("sm");
  const bool flush = mutation == Mutation::flushed_operands;
  const bool late = mutation == Mutation::accumulator_late;
  const Direction direction = mutation == Mutation::truncated_output ? Direction::toward_zero : Direction::nearest_even;
  const auto rounded = [&](const cpp_int& exact) { return round_code(*x.d, exact, x.d->mantissa_bits, direction); };
  const std::uint64_t sign = std::uint64_t{1} << (x.d->bits - 1);
  std::uint64_t c = late ? 0 : operands.c;
  for (const std::size_t k : chain_order(operands, mutation)) {
    const Number a = read(*x.a, operands.a[k], flush);
    const Number b = read(*x.b, operands.b[k], flush);
    const Number sum = read(*x.d, c, flush);
    const double special = special_product(a, b) + sum.special;
    if (special != 0) {
      c = std::isnan(special) ? chain_nan(x, operands.a[k], operands.b[k], c) : special_code(*x.d, special, amd);
      continue;
    }
    cpp_int product = (a.value * b.value) >> kScale;
    if (mutation == Mutation::rounded_products) product = read(*x.d, rounded(product)).value;
    const cpp_int exact = product + sum.value;
    if (exact == 0) {
      const bool product_negative = ((operands.a[k] ^ operands.b[k]) & sign) != 0;
      c = product == 0 && negative_zero(product_negative, (c & sign) != 0) ? sign : 0;
      continue;
    }
    c = rounded(exact);
    if (c == 0 && exact < 0) c = sign;  // IEEE keeps the sign of what underflows
  }
  return late ? rounded(read(*x.d, c).value + read(*x.d, operands.c).value) : c;
}

/// The chain from zero in f32; C joins by a rounded addition.
std::uint64_t late_fma_chain(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  const bool flush = mutation == Mutation::flushed_operands;
  const bool inside = mutation == Mutation::accumulator_inside;
  const Direction direction = mutation == Mutation::truncated_output ? Direction::toward_zero : Direction::nearest_even;
  const Number c = read(*x.c, operands.c, flush);
  Number sum = inside ? c : Number{};
  for (const std::size_t k : chain_order(operands, mutation)) {
    const Number a = read(*x.a, operands.a[k], flush);
    const Number b = read(*x.b, operands.b[k], flush);
    sum.special += special_product(a, b);
    if (sum.special != 0) continue;
    sum.value += (a.value * b.value) >> kScale;
    sum = read(format::kFP32, round_code(format::kFP32, sum.value, 23, direction));
  }
  if (inside)
    return sum.special != 0 ? special_code(*x.d, sum.special, false) : round_code(*x.d, sum.value, 23, direction);
  const double special = sum.special + c.special;
  if (special != 0) return special_code(*x.d, special, false);
  // A product of zeros may be -0, but the chain starts at +0: no sum of it and C is -0.
  return round_code(*x.d, sum.value + c.value, 23, direction);
}

std::uint64_t integer(const Instruction& x, const DotOperands& operands) {
  const auto value = [](const format::Format& format, std::uint64_t code) {
    const cpp_int modulus = cpp_int(1) << format.bits;
    cpp_int number = cpp_int(code) % modulus;
    if (format.has_sign && 2 * number >= modulus) number -= modulus;
    return number;
  };
  cpp_int sum = value(*x.c, operands.c);
  for (std::size_t k = 0; k < operands.a.size(); ++k) sum += value(*x.a, operands.a[k]) * value(*x.b, operands.b[k]);
  const cpp_int limit = cpp_int(1) << 31;
  if (x.saturate) sum = std::clamp<cpp_int>(sum, -limit, limit - 1);
  sum %= 2 * limit;
  if (sum < 0) sum += 2 * limit;
  return sum.convert_to<std::uint64_t>();
}

/// AMD's products: exact values with the exponents that the hardware aligns by; a zero operand counts as 2^-126.
struct AmdSum {
  cpp_int value;
  int exponent = 0;
};

AmdSum amd_products(const std::vector<Summand>& products, std::size_t first, std::size_t stride) {
  AmdSum sum{0, products[first].exponent};
  for (std::size_t i = first; i < products.size(); i += stride)
    sum.exponent = std::max(sum.exponent, products[i].exponent);
  for (std::size_t i = first; i < products.size(); i += stride) {
    sum.value += cut(products[i].value, sum.exponent - 24, Direction::toward_zero);
  }
  return sum;
}

std::uint64_t amd_fused_pass(const Instruction& x, const DotOperands& operands, int begin, int end, std::uint64_t c) {
  const auto amd_exponent = [](const Number& number) { return number.is_zero() ? -126 : number.exponent; };
  const Number accumulator = read(*x.c, c);
  double special = accumulator.special;
  double overflow = 0;
  std::vector<Summand> products;
  for (int k = begin; k < end; ++k) {
    const Number a = read(*x.a, operands.a[static_cast<std::size_t>(k)]);
    const Number b = read(*x.b, operands.b[static_cast<std::size_t>(k)]);
    special += special_product(a, b);
    if (a.special != 0 || b.special != 0) continue;
    const cpp_int value = (a.value * b.value) >> kScale;
    if (abs(value) >= cpp_int(1) << (kScale + 128)) overflow += value < 0 ? -HUGE_VAL : HUGE_VAL;
    products.push_back({value, amd_exponent(a) + amd_exponent(b), true});
  }
  if (special != 0) return special_code(*x.d, special, true);
  if (overflow != 0) return special_code(*x.d, overflow, true);
  AmdSum sum;
  const bool fp8 = x.a->bits == 8;
  if (fp8) {
    const AmdSum even = amd_products(products, 0, 2);
    const AmdSum odd = amd_products(products, 1, 2);
    sum.exponent = std::max(even.exponent, odd.exponent);
    sum.value =
        cut(even.value, sum.exponent - 24, Direction::down) + cut(odd.value, sum.exponent - 24, Direction::down);
  } else {
    sum = amd_products(products, 0, 1);
  }
  const int c_exponent = amd_exponent(accumulator);
  const int e_max = std::max(sum.exponent, c_exponent);
  cpp_int total = cut(sum.value, e_max - 31, Direction::down);
  if (!fp8 || c_exponent >= e_max - 25) total += cut(accumulator.value, e_max - 24, Direction::down);
  return round_code(*x.d, total, 23, Direction::nearest_even);
}

/// A rounded f32 as CDNA1/2 pass it on.
struct Single {
  std::optional<double> special;
  cpp_int value;
  bool negative = false;

  static Single from(double special_value) { return {special_value, 0, std::signbit(special_value)}; }
};

Single to_single(const cpp_int& exact, bool zero_is_negative, bool flush) {
  if (exact == 0) return {std::nullopt, 0, zero_is_negative};
  const std::uint64_t code = round_code(format::kFP32, exact, 23, Direction::nearest_even);
  const double value = format::decode(format::kFP32, code);
  if (std::isinf(value)) return Single::from(value);
  Single x{std::nullopt, value == 0 ? cpp_int(0) : fixed(value), exact < 0};
  if (flush && std::abs(value) < 0x1p-126) x.value = 0;
  return x;
}

Single add(const Single& x, const Single& y, bool flush) {
  const double special = x.special.value_or(0) + y.special.value_or(0);
  if (special != 0) return Single::from(special);
  return to_single(x.value + y.value, x.value == 0 && y.value == 0 && x.negative && y.negative, flush);
}

Single tree(const std::vector<Single>& products, std::size_t begin, std::size_t end, bool flush) {
  if (end - begin == 1) return products[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return add(tree(products, begin, middle, flush), tree(products, middle, end, flush), flush);
}

/// Rounded f32 sums: products 0 and 1, then C, then the sum of products 2 and 3.
std::uint64_t split(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  const bool flush = mutation == Mutation::flushed_operands;
  std::array<Single, 4> products;
  for (std::size_t k = 0; k < products.size(); ++k) {
    const Number a = read(*x.a, operands.a[k], flush);
    const Number b = read(*x.b, operands.b[k], flush);
    const double special = special_product(a, b);
    const bool negative = ((operands.a[k] ^ operands.b[k]) & 0x8000) != 0;
    products[k] = special != 0 ? Single::from(special) : Single{std::nullopt, (a.value * b.value) >> kScale, negative};
  }
  const Number number = read(*x.c, operands.c, flush);
  const bool c_negative = (operands.c & 0x8000) != 0;
  const Single c = number.special != 0 ? Single::from(number.special) : Single{std::nullopt, number.value, c_negative};
  Single first = add(products[0], products[1], false);
  Single second = add(products[2], products[3], false);
  if (mutation == Mutation::swapped_halves) std::swap(first, second);
  const Single sum = mutation == Mutation::accumulator_late ? add(add(first, second, false), c, false)
                                                            : add(add(first, c, false), second, false);
  if (sum.special) return special_code(*x.d, *sum.special, false);
  const Direction direction = mutation == Mutation::truncated_output ? Direction::toward_zero : Direction::nearest_even;
  const std::uint64_t code = round_code(*x.d, sum.value, x.d->mantissa_bits, direction);
  return code == 0 && sum.negative ? 0x8000 : code;
}

std::uint64_t amd_pairs(const Instruction& x, const DotOperands& operands) {
  const bool flush = x.flush_subnormals;
  std::vector<Single> products;
  for (std::size_t k = 0; k < operands.a.size(); ++k) {
    const Number a = read(*x.a, operands.a[k], flush);
    const Number b = read(*x.b, operands.b[k], flush);
    const double special = special_product(a, b);
    // a * b + 0: an exact zero product is +0, an underflowing one keeps its sign.
    products.push_back(special != 0 ? Single::from(special) : to_single((a.value * b.value) >> kScale, false, flush));
  }
  const Number c = read(*x.c, operands.c, flush);
  const bool c_negative = c.value < 0 || (!flush && c.value == 0 && (operands.c >> 31 & 1) != 0) || (flush && false);
  Single sum = c.special != 0 ? Single::from(c.special) : Single{std::nullopt, c.value, c_negative};
  const auto group = static_cast<std::size_t>(x.fusion.group);
  for (std::size_t k = 0; k < products.size(); k += group) {
    sum = add(sum, tree(products, k, std::min(k + group, products.size()), flush), flush);
  }
  if (sum.special) return special_code(*x.d, *sum.special, true);
  if (sum.value == 0) return sum.negative ? 0x80000000u : 0;
  return round_code(*x.d, sum.value, 23, Direction::nearest_even);
}

}  // namespace

std::string_view mutation_name(Mutation mutation) {
  switch (mutation) {
    case Mutation::none:
      return "none";
    case Mutation::one_bit_less:
      return "F - 1";
    case Mutation::one_bit_more:
      return "F + 1";
    case Mutation::normalised_product:
      return "normalised product exponent";
    case Mutation::nearest_cut:
      return "terms rounded to nearest";
    case Mutation::nearest_output:
      return "output rounded to nearest";
    case Mutation::truncated_output:
      return "output cut";
    case Mutation::halved_groups:
      return "groups halved";
    case Mutation::doubled_group:
      return "both passes as one";
    case Mutation::halves_in_order:
      return "halves in order of k";
    case Mutation::swapped_halves:
      return "halves swapped";
    case Mutation::accumulator_unaligned:
      return "C left unaligned";
    case Mutation::accumulator_late:
      return "C added late";
    case Mutation::accumulator_inside:
      return "C inside the first pass";
    case Mutation::flushed_operands:
      return "subnormals flushed";
    case Mutation::full_mantissa:
      return "full output mantissa";
    case Mutation::descending_k:
      return "K from its end";
    case Mutation::rounded_products:
      return "products rounded before the sum";
  }
  return "";
}

std::uint64_t oracle_dot(const Instruction& x, const DotOperands& operands, Mutation mutation) {
  switch (x.kind) {
    case Kind::fused_dot:
      return fused(x, operands, mutation);
    case Kind::interleaved_dot:
      return interleaved(x, operands, mutation);
    case Kind::scaled_group_dot:
      return scaled(x, operands);
    case Kind::fma_chain:
      return fma_chain(x, operands, mutation);
    case Kind::late_fma_chain:
      return late_fma_chain(x, operands, mutation);
    case Kind::split_dot:
      return split(x, operands, mutation);
    case Kind::integer_dot:
      return integer(x, operands);
    case Kind::amd_pairwise:
      return amd_pairs(x, operands);
    case Kind::amd_fused_dot:
      break;
  }
  std::uint64_t c = operands.c;
  for (int k = 0; k < x.k; k += x.fusion.group)
    c = amd_fused_pass(x, operands, k, std::min(k + x.fusion.group, x.k), c);
  return c;
}

}  // namespace qattn::mma
