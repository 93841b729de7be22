// The two other fused backends of PyTorch 2.11's scaled_dot_product_attention: cuDNN's and the memory-efficient one.
#pragma once

#include "kernels/forward.h"

namespace qattn::kernels {

/// aten._scaled_dot_product_cudnn_attention with cuDNN 9.19. Closed source: a model that gives its outputs.
Forward cudnn_attention(const Call& call);

/// aten._scaled_dot_product_efficient_attention (CUTLASS, from xformers), without bias. Above head_dim 128 it keeps O
/// in memory between tiles.
Forward efficient_attention(const Call& call);

}  // namespace qattn::kernels
