// Where a NaN or Inf comes from: the first stage of a recipe that makes one, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attention/recipe.h"
#include "lab/checked_head.h"
#include "lab/dump_set.h"

namespace qattn::lab {

struct NanOrigin {
  std::string stage;                         ///< "input", "scale of V", "Q K^T", "scores", "P V", "output"
  std::optional<std::int64_t> row, channel;  ///< of the stage: a token of an operand, or a query of the output
  std::string cause;                         ///< "zero scale", "FP16 overflow", "Inf - Inf", "overflow"
  std::string detail;                        ///< one sentence
};

/// The first stage at which `recipe` itself makes a NaN or Inf of this problem; nothing when its output is finite.
/// Tokens, rows and keys are counted as the call of `part` counts them.
std::optional<NanOrigin> nan_origin(const HeadProblem& part, const attention::Recipe& recipe,
                                    const format::Format& input_format);

/// Why a head's o has NaN or Inf, in a sentence, with a short name for it in `name`: the recipe's own origin, or that
/// the recipe is finite and what the pattern of the bad elements suggests (rows that see no key, channels whose V is
/// zero, or an accumulator in FP16 that would overflow here).
std::string explain_nonfinite(const CheckedHead& head, const attention::Recipe& recipe,
                              const format::Format& input_format, std::string& name);

}  // namespace qattn::lab
