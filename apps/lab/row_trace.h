// The stages of one row of a kernel's output, for people.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernel.h"

namespace qattn::lab {

/// Runs the kernel once more with the row traced: a line for each stage, "  tile 0 scores  [64]: 0.25 -1.5 ...", long
/// ones cut. Empty when the kernel traces nothing.
std::string traced_row(const kernels::Kernel& kernel, const kernels::Call& call, std::int64_t batch, std::int64_t head,
                       std::int64_t row);

}  // namespace qattn::lab
