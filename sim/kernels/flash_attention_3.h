// FlashAttention-3's forward pass, as its sources (hopper/) build it for sm_90a (flash_attn_3.fwd).
#pragma once

#include "kernels/forward.h"

namespace qattn::kernels {

/// What the library runs for `call`, one split: E4M3 operands with descales per batch and KV head (q's too), output
/// BF16, P scaled by 2^8; or FP16 and BF16. The causal mask is bottom-right. Throws Error(usage) for what the library
/// does not take.
Forward flash_attention_3(const Call& call);

}  // namespace qattn::kernels
