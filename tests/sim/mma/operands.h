// Random and adversarial operands for any instruction; a value depends on (seed, stream, index) alone.
#pragma once

#include <array>
#include <cstdint>

#include "base/random.h"
#include "mma/fused_dot.h"
#include "mma/instruction.h"
#include "mma/unpacked.h"

namespace qattn::mma {

enum class Family {
  uniform,     ///< every code, NaN and Inf among them
  finite,      ///< every finite code
  near_one,    ///< magnitudes within a few binades of 1, a quarter of them zero
  cancelling,  ///< neighbours that nearly cancel
  tiny,        ///< subnormals and the smallest normals
  huge,        ///< the largest magnitudes
};
inline constexpr std::array kFamilies{Family::uniform,    Family::finite, Family::near_one,
                                      Family::cancelling, Family::tiny,   Family::huge};

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  std::uint64_t bits() { return random_bits(seed_, stream_, index_++); }
  int below(int n) { return static_cast<int>(bits() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t seed_, stream_, index_ = 0;
};

inline std::uint64_t low_bits(std::uint64_t x, int n) { return n == 64 ? x : x & ((std::uint64_t{1} << n) - 1); }

/// A code with a random sign and mantissa and an exponent field in [low, high].
inline std::uint64_t code_with_exponent(const format::Format& format, Random& random, int low, int high) {
  const int dropped = stored_bits(format) - format.bits;
  const std::uint64_t mantissa = low_bits(random.bits(), format.mantissa_bits);
  const auto field = static_cast<std::uint64_t>(low + random.below(high - low + 1));
  const std::uint64_t sign = format.has_sign ? random.bits() & 1 : 0;
  const std::uint64_t code = mantissa | field << format.mantissa_bits | sign << (format.bits - 1);
  return code << dropped | low_bits(random.bits(), dropped);
}

inline std::uint64_t random_code(const format::Format& format, Family family, Random& random) {
  const std::uint64_t uniform = low_bits(random.bits(), stored_bits(format));
  if (format.specials == format::Specials::integer || family == Family::uniform) return uniform;
  const int top = (1 << format.exponent_bits) - 1;
  const bool zero = random.below(4) == 0;
  std::uint64_t code = uniform;
  if (family == Family::near_one || family == Family::cancelling) {
    if (zero) return 0;
    code = code_with_exponent(format, random, std::max(format.bias - 3, 0), std::min(format.bias + 2, top));
  } else if (family == Family::tiny) {
    code = code_with_exponent(format, random, 0, std::min(2, top));
  } else if (family == Family::huge) {
    code = code_with_exponent(format, random, std::max(top - 3, 0), top);
  }
  return unpack(format, code).kind == Unpacked::Class::finite ? code : uniform >> 1 & 0x3;
}

/// A scale code: mostly moderate, so that sums stay finite, at times anything.
inline std::uint64_t random_scale(const format::Format& format, Random& random) {
  if (random.below(16) == 0) return low_bits(random.bits(), format.bits);
  if (format.specials == format::Specials::power_of_two) return static_cast<std::uint64_t>(118 + random.below(18));
  return static_cast<std::uint64_t>(random.below(0x7F));
}

/// rows x k operand codes of one side.
inline CodeMatrix random_operand(const format::Format& format, Family family, Eigen::Index rows, Eigen::Index k,
                                 Random random) {
  CodeMatrix codes(rows, k);
  for (Eigen::Index i = 0; i < rows; ++i) {
    for (Eigen::Index j = 0; j < k; ++j) codes(i, j) = random_code(format, family, random);
  }
  return codes;
}

/// Makes neighbouring products nearly cancel: position k + 1 repeats k with A's sign turned and its last bits changed.
inline void make_cancelling(const format::Format& format, CodeMatrix& a, CodeMatrix& b, Random random) {
  const std::uint64_t sign = std::uint64_t{1} << (stored_bits(format) - 1);
  for (Eigen::Index k = 0; k + 1 < a.cols(); k += 2) {
    if (format.has_sign && format.specials != format::Specials::integer) {
      for (Eigen::Index i = 0; i < a.rows(); ++i) a(i, k + 1) = (a(i, k) ^ sign ^ (random.bits() & 1));
    }
    for (Eigen::Index j = 0; j < b.rows(); ++j) b(j, k + 1) = b(j, k);
  }
}

/// A whole set of operands for D = A B^T + C.
struct OperandSet {
  CodeMatrix a, b, c, scale_a, scale_b;
};

/// m x n x k operands. C is zero, of the products' family, near one or of another family, by turns of `seed`.
inline OperandSet random_operands(const Instruction& x, Family family, Eigen::Index m, Eigen::Index n, Eigen::Index k,
                                  std::uint64_t seed) {
  OperandSet set;
  set.a = random_operand(*x.a, family, m, k, Random(seed, 1));
  set.b = random_operand(*x.b, family, n, k, Random(seed, 2));
  if (family == Family::cancelling) make_cancelling(*x.a, set.a, set.b, Random(seed, 3));
  Random random(seed, 4);
  set.c = CodeMatrix::Zero(m, n);
  for (Eigen::Index i = 0; i < set.c.size(); ++i) {
    const int turn = random.below(8);
    if (turn == 0) continue;
    const Family of = turn < 3    ? family
                      : turn == 3 ? kFamilies[static_cast<std::size_t>(random.below(6))]
                                  : Family::near_one;
    set.c.data()[i] = random_code(*x.c, of, random);
  }
  if (x.scale == nullptr) return set;
  const Eigen::Index blocks = (k + x.block - 1) / x.block;
  set.scale_a.resize(m, blocks);
  set.scale_b.resize(n, blocks);
  for (CodeMatrix* scales : {&set.scale_a, &set.scale_b}) {
    for (Eigen::Index i = 0; i < scales->size(); ++i) scales->data()[i] = random_scale(*x.scale, random);
  }
  return set;
}

}  // namespace qattn::mma
