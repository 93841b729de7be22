// Functions that nvcc compiles for the GPU too, from the one source that the CPU runs.
#pragma once

#ifdef __CUDACC__
#define QATTN_HOST_DEVICE __host__ __device__
#else
#define QATTN_HOST_DEVICE
#endif
