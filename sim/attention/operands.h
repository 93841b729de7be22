// Q, K and V as a recipe stores them: rotated, balanced, smoothed, quantized.
#pragma once

#include <optional>
#include <vector>

#include "attention/problem.h"
#include "attention/recipe.h"
#include "quant/quantize.h"

namespace qattn::attention {

/// One operand [tokens, channels] (P: [queries, keys]). Exact operands fill `values`, others `codes`, micro-scaled ones
/// both.
struct Stored {
  MatrixD values;  ///< what exact and micro-scaled operands stand for, without row_scale and column_scale
  MatrixCodes codes;
  /// Scale codes of a micro-scaled operand: one line for each row of Q, K and P and for each column of V,
  /// its blocks along the line.
  MatrixCodes block_scales;
  const format::Format* format;  ///< of the codes
  /// Scale of each row (Q, K, P) or column (V: per channel, else empty); empty when there are no scales. Micro-scaled
  /// operands have their second level here.
  std::vector<float> row_scale;
  std::vector<float> column_scale;

  /// The codes and the scales of rows or columns say it all.
  bool coded() const { return codes.size() != 0 && values.size() == 0; }
};

/// All that the tiles need. Means and corrections are empty when the recipe does not smooth.
struct Operands {
  Stored q;
  Stored k;
  Stored v;
  double score_scale = 1.0;  ///< what of the softmax scale scores are still to be multiplied with
  double q_factor = 1.0;     ///< what Q was multiplied with of it
  double k_factor = 1.0;
  MatrixF correction;             ///< [q blocks, keys]: qbar K^T, in the units of Q K^T
  std::vector<double> lse_shift;  ///< [queries]: q . kbar, what smoothing K took from every score of the row
  std::vector<float> v_mean;      ///< [channels]
  MatrixF k_mean;                 ///< [1, channels]
  MatrixF q_means;                ///< [q blocks, channels]
  std::vector<float> balance;     ///< [channels]: Q was divided by it, K multiplied
};

/// Where the softmax scale goes: what of it Q, K and the scores are multiplied with.
struct ScaleFactors {
  double q = 1.0;
  double k = 1.0;
  double scores = 1.0;
};
ScaleFactors scale_factors(const Recipe& recipe, double sm_scale);

/// Whether the recipe subtracts means from Q, from K.
bool smooths_q(const Recipe& recipe);
bool smooths_k(const Recipe& recipe);

/// The quantizer that a recipe has for one of its operands; that of P with its second level.
quant::QuantizerSpec quantizer_spec(const Recipe& recipe, const OperandSpec& spec, quant::Operand role);

/// An operand as its spec and the recipe's policies store it.
Stored store(const Recipe& recipe, const OperandSpec& spec, quant::Operand role, const MatrixF& values);

/// What a stored operand stands for: RN(code * scale) in f32, then RN(that * second level); or its values.
MatrixD values_of(const Stored& stored);

/// A cast without a scale: to nearest-even, overflow to Inf, as PTX's cvt.rn does.
MatrixCodes cast_codes(const MatrixF& values, const format::Format& format);

/// Prepares the head. Operands that are to be the input's own codes are (Problem::q_codes). Everything before quantization is f32 (the inputs of a 16-bit dump are exact in it), except that
/// an exact operand that is neither rotated, balanced nor smoothed keeps its f64 values.
Operands prepare_operands(const Problem& problem, const Recipe& recipe);

}  // namespace qattn::attention
