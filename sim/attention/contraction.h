// The two matrix products of attention under a chosen accumulator: which arithmetic a recipe's accumulator means for
// its formats, and partial sums in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attention/recipe.h"
#include "mma/instruction.h"
#include "mma/tile.h"
#include "tensor/matrix.h"

namespace qattn::attention {

/// How a product of two stored operands is summed.
struct Accumulator {
  enum class Kind : std::uint8_t {
    exact,        ///< f64 sums in ascending order: exact for the narrow formats, rounded once when read
    integer,      ///< integer codes: exact, by an integer instruction on slices in which it cannot wrap
    f32,          ///< each product and each addition rounded to f32, ascending
    instruction,  ///< a tensor-core instruction, chained through its accumulator
  };
  Kind kind = Kind::exact;
  const mma::Instruction* instruction = nullptr;  ///< kinds instruction and integer
  mma::Path path = mma::Path::fast;               ///< of the instruction

  /// Elements of the contraction axis that one step takes; 0: there are no steps.
  std::int64_t step() const { return kind == Kind::instruction ? instruction->k : 0; }
  /// Both sides are codes, decoded for the instruction.
  bool takes_codes() const { return kind == Kind::instruction || kind == Kind::integer; }
  /// The instruction takes the operands' block scales.
  bool block_scaled() const { return kind == Kind::instruction && instruction->scale != nullptr; }
};

/// What `name` ("exact", "f32", "sm90.wgmma", "sm80.mma.f16") means for operands a and b. Two micro-scaled operands go
/// through the family's block-scaled instruction, if their groups lie along the contraction axis. A product with an
/// exact operand, or with one that is micro-scaled beside one that is not, has no instruction: its sums are exact.
/// Throws Error(usage) when the family has no instruction for the formats, or is unknown.
Accumulator resolve_accumulator(std::string_view name, const OperandSpec& a, const OperandSpec& b);

/// For people: "exact sums", or the instruction's name and its evidence.
std::string describe(const Accumulator& accumulator);

/// One side of a product, prepared for an accumulator. The left side is [M, K]; the right side is [K, N].
struct Side {
  MatrixF floats;                       ///< kind f32
  MatrixD doubles;                      ///< kind exact
  std::optional<mma::Operand> operand;  ///< kinds instruction and integer; the right side transposed, [N, K]
};

/// From values (exact, micro-scaled or plain operands).
Side left_side(const Accumulator& accumulator, MatrixView<double> values);
Side right_side(const Accumulator& accumulator, MatrixView<double> values);
/// From codes of `format`. A block-scaled instruction takes scale codes too: [M, blocks] and [N, blocks].
Side left_side(const Accumulator& accumulator, const format::Format& format, MatrixView<std::uint32_t> codes,
               const MatrixCodes& scales = {});
Side right_side(const Accumulator& accumulator, const format::Format& format, MatrixView<std::uint32_t> codes,
                const MatrixCodes& scales = {});

/// A partial sum C [M, N] held as the accumulator holds it.
class PartialSum {
 public:
  PartialSum(const Accumulator& accumulator, std::int64_t rows, std::int64_t columns);
  void clear();
  /// C += a[:, first:last] b[first:last, :]. Where there are codes, `first` is a multiple of the instruction's K.
  void add(const Side& a, const Side& b, std::int64_t first, std::int64_t last);
  /// C as numbers, [M, N]; kind exact is rounded to f32 here when Real is float.
  template <class Real>
  void read(Matrix<Real>& values) const;
  /// The instruction's steps so far.
  const mma::PathUse& use() const { return use_; }
  /// Row `row` times `factor`: an f32 product, rounded to the accumulator's register format (an FP16 accumulator rounds
  /// the factor to FP16 first).
  void rescale_row(std::int64_t row, double factor);

 private:
  void multiply(const mma::Operand& a, const mma::Operand& b);
  void add_integers(const mma::Operand& a, const mma::Operand& b, std::int64_t first, std::int64_t last);

  Accumulator accumulator_;
  MatrixF floats_;
  MatrixD doubles_;
  MatrixCodes codes_;
  mma::PathUse use_;
  std::int64_t depth_ = 0;  ///< kind integer: products that each of the codes holds
};

}  // namespace qattn::attention
