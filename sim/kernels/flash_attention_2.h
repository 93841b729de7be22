// FlashAttention-2's forward pass, as PyTorch 2.11 ships it (aten._scaled_dot_product_flash_attention).
#pragma once

#include "kernels/forward.h"

namespace qattn::kernels {

/// What the library runs for `call`: the ordinary kernel, or the split-KV one when its heuristic splits the keys over
/// thread blocks. The heuristic counts batch, heads, tokens and `sm_count`. Its causal mask is bottom-right, always:
/// FlashAttention has aligned it so since 2.1, and PyTorch's dispatcher refuses this kernel for causal calls of unequal
/// lengths for just that reason. Throws Error(usage) for what the library does not take.
Forward flash_attention_2(const Call& call);

/// The parts into which the library splits the keys of `call`; 1: the ordinary kernel runs.
int flash_attention_2_parts(const Call& call);

}  // namespace qattn::kernels
