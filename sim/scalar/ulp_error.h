// The largest error of a function over its inputs, in units in the last place.
#pragma once

#include <cstdint>
#include <functional>

#include "scalar/function.h"

namespace qattn::scalar {

/// Errors over a set of inputs. The exact value is the double-precision library function's: its own error, at most a
/// few units in the last place of a double, is below 1e-7 ulp of a binary32 result.
struct UlpError {
  double low = 0, high = 0;               ///< smallest and largest of (y - exact) / ulp; Inf for a result that is none
  std::uint32_t at_low = 0, at_high = 0;  ///< an input that has it: the one with the lowest code
  std::uint64_t inputs = 0;

  double largest() const { return -low > high ? -low : high; }
  void add(double error, std::uint32_t x);
  /// Absorbs the errors of other inputs; the order does not matter.
  void absorb(const UlpError& other);
};

/// Counted are inputs whose exact value is finite and within the largest finite number of the result's format. The
/// ordinary ones among them: normal inputs (or zero) with a normal exact value (or zero); the rest involves subnormals,
/// which .ftz forms flush.
struct UlpErrors {
  UlpError normal;
  UlpError subnormal;
  void absorb(const UlpErrors& other);
};

/// The errors over a digest's block b, the inputs b << 24 ... ((b + 1) << 24) - 1; block 0 alone, and in it only the
/// codes that the input has, for narrower inputs.
UlpErrors ulp_errors_of_block(const Function& function, int block);

/// The errors over every input, on `threads` threads (0: all of the machine's). `progress` as for digest().
UlpErrors ulp_errors(const Function& function, int threads = 0, const std::function<void(int)>& progress = {});

}  // namespace qattn::scalar
