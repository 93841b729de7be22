// exp, exp2, log and log2 in double precision, ours: libm picks variants by CPU, so its bits are no promise.
#pragma once

#include <span>

namespace qattn::elementary {

/// Within 1 ulp of the exact value for every double (measured bounds: tests/src/base/test_elementary.cpp), the same
/// bits on every machine. NaN gives NaN; overflow Inf; results below the smallest subnormal 0. Needs the default
/// floating-point environment (base/fp_environment.h).
double exp(double x);
double exp2(double x);

/// Within 1 ulp; log(+0) = log(-0) = -Inf, a negative argument gives NaN. log2 is exact at powers of two.
double log(double x);
double log2(double x);

/// exp2 rounded to float: within 0.5 + 2^-28 ulp of the exact value, the "exact" exp2 of the attention pipeline.
float exp2_float(float x);

/// The same of every element, by SIMD with run-time dispatch; the bits are those of the functions above on every
/// target. x and y have the same length (else Error(internal)) and may be the same memory.
void exp(std::span<const double> x, std::span<double> y);
void exp2(std::span<const double> x, std::span<double> y);
void exp2_float(std::span<const float> x, std::span<float> y);

}  // namespace qattn::elementary
