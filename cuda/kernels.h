// What the host asks of the device. The .cu files implement it with nothing but CUDA's runtime; every function returns
// a cudaError_t (0: done) and takes device pointers.
#pragma once

#include <cstdint>

#include "mma/operand_families.h"

namespace qattn::gpu {

/// Products D = A B^T + C: a [tiles, rows, K], b [tiles, columns, K], c and d [tiles, rows, columns], one code an
/// element in the smallest unsigned integer that holds it. Rows and columns are multiples of the instruction's m and n.
struct MmaBatch {
  const void* a;
  const void* b;
  const void* c;
  void* d;
  int tiles;
  int rows;
  int columns;
};

/// One instruction. Compute capabilities are written 10 major + minor.
struct MmaKernel {
  const char* name;  ///< after the architecture: "mma.m16n8k32.f32.e4m3.e4m3"
  int m, n, k;
  int operand_bytes;      ///< of a code of A or B
  int accumulator_bytes;  ///< of a code of C
  int result_bytes;       ///< of a code of D
  int least_capability;
  int largest_capability;
  int (*launch)(const MmaBatch& batch);
};

struct MmaKernels {
  const MmaKernel* begin;
  int count;
};
MmaKernels mma_float_kernels();
MmaKernels mma_float8_kernels();  ///< FP8, and FP64 deeper than k4
MmaKernels mma_integer_kernels();
MmaKernels wgmma_kernels();

/// Which tiles of the counter-based operands (mma/operand_families.h).
struct TileRange {
  mma::OperandRecipe recipe;
  mma::OperandFamily family;
  std::uint64_t seed;
  std::uint64_t first_tile;
  int tiles;
};

/// Fills the inputs of a batch of 64 x 64 tiles.
int generate_tiles(const TileRange& range, int operand_bytes, int accumulator_bytes, void* a, void* b, void* c);

/// Adds every output's digest term (mma/digest.h) to *sum.
int digest_tiles(const void* d, int result_bytes, std::uint64_t first_tile, int tiles, unsigned long long* sum);

/// A function of one argument. With `x` the inputs are x[0..count), else first, first + 1, ...; with `y` the results
/// are stored there, with `sum` the digest terms mix64(x << 32 | y) are added to it.
struct ScalarBatch {
  const std::uint32_t* x;
  std::uint32_t first;
  std::uint64_t count;
  std::uint32_t* y;
  unsigned long long* sum;
};

struct ScalarKernel {
  const char* name;   ///< PTX or CUDA name
  const char* model;  ///< the function of sim/scalar that it is compared with
  int input_bits;     ///< 8, 16 or 32
  int least_capability;
  int (*run)(const ScalarBatch& batch);
};

struct ScalarKernels {
  const ScalarKernel* begin;
  int count;
};
ScalarKernels scalar_ptx_kernels();
ScalarKernels scalar_library_kernels();            ///< CUDA's functions without fast-math
ScalarKernels scalar_library_fast_math_kernels();  ///< and with --use_fast_math

/// __fdividef(x, y), element by element.
int divide(const std::uint32_t* x, const std::uint32_t* y, std::uint32_t* quotient, std::uint64_t count);
int divide_fast_math(const std::uint32_t* x, const std::uint32_t* y, std::uint32_t* quotient, std::uint64_t count);

}  // namespace qattn::gpu
