// The phases of a head, in their order; each runs the rows that the head says. cudaGetLastError() knows of failures.
#pragma once

#include <cuda_runtime.h>

#include "emulator/head.h"

namespace qattn::emulator {

/// Step 1: head.p_tiles becomes the scores Q K^T of every visited tile.
void run_scores(const Head& head, cudaStream_t stream);
/// Steps 2 to 7: head.p_tiles becomes P as head.pv takes it; row maxima, row sums and factors.
void run_softmax(const Head& head, cudaStream_t stream);
/// Step 8: head.o.
void run_values(const Head& head, cudaStream_t stream);

}  // namespace qattn::emulator
