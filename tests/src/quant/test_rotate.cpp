// Rotation and balance: orthogonality, energy, and products that stay as they are.
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "matrices.h"
#include "oracle.h"
#include "quant/rotate.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::quant;

namespace {

double dot(const MatrixF& a, std::int64_t i, const MatrixF& b, std::int64_t j) {
  double sum = 0;
  for (std::int64_t c = 0; c < a.cols(); ++c) sum += static_cast<double>(a(i, c)) * static_cast<double>(b(j, c));
  return sum;
}

// H by its definition: the sign is the parity of the common one bits of the two indices.
int hadamard(std::size_t i, std::size_t j) { return __builtin_popcountll(i & j) % 2 == 0 ? 1 : -1; }

}  // namespace

TEST_CASE("The transform of every unit vector is a row of the Hadamard matrix") {
  for (std::size_t d = 1; d <= 256; d *= 2)
    for (std::size_t i = 0; i < d; ++i) {
      std::vector<double> values(d, 0.0);
      values[i] = 1;
      walsh_hadamard(values);
      for (std::size_t j = 0; j < d; ++j) REQUIRE(values[j] == hadamard(i, j));
    }
}

TEST_CASE("Applied twice the transform multiplies integers by d, and it keeps their energy times d, exactly") {
  for (const std::size_t d : {2, 64, 128, 1024}) {
    std::vector<double> original(d);
    for (std::size_t i = 0; i < d; ++i)
      original[i] = std::round(1000 * matrices::uniform(1, static_cast<std::int64_t>(i)));
    std::vector<double> values = original;
    walsh_hadamard(values);
    double before = 0, after = 0;
    for (std::size_t i = 0; i < d; ++i) before += original[i] * original[i], after += values[i] * values[i];
    CHECK(after == before * static_cast<double>(d));
    walsh_hadamard(values);
    for (std::size_t i = 0; i < d; ++i) REQUIRE(values[i] == original[i] * static_cast<double>(d));
  }
}

TEST_CASE("A rotation of 64 channels has exact entries: signs over 8") {
  const MatrixF identity = MatrixF::Identity(64, 64);
  for (const std::uint64_t seed : {0u, 1u, 99u}) {
    const MatrixF m = rotate(identity, {.seed = seed, .rounds = 1});
    for (std::size_t i = 0; i < 64; ++i) {
      const int sign = random_bits(seed, 0, i) >> 63 ? -1 : 1;
      for (std::size_t j = 0; j < 64; ++j)
        REQUIRE(m(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)) ==
                static_cast<float>(sign * hadamard(i, j)) / 8);
    }
  }
}

TEST_CASE("Rotating Q and K keeps every product") {
  for (const std::int64_t d : {1, 2, 32, 64, 128, 256}) {
    for (const int rounds : {0, 1, 2, 3}) {
      const MatrixF q = matrices::plain(12, d, 11);
      const MatrixF k = matrices::plain(9, d, 12);
      const RotationSpec spec{.seed = 5, .rounds = rounds};
      const MatrixF rq = rotate(q, spec);
      const MatrixF rk = rotate(k, spec);
      if (rounds == 0) CHECK(rq == q);
      for (std::int64_t i = 0; i < 12; ++i)
        for (std::int64_t j = 0; j < 9; ++j) {
          // Each rotated element is off by half an ulp at most: 2^-24 of a row's length, d products, two operands.
          const double bound = 2 * 0x1p-24 * std::sqrt(dot(q, i, q, i) * dot(k, j, k, j));
          REQUIRE(std::fabs(dot(rq, i, rk, j) - dot(q, i, k, j)) <= bound);
        }
    }
  }
}

TEST_CASE("A rotation spreads an outlier channel and depends on the seed") {
  MatrixF x = MatrixF::Zero(1, 128);
  x(0, 17) = 128;
  const MatrixF rotated = rotate(x, {.seed = 3});
  for (std::int64_t c = 0; c < 128; ++c) CHECK(std::fabs(rotated(0, c)) == static_cast<float>(128 / std::sqrt(128.0)));
  const MatrixF y = matrices::plain(1, 128, 3);
  CHECK(rotate(y, {.seed = 3}) != rotate(y, {.seed = 4}));
  CHECK_THROWS_AS(rotate(MatrixF::Zero(2, 96), {}), Error);
  CHECK_THROWS_AS(rotate(MatrixF::Zero(2, 64), {.seed = 0, .rounds = -1}), Error);
}

TEST_CASE("Balance factors are the definition's, and alpha one half is an exact square root") {
  const std::vector<float> q{4, 1, 0, 9, 100, 1e-30f}, k{1, 16, 5, 0, 4, 1e30f};
  CHECK(balance_factors(q, k) == std::vector<float>{2, 0.25f, 1, 1, 5, 1e-30f});
  CHECK(balance_factors(q, k, 1.0) == std::vector<float>{4, 1, 1, 1, 100, 1e-30f});
  for (const double alpha : {0.0, 0.25, 0.4, 0.5, 0.85, 1.0}) {
    const auto factors = balance_factors(q, k, alpha);
    for (std::size_t c = 0; c < q.size(); ++c) {
      if (q[c] == 0 || k[c] == 0) continue;
      const double expected =
          std::pow(static_cast<double>(q[c]), alpha) / std::pow(static_cast<double>(k[c]), 1 - alpha);
      CHECK(static_cast<double>(factors[c]) == Approx(expected).epsilon(0x1p-23));
    }
  }
  CHECK_THROWS_AS(balance_factors(q, k, 1.5), Error);
  CHECK_THROWS_AS(balance_factors(q, std::vector<float>{1}), Error);
}

TEST_CASE("Balancing by powers of two keeps every product exactly, by other factors to rounding") {
  const MatrixF q = matrices::integers(10, 32, 13, 100);
  const MatrixF k = matrices::integers(10, 32, 14, 100);
  std::vector<float> powers(32);
  for (std::size_t c = 0; c < 32; ++c) powers[c] = std::ldexp(1.0f, static_cast<int>(c) - 16);
  const MatrixF q2 = divide_channels(q, powers), k2 = multiply_channels(k, powers);
  const auto factors = balance_factors(channel_amax(q), channel_amax(k));
  const MatrixF q3 = divide_channels(q, factors), k3 = multiply_channels(k, factors);
  for (std::int64_t i = 0; i < 10; ++i)
    for (std::int64_t j = 0; j < 10; ++j) {
      REQUIRE(dot(q2, i, k2, j) == dot(q, i, k, j));
      REQUIRE(std::fabs(dot(q3, i, k3, j) - dot(q, i, k, j)) <= 32 * 1e4 * 0x1p-23);
    }
  const auto balanced_q = channel_amax(q3), balanced_k = channel_amax(k3);
  for (std::size_t c = 0; c < 32; ++c) CHECK(balanced_q[c] == Approx(balanced_k[c]).epsilon(1e-6));
}

TEST_CASE("A rotation back undoes a rotation, and is its transpose") {
  for (const int rounds : {1, 2, 3}) {
    const RotationSpec spec{.seed = 5, .rounds = rounds};
    const MatrixF identity = MatrixF::Identity(64, 64);
    const MatrixF m = rotate(identity, spec);
    CHECK(rotate_back(identity, spec) == MatrixF(m.transpose()));
    CHECK((rotate_back(m, spec) - identity).cwiseAbs().maxCoeff() < 1e-6f);
    CHECK((rotate(m, spec) - identity).cwiseAbs().maxCoeff() > 0.1f);
  }
}
