// resemblances: a recipe with one thing changed is recognised by what it returns.
#include "apps/kernel_dump.h"
#include "attention/pipeline.h"
#include "lab/explain.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;

namespace {

/// What `returned` gives for a head, looked at under `described`.
std::vector<lab::Resemblance> look(const attention::Problem& problem, const attention::Problem& returned_problem,
                                   const attention::Recipe& returned, const attention::Recipe& described) {
  lab::CheckedHead head;
  head.parts.push_back({problem, 0, 0});
  head.o = attention::run_recipe(returned_problem, returned, format::kFP16).o;
  head.reference = attention::reference_attention(problem).o;
  return lab::resemblances(head, described, format::kFP16, 1);
}

attention::Problem problem_of(std::int64_t queries, std::int64_t keys) {
  return testing::problem_of(testing::plain_heads(1, queries, keys, 32).front());
}

}  // namespace

TEST_CASE("one changed key is found, with all elements equal") {
  const attention::Recipe base = lab::with_overrides(lab::load_recipe("sage2-8b"), {{"o_format", "fp16"}});
  const attention::Problem problem = problem_of(150, 280);
  const std::tuple<const char*, const char*, const char*> changes[] = {
      {"granularity", "per_block", "per-block scales"},
      {"row_sum", "rounded", "a row sum taken from rounded P"},
      {"promotion", "never", "an FP22 accumulator without promotion"},
      {"p_scale", "256", "P scaled by 256"},
      {"smoothing", "none", "without smoothing"}};
  for (const auto& [key, value, words] : changes) {
    CAPTURE(key, value);
    attention::Recipe changed = base;
    attention::set(changed, key, value);
    const std::vector<lab::Resemblance> found = look(problem, problem, changed, base);
    CHECK(found.front().key == key);
    CHECK(found.front().value == value);
    CHECK(found.front().equal == 1);
    CHECK(found.front().distance == 0);
    CHECK(contains(lab::resemblance_text(found, base), words));
  }
}

TEST_CASE("another mask is found, and the recipe itself when it is the right one") {
  const attention::Recipe base = lab::with_overrides(lab::load_recipe("fa2-fp16"), {{"k_block", "64"}});
  attention::Problem problem = problem_of(300, 420), other;
  problem.is_causal = true;
  problem.causal_align = attention::CausalAlign::bottom_right;
  other = problem;
  other.causal_align = attention::CausalAlign::top_left;
  const std::vector<lab::Resemblance> found = look(problem, other, base, base);
  CHECK(contains(lab::resemblance_text(found, base), "looks like a top-left causal mask"));
  CHECK(found.front().equal == 1);
  const std::vector<lab::Resemblance> same = look(problem, problem, base, base);
  CHECK(same.front().key.empty());
  CHECK(same.front().equal == 1);
  CHECK(contains(lab::resemblance_text(same, base), "no single change"));
}

TEST_CASE("every key of recipes is changed by some trial or declared untried with a reason") {
  const std::set<std::string> tried = lab::tried_keys();
  std::set<std::string> untried;
  for (const lab::UntriedKey& key : lab::untried_keys()) {
    CHECK_FALSE(key.reason.empty());
    untried.insert(std::string(key.name));
  }
  for (const auto& [key, value] : attention::resolved(attention::Recipe{})) {
    CAPTURE(key);
    CHECK(tried.count(key) + untried.count(key) == 1);
  }
}
