// From a recorded case to the call that a kernel's replay takes.
#pragma once

#include "io/vectors.h"
#include "kernels/kernel.h"

namespace qattn::kernels {

/// The call whose results `kernel`, one of `recorded`'s kernels, holds: the case's tensors (q, k, v, do and descales
/// [B, Hkv], fp32), its sizes and mask, and as arguments every attribute in force at the kernel's group. `sm_count`,
/// `arch` and `causal_align` are those attributes too; without a `causal_align` the call's stays empty. Throws
/// Error(input) that names file, case and kernel when an attribute or a descale is of the wrong type or shape.
Call call_of(const io::RecordedCase& recorded, const io::RecordedKernel& kernel);

/// The kernel that a recording is of: the one that its attribute `kernel` names, never its group's name; a file
/// of the backward schema is of Attn-QAT's kernel where it does not say. Throws Error(input) when the attribute is
/// missing or names no kernel of kernels().
const Kernel& kernel_of(const io::RecordedCase& recorded, const io::RecordedKernel& kernel);

}  // namespace qattn::kernels
