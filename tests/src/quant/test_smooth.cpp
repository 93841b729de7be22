// Smoothing: what it takes out is what its correction puts back.
#include <limits>

#include "base/error.h"
#include "matrices.h"
#include "oracle.h"
#include "quant/smooth.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::quant;

namespace {

oracle::Rational dot(const MatrixF& a, std::int64_t i, const MatrixF& b, std::int64_t j) {
  oracle::Rational sum = 0;
  for (std::int64_t c = 0; c < a.cols(); ++c) sum += oracle::exact(a(i, c)) * oracle::exact(b(j, c));
  return sum;
}

}  // namespace

TEST_CASE("Means of integers are the exact means rounded once, for ragged blocks too") {
  for (const std::int64_t rows : {1, 2, 31, 32, 33, 100}) {
    const MatrixF x = matrices::integers(rows, 6, static_cast<std::uint64_t>(rows), 1000);
    for (const std::int64_t block : {0, 1, 32, 64, 1000}) {
      const MatrixF means = token_means(x, block);
      const std::int64_t step = block == 0 ? rows : block;
      REQUIRE(means.rows() == (rows + step - 1) / step);
      for (std::int64_t b = 0; b < means.rows(); ++b) {
        const std::int64_t end = std::min(rows, (b + 1) * step);
        for (std::int64_t c = 0; c < x.cols(); ++c) {
          oracle::Rational sum = 0;
          for (std::int64_t r = b * step; r < end; ++r) sum += oracle::exact(x(r, c));
          // The quotient is rounded to f64 and then to f32; on these integers both together are exact or agree.
          REQUIRE(means(b, c) == Approx(oracle::to_float(sum / (end - b * step))).epsilon(0x1p-24));
        }
      }
    }
  }
}

TEST_CASE("Smoothing subtracts the mean of each token's own block, rounded to the formats asked for") {
  const MatrixF x = matrices::plain(100, 8, 3);
  for (const format::Format* mean_format : {&format::kFP32, &format::kFP16, &format::kBF16}) {
    for (const format::Format* result_format : {&format::kFP32, &format::kFP16, &format::kBF16}) {
      const SmoothSpec spec{.block_rows = 32, .mean_format = mean_format, .result_format = result_format};
      const Smoothed smoothed = smooth(x, spec);
      const MatrixF means = token_means(x, 32);
      const auto rounded = [](float value, const format::Format& to) {
        return format::decode_float(to, format::encode(to, value, {}));
      };
      for (std::int64_t r = 0; r < x.rows(); ++r)
        for (std::int64_t c = 0; c < x.cols(); ++c) {
          const float mean = rounded(means(r / 32, c), *mean_format);
          REQUIRE(smoothed.means(r / 32, c) == mean);
          const float difference = oracle::to_float(oracle::exact(x(r, c)) - oracle::exact(mean));
          REQUIRE(smoothed.centred(r, c) == rounded(difference, *result_format));
        }
    }
  }
}

TEST_CASE("Smoothing K shifts each row of S by one constant, exactly on integers") {
  MatrixF k = matrices::integers(64, 16, 4, 500);
  for (std::int64_t c = 0; c < k.cols(); ++c) {
    // An integer mean makes every step exact.
    float sum = 0;
    for (std::int64_t r = 0; r < k.rows(); ++r) sum += k(r, c);
    k(0, c) += 64 - std::fmod(sum, 64.0f);
  }
  const MatrixF q = matrices::integers(10, 16, 5, 500);
  const Smoothed smoothed = smooth(k);
  for (std::int64_t i = 0; i < q.rows(); ++i) {
    const oracle::Rational shift = dot(q, i, k, 0) - dot(q, i, smoothed.centred, 0);
    CHECK(shift == dot(q, i, smoothed.means, 0));
    for (std::int64_t j = 0; j < k.rows(); ++j) REQUIRE(dot(q, i, k, j) - dot(q, i, smoothed.centred, j) == shift);
  }
}

TEST_CASE("Smoothing Q and adding the correction gives S back, exactly on integers") {
  MatrixF q = matrices::integers(64, 16, 6, 100);
  for (std::int64_t c = 0; c < q.cols(); ++c)
    for (std::int64_t b = 0; b < 2; ++b) {
      float sum = 0;
      for (std::int64_t r = 0; r < 32; ++r) sum += q(32 * b + r, c);
      q(32 * b, c) += 32 - std::fmod(sum, 32.0f);
    }
  const MatrixF k = matrices::integers(20, 16, 7, 100);
  const Smoothed smoothed = smooth(q, {.block_rows = 32});
  const MatrixF correction = mean_correction(smoothed.means, k);
  REQUIRE(correction.rows() == 2);
  REQUIRE(correction.cols() == 20);
  for (std::int64_t i = 0; i < q.rows(); ++i)
    for (std::int64_t j = 0; j < k.rows(); ++j)
      REQUIRE(dot(smoothed.centred, i, k, j) + oracle::exact(correction(i / 32, j)) == dot(q, i, k, j));
}

TEST_CASE("The correction is the dot product rounded once to the format asked for") {
  const MatrixF means = matrices::plain(3, 64, 8);
  const MatrixF k = matrices::plain(17, 64, 9);
  const MatrixF single = mean_correction(means, k);
  const MatrixF half = mean_correction(means, k, format::kFP16);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 17; ++j) {
      const oracle::Rational exact = dot(means, i, k, j);
      // The f64 sum may be off by 64 roundings of 2^-53, too little to move these results.
      REQUIRE(single(i, j) == oracle::to_float(exact));
      REQUIRE(half(i, j) ==
              format::decode_float(format::kFP16, format::encode(format::kFP16, exact.convert_to<double>(), {})));
    }
  CHECK_THROWS_AS(mean_correction(means, matrices::plain(4, 32, 1)), Error);
}

TEST_CASE("A NaN or an Inf reaches its own channel and block and no other") {
  MatrixF x = matrices::plain(64, 4, 10);
  x(40, 2) = std::numeric_limits<float>::infinity();
  const Smoothed smoothed = smooth(x, {.block_rows = 32});
  for (std::int64_t r = 0; r < 64; ++r)
    for (std::int64_t c = 0; c < 4; ++c) CHECK(std::isfinite(smoothed.centred(r, c)) == !(r >= 32 && c == 2));
}
