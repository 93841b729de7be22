// Operands for recordings, digests and live checks of matrix instructions, made from counters: a code depends on
// (seed, family, tile, side, position) alone. All functions are constexpr and integer-only, so that a GPU (nvcc,
// --expt-relaxed-constexpr) and a CPU make the same codes.
//
// A tile is a product of kTileRows x K by kTileColumns x K codes; tiles of a family are numbered from 0, and a digest
// covers blocks of kTilesPerBlock consecutive tiles.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace qattn::mma {

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 64;
inline constexpr int kTilesPerBlock = 256;
inline constexpr int kTileOutputs = kTileRows * kTileColumns;

/// What A and B hold.
enum class OperandFamily : std::uint8_t {
  uniform,     ///< every finite code equally often, but for B's largest where C would overflow
  special,     ///< the same with a few NaN and Inf, so that about one output in four meets one
  normal,      ///< N(0, 1), near enough: a sum of four uniform numbers
  attention,   ///< A: post-softmax probabilities (FP8: scaled by 256, INT8: by 128); B: normal
  wide,        ///< exponents all over the format (at most 80 binades), B's limited likewise
  cancelling,  ///< pairs of products that cancel but for a last bit of A
  tiny,        ///< subnormals and the smallest normals
  large,       ///< the largest magnitudes; some sums overflow where C's format can
};
inline constexpr int kOperandFamilies = 8;

/// What C holds; tile t has kind t mod 8.
enum class AccumulatorFamily : std::uint8_t {
  zero,        ///< both signs
  near,        ///< within 6 binades of the first product
  near_again,  ///< the same: the commonest case, twice as often
  wide,        ///< within 40 binades of the first product
  opposite,    ///< minus the first product, cut, its last bit random
  uniform,     ///< any finite code
  huge,        ///< one in 16 in the top binades, the others near (integers: all within 2^16 of the limits)
  tiny,        ///< subnormals and the smallest normals (integers: below 2^12)
};

/// The integers of a format that generators need; format::Format without its names, for device code.
struct CodeFormat {
  int bits = 0;  ///< of a code, without unused_bits
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  int unused_bits = 0;  ///< low bits of the stored code that the hardware ignores (TF32 in an f32 register: 13)
  bool has_sign = true;
  bool is_integer = false;
  bool has_infinity = false;  ///< the largest exponent field is Inf and NaN; else only the top code is NaN
};

/// Everything that a generator needs to know about an instruction.
struct OperandRecipe {
  CodeFormat a, b, c;
  int k = 0;
};

namespace families {

constexpr std::uint64_t low_bits(std::uint64_t x, int n) { return n >= 64 ? x : x & ((std::uint64_t{1} << n) - 1); }

/// floor(log2(x)), -1 for 0.
constexpr int top_bit(std::uint64_t x) {
  int bit = -1;
  for (int step = 32; step > 0; step /= 2) {
    if (x >> step != 0) {
      x >>= step;
      bit += step;
    }
  }
  return bit + (x != 0 ? 1 : 0);
}

constexpr int largest_field(const CodeFormat& f) { return (1 << f.exponent_bits) - (f.has_infinity ? 2 : 1); }
constexpr int min_exponent(const CodeFormat& f) { return 1 - f.bias; }
constexpr int max_exponent(const CodeFormat& f) { return largest_field(f) - f.bias; }

/// Formats with the exponent range of f32 or f64: a sum of products can leave the output's range.
constexpr bool is_wide_ranging(const CodeFormat& f) { return f.exponent_bits >= 8; }

/// The code shifted to where it is stored, the unused bits below it from `random`.
constexpr std::uint64_t stored(const CodeFormat& f, std::uint64_t code, std::uint64_t random) {
  return code << f.unused_bits | low_bits(random, f.unused_bits);
}

/// A NaN or an Inf becomes the finite code nearest in its bits.
constexpr std::uint64_t finite(const CodeFormat& f, std::uint64_t code) {
  if (f.is_integer) return code;
  const std::uint64_t magnitude = low_bits(code, f.exponent_bits + f.mantissa_bits);
  const std::uint64_t top = (std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits)) - 1;
  if (f.has_infinity) {
    const bool is_special = magnitude >> f.mantissa_bits == (std::uint64_t{1} << f.exponent_bits) - 1;
    return is_special ? code ^ (std::uint64_t{1} << f.mantissa_bits) : code;
  }
  return magnitude == top ? code ^ 1 : code;
}

/// (-1)^negative * 1.mantissa * 2^exponent, the exponent clamped to what the format has; below it subnormals, cut.
constexpr std::uint64_t compose(const CodeFormat& f, bool negative, int exponent, std::uint64_t mantissa) {
  const std::uint64_t sign = negative && f.has_sign ? std::uint64_t{1} << (f.bits - 1) : 0;
  mantissa = low_bits(mantissa, f.mantissa_bits);
  int field = exponent + f.bias;
  if (field > largest_field(f)) field = largest_field(f);
  if (field >= 1) return finite(f, sign | static_cast<std::uint64_t>(field) << f.mantissa_bits | mantissa);
  const int shift = 1 - field;
  const std::uint64_t significand = mantissa | std::uint64_t{1} << f.mantissa_bits;
  return sign | (shift > f.mantissa_bits ? 0 : significand >> shift);
}

/// (-1)^negative * magnitude * 2^unit, cut toward zero; clamped at the largest finite number.
constexpr std::uint64_t from_fixed(const CodeFormat& f, bool negative, std::uint64_t magnitude, int unit) {
  if (magnitude == 0) return 0;
  const int top = top_bit(magnitude);
  const int excess = top - f.mantissa_bits;
  const std::uint64_t mantissa = excess >= 0 ? magnitude >> excess : magnitude << -excess;
  return compose(f, negative, top + unit, mantissa);
}

/// The exponent of a stored finite code as products add it up: subnormals have the smallest.
constexpr int exponent_of(const CodeFormat& f, std::uint64_t code) {
  const auto field = static_cast<int>(low_bits(code >> (f.unused_bits + f.mantissa_bits), f.exponent_bits));
  return (field < 1 ? 1 : field) - f.bias;
}

constexpr std::uint64_t significand_of(const CodeFormat& f, std::uint64_t code) {
  code >>= f.unused_bits;
  const bool is_normal = low_bits(code >> f.mantissa_bits, f.exponent_bits) != 0;
  return low_bits(code, f.mantissa_bits) | (is_normal ? std::uint64_t{1} << f.mantissa_bits : 0);
}

constexpr bool is_negative(const CodeFormat& f, std::uint64_t code) {
  return f.has_sign && (code >> (f.unused_bits + f.bits - 1) & 1) != 0;
}

constexpr int between(std::uint64_t random, int low, int high) {
  return low + static_cast<int>((random & 0xFFFF) * static_cast<std::uint64_t>(high - low + 1) >> 16);
}

/// A NaN or Inf of the format.
constexpr std::uint64_t special(const CodeFormat& f, std::uint64_t random) {
  const std::uint64_t sign = (random & 1) << (f.bits - 1);
  const std::uint64_t top = (std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits)) - 1;
  if (!f.has_infinity) return sign | top;
  const std::uint64_t infinity = top - ((std::uint64_t{1} << f.mantissa_bits) - 1);
  const bool is_nan = (random & 6) == 0;
  return sign | infinity | (is_nan ? low_bits(random >> 3, f.mantissa_bits) : 0);
}

constexpr std::uint64_t normal(const CodeFormat& f, std::uint64_t r) {
  // Four 16-bit uniforms: mean 2 * 65535, standard deviation 1.155 * 2^15.
  const std::int32_t sum =
      static_cast<std::int32_t>((r & 0xFFFF) + (r >> 16 & 0xFFFF) + (r >> 32 & 0xFFFF) + (r >> 48));
  const std::int32_t centred = sum - 2 * 0xFFFF;
  const auto magnitude = static_cast<std::uint64_t>(centred < 0 ? -centred : centred);
  if (!f.is_integer) return from_fixed(f, centred < 0, magnitude, -15);
  // Three standard deviations span the integer's range.
  const std::uint64_t top = (std::uint64_t{1} << (f.bits - 1)) - 1;
  const std::uint64_t scaled = magnitude >> (18 - f.bits);
  const std::uint64_t clamped = scaled < top ? scaled : top;
  return f.has_sign && centred < 0 ? low_bits(0 - clamped, f.bits) : clamped;
}

constexpr std::uint64_t probability(const CodeFormat& f, std::uint64_t r) {
  const std::uint64_t magnitude = (r & 0xFFFF) >> between(r >> 16, 0, 11);  // below 1, in units of 2^-16
  if (f.is_integer) return magnitude >> (17 - f.bits);
  return from_fixed(f, false, magnitude, f.bits == 8 && !f.has_infinity ? -8 : -16);
}

/// The largest exponent of B with which products stay six binades below C's largest; B's own where that is smaller.
constexpr int largest_b_exponent(const CodeFormat& a, const CodeFormat& b, const CodeFormat& c) {
  const int limit = max_exponent(c) - 6 - max_exponent(a);
  return limit < max_exponent(b) ? limit : max_exponent(b);
}

/// The exponents that `wide`, `tiny` and `large` draw from.
struct ExponentRange {
  int low, high;
};

constexpr ExponentRange exponent_range(const CodeFormat& f, OperandFamily family, bool is_a, int b_limit) {
  const int low = min_exponent(f) - f.mantissa_bits, high = max_exponent(f);
  const bool bounded = is_wide_ranging(f);
  switch (family) {
    case OperandFamily::wide:
      return bounded ? ExponentRange{-40, 40} : ExponentRange{low, is_a ? high : b_limit};
    case OperandFamily::tiny:
      return bounded && !is_a ? ExponentRange{-f.mantissa_bits - 16, 2} : ExponentRange{low, min_exponent(f) + 1};
    default:
      return is_a || b_limit == high ? ExponentRange{high - 3, high} : ExponentRange{b_limit - 2, b_limit + 7};
  }
}

/// The code with an exponent field above B's limit brought below it.
constexpr std::uint64_t limited(const CodeFormat& f, std::uint64_t code, int b_limit) {
  const auto fields = static_cast<std::uint64_t>(b_limit + f.bias + 1);
  const std::uint64_t field = low_bits(code >> f.mantissa_bits, f.exponent_bits);
  return field < fields ? code : code - ((field - field % fields) << f.mantissa_bits);
}

}  // namespace families

/// The stream of random numbers of one side (0: A, 1: B, 2: C) of a tile.
constexpr std::uint64_t operand_key(std::uint64_t seed, OperandFamily family, std::uint64_t tile, int side) {
  const std::uint64_t stream = static_cast<std::uint64_t>(family) << 56 | tile << 2 | static_cast<std::uint64_t>(side);
  return mix64(mix64(seed) ^ stream);
}

namespace families {

/// A's (or B's) stored code number `index` before pairs are made to cancel.
constexpr std::uint64_t plain_operand(const OperandRecipe& recipe, OperandFamily family, bool is_a, std::uint64_t key,
                                      std::uint64_t index) {
  const CodeFormat& f = is_a ? recipe.a : recipe.b;
  const std::uint64_t r = mix64(key ^ index);
  const std::uint64_t low = r >> 3;
  if (f.is_integer && family != OperandFamily::normal && family != OperandFamily::attention) return low_bits(r, f.bits);
  const int b_limit = f.is_integer ? 0 : largest_b_exponent(recipe.a, recipe.b, recipe.c);
  const std::uint64_t any = finite(f, low_bits(low, f.bits));
  switch (family) {
    case OperandFamily::special:
      if ((r >> 32) % static_cast<std::uint64_t>(8 * recipe.k) == 0) return stored(f, special(f, low), r);
      return stored(f, is_a ? any : limited(f, any, b_limit), r);
    case OperandFamily::normal:
      return stored(f, normal(f, r), mix64(r));
    case OperandFamily::attention:
      return stored(f, is_a ? probability(f, r) : normal(f, r), mix64(r));
    case OperandFamily::wide:
    case OperandFamily::tiny:
    case OperandFamily::large: {
      const ExponentRange range = exponent_range(f, family, is_a, b_limit);
      return stored(f, compose(f, (r & 1) != 0, between(r >> 1, range.low, range.high), mix64(r)), r >> 20);
    }
    case OperandFamily::cancelling:
      return stored(f, compose(f, (r & 1) != 0, between(r >> 1, -3, 2), mix64(r)), r >> 20);
    case OperandFamily::uniform:
      break;
  }
  return stored(f, is_a ? any : limited(f, any, b_limit), r << 1);
}

/// The position whose product position `position` cancels, or itself: neighbours in even tiles, half of K apart in odd.
constexpr int partner(int position, int k, std::uint64_t tile) {
  if ((tile & 1) == 0) return position & ~1;
  return position >= k / 2 ? position - k / 2 : position;
}

}  // namespace families

/// The stored code of A[row, position] (side 0) or of B[row, position], B transposed (side 1). `key` is the side's
/// operand_key().
constexpr std::uint64_t operand_code(const OperandRecipe& recipe, OperandFamily family, std::uint64_t tile, int side,
                                     std::uint64_t key, int row, int position) {
  const auto index = [&](int p) {
    return static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(recipe.k) + static_cast<std::uint64_t>(p);
  };
  int source = position;
  if (family == OperandFamily::cancelling && !recipe.a.is_integer) source = families::partner(position, recipe.k, tile);
  const std::uint64_t code = families::plain_operand(recipe, family, side == 0, key, index(source));
  if (source == position || side == 1) return code;
  const CodeFormat& f = recipe.a;
  const std::uint64_t last_bit = mix64(key ^ index(position)) & 1;
  return code ^ std::uint64_t{1} << (f.unused_bits + f.bits - 1) ^ last_bit << f.unused_bits;
}

namespace families {

constexpr std::uint64_t integer_accumulator(AccumulatorFamily kind, std::uint64_t r) {
  const std::uint64_t offset = r >> 32 & 0xFFFF;
  switch (kind) {
    case AccumulatorFamily::zero:
      return 0;
    case AccumulatorFamily::huge:
      return (r & 1) != 0 ? 0x7FFFFFFF - offset : 0x80000000 + offset;
    case AccumulatorFamily::tiny:
      return low_bits((r >> 1 & 0xFFF) * ((r & 1) != 0 ? std::uint64_t{0} - 1 : 1), 32);
    default:
      return low_bits(r, 32);
  }
}

/// Minus the product of the codes a and b in the format of C, cut, its last bit random.
constexpr std::uint64_t opposite(const OperandRecipe& recipe, std::uint64_t a, std::uint64_t b, std::uint64_t r) {
  std::uint64_t x = significand_of(recipe.a, a), y = significand_of(recipe.b, b);
  int unit = exponent_of(recipe.a, a) - recipe.a.mantissa_bits + exponent_of(recipe.b, b) - recipe.b.mantissa_bits;
  // Of f64's significands 32 bits each will do.
  const int x_excess = top_bit(x) > 31 ? top_bit(x) - 31 : 0, y_excess = top_bit(y) > 31 ? top_bit(y) - 31 : 0;
  x >>= x_excess;
  y >>= y_excess;
  unit += x_excess + y_excess;
  const bool negative = is_negative(recipe.a, a) == is_negative(recipe.b, b);
  return from_fixed(recipe.c, negative, x * y, unit) ^ (r & 1);
}

}  // namespace families

/// The stored code of C[row, column], given A[row, 0] and B[column, 0]. `key` is side 2's operand_key().
constexpr std::uint64_t accumulator_code(const OperandRecipe& recipe, OperandFamily family, std::uint64_t tile,
                                         std::uint64_t key, int row, int column, std::uint64_t a, std::uint64_t b) {
  using namespace families;
  const CodeFormat& f = recipe.c;
  const auto index = static_cast<std::uint64_t>(row * kTileColumns + column);
  const std::uint64_t r = mix64(key ^ index);
  const auto kind = static_cast<AccumulatorFamily>(tile & 7);
  if (f.is_integer) return integer_accumulator(kind, r);
  if (family == OperandFamily::special && (r >> 32 & 63) == 0) return special(f, r);
  const bool negative = (r & 1) != 0;
  const int product = exponent_of(recipe.a, a) + exponent_of(recipe.b, b);
  const auto composed = [&](int low, int high) { return compose(f, negative, between(r >> 1, low, high), mix64(r)); };
  switch (kind) {
    case AccumulatorFamily::zero:
      return compose(f, negative, min_exponent(f) - f.mantissa_bits - 1, 0);
    case AccumulatorFamily::near:
    case AccumulatorFamily::near_again:
      return composed(product - 6, product + 6);
    case AccumulatorFamily::wide:
      return composed(product - 40, product + 40);
    case AccumulatorFamily::opposite:
      return opposite(recipe, a, b, r);
    case AccumulatorFamily::huge:
      if ((r >> 40 & 15) != 0) return composed(product - 12, product + 12);
      return composed(max_exponent(f) - 7, max_exponent(f));
    case AccumulatorFamily::tiny:
      return composed(min_exponent(f) - f.mantissa_bits, min_exponent(f) + 1);
    case AccumulatorFamily::uniform:
      break;
  }
  return finite(f, low_bits(r, f.bits));
}

}  // namespace qattn::mma
