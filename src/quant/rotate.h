// Orthogonal and diagonal changes of basis that leave Q K^T as it is: the random Hadamard rotation (incoherent
// processing) and SmoothQuant's balance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/matrix.h"

namespace qattn::quant {

/// M = D_1 H D_2 H ... D_rounds H / sqrt(channels)^rounds; D_i is a diagonal of random signs, H the Hadamard matrix in
/// Sylvester's order. FlashAttention-3 and QuaRot name one diagonal and one H; rounds is the number of such pairs.
struct RotationSpec {
  std::uint64_t seed = 0;
  int rounds = 1;
};

/// channels^(-rounds / 2): a power of two, times RN(sqrt(1/2)) where the exponent is odd. Throws Error(usage) when the
/// number of channels is no power of two or rounds is negative.
double rotation_factor(std::int64_t channels, int rounds);

/// x M, for each row. Signs: bit 63 of random_bits(seed, round, channel), set = -1. The butterflies and the factor
/// channels^(-rounds / 2) are f64, each operation rounded to nearest-even; the result is rounded once to f32. So the
/// only visible rounding is that of an exact rotation of f32 data to within a few 2^-53.
/// Throws Error(usage) as rotation_factor().
MatrixF rotate(MatrixView<float> x, const RotationSpec& spec);

/// x M^T, for each row: undoes rotate(), and takes a gradient back to the basis before it. The same arithmetic.
MatrixF rotate_back(MatrixView<float> x, const RotationSpec& spec);

/// The unnormalised transform x H in place, by log2(n) stages of additions and subtractions of pairs at distance
/// 1, 2, 4, ...; exact on integers whose sums stay below 2^53. `values` has a power of two of elements.
void walsh_hadamard(std::span<double> values);

/// The largest magnitude of each channel; NaN where a channel has one.
std::vector<float> channel_amax(MatrixView<float> x);

/// SmoothQuant's factors between the channels of Q and K: s_j = max|Q_j|^alpha / max|K_j|^(1 - alpha), in f64, rounded
/// to f32; alpha = 1/2 is sqrt(max|Q_j| / max|K_j|). A factor is 1 where either maximum is zero or not finite.
/// With grouped heads, pass the maximum over all query heads that share the K head. Throws Error(usage) when alpha is
/// outside [0, 1] or the numbers of channels differ.
std::vector<float> balance_factors(std::span<const float> q_amax, std::span<const float> k_amax, double alpha = 0.5);

/// Q diag(1/s) and K diag(s), elements RN(q / s_j) and RN(k * s_j).
MatrixF divide_channels(MatrixView<float> q, std::span<const float> factors);
MatrixF multiply_channels(MatrixView<float> k, std::span<const float> factors);

}  // namespace qattn::quant
