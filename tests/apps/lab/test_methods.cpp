// Every recipe that comes with the program: no two give the same output, and each shows its method's own idea, which is
// taken out to see what it was worth.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/bound.h"
#include "attention/gradient.h"
#include "attention/pipeline.h"
#include "attention/reference.h"
#include "base/error.h"
#include "heads.h"
#include "lab/dump_set.h"
#include "lab/exceptions.h"
#include "lab/plan.h"
#include "lab/recipe_file.h"
#include "lab/runner.h"
#include "support/catch.h"

using namespace qattn;
using attention::Problem;
using attention::Recipe;
using attention::testing::make_problem;
using attention::testing::normal;
using attention::testing::normal_matrix;

namespace {

bool same_bits(const MatrixD& a, const MatrixD& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), sizeof(double) * static_cast<std::size_t>(a.size())) == 0;
}

MatrixD output(const Problem& problem, const Recipe& recipe) {
  return attention::run_recipe(problem, recipe, format::kFP16).o;
}

double relative_l1(const MatrixD& o, const MatrixD& r) {
  double difference = 0.0, total = 0.0;
  for (Eigen::Index i = 0; i < o.size(); ++i) {
    difference += std::abs(o.data()[i] - r.data()[i]);
    total += std::abs(r.data()[i]);
  }
  return difference / total;
}

double error_of(const Problem& problem, const Recipe& recipe) {
  return relative_l1(output(problem, recipe), attention::reference_attention(problem).o);
}

/// The recipe of this name, with keys changed; O in FP32, so that its rounding hides nothing.
Recipe recipe_of(std::string_view name, const std::vector<lab::Override>& changes = {}) {
  Recipe recipe = lab::with_overrides(lab::load_recipe(name), {{"o_format", "fp32"}});
  return lab::with_overrides(recipe, changes);
}

double error_of(const Problem& problem, std::string_view name, const std::vector<lab::Override>& changes = {}) {
  return error_of(problem, recipe_of(name, changes));
}

/// The first `tokens` of the language model's head, with the other heads of its group.
Problem language_head(std::int64_t tokens) {
  lab::DumpSelection selection;
  selection.inputs = {std::string(QATTN_SOURCE_DIR) + "/data/real/smollm2_1.h5"};
  selection.calls = "layer_12";
  const lab::DumpSet dumps(selection);
  Problem problem = dumps.read(dumps.calls().front(), 0, 4, true).front().problem;
  for (MatrixD* x : {&problem.q, &problem.k, &problem.v}) *x = MatrixD(x->topRows(tokens));
  for (MatrixD& q : problem.group_q) q = MatrixD(q.topRows(tokens));
  return problem;
}

/// o, and behind it what the backward pass gives.
MatrixD everything(const Problem& problem, const Recipe& recipe) {
  const std::vector<Problem> heads = {problem};
  const std::vector<MatrixD> upstream = {normal_matrix(77, problem.q.rows(), problem.v.cols())};
  const attention::Gradients g = attention::recipe_gradients(heads, upstream, recipe, format::kFP16);
  MatrixD all(problem.q.rows() * 2 + problem.k.rows() * 2, problem.q.cols());
  all << g.o.front(), g.dq.front(), g.dk, g.dv;
  return all;
}

/// K, Q and V whose channels are biased, as in a video model.
Problem biased_problem(std::uint64_t seed, double q_bias, double k_bias, double v_bias, std::int64_t tokens = 256) {
  Problem problem = make_problem(seed, tokens, tokens, 64, false, k_bias);
  problem.q = normal_matrix(seed, tokens, 64, 1.0, q_bias);
  problem.v = normal_matrix(seed + 2000, tokens, 64, 1.0, v_bias);
  return problem;
}

/// A row of Q and one of K that are `factor` times as large as the others.
Problem outlier_problem(std::uint64_t seed, double factor, std::int64_t tokens = 256) {
  Problem problem = make_problem(seed, tokens, tokens, 64);
  problem.q.row(3) *= factor;
  problem.k.row(5) *= factor;
  return problem;
}

/// One key towers over all others, which together weigh as much.
Problem tower_problem(std::uint64_t seed) {
  Problem problem = make_problem(seed, 16, 2048, 64);
  for (Eigen::Index i = 1; i < 16; ++i) problem.q.row(i) = problem.q.row(0);
  problem.k.row(0) = 75.0 / problem.q.row(0).squaredNorm() * problem.q.row(0);  // a weight of e^9 beside others of 1
  return problem;
}

}  // namespace

TEST_CASE("No two recipes give the same output on the language model unless one is declared an alias") {
  const Problem problem = language_head(330);
  const std::vector<Recipe> recipes = lab::load_all_recipes();
  CHECK(recipes.size() >= 30);
  std::vector<MatrixD> outputs;
  for (const Recipe& recipe : recipes) outputs.push_back(output(problem, recipe));
  const auto target_of = [&](const Recipe& recipe) { return recipe.alias_of.empty() ? recipe.name : recipe.alias_of; };
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    CAPTURE(recipes[i].name);
    CHECK(outputs[i].allFinite());
    for (std::size_t j = 0; j < i; ++j) {
      CAPTURE(recipes[j].name);
      const bool alias = target_of(recipes[i]) == target_of(recipes[j]);
      if (!same_bits(outputs[i], outputs[j])) {
        CHECK_FALSE(alias);
      } else if (!alias) {
        // Training recipes that differ in the backward pass alone.
        CHECK_FALSE(same_bits(everything(problem, recipes[i]), everything(problem, recipes[j])));
      }
    }
  }
}

TEST_CASE("SageAttention: smoothing K, finer groups, and a static scale of INT8 P") {
  const Problem biased = biased_problem(1, 0.0, 6.0, 0.0);
  for (const char* name : {"sage1-T", "sage1-B", "sage1-vT", "sage1-vB"}) {
    CAPTURE(name);
    CHECK(error_of(biased, name) < 0.5 * error_of(biased, name, {{"smoothing", "none"}}));
  }
  const Problem outlier = outlier_problem(2, 8.0);
  CHECK(error_of(outlier, "sage1-T") < 0.5 * error_of(outlier, "sage1-B"));
  CHECK(error_of(outlier, "sage1-vT") > 2.0 * error_of(outlier, "sage1-T"));  // INT8 P costs what Table 2 says
  CHECK(same_bits(output(biased, recipe_of("sage1-vB")), output(biased, recipe_of("sage1-vB", {{"p_scale", "127"}}))));
  CHECK(error_of(biased, "sage1-vB") < error_of(biased, "sage1-vB", {{"p_scale", "64"}}));
}

TEST_CASE("SageAttention: the softmax scale in Q changes no INT8 code but for one rounding") {
  Problem problem = make_problem(3, 100, 100, 64);
  const auto with = [&](const char* place) { return output(problem, recipe_of("sage1-B", {{"scale_place", place}})); };
  CHECK(same_bits(with("q"), with("logits")));  // 1/8 is exact
  problem.sm_scale = 0.11;
  CHECK_FALSE(same_bits(with("q"), with("logits")));
  CHECK(relative_l1(with("q"), with("logits")) < 1e-2);
}

TEST_CASE("SageAttention2: smoothing Q, per-thread groups, V's channels, the second accumulator level") {
  const Problem biased = biased_problem(4, 4.0, 4.0, 0.0);
  CHECK(error_of(biased, "sage2-4b") < 0.6 * error_of(biased, "sage2-4b", {{"smoothing", "k"}}));
  Problem rows = make_problem(5, 256, 256, 64);
  for (Eigen::Index i = 0; i < 256; ++i) {
    rows.q.row(i) *= 1.0 + static_cast<double>(i % 8);  // what one thread holds has one size
    rows.k.row(i) *= 0.25 * (1.0 + static_cast<double>(i % 8 / 2));
  }
  for (const char* name : {"sage2-4b", "sage2-4b-sm90", "sage2-8b-sm89", "sage2-8b"}) {
    CAPTURE(name);
    CHECK(error_of(rows, name) < 0.9 * error_of(rows, name, {{"granularity", "per_warp"}}));
  }
  const Problem channels = biased_problem(6, 0.0, 0.0, 8.0);
  CHECK(error_of(channels, "sage2-8b-smooth-v") < 0.5 * error_of(channels, "sage2-8b-sm89"));
  const Problem longer = make_problem(7, 64, 2048, 64);
  const auto accumulator_error = [&](const char* name) {
    const Recipe recipe = recipe_of(name);
    return relative_l1(output(longer, recipe), output(longer, attention::with_exact_accumulators(recipe)));
  };
  CHECK(accumulator_error("sage2-8b-fp22") > 2.0 * accumulator_error("sage2-8b-sm89"));
}

TEST_CASE("SageAttention2: P times 448 keeps weights that a scale of 1 loses") {
  const Problem problem = tower_problem(8);
  const std::vector<lab::Override> p_alone = {{"v_format", "exact"}, {"accumulator", "exact"}};
  std::vector<lab::Override> unscaled = p_alone;
  unscaled.emplace_back("p_scale", "1");
  CHECK(error_of(problem, "sage2-8b-sm89", p_alone) < 0.5 * error_of(problem, "sage2-8b-sm89", unscaled));
  CHECK_FALSE(same_bits(output(problem, recipe_of("sage2-8b-p256")), output(problem, recipe_of("sage2-8b-sm89"))));
}

TEST_CASE("SageAttention2++: V's smaller range keeps the FP16 accumulator finite") {
  Problem problem = make_problem(9, 64, 256, 64);
  problem.q.setZero();
  problem.v.setConstant(1.0);  // every P is the largest code, every V too
  for (const char* name : {"sage2pp-448", "sage2pp-224", "sage2pp-112"}) {
    CAPTURE(name);
    CHECK(error_of(problem, name) < 1e-2);
    CHECK_FALSE(output(problem, recipe_of(name, {{"v_range", "auto"}})).allFinite());
  }
}

TEST_CASE("SageAttention3: the second level of P, smoothing, NVFP4 against MXFP4, and the block-scaled accumulator") {
  const Problem tower = tower_problem(10);
  CHECK(error_of(tower, "sage3-nvfp4") < 0.8 * error_of(tower, "sage3-nvfp4-direct"));
  CHECK(error_of(tower, "sage3-nvfp4-running") < 0.8 * error_of(tower, "sage3-nvfp4-direct"));
  const Problem problem = make_problem(10, 256, 256, 64);
  CHECK(error_of(problem, "sage3-nvfp4") < error_of(problem, "sage3-mxfp4"));
  CHECK(error_of(problem, "sage3-mxfp8") < 0.5 * error_of(problem, "sage3-mxfp4"));
  const Problem biased = biased_problem(11, 3.0, 3.0, 0.0);
  CHECK(error_of(biased, "sage3-nvfp4") < 0.8 * error_of(biased, "sage3-nvfp4", {{"smoothing", "none"}}));
  Problem wide = problem;  // values of many sizes: f32 does not hold their sums
  for (Eigen::Index i = 0; i < 256; ++i) wide.v.row(i) *= std::ldexp(1.0, 3 * static_cast<int>(i / 16 % 8) - 12);
  for (const char* name : {"sage3-nvfp4", "sage3-mxfp4", "sage3-mxfp8"}) {
    CAPTURE(name);
    const Recipe recipe = recipe_of(name);
    const double accumulator =
        relative_l1(output(wide, recipe), output(wide, attention::with_exact_accumulators(recipe)));
    CHECK(accumulator > 0.0);
    CHECK(accumulator < 1e-5);
  }
}

TEST_CASE("NVFP4's global scale reaches what E4M3 block scales cannot") {
  Problem problem = make_problem(12, 128, 128, 64);
  problem.v *= 1e-4;  // block scales below E4M3's smallest
  CHECK(error_of(problem, "fp4-nvfp4") > 2.0 * error_of(problem, "fp4-nvfp4-global"));
}

TEST_CASE("FlashAttention-3 FP8: one scale for the query heads of a KV head") {
  Problem problem = make_problem(13, 60, 200, 64);
  const MatrixD alone = output(problem, recipe_of("fa3-fp8"));
  problem.group_q = {normal_matrix(99, 60, 64, 5.0)};
  const MatrixD grouped = output(problem, recipe_of("fa3-fp8"));
  CHECK_FALSE(same_bits(grouped, alone));
  CHECK(same_bits(output(problem, recipe_of("fa3-fp8", {{"query_heads", "one"}})), alone));
  // The other head's queries behind one's own have the same effect.
  Problem stacked = problem;
  stacked.group_q.clear();
  stacked.q.resize(120, 64);
  stacked.q << problem.q, problem.group_q.front();
  CHECK(same_bits(output(stacked, recipe_of("fa3-fp8")).topRows(60), grouped));
}

TEST_CASE("FlashAttention-3 FP8: block scales confine an outlier, the rotation spreads one") {
  Problem problem = outlier_problem(14, 12.0, 512);
  problem.v.row(400) *= 12.0;
  CHECK(error_of(problem, "fa3-fp8-block") < 0.9 * error_of(problem, "fa3-fp8", {{"query_heads", "one"}}));
  Problem channel = make_problem(15, 256, 256, 64);
  channel.k.col(7) *= 12.0;  // E4M3's own exponents bear such a channel; INT4 shows what the rotation does
  channel.q.col(7) *= 0.05;
  CHECK(error_of(channel, "hadamard-int4") < 0.8 * error_of(channel, "hadamard-int4", {{"rotation", "none"}}));
  for (const char* name : {"fa3-fp8-hadamard", "fa3-fp8-paper", "hadamard-int8", "hadamard-fp4"}) {
    CAPTURE(name);
    CHECK_FALSE(same_bits(output(channel, recipe_of(name)), output(channel, recipe_of(name, {{"rotation", "none"}}))));
  }
}

TEST_CASE("FlashAttention-3: tiles from the last to the first are ascending tiles of reversed keys") {
  Problem problem = make_problem(16, 64, 4 * 160, 64);
  Problem reversed = problem;
  for (Eigen::Index tile = 0; tile < 4; ++tile) {
    reversed.k.middleRows(160 * tile, 160) = problem.k.middleRows(160 * (3 - tile), 160);
    reversed.v.middleRows(160 * tile, 160) = problem.v.middleRows(160 * (3 - tile), 160);
  }
  const MatrixD descending = output(problem, recipe_of("fa3-fp8"));
  CHECK(same_bits(output(reversed, recipe_of("fa3-fp8", {{"tile_order", "ascending"}})), descending));
  CHECK_FALSE(same_bits(output(problem, recipe_of("fa3-fp8", {{"tile_order", "ascending"}})), descending));
}

TEST_CASE("FlashAttention-4: a maximum that grows by less than the threshold rescales nothing") {
  Problem problem = make_problem(17, 64, 512, 64);
  const std::vector<lab::Override> always = {{"rescale_threshold", "0"}};
  for (const char* name : {"fa4-bf16", "fa4-fp16"}) {
    CAPTURE(name);
    CHECK_FALSE(same_bits(output(problem, recipe_of(name)), output(problem, recipe_of(name, always))));
    CHECK(relative_l1(output(problem, recipe_of(name)), output(problem, recipe_of(name, always))) < 5e-3);
    CHECK_FALSE(same_bits(output(problem, recipe_of(name)), output(problem, recipe_of(name, {{"exp2", "mufu"}}))));
  }
  const Recipe exact = recipe_of("exact", {{"rescale_threshold", "8"}, {"o_format", "fp64"}});
  CHECK(error_of(problem, exact) < 1e-13);
  // INT8 P saturates at the stale maximum: that is why the threshold belongs to 16-bit P.
  CHECK(error_of(problem, "sage1-vB", {{"rescale_threshold", "8"}}) > 2.0 * error_of(problem, "sage1-vB"));
  // Where the first tile visited has the maximum, the threshold has nothing to do.
  problem.k.topRows(384) *= 0.01;
  CHECK(same_bits(output(problem, recipe_of("fa4-bf16")), output(problem, recipe_of("fa4-bf16", always))));
}

TEST_CASE("PyTorch's math backend: 16-bit scores and probabilities, and a scale that Q and K share") {
  const Problem problem = make_problem(18, 64, 1024, 64, false, 1.0);
  const double all = error_of(problem, "sdpa-math-fp16");
  CHECK(all > 1.2 * error_of(problem, "sdpa-math-fp16", {{"s_format", "exact"}}));
  CHECK(all > 1.2 * error_of(problem, "fa2-fp16"));
  CHECK_FALSE(same_bits(output(problem, recipe_of("sdpa-math-fp16")),
                        output(problem, recipe_of("sdpa-math-fp16", {{"scale_place", "logits"}}))));
  // With k_block at its limit the whole row is one tile; a shorter one is refused.
  CHECK_THROWS_AS(output(problem, recipe_of("sdpa-math-fp16", {{"k_block", "512"}})), Error);
}

TEST_CASE("Normalized probabilities underflow in FP8 where unnormalized ones do not") {
  const Problem problem = make_problem(19, 32, 2048, 64);
  const std::vector<lab::Override> unscaled = {{"p_scale", "1"}};
  CHECK(error_of(problem, "fp8-standard", unscaled) >
        3.0 * error_of(problem, "fp8-standard", {{"p_scale", "1"}, {"p_normalized", "false"}}));
}

TEST_CASE("SmoothQuant moves an outlier channel of Q to K") {
  Problem problem = make_problem(20, 256, 256, 64);
  problem.q.col(9) *= 20.0;
  problem.k.col(9) *= 0.1;
  for (const char* name : {"smoothquant-int4", "smoothquant-int8", "smoothquant-fp4"}) {
    CAPTURE(name);
    CHECK(error_of(problem, name) < 0.8 * error_of(problem, name, {{"balance", "none"}}));
  }
  CHECK(error_of(problem, "smoothquant-int4") != error_of(problem, "smoothquant-int4", {{"balance_alpha", "0.8"}}));
}

TEST_CASE("The row maximum before the mask costs FP8 weights their range, and exact ones nothing") {
  Problem problem = make_problem(21, 128, 128, 64, true);
  problem.k.row(127) *= 12.0;  // hidden from all but the last query
  std::vector<lab::Override> keys = {{"v_format", "exact"}, {"accumulator", "exact"}};
  const double after = error_of(problem, "sage2-8b-sm89", keys);
  keys.emplace_back("row_max", "before_mask");
  CHECK(error_of(problem, "sage2-8b-sm89", keys) > 1.5 * after);
  CHECK(error_of(problem, "exact", {{"row_max", "before_mask"}, {"o_format", "fp64"}}) < 1e-12);
}

TEST_CASE("A kernel that aligns the causal mask otherwise is shown to be wrong") {
  Problem problem = make_problem(22, 64, 128, 64, true);
  problem.causal_align = attention::CausalAlign::bottom_right;
  CHECK(error_of(problem, "fa2-fp16", {{"causal_align", "bottom_right"}}) == error_of(problem, "fa2-fp16"));
  CHECK(error_of(problem, "fa2-fp16", {{"causal_align", "top_left"}}) > 0.1);
}

TEST_CASE("The bound of FP16 sums proves what the pipeline shows") {
  using Verdict = attention::SumBound::Verdict;
  Problem constant = make_problem(23, 16, 256, 64);
  constant.q.setZero();
  constant.v.setConstant(1.0);  // every P and every V is its largest code
  struct Case {
    const char* p_scale;
    const char* v_range;
    const char* promotion;
    Verdict verdict;
  };
  for (const auto& [p_scale, v_range, promotion, verdict] :
       {Case{"448", "2.25", "tile", Verdict::cannot_overflow}, Case{"224", "4.5", "tile", Verdict::cannot_overflow},
        Case{"112", "9", "tile", Verdict::cannot_overflow}, Case{"448", "2.5", "tile", Verdict::overflows},
        Case{"448", "4.5", "tile", Verdict::overflows}, Case{"448", "4.5", "1", Verdict::cannot_overflow},
        Case{"448", "auto", "1", Verdict::overflows}, Case{"224", "4.5", "never", Verdict::overflows}}) {
    CAPTURE(p_scale, v_range, promotion);
    const Recipe recipe =
        recipe_of("sage2pp-448", {{"p_scale", p_scale}, {"v_range", v_range}, {"promotion", promotion}});
    const auto bound = attention::pv_bound(recipe, 256);
    REQUIRE(bound);
    CHECK(bound->verdict == verdict);
    CHECK(output(constant, recipe).allFinite() == (verdict == Verdict::cannot_overflow));
  }
  const auto paper = attention::pv_bound(recipe_of("sage2pp-224"), 256);
  CHECK(paper->terms == 64);
  CHECK(paper->largest == 64512.0);  // 64 x 224 x 4.5, SageAttention2++ section 3
  CHECK(attention::provable_keys(recipe_of("sage2pp-224", {{"promotion", "never"}})) == 64);
  CHECK(attention::describe(paper).find("cannot overflow") != std::string::npos);
  CHECK_FALSE(attention::pv_bound(recipe_of("sage2-8b-sm89"), 256));
  // V in FP16 may hold 65504, so nothing is proved for the FP16 accumulator of SageAttention.
  CHECK(attention::pv_bound(recipe_of("sage1-B"), 256)->verdict == Verdict::overflows);
  CHECK(attention::qk_bound(recipe_of("sage1-B"), 128)->largest == 127.0 * 127.0 * 128.0);
  CHECK(attention::qk_bound(recipe_of("sage1-B"), 128)->verdict == Verdict::cannot_overflow);
}

TEST_CASE("SageAttention: FP16 sums of FP16 P and V lose little, and something") {
  const Problem problem = make_problem(31, 128, 1024, 64);
  const auto loss = [&](std::string_view accumulator) {
    const Recipe recipe = recipe_of("sage1-B", {{"accumulator", std::string(accumulator)}});
    return relative_l1(output(problem, recipe), output(problem, attention::with_exact_accumulators(recipe)));
  };
  CHECK(recipe_of("sage1-B").accumulator == "sm80.mma.f16");
  CHECK(loss("sm80.mma.f16") > 100.0 * loss("sm80.mma"));
  CHECK(loss("sm80.mma.f16") < 0.1 * error_of(problem, "sage1-B"));
}

TEST_CASE("SageAttention2: the second level at every interval, the last of which is the tile") {
  const Problem problem = make_problem(32, 64, 2048, 64);
  for (const auto& [name, steps_a_tile] : {std::pair("sage2-8b", "4"), std::pair("sage2-4b", "2")}) {
    CAPTURE(name);
    const auto with = [&, &name = name](const char* promotion) {
      return output(problem, recipe_of(name, {{"promotion", promotion}}));
    };
    const MatrixD exact = output(problem, attention::with_exact_accumulators(recipe_of(name)));
    CHECK(same_bits(with("tile"), with(steps_a_tile)));
    CHECK(same_bits(with("tile"), output(problem, recipe_of(name))));
    double before = 0.0;
    for (const char* promotion : {"1", "2", "4", "16", "64"}) {  // 64 steps of 32 keys are all
      CAPTURE(promotion);
      const double loss = relative_l1(with(promotion), exact);
      CHECK(loss > before);
      before = std::string_view(steps_a_tile) == promotion ? loss : 0.0;
    }
    CHECK(relative_l1(with("never"), exact) > 2.0 * relative_l1(with("tile"), exact));
  }
}

TEST_CASE("SageAttention2: what smoothing Q owes to the scores comes back as a row, in FP32 or FP16") {
  const Problem biased = biased_problem(33, 8.0, 2.0, 0.0);
  const double fp32 = error_of(biased, "sage2-4b"),
               fp16 = error_of(biased, "sage2-4b", {{"correction_format", "fp16"}});
  CHECK(fp16 != fp32);
  CHECK(fp16 < 1.1 * fp32);
  // The row is of K before its quantization; of quantized K it is what an INT4 score would have been.
  CHECK(error_of(biased, "sage2-4b", {{"correction", "quantized_k"}}) > 1.1 * fp32);
}

TEST_CASE("SageAttention2: each card's variant has that card's operands and accumulators") {
  const Problem problem = make_problem(34, 256, 512, 64);
  for (const std::string bits : {"4b", "8b"}) {
    CAPTURE(bits);
    const auto error = [&](const char* card) {
      return error_of(problem, "sage2-" + bits + "-" + card, {{"qk_format", "exact"}});
    };
    CHECK(error("sm80") < 0.1 * error("sm89"));  // FP16 P and V
    const auto accumulator = [&](const char* card, const std::vector<lab::Override>& changes = {}) {
      const Recipe recipe = recipe_of("sage2-" + bits + "-" + card, changes);
      return relative_l1(output(problem, recipe), output(problem, attention::with_exact_accumulators(recipe)));
    };
    CHECK(accumulator("sm80") < 0.1 * accumulator("sm89"));  // f32 sums
    const std::vector<lab::Override> f32_sums = {{"accumulator", "sm120.mma"}};
    CHECK(accumulator("sm120") > 10.0 * accumulator("sm120", f32_sums));  // FP16 sums of two steps
    CHECK_FALSE(same_bits(output(problem, recipe_of("sage2-" + bits + "-sm90")),
                          output(problem, recipe_of("sage2-" + bits + "-sm89"))));
  }
}

TEST_CASE("FlashAttention-2: 16-bit operands under f32 sums") {
  const Problem problem = make_problem(35, 128, 1024, 64);
  const double fp16 = error_of(problem, "fa2-fp16");
  CHECK(error_of(problem, "fa2-bf16") > 4.0 * fp16);  // three bits fewer
  CHECK(error_of(problem, "fa2-fp16", {{"accumulator", "sm80.mma.f16"}}) > 1.5 * fp16);
  CHECK(error_of(problem, "fa2-fp16", {{"p_format", "exact"}}) < 0.2 * fp16);  // P is what is rounded
}

TEST_CASE("FlashAttention-3 FP8: P's offset of 8, and both products in FP22") {
  Problem tower = tower_problem(36);
  tower.k.row(0).swap(tower.k.row(2047));  // the tile that is visited first
  const std::vector<lab::Override> p_alone = {{"v_format", "exact"}, {"accumulator", "exact"}};
  std::vector<lab::Override> without = p_alone;
  without.emplace_back("p_scale", "1");
  CHECK(error_of(tower, "fa3-fp8", p_alone) < 0.5 * error_of(tower, "fa3-fp8", without));
  const Problem problem = make_problem(37, 64, 2048, 128, false, 1.0);
  const MatrixD both = output(problem, recipe_of("fa3-fp8"));
  for (const char* sums : {"qk_accumulator", "accumulator"}) {
    CAPTURE(sums);
    CHECK(relative_l1(both, output(problem, recipe_of("fa3-fp8", {{sums, "f32"}}))) > 1e-4);
  }
}

TEST_CASE("PyTorch's fused backends: one chain of f32 sums over all keys") {
  const Problem problem = make_problem(38, 64, 2048, 64);
  for (const char* name : {"sdpa-efficient", "sdpa-cudnn", "fa3-fp16"}) {
    CAPTURE(name);
    CHECK_FALSE(same_bits(output(problem, recipe_of(name)), output(problem, recipe_of(name, {{"promotion", "tile"}}))));
    CHECK(error_of(problem, name) < 1.1 * error_of(problem, "fa2-fp16"));
    CHECK(error_of(problem, name, {{"p_format", "exact"}}) < 0.2 * error_of(problem, name));
  }
  CHECK_FALSE(same_bits(output(problem, recipe_of("sdpa-efficient")), output(problem, recipe_of("sdpa-cudnn"))));
}

TEST_CASE("Baselines have no smoothing and one scale a tensor, and pay for it") {
  const Problem biased = biased_problem(39, 0.0, 6.0, 0.0);
  for (const char* name : {"int8-tensor", "int8-block", "int8-token", "int4-tensor", "int4-token", "fp8-tensor",
                           "fp8-e5m2", "fp8-token", "fp4-nvfp4", "fp4-mxfp4"}) {
    CAPTURE(name);
    CHECK(error_of(biased, name, {{"smoothing", "k"}}) < 0.8 * error_of(biased, name));
  }
  const Problem outlier = outlier_problem(40, 12.0);
  for (const auto& [coarse, fine] : {std::pair("int8-tensor", "int8-token"), std::pair("int4-tensor", "int4-token")}) {
    CAPTURE(coarse);
    CHECK(error_of(outlier, fine) < 0.7 * error_of(outlier, coarse));
  }
}

TEST_CASE("Attn-QAT: each of Q, K, V and P is fake-quantized in the forward pass") {
  const Problem problem = make_problem(41, 128, 128, 64);
  const double all = error_of(problem, "attn-qat");
  for (const char* operand : {"q_format", "k_format", "v_format", "p_format"}) {
    CAPTURE(operand);
    CHECK(error_of(problem, "attn-qat", {{operand, "exact"}}) < 0.95 * all);
  }
}

TEST_CASE("Any recipe takes FlashAttention-4's polynomial and its threshold, which P of 8 bits must have room for") {
  const Problem problem = language_head(330);
  const MatrixD reference = attention::reference_attention(problem).o;
  for (const Recipe& recipe : lab::load_all_recipes()) {
    CAPTURE(recipe.name);
    const MatrixD plain = output(problem, recipe);
    const double error = relative_l1(plain, reference);
    const MatrixD polynomial = output(problem, lab::with_overrides(recipe, {{"exp2", "fa4-poly"}}));
    CHECK(same_bits(polynomial, plain) == (recipe.exp2 == attention::Exp2::fa4_poly));
    CHECK(relative_l1(polynomial, reference) < 1.02 * error + 1e-4);
    const MatrixD lazy = output(problem, lab::with_overrides(recipe, {{"rescale_threshold", "8"}}));
    const bool whole_rows = recipe.k_block >= problem.k.rows();
    if (whole_rows || recipe.rescale_threshold == 8) CHECK(same_bits(lazy, plain));
    // Weights up to 2^8 saturate where P's scale has made its largest code of 1.
    const bool has_room = !recipe.p.scaled() || attention::resolved_p_scale(recipe) == 1.0;
    const double lazy_error = relative_l1(lazy, reference);
    CHECK(std::isfinite(lazy_error));
    if (has_room) CHECK(lazy_error < 1.1 * error + 1e-4);
    if (!has_room && !whole_rows) CHECK(lazy_error > 1.1 * error);
  }
  // Room: 256 P in place of 448 P_max.
  const auto lazy = [&](const char* p_scale) {
    return error_of(problem, "sage2-8b", {{"rescale_threshold", "8"}, {"p_scale", p_scale}});
  };
  CHECK(lazy("1.75") < 0.5 * lazy("448"));
}

TEST_CASE("Exceptions run their heads under the other recipe, and no others") {
  lab::DumpSelection selection;
  selection.inputs = {std::string(QATTN_SOURCE_DIR) + "/data/real/kwt1_qkv.h5"};
  selection.calls = "layer_0[34]";
  const lab::DumpSet dumps(selection);
  const std::vector<lab::Trial> trials = {{recipe_of("sage2-4b")},
                                          {recipe_of("fa2-fp16")},
                                          {recipe_of("sage2-4b", {{"exceptions", "layer_04$ heads 0:1"}})},
                                          {recipe_of("sage2-4b", {{"exceptions", "^layer_03$; ^nothing"}})}};
  const lab::RunResult result = lab::run_trials(dumps, trials, {});
  std::size_t excepted = 0;
  for (std::size_t i = 0; i + 3 < result.rows.size(); i += 4) {
    const lab::Json& head = result.rows[i].at("head");
    if (head.is_null()) continue;
    const std::string call = result.rows[i].at("call");
    const bool first = call == "layer_04" && head == 0, second = call == "layer_03";
    CHECK(result.rows[i + 2].at("rel_l1") == result.rows[first ? i + 1 : i].at("rel_l1"));
    CHECK(result.rows[i + 3].at("rel_l1") == result.rows[second ? i + 1 : i].at("rel_l1"));
    CHECK(result.rows[i + 2].at("exception").is_null() != first);
    excepted += first || second ? 1 : 0;
  }
  CHECK(excepted > 1);
  for (const char* bad : {"layer_(", "layer heads x:y"}) {
    const std::vector<lab::Trial> wrong = {{recipe_of("sage2-4b", {{"exceptions", bad}})}};
    CHECK_THROWS_AS(lab::run_trials(dumps, wrong, {}), Error);
  }
}

TEST_CASE("A plan gives the safe recipe to the layers that need it") {
  lab::DumpSelection selection;
  selection.inputs = {std::string(QATTN_SOURCE_DIR) + "/data/real/kwt1_qkv.h5"};
  selection.heads = lab::HeadRange{0, 1};
  const lab::DumpSet dumps(selection);
  const std::vector<lab::Trial> trials = {{recipe_of("sage2-4b")}, {recipe_of("fa2-fp16")}};
  const lab::RunResult result = lab::run_trials(dumps, trials, {});
  const std::vector<lab::Json> first = lab::call_rows(result, 0, 2), second = lab::call_rows(result, 1, 2);
  REQUIRE(first.size() == dumps.calls().size());
  std::vector<lab::PlannedLayer> layers = lab::layers_of(dumps, "");
  REQUIRE(layers.size() == first.size());
  std::vector<double> cosines;
  for (const lab::Json& row : first) cosines.push_back(row.at("cos_sim"));
  std::sort(cosines.begin(), cosines.end());
  const double threshold = cosines[cosines.size() / 2];
  lab::plan_by_threshold(layers, first, threshold);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    CHECK(layers[i].second == !(first[i].at("cos_sim").get<double>() > threshold));
  }
  lab::plan_by_budget(layers, first, lab::Sensitivity::cos_sim, 2);
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    CHECK(layers[i].second == (first[i].at("cos_sim").get<double>() <= cosines[1]));
    if (layers[i].second) kept.push_back(layers[i].name);
  }
  // What the plan says is what the exceptions that it prints give.
  const lab::Trial same{recipe_of("sage2-4b", {{"exceptions", lab::exceptions_text(kept)}})};
  const lab::RunResult run = lab::run_trials(dumps, std::vector<lab::Trial>{same}, {});
  const std::vector<lab::Json> planned = lab::planned_rows(layers, first, second);
  CHECK(lab::planned_summary(dumps, planned).rel_l1 == run.summaries.front().rel_l1);
  CHECK(lab::layers_of(dumps, "layer").size() == 1);
}
