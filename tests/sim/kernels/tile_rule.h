// A second, slow form of the fused dot product, in integers, with every ingredient of it open to change.
#pragma once

#include <cstdint>

#include "kernels/forward.h"

namespace qattn::kernels {

/// What becomes of the accumulator C in a sum.
enum class CTerm : std::uint8_t {
  cut,            ///< one more term: part of e_max, cut like the products
  whole,          ///< part of e_max, not cut
  rounded,        ///< part of e_max, rounded to nearest at the alignment instead of cut
  outside_e_max,  ///< cut, but e_max is of the products alone
  added_after,    ///< the products' result is rounded as an output, then C is added in f32
};

struct SlowRule {
  int group;                       ///< products of one sum
  int fraction_bits;               ///< F; at most 80
  int mantissa_bits;               ///< of the output
  bool nearest = false;            ///< output rounded to nearest even instead of cut
  bool normalised = false;         ///< a product of 2 or more has its own exponent instead of the operands' sum
  bool subnormals_floored = true;  ///< a subnormal operand has the format's smallest exponent, else its own
  bool descending = false;         ///< groups from the last to the first
  int promote = 0;                 ///< after so many products the sum starts from zero and is added in f32; 0: never
  CTerm c = CTerm::cut;
};

/// The rule by which `instruction`, a fused dot product with f32 results, computes.
SlowRule slow_rule(const mma::Instruction& instruction);

TileRule tile_rule(const SlowRule& rule);

}  // namespace qattn::kernels
