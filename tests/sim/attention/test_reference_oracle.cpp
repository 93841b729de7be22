// The float64 reference against attention in 100 decimal digits.
#include <algorithm>
#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "attention/problem.h"
#include "attention/reference.h"
#include "support/catch.h"

namespace {

using qattn::MatrixD;
using qattn::attention::CausalAlign;
using qattn::attention::Output;
using qattn::attention::Problem;
using qattn::attention::reference_attention;
using Digits = boost::multiprecision::cpp_bin_float_100;

constexpr double kUnit = 0x1p-53;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Uniform in [-size, size], from the generator's bits alone.
MatrixD random_matrix(std::mt19937_64& generator, std::int64_t rows, std::int64_t columns, double size) {
  MatrixD m(rows, columns);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      m(r, c) = size * (static_cast<double>(generator() >> 11) * 0x1p-52 - 1.0);
  return m;
}

struct Shape {
  std::int64_t queries, keys, channels, v_channels;
};

Problem random_problem(std::mt19937_64& generator, const Shape& shape, double size) {
  Problem p;
  p.q = random_matrix(generator, shape.queries, shape.channels, size);
  p.k = random_matrix(generator, shape.keys, shape.channels, size);
  p.v = random_matrix(generator, shape.keys, shape.v_channels, 1.0);
  p.sm_scale = 1.0 / std::sqrt(static_cast<double>(shape.channels));
  return p;
}

/// Whether query i sees key j as far as the causal mask goes; written from the words of problem.h.
bool sees(const Problem& p, std::int64_t i, std::int64_t j) {
  if (!p.is_causal) return true;
  return p.causal_align == CausalAlign::top_left ? j <= i : j <= i + p.k.rows() - p.q.rows();
}

/// One row in 100 digits, and what bounds the error that float64 may make in it.
struct ExactRow {
  std::vector<Digits> o;
  std::vector<Digits> magnitude;  ///< sum p |v| / sum p: what an error relative to each term is relative to
  Digits lse;
  double score_error = 0;  ///< bound of the rounding of a score, absolute
  bool empty = true;
};

ExactRow exact_row(const Problem& p, std::int64_t i) {
  ExactRow row;
  const auto channels = static_cast<std::size_t>(p.v.cols());
  row.o.assign(channels, 0);
  row.magnitude.assign(channels, 0);
  Digits sum = 0;
  for (std::int64_t j = 0; j < p.k.rows(); ++j) {
    const double mask = p.mask ? (*p.mask)(i, j) : 0.0;
    if (!sees(p, i, j) || mask == -kInfinity) continue;
    Digits score = 0;
    double terms = 0;
    for (std::int64_t c = 0; c < p.q.cols(); ++c) {
      score += Digits(p.q(i, c)) * Digits(p.k(j, c));
      terms += std::fabs(p.q(i, c) * p.k(j, c));
    }
    score = score * Digits(p.sm_scale) + Digits(mask);
    // A product and an addition for each channel, the scale, the mask, and the maximum that is subtracted.
    const double rounding = static_cast<double>(p.q.cols() + 4) * (terms * p.sm_scale + std::fabs(mask)) * kUnit;
    row.score_error = std::max(row.score_error, rounding);
    const Digits weight = exp(score);
    sum += weight;
    for (std::size_t c = 0; c < channels; ++c) {
      const double v = p.v(j, static_cast<std::int64_t>(c));
      row.o[c] += weight * Digits(v);
      row.magnitude[c] += weight * Digits(std::fabs(v));
    }
    row.empty = false;
  }
  if (row.empty) return row;
  for (std::size_t c = 0; c < channels; ++c) {
    row.o[c] /= sum;
    row.magnitude[c] /= sum;
  }
  row.lse = log(sum);
  return row;
}

/// Distances from the exact values in units of 2^-53 of what they are relative to, and the share of their bound that
/// they use.
struct Worst {
  double o_units = 0, lse_units = 0;
  double o_share = 0, lse_share = 0;

  void include(double& units, double& share, double distance, double relative_to, double bound) {
    units = std::max(units, distance / (relative_to * kUnit));
    share = std::max(share, distance / bound);
  }
};

Worst compare(const Problem& p) {
  const Output output = reference_attention(p);
  REQUIRE(output.o.rows() == p.q.rows());
  REQUIRE(output.o.cols() == p.v.cols());
  REQUIRE(output.lse.size() == static_cast<std::size_t>(p.q.rows()));
  Worst worst;
  for (std::int64_t i = 0; i < p.q.rows(); ++i) {
    const ExactRow row = exact_row(p, i);
    const double lse = output.lse[static_cast<std::size_t>(i)];
    if (row.empty) {
      CHECK(lse == -kInfinity);
      for (std::int64_t c = 0; c < p.v.cols(); ++c) CHECK(output.o(i, c) == 0.0);
      continue;
    }
    // Each weight is off by its score's error, exp's ulp and a rescaling; sums add a rounding a key.
    const double relative = 2 * row.score_error + static_cast<double>(3 * p.k.rows() + 8) * kUnit;
    for (std::int64_t c = 0; c < p.v.cols(); ++c) {
      const auto n = static_cast<std::size_t>(c);
      const double distance = static_cast<double>(Digits(abs(row.o[n] - Digits(output.o(i, c)))));
      const double magnitude = static_cast<double>(row.magnitude[n]);
      worst.include(worst.o_units, worst.o_share, distance, magnitude, relative * magnitude);
    }
    const double exact_lse = static_cast<double>(row.lse);
    const double distance = static_cast<double>(Digits(abs(row.lse - Digits(lse))));
    const double size = std::max(1.0, std::fabs(exact_lse));
    worst.include(worst.lse_units, worst.lse_share, distance, size, relative + 4 * size * kUnit);
  }
  return worst;
}

/// The bound follows from the roundings; the units are what was seen, doubled, so that a lost digit is noticed even
/// where the bound is generous.
void check(const Problem& p, double o_units, double lse_units) {
  const Worst worst = compare(p);
  CAPTURE(p.q.rows(), p.k.rows(), p.q.cols(), p.v.cols(), worst.o_units, worst.lse_units);
  CHECK(worst.o_share <= 1.0);
  CHECK(worst.lse_share <= 1.0);
  CHECK(worst.o_units <= o_units);
  CHECK(worst.lse_units <= lse_units);
}

const std::vector<Shape> kShapes{{1, 1, 1, 1},  {1, 17, 8, 5},  {17, 1, 8, 5},   {8, 8, 16, 16},
                                 {5, 23, 3, 7}, {23, 5, 12, 1}, {31, 33, 32, 9}, {40, 64, 64, 4}};

}  // namespace

TEST_CASE("the reference is attention for every pair of lengths") {
  std::mt19937_64 generator(1);
  for (const Shape& shape : kShapes) check(random_problem(generator, shape, 2.0), 16, 8);
}

TEST_CASE("the reference's causal mask starts at either corner") {
  std::mt19937_64 generator(2);
  for (const CausalAlign align : {CausalAlign::top_left, CausalAlign::bottom_right})
    for (const Shape& shape : kShapes) {
      Problem p = random_problem(generator, shape, 2.0);
      p.is_causal = true;
      p.causal_align = align;
      check(p, 16, 8);
    }
}

TEST_CASE("more queries than keys leave the first rows of a bottom-right mask empty") {
  std::mt19937_64 generator(3);
  Problem p = random_problem(generator, {9, 4, 8, 3}, 2.0);
  p.is_causal = true;
  p.causal_align = CausalAlign::bottom_right;
  const Output output = reference_attention(p);
  for (std::size_t i = 0; i < 5; ++i) CHECK(output.lse[i] == -kInfinity);
  for (std::size_t i = 5; i < 9; ++i) CHECK(std::isfinite(output.lse[i]));
  check(p, 16, 8);
}

TEST_CASE("an additive mask is added to the scaled scores and -Inf hides a key") {
  std::mt19937_64 generator(4);
  for (const bool causal : {false, true})
    for (const Shape& shape : kShapes) {
      Problem p = random_problem(generator, shape, 2.0);
      p.is_causal = causal;
      p.mask = random_matrix(generator, shape.queries, shape.keys, 4.0);
      for (std::int64_t i = 0; i < shape.queries; ++i)
        for (std::int64_t j = 0; j < shape.keys; ++j)
          if (generator() % 3 == 0 || i % 5 == 4) (*p.mask)(i, j) = -kInfinity;
      check(p, 16, 8);
    }
}

TEST_CASE("keys hidden at the start of a row do not disturb the running maximum") {
  std::mt19937_64 generator(5);
  Problem p = random_problem(generator, {6, 50, 8, 3}, 2.0);
  p.mask = MatrixD::Zero(6, 50);
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 8 * i; ++j) (*p.mask)(i, j) = -kInfinity;
  check(p, 16, 8);
}

TEST_CASE("one visible key gives its value exactly") {
  std::mt19937_64 generator(6);
  const Problem p = random_problem(generator, {7, 1, 16, 8}, 3.0);
  const Output output = reference_attention(p);
  for (std::int64_t i = 0; i < 7; ++i)
    for (std::int64_t c = 0; c < 8; ++c) CHECK(output.o(i, c) == p.v(0, c));
}

TEST_CASE("scores of thousands neither overflow nor lose the small weights") {
  std::mt19937_64 generator(7);
  // A score's own rounding is what is left.
  for (const Shape& shape : kShapes) check(random_problem(generator, shape, 60.0), 400, 12);
  Problem p = random_problem(generator, {3, 40, 4, 2}, 1.0);
  p.mask = MatrixD(3, 40);
  for (std::int64_t j = 0; j < 40; ++j) p.mask->col(j).setConstant(j % 2 == 0 ? 5000.0 : -5000.0);
  check(p, 2000, 8);
}
