// The tiled pipeline against the float64 reference, and recipes that must coincide bit for bit.
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "attention/pipeline.h"
#include "attention/reference.h"
#include "base/error.h"
#include "heads.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::attention;
using attention::testing::make_problem;
using attention::testing::make_recipe;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same_bits(const MatrixD& a, const MatrixD& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), sizeof(double) * static_cast<std::size_t>(a.size())) == 0;
}

bool same_bits(const Output& a, const Output& b) {
  return same_bits(a.o, b.o) && a.lse.size() == b.lse.size() &&
         std::memcmp(a.lse.data(), b.lse.data(), sizeof(double) * a.lse.size()) == 0;
}

double relative_l1(const MatrixD& o, const MatrixD& r) {
  double difference = 0.0;
  double total = 0.0;
  for (Eigen::Index i = 0; i < o.size(); ++i) {
    difference += std::abs(o.data()[i] - r.data()[i]);
    total += std::abs(r.data()[i]);
  }
  return difference / total;
}

double largest_lse_difference(const Output& a, const Output& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    if (a.lse[i] != b.lse[i]) largest = std::max(largest, std::abs(a.lse[i] - b.lse[i]));
  }
  return largest;
}

/// Shapes that meet every edge: one token, ragged tiles, more queries than keys and fewer, head_dims.
std::vector<Problem> edge_problems() {
  std::vector<Problem> problems;
  for (const bool is_causal : {false, true}) {
    problems.push_back(make_problem(1, 1, 1, 16, is_causal));
    problems.push_back(make_problem(2, 1, 200, 64, is_causal));
    problems.push_back(make_problem(3, 200, 1, 64, is_causal));
    problems.push_back(make_problem(4, 130, 333, 64, is_causal));
    problems.push_back(make_problem(5, 333, 130, 32, is_causal));
    problems.push_back(make_problem(6, 256, 256, 128, is_causal));
  }
  for (std::size_t i = 6; i < 12; ++i) {
    Problem bottom_right = problems[i];
    bottom_right.causal_align = CausalAlign::bottom_right;
    problems.push_back(bottom_right);
  }
  Problem masked = make_problem(7, 70, 90, 64);
  masked.mask = MatrixD::Zero(70, 90);
  for (Eigen::Index i = 0; i < 70; ++i) {
    for (Eigen::Index j = 0; j < 90; ++j) {
      (*masked.mask)(i, j) = i == 11 || (i * j) % 5 == 3 ? -kInfinity : 0.125 * static_cast<double>((i + j) % 7);
    }
  }
  problems.push_back(masked);
  return problems;
}

}  // namespace

TEST_CASE("exact operands in f64 give the reference to 1e-13, in f32 to 1e-6, on every edge shape") {
  const Recipe f64 = make_recipe({{"softmax", "f64"}, {"o_format", "fp64"}});
  for (const Problem& problem : edge_problems()) {
    const Output reference = reference_attention(problem);
    for (const auto& [recipe, bound] : {std::pair{f64, 1e-13}, {Recipe{}, 1e-6}}) {
      const Output output = run_recipe(problem, recipe, format::kFP16);
      CHECK(relative_l1(output.o, reference.o) < bound);
      CHECK(largest_lse_difference(output, reference) < 10.0 * bound);
    }
  }
}

TEST_CASE("a query that sees no key gives zeros and an LSE of -Inf") {
  Problem problem = make_problem(8, 10, 4, 16, true);
  problem.causal_align = CausalAlign::bottom_right;
  for (const Output& output :
       {reference_attention(problem), run_recipe(problem, Recipe{}, format::kFP16),
        run_recipe(problem, make_recipe({{"qk_format", "int8"}, {"pv_format", "e4m3"}, {"smoothing", "qk"}}),
                   format::kFP16)}) {
    for (std::size_t i = 0; i < 6; ++i) CHECK(output.lse[i] == -kInfinity);
    CHECK((output.o.topRows(6).array() == 0.0).all());
    CHECK((output.o.bottomRows(4).array() != 0.0).all());
  }
}

TEST_CASE("smoothing leaves exact attention as it is, LSE included") {
  const Problem problem = make_problem(9, 150, 190, 64, false, 4.0);
  const Output reference = reference_attention(problem);
  for (const std::string_view smoothing : {"k", "q", "qk"}) {
    for (const std::string_view smooth_v : {"true", "false"}) {
      const Output output =
          run_recipe(problem, make_recipe({{"smoothing", smoothing}, {"smooth_v", smooth_v}}), format::kFP16);
      CHECK(relative_l1(output.o, reference.o) < 3e-6);
      CHECK(largest_lse_difference(output, reference) < 1e-4);
    }
  }
}

TEST_CASE("rotation and balance leave exact attention as it is") {
  const Problem problem = make_problem(10, 100, 100, 64, true, 4.0);
  const Output reference = reference_attention(problem);
  for (const auto& [key, value] : {std::pair{"rotation", "hadamard"}, {"balance", "smoothquant"}}) {
    const Output output = run_recipe(problem, make_recipe({{key, value}}), format::kFP16);
    CHECK(relative_l1(output.o, reference.o) < 3e-6);
    CHECK(largest_lse_difference(output, reference) < 1e-4);
  }
}

TEST_CASE("with one block, per-block scales are per-tensor scales") {
  const Problem problem = make_problem(11, 60, 50, 64, false, 2.0);
  for (const std::string_view format : {"int8", "int4", "e4m3"}) {
    const Output block =
        run_recipe(problem, make_recipe({{"qk_format", format}, {"granularity", "per_block"}, {"pv_format", "fp16"}}),
                   format::kFP16);
    const Output tensor =
        run_recipe(problem, make_recipe({{"qk_format", format}, {"granularity", "per_tensor"}, {"pv_format", "fp16"}}),
                   format::kFP16);
    CHECK(same_bits(block, tensor));
    CHECK(relative_l1(block.o, reference_attention(problem).o) > 1e-4);
  }
}

TEST_CASE("smoothing K whose mean is zero changes no bit") {
  Problem problem = make_problem(12, 64, 64, 32);
  for (Eigen::Index i = 0; i < 64; i += 2) problem.k.row(i + 1) = -problem.k.row(i);
  const Recipe plain = make_recipe({{"qk_format", "int4"}, {"granularity", "per_thread"}});
  Recipe smoothed = plain;
  set(smoothed, "smoothing", "k");
  CHECK(same_bits(run_recipe(problem, plain, format::kFP16), run_recipe(problem, smoothed, format::kFP16)));
}

TEST_CASE("an FP22 sum that loses no bit is the f32 sum") {
  // P is 1 for every key (all scores are zero) and V holds small integers: 13 bits hold every partial sum.
  Problem problem = make_problem(13, 64, 96, 64);
  problem.q.setZero();
  for (Eigen::Index i = 0; i < problem.v.size(); ++i) problem.v.data()[i] = static_cast<double>((i * 7) % 15 - 7);
  const auto with = [&](std::string_view accumulator, std::string_view promotion) {
    return run_recipe(problem,
                      make_recipe({{"pv_format", "e4m3"},
                                   {"p_scale", "1"},
                                   {"v_scale_rule", "e8m0_ceil"},
                                   {"accumulator", accumulator},
                                   {"promotion", promotion}}),
                      format::kFP16);
  };
  const Output f32 = with("f32", "tile");
  for (const std::string_view promotion : {"1", "2", "tile", "never"}) {
    CHECK(same_bits(with("sm90.wgmma", promotion), f32));
    CHECK(same_bits(with("sm89.mma", promotion), f32));
  }
  CHECK(same_bits(with("exact", "tile"), f32));
}

TEST_CASE("FP22 without promotion loses what promotion keeps") {
  const Problem problem = make_problem(14, 64, 2048, 64);
  const Output reference = reference_attention(problem);
  const auto error = [&](std::string_view accumulator, std::string_view promotion) {
    const Recipe recipe = make_recipe({{"pv_format", "e4m3"},
                                       {"v_granularity", "per_channel"},
                                       {"accumulator", accumulator},
                                       {"promotion", promotion}});
    const Output exact = run_recipe(problem, with_exact_accumulators(recipe), format::kFP16);
    return relative_l1(run_recipe(problem, recipe, format::kFP16).o, exact.o);
  };
  const double tile = error("sm90.wgmma", "tile");
  const double never = error("sm90.wgmma", "never");
  CHECK(error("f32", "tile") < 1e-6);
  CHECK(tile > 2e-5);
  CHECK(never > 2.0 * tile);
  CHECK(error("sm90.wgmma", "1") < tile);
}

TEST_CASE("the caller's rounding mode and flush-to-zero flags change no bit") {
  const Problem problem = make_problem(15, 100, 120, 64, true, 2.0);
  const Recipe recipe = make_recipe({{"qk_format", "int8"},
                                     {"granularity", "per_thread"},
                                     {"smoothing", "qk"},
                                     {"pv_format", "e4m3"},
                                     {"accumulator", "sm90.wgmma"}});
  const Output usual = run_recipe(problem, recipe, format::kFP16);
  const Output usual_reference = reference_attention(problem);
#if defined(__x86_64__)
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040U | 0x6000U);  // flush to zero, denormals are zero, toward zero
  const Output other = run_recipe(problem, recipe, format::kFP16);
  const Output other_reference = reference_attention(problem);
  _mm_setcsr(saved);
  CHECK(same_bits(usual, other));
  CHECK(same_bits(usual_reference, other_reference));
#endif
}

TEST_CASE("NaN reaches the rows that see it and no others") {
  Problem problem = make_problem(16, 40, 40, 16, true);
  problem.k(20, 3) = std::numeric_limits<double>::quiet_NaN();
  for (const Output& output : {reference_attention(problem), run_recipe(problem, Recipe{}, format::kFP16)}) {
    for (Eigen::Index row = 0; row < 40; ++row) {
      CHECK(std::isnan(output.o(row, 0)) == (row >= 20));
      CHECK(std::isnan(output.lse[static_cast<std::size_t>(row)]) == (row >= 20));
    }
  }
  Problem hidden = make_problem(17, 8, 8, 16, true);
  hidden.v(7, 2) = kInfinity;
  const Output reference = reference_attention(hidden);
  for (Eigen::Index row = 0; row < 7; ++row) CHECK(std::isfinite(reference.o(row, 2)));
  CHECK(reference.o(7, 2) == kInfinity);
}

TEST_CASE("a V channel of zeros stays zero, or becomes NaN where the recipe propagates the zero scale") {
  Problem problem = make_problem(18, 40, 40, 16);
  problem.v.col(5).setZero();
  Recipe recipe = make_recipe({{"pv_format", "e4m3"}, {"v_granularity", "per_channel"}, {"accumulator", "sm90.wgmma"}});
  const Output finite = run_recipe(problem, recipe, format::kFP16);
  CHECK((finite.o.col(5).array() == 0.0).all());
  CHECK(finite.o.allFinite());
  set(recipe, "zero_scale", "propagate");
  const Output propagated = run_recipe(problem, recipe, format::kFP16);
  for (Eigen::Index c = 0; c < 16; ++c) CHECK(std::isnan(propagated.o(0, c)) == (c == 5));
}

TEST_CASE("the row sum of rounded P differs from the row sum of P") {
  const Problem problem = make_problem(19, 64, 256, 64);
  const Recipe unrounded = make_recipe({{"pv_format", "e5m2"}});
  Recipe rounded = unrounded;
  set(rounded, "row_sum", "rounded");
  const Output reference = reference_attention(problem);
  const Output a = run_recipe(problem, unrounded, format::kFP16);
  const Output b = run_recipe(problem, rounded, format::kFP16);
  CHECK(!same_bits(a, b));
  CHECK(relative_l1(b.o, reference.o) < 0.1);
  CHECK(largest_lse_difference(b, reference) < 0.1);
}

TEST_CASE("shapes that disagree are refused") {
  Problem problem = make_problem(20, 8, 8, 16);
  problem.k = MatrixD::Zero(8, 15);
  CHECK_THROWS_AS(reference_attention(problem), Error);
  problem = make_problem(20, 8, 8, 16);
  problem.v = MatrixD::Zero(7, 16);
  CHECK_THROWS_AS(run_recipe(problem, Recipe{}, format::kFP16), Error);
  problem.v.resize(0, 0);
  CHECK_THROWS_AS(reference_attention(problem), Error);
}

TEST_CASE("A row scale of P is finer than the static one where a tile's own maximum is small") {
  Problem problem = make_problem(301, 64, 128, 16);
  // The first key tile holds every row's largest score, the second only small p.
  problem.k.bottomRows(64) *= 0.05;
  problem.v.topRows(64).setZero();
  const Recipe fixed = make_recipe({{"p_format", "int8"}, {"tiling", "sm80"}});
  Recipe by_row = fixed;
  set(by_row, "p_granularity", "per_token");
  const MatrixD exact = reference_attention(problem).o;
  const double fixed_error = (run_recipe(problem, fixed, format::kFP16).o - exact).norm();
  const double row_error = (run_recipe(problem, by_row, format::kFP16).o - exact).norm();
  CHECK(row_error < 0.5 * fixed_error);
  // A tile that holds the maximum has p = 1, so that both scales are 1 / 127.
  problem.k.bottomRows(64).setConstant(-100.0);
  problem.q.col(0).setConstant(10.0);
  const MatrixD a = run_recipe(problem, fixed, format::kFP16).o, b = run_recipe(problem, by_row, format::kFP16).o;
  CHECK((a - b).norm() < 1e-6 * b.norm() + 1e-12);
}

TEST_CASE("A BF16 row sum is reduced as the fragments of a row are") {
  // Scores of one channel: k holds log2 of p, times ln 2 in sm_scale; the first key has p = 1.
  Problem problem = make_problem(302, 1, 32, 1);
  problem.q(0, 0) = 1.0;
  problem.sm_scale = 0x1.62E42FEFA39EFp-1;
  problem.v.setOnes();
  std::vector<float> p;
  for (std::int64_t j = 0; j < 32; ++j) {
    problem.k(j, 0) = -static_cast<double>((7 * j) % 11);
    p.push_back(std::ldexp(1.0F, -static_cast<int>((7 * j) % 11)));
  }
  const auto bf16 = [](float x) {
    return format::decode_float(format::kBF16, static_cast<std::uint32_t>(format::encode(format::kBF16, x, {})));
  };
  // Four warps of 8 columns; lane t of a quad holds columns 2t and 2t + 1.
  float warp_sum[4];
  for (std::size_t w = 0; w < 4; ++w) {
    float lane[4];
    for (std::size_t t = 0; t < 4; ++t) lane[t] = bf16(p[8 * w + 2 * t] + p[8 * w + 2 * t + 1]);
    warp_sum[w] = bf16(bf16(lane[0] + lane[2]) + bf16(lane[1] + lane[3]));
  }
  const float expected = bf16(bf16(warp_sum[0] + warp_sum[2]) + bf16(warp_sum[1] + warp_sum[3]));
  Recipe recipe = make_recipe({{"q_block", "32"}, {"q_warp", "32"}, {"k_block", "32"}, {"k_warp", "32"}});
  const double ascending = run_recipe(problem, recipe, format::kFP16).lse.front();
  set(recipe, "row_sum_format", "bf16");
  const double narrow = run_recipe(problem, recipe, format::kFP16).lse.front();
  CHECK(narrow == Approx(std::log(static_cast<double>(expected))).epsilon(1e-12));
  CHECK(std::abs(narrow - ascending) > 1e-4);
}
