// The constants of CUDA's math functions and of FlashAttention-4's exp2, shared by the plain and the SIMD forms.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace qattn::scalar::constants {

constexpr float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

inline constexpr float kLog2E = from_bits(0x3FB8AA3B);     ///< log2(e)
inline constexpr float kLog2ELow = from_bits(0x32A57060);  ///< log2(e) - kLog2E
inline constexpr float kLn2 = from_bits(0x3F317218);       ///< ln(2)

/// expf: 1/252 of log2(e), which maps its range into [0, 1].
inline constexpr float kExpRange = from_bits(0x3BBB989D);

/// logf and log2f: the mantissa is centred by a split of the code here; then a polynomial in the centred mantissa,
/// highest power first.
inline constexpr std::int32_t kLogSplit = 0x3F2AAAAB;
inline constexpr std::array<float, 9> kLogPolynomial{from_bits(0xBE055027), 0.140846103f,  -0.121486276f,
                                                     0.139806107f,          -0.166842356f, 0.200122997f,
                                                     -0.249996692f,         0.333331823f,  -0.5f};
inline constexpr std::int32_t kLog2Split = 0x3F3504F3;
inline constexpr std::array<float, 10> kLog2Polynomial{
    from_bits(0x3DC6B27F), from_bits(0xBE2C7F30), from_bits(0x3E2FCF2A), from_bits(0xBE374E43), from_bits(0x3E520BF4),
    from_bits(0xBE763C8B), from_bits(0x3E93BF99), from_bits(0xBEB8AA49), from_bits(0x3EF6384A), from_bits(0xBF38AA3B)};

/// tanhf: below kTanhSmall a polynomial in x^2, highest power first; from kTanhLarge on +-1.
inline constexpr float kTanhSmall = from_bits(0x3F19999A);  // 0.6
inline constexpr float kTanhLarge = 9.01091385f;
inline constexpr float kTwoLog2E = 2.88539004f;
inline constexpr std::array<float, 4> kTanhPolynomial{from_bits(0x3C80F082), -0.0523039624f, 0.133152977f,
                                                      -0.333327681f};

/// FlashAttention-4's cubic, highest power first, and the addend that leaves the floor in the low mantissa bits.
inline constexpr std::array<float, 4> kFa4Polynomial{0.077119089663028717041015625f, 0.227564394474029541015625f,
                                                     0.695146143436431884765625f, 1.0f};
inline constexpr float kFa4Round = 0x1.8p23f;

}  // namespace qattn::scalar::constants
