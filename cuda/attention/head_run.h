// One head on the GPU: from a problem to o and lse.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/operands.h"
#include "attention/problem.h"
#include "attention/reference.h"
#include "format/format.h"
#include "hardware_recipe.h"

namespace qattn::gpu {

/// Who prepares Q, K and V for the kernel.
enum class PreparedBy : std::uint8_t { gpu, cpu };

struct HeadRun {
  attention::Output output;
  double milliseconds = 0;  ///< of the attention kernel alone, on the device's clock
  /// What the device prepared, if it did and the caller asked for it.
  std::optional<attention::Operands> operands;
};

/// Runs the recipe's kernel on the device. `input_format` is O's where the recipe says "input". The output is what
/// attention::run_recipe() gives for the same recipe, bit for bit. Throws Error(usage) when a block of the kernel takes
/// more shared memory than the device has, or when the device cannot prepare the recipe's operands (prepare.h).
HeadRun run_head(const attention::Problem& problem, const HardwareRecipe& hardware, const format::Format& input_format,
                 PreparedBy by, bool keep_operands = false);

}  // namespace qattn::gpu
