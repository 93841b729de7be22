// The backward pass of recipes: what it must equal, and what breaks when a method's own idea is left out.
#include <cfenv>
#include <cmath>

#include "attention/gradient.h"
#include "attention/pipeline.h"
#include "attention/rounding.h"
#include "base/error.h"
#include "heads.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::attention;
using testing::make_problem;
using testing::make_recipe;
using testing::normal_matrix;

namespace {

double relative_l2(const MatrixD& a, const MatrixD& b) { return (a - b).norm() / b.norm(); }

/// Distances of a recipe's outputs from the exact ones.
struct Distances {
  double o, dq, dk, dv;
};

struct Head {
  Problem problem;
  MatrixD upstream;

  Gradients recipe(const Recipe& r) const { return recipe_gradients({&problem, 1}, {&upstream, 1}, r, format::kFP16); }
  Gradients exact() const { return reference_gradients({&problem, 1}, {&upstream, 1}); }
};

Head make_head(std::uint64_t seed, double sigma, bool is_causal = false, std::int64_t tokens = 96) {
  Head head{make_problem(seed, tokens, tokens, 16, is_causal), normal_matrix(seed + 5, tokens, 16)};
  head.problem.q *= sigma;
  head.problem.k *= sigma;
  return head;
}

Distances distances(const Gradients& a, const Gradients& b) {
  return {relative_l2(a.o.front(), b.o.front()), relative_l2(a.dq.front(), b.dq.front()), relative_l2(a.dk, b.dk),
          relative_l2(a.dv, b.dv)};
}

Distances from_exact(const Head& head, const Recipe& recipe) { return distances(head.recipe(recipe), head.exact()); }

Recipe changed(Recipe recipe, std::initializer_list<std::pair<std::string_view, std::string_view>> keys) {
  for (const auto& [key, value] : keys) set(recipe, key, value);
  return recipe;
}

/// INT8 forward and backward, dP in FP16, in tiles of 32.
Recipe sagebwd() {
  return make_recipe({{"smoothing", "k"},
                      {"qk_format", "int8"},
                      {"granularity", "per_block"},
                      {"p_format", "int8"},
                      {"v_format", "int8"},
                      {"v_granularity", "per_block"},
                      {"p_granularity", "per_token"},
                      {"q_block", "32"},
                      {"q_warp", "32"},
                      {"k_block", "32"},
                      {"k_warp", "32"},
                      {"dv_format", "int8"},
                      {"dp_format", "fp16"},
                      {"dq_format", "int8"},
                      {"dk_format", "int8"}});
}

/// NVFP4 operands, all else exact.
Recipe attn_qat() {
  return make_recipe({{"qk_format", "nvfp4"},
                      {"pv_format", "nvfp4"},
                      {"v_micro_axis", "channels"},
                      {"q_block", "32"},
                      {"q_warp", "32"},
                      {"k_block", "32"},
                      {"k_warp", "32"},
                      {"dv_p_format", "nvfp4"},
                      {"delta_o", "o_prime"}});
}

}  // namespace

TEST_CASE("Without quantization a recipe's gradients are the exact ones, for masks, ragged tiles and any basis") {
  Head head{make_problem(1, 70, 83, 16, true, 2.0), normal_matrix(2, 70, 16)};
  head.problem.causal_align = CausalAlign::bottom_right;
  head.problem.mask = normal_matrix(3, 70, 83);
  const Recipe f64 = make_recipe({{"softmax", "f64"}, {"o_format", "fp64"}, {"tiling", "sm90"}});
  const Distances exact = from_exact(head, f64);
  CHECK(exact.o < 1e-14);
  CHECK(exact.dq < 1e-13);
  CHECK(exact.dk < 1e-13);
  CHECK(exact.dv < 1e-14);
  // Means, rotations and factors are f32.
  for (const auto& [key, value] :
       {std::pair("smoothing", "k"), std::pair("smoothing", "qk"), std::pair("smooth_v", "true"),
        std::pair("rotation", "hadamard"), std::pair("balance", "smoothquant")}) {
    CAPTURE(key, value);
    const Distances d = from_exact(head, changed(f64, {{key, value}}));
    CHECK(d.o < 2e-6);
    CHECK(d.dq < 2e-6);
    CHECK(d.dk < 2e-6);
    CHECK(d.dv < 2e-6);
  }
  const Distances f32 = from_exact(head, make_recipe({{"tiling", "sm89"}}));
  CHECK(f32.dq < 2e-6);
  CHECK(f32.dk < 2e-6);
  CHECK(f32.dq > 1e-9);
}

TEST_CASE("A group's dK and dV are the sums over its query heads, rounded once") {
  std::vector<Problem> heads = {make_problem(41, 40, 48, 16), make_problem(42, 40, 48, 16)};
  heads[1].k = heads[0].k;
  heads[1].v = heads[0].v;
  const std::vector<MatrixD> upstream = {normal_matrix(43, 40, 16), normal_matrix(44, 40, 16)};
  const Recipe recipe = changed(sagebwd(), {{"o_format", "fp64"}});
  const Gradients both = recipe_gradients(heads, upstream, recipe, format::kFP16);
  MatrixD dk = MatrixD::Zero(48, 16), dv = MatrixD::Zero(48, 16);
  for (std::size_t h = 0; h < 2; ++h) {
    const Gradients one = recipe_gradients({&heads[h], 1}, {&upstream[h], 1}, recipe, format::kFP16);
    CHECK(one.dq.front() == both.dq[h]);
    CHECK(one.o.front() == run_recipe(heads[h], recipe, format::kFP16).o);
    dk += one.dk;
    dv += one.dv;
  }
  CHECK(both.dk == dk);
  CHECK(both.dv == dv);
  const Gradients narrow = recipe_gradients(heads, upstream, changed(recipe, {{"o_format", "bf16"}}), format::kFP16);
  CHECK(narrow.dv == dv.unaryExpr([](double x) { return rounded(format::kBF16, x); }));
}

TEST_CASE("The heads of a group may have recipes of their own, and one output format") {
  std::vector<Problem> heads = {make_problem(45, 40, 48, 16), make_problem(46, 40, 48, 16)};
  heads[1].k = heads[0].k;
  heads[1].v = heads[0].v;
  const std::vector<MatrixD> upstream = {normal_matrix(47, 40, 16), normal_matrix(48, 40, 16)};
  const Recipe quantized = changed(sagebwd(), {{"o_format", "fp64"}});
  const Recipe f64 = make_recipe({{"softmax", "f64"}, {"o_format", "fp64"}, {"tiling", "sm89"}});
  const std::vector<const Recipe*> recipes = {&quantized, &f64};
  const Gradients mixed = recipe_gradients(heads, upstream, recipes, format::kFP16);
  MatrixD dk = MatrixD::Zero(48, 16), dv = MatrixD::Zero(48, 16);
  for (std::size_t h = 0; h < 2; ++h) {
    const Gradients one = recipe_gradients({&heads[h], 1}, {&upstream[h], 1}, *recipes[h], format::kFP16);
    CHECK(one.o.front() == mixed.o[h]);
    CHECK(one.dq.front() == mixed.dq[h]);
    dk += one.dk;
    dv += one.dv;
  }
  CHECK(mixed.dk == dk);
  CHECK(mixed.dv == dv);
  const Recipe narrow = changed(f64, {{"o_format", "bf16"}});
  const std::vector<const Recipe*> unlike = {&quantized, &narrow};
  CHECK_THROWS_AS(recipe_gradients(heads, upstream, unlike, format::kFP16), Error);
  CHECK_THROWS_AS(recipe_gradients(heads, upstream, std::span(recipes).first(1), format::kFP16), Error);
}

TEST_CASE("Each of the seven products has a format of its own, and reaches the outputs that it must") {
  const Head head = make_head(51, 1.0);
  const Gradients base = head.recipe(sagebwd());
  struct Change {
    std::string_view key;
    std::string_view value;
    bool o, dq, dk, dv;
  };
  const Change changes[] = {
      {"qk_format", "fp16", true, true, true, true},           {"pv_format", "fp16", true, true, true, false},
      {"backward_qk_format", "fp16", false, true, true, true}, {"dv_format", "fp16", false, false, false, true},
      {"dp_format", "int8", false, true, true, false},         {"dq_format", "fp16", false, true, false, false},
      {"dk_format", "fp16", false, false, true, false}};
  for (const Change& change : changes) {
    for (const std::string_view value : {change.value, std::string_view("e4m3")}) {
      CAPTURE(change.key, value);
      const Gradients g = head.recipe(changed(sagebwd(), {{change.key, value}}));
      CHECK((g.o.front() != base.o.front()) == change.o);
      CHECK((g.dq.front() != base.dq.front()) == change.dq);
      CHECK((g.dk != base.dk) == change.dk);
      CHECK((g.dv != base.dv) == change.dv);
      CHECK(from_exact(head, changed(sagebwd(), {{change.key, value}})).dq < 0.2);
    }
  }
}

TEST_CASE("SageBwd: dP is the product that INT8 spoils, and smoothing K is what a biased K needs") {
  const Head head = make_head(61, 3.0);
  const Distances kept = from_exact(head, sagebwd());
  const Distances spoiled = from_exact(head, changed(sagebwd(), {{"dp_format", "int8"}, {"dp_v_format", "int8"}}));
  CHECK(spoiled.dv == kept.dv);
  CHECK(spoiled.dq > 1.02 * kept.dq);
  const Head biased{make_problem(62, 96, 96, 16, false, 4.0), normal_matrix(63, 96, 16)};
  const Distances smoothed = from_exact(biased, sagebwd());
  const Distances plain = from_exact(biased, changed(sagebwd(), {{"smoothing", "none"}}));
  CHECK(plain.dq > 2 * smoothed.dq);
  CHECK(plain.dk > 1.2 * smoothed.dk);
}

TEST_CASE("SageBwd: rows of dS sum to zero, so K's mean adds next to nothing to dQ, and Q's mean is owed to dK") {
  const Head biased{make_problem(71, 96, 96, 16, false, 4.0), normal_matrix(72, 96, 16)};
  const Recipe exact_sums = make_recipe({{"smoothing", "k"}, {"tiling", "sm89"}});
  const Gradients with = biased.recipe(changed(exact_sums, {{"backward_k_mean", "true"}}));
  const Gradients without = biased.recipe(exact_sums);
  CHECK(with.dq.front() != without.dq.front());
  CHECK(relative_l2(with.dq.front(), without.dq.front()) < 1e-5);
  Head head = biased;
  head.problem.q.rowwise() += Eigen::RowVectorXd::LinSpaced(16, -3.0, 3.0);
  const Recipe smoothed = changed(sagebwd(), {{"smoothing", "qk"}});
  CHECK(from_exact(head, smoothed).dk < 0.1);
  CHECK(from_exact(head, changed(smoothed, {{"backward_q_mean", "false"}})).dk > 0.5);
}

TEST_CASE("Attn-QAT: rowsum(P dP) = dO O' holds with O' and breaks without it") {
  Head head = make_head(81, 1.0);
  // A channel of ones turns dQ there into the row sums of dS, which are rowsum(P dP) - dO O.
  head.problem.k.col(3).setOnes();
  const Recipe recipe = changed(attn_qat(), {{"dq_k_format", "original"}});
  const auto broken_by = [&](const Recipe& r) {
    const Gradients g = head.recipe(r);
    return g.dq.front().col(3).norm() / g.dq.front().norm() * std::sqrt(16.0);
  };
  CHECK(broken_by(recipe) < 1e-5);
  CHECK(broken_by(changed(recipe, {{"delta_o", "o"}})) > 0.02);
}

TEST_CASE("Attn-QAT: a backward pass that does not match the forward pass explodes with the scores") {
  const std::initializer_list<std::pair<std::string_view, std::string_view>> naive = {
      {"backward_qk_format", "original"},
      {"dp_v_format", "original"},
      {"dq_k_format", "original"},
      {"dk_q_format", "original"},
      {"delta_o", "o"}};
  const Head calm = make_head(91, 1.0), wild = make_head(92, 6.0);
  CHECK(from_exact(calm, attn_qat()).dq < 0.4);
  CHECK(from_exact(calm, changed(attn_qat(), naive)).dq < 0.4);
  CHECK(from_exact(wild, attn_qat()).dq < 3.0);
  CHECK(from_exact(wild, changed(attn_qat(), naive)).dq > 1000.0);
}

TEST_CASE("Attn-QAT: the P of dV is quantized again, the P of dS is not") {
  const Head head = make_head(95, 1.0);
  const Gradients quantized = head.recipe(attn_qat());
  const Gradients unquantized = head.recipe(changed(attn_qat(), {{"dv_p_format", "exact"}}));
  CHECK(quantized.dq.front() == unquantized.dq.front());
  CHECK(quantized.dk == unquantized.dk);
  CHECK(relative_l2(quantized.dv, unquantized.dv) > 0.02);
}

TEST_CASE("A caller's rounding mode does not reach the gradients") {
  const Head head = make_head(97, 1.0, true, 40);
  const Gradients expected = head.recipe(sagebwd()), exact = head.exact();
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  const Gradients again = head.recipe(sagebwd()), exact_again = head.exact();
  std::fesetround(before);
  CHECK(again.dk == expected.dk);
  CHECK(again.dq.front() == expected.dq.front());
  CHECK(exact_again.dk == exact.dk);
}
