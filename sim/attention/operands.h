// Q, K and V as a recipe stores them: rotated, balanced, smoothed, quantized.
#pragma once

#include <optional>
#include <vector>

#include "attention/problem.h"
#include "attention/recipe.h"
#include "quant/quantize.h"

namespace qattn::attention {

/// One operand [tokens, channels]. Exactly one of `values` and `codes` is filled.
struct Stored {
  MatrixD values;                ///< exact and micro-scaled operands
  MatrixCodes codes;             ///< others
  const format::Format* format;  ///< of the codes
  /// Scale of each row (Q, K) or column (V: per channel, else empty); empty when there are no scales.
  std::vector<float> row_scale;
  std::vector<float> column_scale;

  bool coded() const { return codes.size() != 0; }
};

/// All that the tiles need. Means and corrections are empty when the recipe does not smooth.
struct Operands {
  Stored q;
  Stored k;
  Stored v;
  MatrixF correction;             ///< [q blocks, keys]: qbar K^T, in the units of Q K^T
  std::vector<double> lse_shift;  ///< [queries]: q . kbar, what smoothing K took from every score of the row
  std::vector<float> v_mean;      ///< [channels]
  MatrixF k_mean;                 ///< [1, channels]
  MatrixF q_means;                ///< [q blocks, channels]
  std::vector<float> balance;     ///< [channels]: Q was divided by it, K multiplied
};

/// `values` [tokens, channels] in the format of `spec`, quantized as the recipe says.
Stored store(const Recipe& recipe, const OperandSpec& spec, quant::Operand role, const MatrixF& values);

/// What a stored operand stands for: RN(code * scale) in f32, or its values.
MatrixD values_of(const Stored& stored);

/// The quantizer that a recipe has for one of its operands.
quant::QuantizerSpec quantizer_spec(const Recipe& recipe, const OperandSpec& spec, quant::Operand role);

/// A cast without a scale: to nearest-even, overflow to Inf, as PTX's cvt.rn does.
MatrixCodes cast_codes(const MatrixF& values, const format::Format& format);

/// Prepares the head. Everything before quantization is f32 (the inputs of a 16-bit dump are exact in it), except that
/// an exact operand that is neither rotated, balanced nor smoothed keeps its f64 values.
Operands prepare_operands(const Problem& problem, const Recipe& recipe);

}  // namespace qattn::attention
