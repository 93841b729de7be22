#include "quant/rotate.h"

#include <bit>
#include <cmath>
#include <string>

#include "base/elementary.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "base/random.h"
#include "quant/quantize.h"

namespace qattn::quant {
namespace {

bool usable(float amax) { return amax > 0 && std::isfinite(amax); }

double balance(double q_amax, double k_amax, double alpha) {
  if (alpha == 0.5) return std::sqrt(q_amax / k_amax);
  return elementary::exp2(alpha * elementary::log2(q_amax) - (1 - alpha) * elementary::log2(k_amax));
}

void flip_signs(std::span<double> row, std::uint64_t seed, int round) {
  for (std::size_t c = 0; c < row.size(); ++c)
    if (random_bits(seed, static_cast<std::uint64_t>(round), c) >> 63) row[c] = -row[c];
}

// Rounds forward are sign changes, then the transform; back, both in reverse, since each is its own transpose.
MatrixF rotate(MatrixView<float> x, const RotationSpec& spec, bool back) {
  const FpEnvironment environment;
  const auto channels = static_cast<std::size_t>(x.cols());
  const double factor = rotation_factor(x.cols(), spec.rounds);
  MatrixF rotated(x.rows(), x.cols());
  std::vector<double> row(channels);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::size_t c = 0; c < channels; ++c) row[c] = static_cast<double>(x(r, static_cast<std::int64_t>(c)));
    for (int round = 0; round < spec.rounds; ++round) {
      if (!back) flip_signs(row, spec.seed, round);
      walsh_hadamard(row);
      if (back) flip_signs(row, spec.seed, spec.rounds - 1 - round);
    }
    for (std::size_t c = 0; c < channels; ++c)
      rotated(r, static_cast<std::int64_t>(c)) = static_cast<float>(row[c] * factor);
  }
  return rotated;
}

void check_channels(std::int64_t channels, std::size_t factors) {
  if (static_cast<std::size_t>(channels) != factors)
    throw Error(ErrorKind::internal,
                std::to_string(channels) + " channels, but " + std::to_string(factors) + " channel factors");
}

}  // namespace

void walsh_hadamard(std::span<double> values) {
  for (std::size_t distance = 1; distance < values.size(); distance *= 2) {
    for (std::size_t start = 0; start < values.size(); start += 2 * distance) {
      for (std::size_t i = start; i < start + distance; ++i) {
        const double a = values[i];
        const double b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
    }
  }
}

double rotation_factor(std::int64_t channels, int rounds) {
  const auto count = static_cast<std::uint64_t>(channels);
  if (!std::has_single_bit(count) || rounds < 0)
    throw Error(ErrorKind::usage, "Hadamard rotation of " + std::to_string(channels) + " channels in " +
                                      std::to_string(rounds) +
                                      " rounds: the number of channels must be a power of two, rounds at least 0");
  const int exponent = std::countr_zero(count) * rounds;
  return std::ldexp(exponent % 2 == 0 ? 1.0 : std::sqrt(0.5), -(exponent / 2));
}

MatrixF rotate(MatrixView<float> x, const RotationSpec& spec) { return rotate(x, spec, false); }

MatrixF rotate_back(MatrixView<float> x, const RotationSpec& spec) { return rotate(x, spec, true); }

std::vector<float> channel_amax(MatrixView<float> x) {
  return group_amax(x, GroupMap({.granularity = Granularity::per_channel}, x.rows(), x.cols()));
}

std::vector<float> balance_factors(std::span<const float> q_amax, std::span<const float> k_amax, double alpha) {
  const FpEnvironment environment;
  if (!(alpha >= 0 && alpha <= 1) || q_amax.size() != k_amax.size())
    throw Error(ErrorKind::usage,
                "SmoothQuant balance: alpha must lie in 0..1 and Q and K must have equally many "
                "channels; alpha is " +
                    std::to_string(alpha) + ", channels " + std::to_string(q_amax.size()) + " and " +
                    std::to_string(k_amax.size()));
  std::vector<float> factors(q_amax.size(), 1.0f);
  for (std::size_t c = 0; c < factors.size(); ++c)
    if (usable(q_amax[c]) && usable(k_amax[c]))
      factors[c] = static_cast<float>(balance(static_cast<double>(q_amax[c]), static_cast<double>(k_amax[c]), alpha));
  return factors;
}

MatrixF divide_channels(MatrixView<float> q, std::span<const float> factors) {
  const FpEnvironment environment;
  check_channels(q.cols(), factors.size());
  MatrixF result(q.rows(), q.cols());
  for (std::int64_t r = 0; r < q.rows(); ++r)
    for (std::int64_t c = 0; c < q.cols(); ++c) result(r, c) = q(r, c) / factors[static_cast<std::size_t>(c)];
  return result;
}

MatrixF multiply_channels(MatrixView<float> k, std::span<const float> factors) {
  const FpEnvironment environment;
  check_channels(k.cols(), factors.size());
  MatrixF result(k.rows(), k.cols());
  for (std::int64_t r = 0; r < k.rows(); ++r)
    for (std::int64_t c = 0; c < k.cols(); ++c) result(r, c) = k(r, c) * factors[static_cast<std::size_t>(c)];
  return result;
}

}  // namespace qattn::quant
