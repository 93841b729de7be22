// nan_origin: the first stage that makes a NaN or Inf, and why.
#include <cmath>

#include "apps/kernel_dump.h"
#include "lab/nan_origin.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;

namespace {

attention::Problem problem_of(std::int64_t queries = 40, std::int64_t keys = 80) {
  return testing::problem_of(testing::plain_heads(1, queries, keys, 16).front());
}

std::optional<lab::NanOrigin> origin(const attention::Problem& problem, const std::string& recipe,
                                     const std::vector<lab::Override>& changes = {}, std::int64_t first_row = 0,
                                     std::int64_t first_key = 0) {
  return lab::nan_origin({problem, first_row, first_key}, lab::with_overrides(lab::load_recipe(recipe), changes),
                         format::kFP16);
}

/// A head of which the kernel returned `o`, under a recipe that is finite.
lab::CheckedHead head_of(const attention::Problem& problem, const MatrixD& o) {
  lab::CheckedHead head;
  head.parts.push_back({problem, 0, 0});
  head.codes = make_tensor(format::kFP16, {o.rows(), o.cols()});
  head.o = o;
  const attention::Output exact = attention::reference_attention(problem);
  head.reference = exact.o;
  head.emulated = exact.o;
  head.lse.reference = exact.lse;
  return head;
}

}  // namespace

TEST_CASE("a finite head has no origin, a NaN in the input is its own") {
  attention::Problem problem = problem_of();
  CHECK_FALSE(origin(problem, "sage2-8b"));
  problem.k(7, 3) = std::nan("");
  const auto found = origin(problem, "sage2-8b");
  REQUIRE(found);
  CHECK(found->stage == "input");
  CHECK(found->detail == "input k[token 7, channel 3] is NaN");
}

TEST_CASE("a channel of zeros in V whose scale is propagated") {
  attention::Problem problem = problem_of();
  problem.v.col(5).setZero();
  CHECK_FALSE(origin(problem, "sage2-8b"));
  const auto found = origin(problem, "sage2-8b", {{"zero_scale", "propagate"}});
  REQUIRE(found);
  CHECK(found->stage == "scale of V");
  CHECK(found->cause == "zero scale");
  CHECK(found->channel == 5);
}

TEST_CASE("an FP16 accumulator of P V that overflows names the keys and the partial sum before them") {
  attention::Problem problem = problem_of();
  problem.q.setZero();
  problem.v.setConstant(4000);
  const auto found = origin(problem, "sage1-B");
  REQUIRE(found);
  CHECK(found->stage == "P V");
  CHECK(found->cause == "FP16 overflow");
  CHECK(found->row == 0);
  // All weights are 1: 16 keys give 64000, and 65504 is the largest number.
  CHECK(contains(found->detail, "the partial sum is 64000 before keys 16 to "));
}

TEST_CASE("scores beyond FP32, a cast that overflows, and an output that its format cannot hold") {
  attention::Problem problem = problem_of();
  problem.q *= 1e20;
  problem.k *= 1e20;
  const auto cast = origin(problem, "fa2-fp16");
  REQUIRE(cast);
  CHECK(cast->stage == "operand Q");
  attention::Recipe plain;
  plain.name = "plain";
  const auto scores = lab::nan_origin({problem, 0, 0}, plain, format::kFP32);
  REQUIRE(scores);
  CHECK(scores->stage == "scores");
  CHECK(scores->cause == "Inf - Inf");
  problem = problem_of();
  problem.v.setConstant(1e5);
  const auto output = origin(problem, "exact", {{"o_format", "fp16"}});
  REQUIRE(output);
  CHECK(output->stage == "output");
  CHECK(contains(output->detail, "65504"));
}

TEST_CASE("in a packed sequence tokens, rows and keys are the call's") {
  attention::Problem problem = problem_of();
  problem.q(2, 1) = std::nan("");
  problem.k(7, 3) = std::nan("");
  const auto input = origin(problem, "sage2-8b", {}, 100, 300);
  REQUIRE(input);
  CHECK(input->detail == "input q[token 102, channel 1] is NaN, k[token 307, channel 3] is NaN");
  CHECK(input->row == 102);
  problem = problem_of();
  problem.v.row(3) *= 1e20;
  const auto cast = origin(problem, "fa2-fp16", {}, 100, 300);
  REQUIRE(cast);
  CHECK(contains(cast->detail, "V[token 303, channel 0] is Inf once it is stored"));
  problem = problem_of();
  problem.q.setZero();
  problem.v.setConstant(4000);
  const auto product = origin(problem, "sage1-B", {}, 100, 300);
  REQUIRE(product);
  CHECK(product->row == 100);
  CHECK(contains(product->detail, "in row 100, channel 0: the partial sum is 64000 before keys 316 to "));
  attention::Recipe plain;
  plain.name = "plain";
  problem = problem_of();
  problem.q *= 1e20;
  problem.k *= 1e20;
  const auto scores = lab::nan_origin({problem, 100, 300}, plain, format::kFP32);
  REQUIRE(scores);
  CHECK(contains(scores->detail, "the score of row 100 and key 300 is"));
  problem = problem_of();
  problem.v.setConstant(1e5);
  const auto output = origin(problem, "exact", {{"o_format", "fp16"}}, 100, 300);
  REQUIRE(output);
  CHECK(contains(output->detail, "o[row 100, channel 0] is beyond"));
}

TEST_CASE("where the recipe is finite the pattern tells: rows without keys, a zero channel, something else") {
  attention::Problem problem = problem_of(90, 40);
  problem.is_causal = true;
  problem.causal_align = attention::CausalAlign::bottom_right;
  MatrixD o = attention::reference_attention(problem).o;
  o.topRows(50).setConstant(std::nan(""));
  std::string name;
  const std::string masked =
      lab::explain_nonfinite(head_of(problem, o), lab::load_recipe("sage2-8b"), format::kFP16, name);
  CHECK(name == "masked row");
  CHECK(contains(masked, "rows 0 to 49 see no key"));

  problem = problem_of();
  problem.v.col(5).setZero();
  o = attention::reference_attention(problem).o;
  o.col(5).setConstant(std::nan(""));
  const std::string channel =
      lab::explain_nonfinite(head_of(problem, o), lab::load_recipe("sage2-8b"), format::kFP16, name);
  CHECK(name == "zero scale");
  CHECK(contains(channel, "zero_scale = propagate"));

  name.clear();
  o.col(5).setZero();
  o(7, 2) = std::nan("");
  const std::string single =
      lab::explain_nonfinite(head_of(problem, o), lab::load_recipe("sage2-8b"), format::kFP16, name);
  CHECK(name.empty());
  CHECK(contains(single,
                 "is finite on these inputs, so its arithmetic is not the cause; it stands in row 7 and channel 2"));
}
