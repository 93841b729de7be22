// The tables of kernels, one for each family; kernel.cpp joins them.
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace qattn::kernels {

std::span<const Kernel> attn_qat_kernels();
std::span<const Kernel> flash_attention_2_kernels();
std::span<const Kernel> flash_attention_3_kernels();
std::span<const Kernel> own_kernels();
std::span<const Kernel> sage_kernels();
std::span<const Kernel> sdpa_kernels();

}  // namespace qattn::kernels
