// SageAttention 2.2.0's attention functions by name and keyword arguments: sageattn_qk_int8_pv_fp8_cuda_sm90,
// sageattn_qk_int8_pv_fp8_cuda, sageattn_qk_int8_pv_fp16_cuda and sageattn_qk_int8_pv_fp16_triton. Each returns o, lse
// (as with return_lse=True), k_mean where K is smoothed, and the quantized operands; these in the library's own layout,
// for calls in NHD too.
#pragma once

#include <string_view>

#include "kernels/kernel.h"
#include "kernels/sage_attention.h"

namespace qattn::kernels::sage {

/// The form that the function `kernel` takes for this call: its keyword arguments `qk_quant_gran`, `pv_accum_dtype`,
/// `smooth_k`, `smooth_v` (`quantization_backend` of the Triton one) with the library's defaults, on `call.arch`.
/// Throws Error(usage) when an argument has no such choice or the card no such instruction.
Form form_of(std::string_view kernel, const Call& call);

}  // namespace qattn::kernels::sage
