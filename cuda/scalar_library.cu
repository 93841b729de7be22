// CUDA's own functions. This file is compiled twice: as it is, and with --use_fast_math and QATTN_FAST_MATH.
#include "scalar_kernel.cuh"

namespace qattn::gpu {
namespace {

using std::uint32_t;

#define QATTN_FUNCTION(id, call)                      \
  struct id {                                         \
    static __device__ uint32_t apply(uint32_t code) { \
      const float x = __uint_as_float(code);          \
      return __float_as_uint(call);                   \
    }                                                 \
  }

QATTN_FUNCTION(Exp2, exp2f(x));
QATTN_FUNCTION(Exp, expf(x));
QATTN_FUNCTION(FastExp, __expf(x));
QATTN_FUNCTION(Log, logf(x));
QATTN_FUNCTION(Log2, log2f(x));
QATTN_FUNCTION(Tanh, tanhf(x));

struct IntToFloatRz {
  static __device__ uint32_t apply(uint32_t code) { return __float_as_uint(__int2float_rz(static_cast<int>(code))); }
};

template <class Function>
constexpr ScalarKernel entry(const char* name) {
  return {name, name, 32, 80, run_scalar<Function>};
}

constexpr ScalarKernel kKernels[] = {
    entry<Exp2>("exp2f"),
    entry<Exp>("expf"),
    entry<FastExp>("__expf"),
    entry<Log>("logf"),
    entry<Log2>("log2f"),
    entry<Tanh>("tanhf"),
    entry<IntToFloatRz>("__int2float_rz"),
};
constexpr int kCount = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));

__global__ void divide_kernel(const uint32_t* x, const uint32_t* y, uint32_t* quotient, std::uint64_t count) {
  const std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) quotient[i] = __float_as_uint(__fdividef(__uint_as_float(x[i]), __uint_as_float(y[i])));
}

int launch_divide(const uint32_t* x, const uint32_t* y, uint32_t* quotient, std::uint64_t count) {
  divide_kernel<<<static_cast<unsigned>((count + 255) / 256), 256>>>(x, y, quotient, count);
  return cudaGetLastError();
}

}  // namespace

#ifdef QATTN_FAST_MATH
ScalarKernels scalar_library_fast_math_kernels() { return {kKernels, kCount}; }
int divide_fast_math(const uint32_t* x, const uint32_t* y, uint32_t* quotient, std::uint64_t count) {
  return launch_divide(x, y, quotient, count);
}
#else
ScalarKernels scalar_library_kernels() { return {kKernels, kCount}; }
int divide(const uint32_t* x, const uint32_t* y, uint32_t* quotient, std::uint64_t count) {
  return launch_divide(x, y, quotient, count);
}
#endif

}  // namespace qattn::gpu
