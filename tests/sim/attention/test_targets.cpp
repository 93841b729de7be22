// The whole pipeline on every SIMD target of this machine and by the plain engine: the same bits, and the fast path
// where there is one.
#include <cstring>

#include "attention/pipeline.h"
#include "attention/reference.h"
#include "attention/scores.h"
#include "base/simd_target.h"
#include "heads.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::attention;
using attention::testing::make_problem;
using attention::testing::make_recipe;

namespace {

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

bool same_bits(const Output& a, const Output& b) {
  const auto all = [](const MatrixD& x) { return std::vector<double>(x.data(), x.data() + x.size()); };
  return same_bits(all(a.o), all(b.o)) && same_bits(a.lse, b.lse);
}

/// One of each kind of arithmetic that a head goes through.
std::vector<Recipe> families() {
  std::vector<Recipe> recipes;
  recipes.push_back(make_recipe({{"qk_format", "int8"},
                                 {"granularity", "per_thread"},
                                 {"smoothing", "qk"},
                                 {"qk_accumulator", "sm90.wgmma"},
                                 {"pv_format", "e4m3"},
                                 {"v_granularity", "per_channel"},
                                 {"accumulator", "sm90.wgmma"},
                                 {"promotion", "1"}}));
  recipes.push_back(make_recipe({{"qk_format", "int4"},
                                 {"granularity", "per_block"},
                                 {"qk_accumulator", "sm80.mma"},
                                 {"exp2", "mufu"},
                                 {"pv_format", "fp16"},
                                 {"accumulator", "sm80.mma.f16"}}));
  recipes.push_back(make_recipe({{"qk_format", "int8"},
                                 {"granularity", "per_token"},
                                 {"qk_accumulator", "sm80.mma"},
                                 {"pv_format", "int8"},
                                 {"accumulator", "sm80.mma"}}));
  recipes.push_back(make_recipe({{"qk_format", "fp16"},
                                 {"qk_accumulator", "sm80.mma"},
                                 {"exp2", "fa4-poly"},
                                 {"pv_format", "bf16"},
                                 {"accumulator", "sm90.wgmma"},
                                 {"promotion", "never"}}));
  recipes.push_back(make_recipe({{"qk_format", "e4m3"},
                                 {"granularity", "per_tensor"},
                                 {"rotation", "hadamard"},
                                 {"qk_accumulator", "sm90.wgmma"},
                                 {"pv_format", "e5m2"},
                                 {"row_sum", "rounded"},
                                 {"accumulator", "f32"}}));
  recipes.push_back(make_recipe(
      {{"qk_format", "nvfp4"}, {"qk_accumulator", "sm120.mma"}, {"pv_format", "nvfp4"}, {"accumulator", "sm120.mma"}}));
  recipes.push_back(make_recipe({{"softmax", "f64"}}));
  return recipes;
}

}  // namespace

TEST_CASE("a head has the same bits on every SIMD target and by the plain engine") {
  const Problem problem = make_problem(500, 75, 150, 64, true, 2.0);
  std::size_t index = 0;
  for (const Recipe& recipe : families()) {
    INFO("recipe " << index++ << ", " << recipe.accumulator);
    const std::int64_t last = simd_targets().back();
    Output plain;
    {
      const ForcedSimdTarget forced(last);
      plain = run_recipe(problem, recipe, format::kFP16, mma::Path::plain);
    }
    CHECK(plain.steps.fast == 0);
    REQUIRE(plain.o.allFinite());
    for (const std::int64_t target : simd_targets()) {
      const ForcedSimdTarget forced(target);
      INFO(simd_target_name(target));
      const Output fast = run_recipe(problem, recipe, format::kFP16);
      CHECK(same_bits(fast, plain));
      // Nobody is to measure the fallback by accident.
      CHECK(fast.steps.plain == 0);
      CHECK(fast.steps.fast == plain.steps.plain);
    }
  }
}

TEST_CASE("both products of a recipe with instructions are counted") {
  const Problem problem = make_problem(501, 64, 128, 64);
  const Output output = run_recipe(problem, families().front(), format::kFP16);
  // Q K: 64 x 128 elements of 64 / 32 steps; P V: 64 x 64 elements of 128 / 32.
  CHECK(output.steps.fast == 64 * 128 * 2 + 64 * 64 * 4);
  CHECK(run_recipe(problem, Recipe{}, format::kFP16).steps.fast == 0);
}

TEST_CASE("the float64 reference has the same bits on every SIMD target") {
  const Problem problem = make_problem(502, 33, 70, 40, true);
  const Output usual = reference_attention(problem);
  for (const std::int64_t target : simd_targets()) {
    const ForcedSimdTarget forced(target);
    INFO(simd_target_name(target));
    CHECK(same_bits(reference_attention(problem), usual));
  }
}

TEST_CASE("row sums side by side have the bits of one row after the other") {
  for (const Eigen::Index rows : {1, 7, 8, 9, 40}) {
    const MatrixD a = attention::testing::normal_matrix(503, rows, 130, 1e3);
    const MatrixF narrow = (a / 3.0).cast<float>();
    CHECK(row_sums<double>(a) == row_sums_plain<double>(a));
    CHECK(row_sums<float>(narrow) == row_sums_plain<float>(narrow));
    CHECK(row_sums<double>(narrow) == row_sums_plain<double>(narrow));
    float first = 0;
    for (Eigen::Index j = 0; j < narrow.cols(); ++j) first += narrow(0, j);
    CHECK(row_sums<float>(narrow).front() == first);
  }
}

TEST_CASE("integer sums stay exact beyond what an instruction's register holds") {
  // -128 times -128 a hundred and fifty thousand times is more than 2^31.
  constexpr Eigen::Index kDepth = 150000;
  OperandSpec int8;
  int8.format = &format::kInt8;
  int8.granularity = quant::Granularity::per_tensor;
  const Accumulator accumulator = resolve_accumulator("sm80.mma", int8, int8);
  REQUIRE(accumulator.kind == Accumulator::Kind::integer);
  const MatrixCodes left = MatrixCodes::Constant(2, kDepth, 0x80), right = MatrixCodes::Constant(kDepth, 1, 0x80);
  PartialSum sum(accumulator, 2, 1);
  const Side a = left_side(accumulator, format::kInt8, left), b = right_side(accumulator, format::kInt8, right);
  sum.add(a, b, 0, kDepth);
  MatrixD values;
  sum.read(values);
  CHECK(values(1, 0) == 16384.0 * 150000.0);
  sum.clear();
  sum.add(a, b, 0, 64);
  sum.read(values);
  CHECK(values(0, 0) == 16384.0 * 64.0);
}
