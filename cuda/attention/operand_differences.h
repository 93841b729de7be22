// Two preparations of a head, compared bit for bit.
#pragma once

#include <cstdint>
#include <string>

#include "attention/operands.h"

namespace qattn::gpu {

struct OperandDifferences {
  std::int64_t elements = 0;   ///< codes, scales, means, corrections and shifts that were compared
  std::int64_t differing = 0;  ///< of them; NaN equals NaN
  std::string first;           ///< "k code 17: expected 7F, found 7E"; empty when nothing differs
};

/// Compares everything that operands of codes consist of. Parts of different sizes (one has means, the other none)
/// differ in every element of the larger.
OperandDifferences compare_operands(const attention::Operands& expected, const attention::Operands& found);

}  // namespace qattn::gpu
