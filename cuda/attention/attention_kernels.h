// The attention kernels that this program has. The .cu files implement them with nothing but CUDA's runtime.
#pragma once

#include "device_operands.h"

namespace qattn::gpu {

/// One kernel: its two matrix instructions, as their names go on after the architecture ("mma.m16n8k32.s32.s8.s8",
/// "wgmma.m64nNk32.f32.e4m3.e4m3"). Compute capabilities are written 10 major + minor.
struct AttentionKernel {
  const char* qk;
  const char* pv;
  int least_capability;
  int largest_capability;
  int (*shared_bytes)(const HeadTask& task);  ///< shared memory of a block
  int (*load)(const HeadTask& task);          ///< before launch(), so that it alone can be timed; a cudaError_t
  int (*launch)(const HeadTask& task);        ///< does not wait; a cudaError_t
};

struct AttentionKernels {
  const AttentionKernel* begin;
  int count;
};
AttentionKernels attention_mma_kernels();
AttentionKernels attention_mma_float8_kernels();
AttentionKernels attention_wgmma_kernels();

}  // namespace qattn::gpu
