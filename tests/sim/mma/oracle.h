// A second model of every instruction, slow and independent: exact numbers of any length, values read through the
// format room, and the published rules applied to them literally. Mutations turn one rule at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "mma/fused_dot.h"

namespace qattn::mma {

/// One change of the rules of the floating-point kinds.
enum class Mutation {
  none,
  one_bit_less,           ///< F - 1
  one_bit_more,           ///< F + 1
  normalised_product,     ///< a product in [2, 4) counts with the next exponent
  nearest_cut,            ///< terms rounded to nearest instead of cut
  nearest_output,         ///< f32 output rounded to nearest instead of cut
  truncated_output,       ///< f16 output cut instead of rounded to nearest
  halved_groups,          ///< each group in two serial halves
  doubled_group,          ///< the two passes of an interleaved instruction as one
  halves_in_order,        ///< interleaved: first the lower half of K, then the upper
  swapped_halves,         ///< interleaved: k mod 4 in {2, 3} first
  accumulator_unaligned,  ///< C is added to the cut products without being cut itself
  accumulator_late,       ///< C is added to the rounded sum of the products
  accumulator_inside,     ///< interleaved: C enters the first pass instead of being added at the end
  flushed_operands,       ///< subnormal operands count as zero
  full_mantissa,          ///< the output keeps all of f32's mantissa (FP22 only)
  descending_k,           ///< chains of FMA: from the last k to the first
  rounded_products,       ///< chains of FMA: a rounded product, then a rounded sum
};

std::string_view mutation_name(Mutation mutation);

/// The output code of one element under the instruction's rules, `mutation` applied.
std::uint64_t oracle_dot(const Instruction& instruction, const DotOperands& operands,
                         Mutation mutation = Mutation::none);

}  // namespace qattn::mma
