// The constants of exp and exp2, shared by the scalar form and the SIMD form, which give the same bits.
#pragma once

namespace qattn::elementary {

inline constexpr double kLn2 = 0x1.62E42FEFA39EFp-1;
inline constexpr double kLog2E = 0x1.71547652B82FEp+0;
// ln 2 = kLn2High + kLn2Low with 32 bits in the high part: k * kLn2High is exact for every exponent k.
inline constexpr double kLn2High = 0x1.62E42FEE00000p-1;
inline constexpr double kLn2Low = 0x1.A39EF35793C76p-33;
// ln 2 again with 26 bits in the high part, for the product with a 26-bit half of an argument.
inline constexpr double kLn2High26 = 0x1.62E42F8000000p-1;
inline constexpr double kLn2Low26 = 0x1.BE8E7BCD5E4F2p-27;
// Adding and subtracting 1.5 * 2^52 rounds |x| < 2^51 to the nearest integer (ties to even).
inline constexpr double kRoundToInteger = 0x1.8p52;
// Adding and subtracting it rounds |x| <= 1 to at most 26 bits.
inline constexpr double kUpperHalf = 0x1.8p27;
// Beyond these the results are 0 or Inf anyway, and exponents stay in the range of a product of two powers of two.
inline constexpr double kExpBound = 1000.0;
inline constexpr double kExp2Bound = 2000.0;

/// (e^r - 1 - r) / r^2 is a degree-10 polynomial, Chebyshev fitted on |r| <= 0.3467 (its error is 0.0015 ulp of the
/// result); the highest power first.
inline constexpr double kExpPolynomial[] = {0x1.1F731EA5352CAp-29, 0x1.AF4E196027428p-26, 0x1.27E4DB57442FBp-22,
                                            0x1.71DE021A90822p-19, 0x1.A01A01A6DCAFFp-16, 0x1.A01A01ABEF415p-13,
                                            0x1.6C16C16C162CCp-10, 0x1.11111111100CEp-7,  0x1.5555555555556p-5,
                                            0x1.5555555555557p-3,  0x1.0000000000000p-1};

}  // namespace qattn::elementary
