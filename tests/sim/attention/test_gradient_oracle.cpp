// The exact gradients against 100 decimal digits, and against differences of the reference's own output.
#include <algorithm>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <limits>

#include "attention/gradient.h"
#include "attention/reference.h"
#include "base/error.h"
#include "heads.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::attention;
using testing::make_problem;
using testing::normal_matrix;

namespace {

using Digits = boost::multiprecision::cpp_bin_float_100;
using DigitMatrix = std::vector<std::vector<Digits>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

DigitMatrix zeros(std::int64_t rows, std::int64_t columns) {
  return DigitMatrix(static_cast<std::size_t>(rows), std::vector<Digits>(static_cast<std::size_t>(columns), 0));
}

Digits& at(DigitMatrix& m, std::int64_t i, std::int64_t j) {
  return m[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
}

struct Exact {
  DigitMatrix dq, dk, dv;
};

bool hidden(const Problem& p, std::int64_t i, std::int64_t j) {
  const std::int64_t shift = p.causal_align == CausalAlign::bottom_right ? p.k.rows() - p.q.rows() : 0;
  if (p.is_causal && j > i + shift) return true;
  return p.mask && (*p.mask)(i, j) == -kInfinity;
}

Digits dot(const MatrixD& a, std::int64_t i, const MatrixD& b, std::int64_t j) {
  Digits sum = 0;
  for (std::int64_t c = 0; c < a.cols(); ++c) sum += Digits(a(i, c)) * Digits(b(j, c));
  return sum;
}

/// Row i's probabilities and what flows back into its scores, from the softmax's Jacobian P (delta_jk - P).
void exact_row(const Problem& p, const MatrixD& upstream, std::int64_t i, Exact& g) {
  const std::int64_t keys = p.k.rows();
  std::vector<Digits> weight(static_cast<std::size_t>(keys), 0), back(static_cast<std::size_t>(keys), 0);
  Digits sum = 0, mean = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (hidden(p, i, j)) continue;
    const double mask = p.mask ? (*p.mask)(i, j) : 0.0;
    weight[static_cast<std::size_t>(j)] = exp(Digits(p.sm_scale) * dot(p.q, i, p.k, j) + Digits(mask));
    sum += weight[static_cast<std::size_t>(j)];
  }
  if (sum == 0) return;
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    weight[n] /= sum;
    back[n] = dot(upstream, i, p.v, j);
    mean += weight[n] * back[n];
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    const Digits ds = weight[n] * (back[n] - mean) * Digits(p.sm_scale);
    for (std::int64_t c = 0; c < p.q.cols(); ++c) {
      at(g.dq, i, c) += ds * Digits(p.k(j, c));
      at(g.dk, j, c) += ds * Digits(p.q(i, c));
    }
    for (std::int64_t c = 0; c < p.v.cols(); ++c) at(g.dv, j, c) += weight[n] * Digits(upstream(i, c));
  }
}

/// The largest distance in units of the largest element, which is not to be zero.
double distance(const MatrixD& ours, DigitMatrix& exact) {
  Digits worst = 0, largest = 0;
  for (std::int64_t i = 0; i < ours.rows(); ++i) {
    for (std::int64_t j = 0; j < ours.cols(); ++j) {
      worst = std::max<Digits>(worst, abs(at(exact, i, j) - Digits(ours(i, j))));
      largest = std::max<Digits>(largest, abs(at(exact, i, j)));
    }
  }
  REQUIRE(largest > 0);
  return static_cast<double>(Digits(worst / largest));
}

void check_against_digits(const Problem& p, const MatrixD& upstream) {
  Exact exact{zeros(p.q.rows(), p.q.cols()), zeros(p.k.rows(), p.k.cols()), zeros(p.v.rows(), p.v.cols())};
  for (std::int64_t i = 0; i < p.q.rows(); ++i) exact_row(p, upstream, i, exact);
  const Gradients ours = reference_gradients({&p, 1}, {&upstream, 1});
  // Sums of up to 33 terms of similar size; ten times what was seen.
  constexpr double kBound = 2e-14;
  CHECK(distance(ours.dq.front(), exact.dq) < kBound);
  CHECK(distance(ours.dk, exact.dk) < kBound);
  CHECK(distance(ours.dv, exact.dv) < kBound);
  CHECK(ours.o.front() == reference_attention(p).o);
}

Problem masked_problem(std::uint64_t seed) {
  Problem p = make_problem(seed, 21, 33, 8, true);
  p.causal_align = CausalAlign::bottom_right;
  p.mask = normal_matrix(seed + 7, 21, 33);
  for (std::int64_t i = 0; i < 21; ++i) (*p.mask)(i, (5 * i) % 12) = -kInfinity;
  return p;
}

}  // namespace

TEST_CASE("The exact gradients are those of 100 digits: shapes, causal masks, additive masks") {
  for (const auto& [queries, keys] : {std::pair(1, 1), std::pair(17, 5), std::pair(20, 33)}) {
    for (const bool causal : {false, true}) {
      // One visible key alone has no gradient in its scores.
      if (causal && keys < 5) continue;
      Problem p = make_problem(3, queries, keys, 8, causal);
      if (keys == 1) p.v.setOnes();
      CAPTURE(queries, keys, causal);
      if (keys > 1) check_against_digits(p, normal_matrix(11, queries, 8));
    }
  }
  check_against_digits(masked_problem(5), normal_matrix(12, 21, 8));
}

TEST_CASE("A query that sees no key has no gradient and gives none") {
  Problem p = make_problem(9, 9, 4, 8, true);
  p.causal_align = CausalAlign::bottom_right;
  MatrixD upstream = normal_matrix(13, 9, 8);
  const Gradients g = reference_gradients({&p, 1}, {&upstream, 1});
  CHECK(g.dq.front().topRows(5).isZero(0.0));
  upstream.topRows(5) *= 100.0;
  const Gradients louder = reference_gradients({&p, 1}, {&upstream, 1});
  CHECK(louder.dv == g.dv);
  CHECK(louder.dk == g.dk);
  check_against_digits(p, upstream);
}

TEST_CASE("The exact gradients are slopes of the output, K and V shared by two query heads") {
  std::vector<Problem> heads = {make_problem(21, 12, 14, 8), make_problem(22, 12, 14, 8)};
  heads[1].k = heads[0].k;
  heads[1].v = heads[0].v;
  const std::vector<MatrixD> upstream = {normal_matrix(31, 12, 8), normal_matrix(32, 12, 8)};
  const Gradients g = reference_gradients(heads, upstream);
  const auto loss = [&](const std::vector<Problem>& at) {
    double sum = 0.0;
    for (std::size_t h = 0; h < at.size(); ++h) sum += upstream[h].cwiseProduct(reference_attention(at[h]).o).sum();
    return sum;
  };
  constexpr double kStep = 1e-5;
  const auto slope = [&](const auto& matrix_of, std::int64_t row, std::int64_t column) {
    std::vector<Problem> up = heads, down = heads;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      if (MatrixD* m = matrix_of(up[h], h)) (*m)(row, column) += kStep;
      if (MatrixD* m = matrix_of(down[h], h)) (*m)(row, column) -= kStep;
    }
    return (loss(up) - loss(down)) / (2 * kStep);
  };
  for (const auto& [row, column] : {std::pair(0, 0), std::pair(5, 3), std::pair(11, 7)}) {
    CAPTURE(row, column);
    const auto q_of_second = [](Problem& p, std::size_t h) { return h == 1 ? &p.q : nullptr; };
    CHECK(slope(q_of_second, row, column) == Approx(g.dq[1](row, column)).epsilon(1e-6).margin(1e-8));
    const auto k_of_both = [](Problem& p, std::size_t) { return &p.k; };
    CHECK(slope(k_of_both, row, column) == Approx(g.dk(row, column)).epsilon(1e-6).margin(1e-8));
    const auto v_of_both = [](Problem& p, std::size_t) { return &p.v; };
    CHECK(slope(v_of_both, row, column) == Approx(g.dv(row, column)).epsilon(1e-6).margin(1e-8));
  }
}

TEST_CASE("Shapes that disagree are refused") {
  const std::vector<Problem> heads = {make_problem(1, 4, 4, 8), make_problem(2, 4, 5, 8)};
  const std::vector<MatrixD> upstream = {MatrixD::Zero(4, 8), MatrixD::Zero(4, 8)};
  CHECK_THROWS_AS(reference_gradients(heads, upstream), Error);
  const MatrixD wrong = MatrixD::Zero(5, 8);
  CHECK_THROWS_AS(reference_gradients({heads.data(), 1}, {&wrong, 1}), Error);
  CHECK_THROWS_AS(reference_gradients({}, {}), Error);
}
