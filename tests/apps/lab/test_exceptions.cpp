// Heads that a recipe leaves to another one: gradients, scales over a group of heads, references, checks, sweeps.
#include <fstream>

#include "apps/kernel_dump.h"
#include "attention/pipeline.h"
#include "lab/backward.h"
#include "lab/check_dump.h"
#include "lab/exceptions.h"
#include "lab/recipe_file.h"
#include "lab/results.h"
#include "lab/sweep.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;

namespace {

attention::Recipe recipe_of(std::string_view name, const std::vector<lab::Override>& changes = {}) {
  return lab::with_overrides(lab::load_recipe(name), changes);
}

/// Calls of four query heads on two key/value heads, 40 tokens.
struct Calls {
  ScratchFolder folder;
  std::string dump = folder / "a.h5";
  explicit Calls(const std::vector<std::string>& calls = {"one", "two"}) {
    testing::write_tiny_dump(dump, calls, {1, 4, 2, 40, 16});
  }
  lab::DumpSet set() const { return lab::DumpSet({{dump}, "", std::nullopt}); }
};

lab::RunResult run(const lab::DumpSet& set, const std::vector<lab::Trial>& trials, bool backward) {
  lab::RunOptions options;
  if (backward) options.upstream_seed = 3;
  return lab::run_trials(set, trials, options);
}

/// The row of a head (-1: of the call) of the trial whose recipe has this name.
lab::Json row_of(const lab::RunResult& result, const std::string& call, int head, std::string_view output,
                 const std::string& recipe) {
  for (const lab::Json& row : result.rows) {
    const bool is_head = head < 0 ? row["head"].is_null() : row["head"] == head;
    if (is_head && row["call"] == call && row["output"] == output && row["recipe"] == recipe) return row;
  }
  FAIL("no row of " << recipe << ", " << output << " " << head);
  return {};
}

/// What is measured, whatever the recipe is called.
std::string figures(const lab::Json& row) {
  std::string text;
  for (const char* key : {"cos_sim", "rel_l1", "rel_l2", "rmse", "max_abs", "p50", "elements", "nan_count"}) {
    text += lab::to_json(row[key]) + " ";
  }
  return text;
}

}  // namespace

TEST_CASE("Gradients of exceptions are the other recipe's, dK and dV the sums of both kinds of heads") {
  const Calls data;
  const lab::DumpSet set = data.set();
  const attention::Recipe base = recipe_of("sagebwd-int8");
  attention::Recipe mixed = recipe_of("sagebwd-int8", {{"exceptions", "one heads 1:4"}, {"exception_recipe", "exact"}});
  mixed.name = "mixed";
  attention::Recipe other = recipe_of("exact");
  other.o_format = base.o_format;  // as exceptions have it
  const lab::RunResult result = run(set, {{base}, {mixed}, {other}}, true);
  for (const char* call : {"one", "two"}) {
    for (const char* output : {"o", "dq"}) {
      for (int head = 0; head < 4; ++head) {
        CAPTURE(call, output, head);
        const bool excepted = std::string(call) == "one" && head > 0;
        const lab::Json row = row_of(result, call, head, output, "mixed");
        CHECK(figures(row) == figures(row_of(result, call, head, output, excepted ? other.name : base.name)));
        CHECK(row["exception"] == (excepted ? lab::Json("exact") : lab::Json()));
      }
    }
  }
  for (const char* output : {"dk", "dv"}) {
    CAPTURE(output);
    const auto rows = [&](const char* call, int head, const std::string& recipe) {
      return row_of(result, call, head, output, recipe);
    };
    CHECK(figures(rows("two", 0, "mixed")) == figures(rows("two", 0, base.name)));
    CHECK(figures(rows("one", 1, "mixed")) == figures(rows("one", 1, other.name)));
    CHECK(rows("one", 1, "mixed")["exception"] == "exact");
    // One of two heads of the group is quantized: an error between none and that of both.
    const double half = rows("one", 0, "mixed")["rel_l2"], both = rows("one", 0, base.name)["rel_l2"];
    CHECK(half > 0.3 * both);
    CHECK(half < 0.95 * both);
    CHECK(rows("one", 0, "mixed")["exception"] == "exact in query heads 1");
  }
  CHECK(contains(row_of(result, "one", -1, "o", "mixed")["evidence"].get<std::string>(), "; exceptions (exact): "));
}

TEST_CASE("A scale over the query heads of a group is over the exceptions among them too") {
  const Calls data({"one"});
  const lab::DumpSet set = data.set();
  const std::vector<lab::Override> alike = {{"o_format", "fp32"}};
  const attention::Recipe grouped = recipe_of("fa3-fp8", alike);
  attention::Recipe some = recipe_of("fa3-fp8", {{"o_format", "fp32"}, {"exceptions", "one heads 0"}});
  some.name = "some";
  attention::Recipe reverse =
      recipe_of("fa2-fp16", {{"o_format", "fp32"}, {"exceptions", "one heads 1:3"}, {"exception_recipe", "fa3-fp8"}});
  reverse.name = "reverse";
  const attention::Recipe plain = recipe_of("fa2-fp16", alike);
  const lab::RunResult result = run(set, {{grouped}, {some}, {reverse}, {plain}}, false);
  for (int head = 0; head < 4; ++head) {
    CAPTURE(head);
    const std::string fp8 = figures(row_of(result, "one", head, "o", grouped.name));
    const std::string fp16 = figures(row_of(result, "one", head, "o", plain.name));
    CHECK(fp8 != fp16);
    CHECK(figures(row_of(result, "one", head, "o", "some")) == (head == 0 ? fp16 : fp8));
    CHECK(figures(row_of(result, "one", head, "o", "reverse")) == (head == 1 || head == 2 ? fp8 : fp16));
  }
}

TEST_CASE("Exceptions that find none of the selected heads are told, and a rotation that does not fit says where") {
  const Calls data({"one"});
  const lab::DumpSet set = data.set();
  const std::vector<lab::Trial> trials = {
      {recipe_of("sage2-4b", {{"exceptions", "one heads 3; layer_99; one heads 90:99"}})}};
  const std::vector<std::string> idle = lab::idle_exceptions(set, trials);
  REQUIRE(idle.size() == 2);
  CHECK(contains(idle[0], "exceptions 'layer_99' finds none"));
  CHECK(contains(idle[1], "exceptions 'one heads 90:99' finds none"));
  CHECK(lab::idle_exceptions(set, std::vector<lab::Trial>{{recipe_of("sage2-4b", {})}}).empty());
}

TEST_CASE("An exception of heads without calls, which would be none, is refused") {
  const auto complaint = [](const char* rule) {
    return message_of([&] { lab::Exceptions(recipe_of("sage2-4b", {{"exceptions", rule}})); }, ErrorKind::usage);
  };
  CHECK(contains(complaint("heads 1:3"), "'heads 1:3' names no calls"));
  CHECK(contains(complaint("one; heads 0:1"), "'heads 0:1' names no calls"));
  CHECK(lab::ExceptionRules(". heads 1:3").applies("layer_00", 2));
}

TEST_CASE("A reference that is a recipe has its exceptions, forward and backward") {
  const Calls data({"one"});
  const lab::DumpSet set = data.set();
  lab::Trial trial{recipe_of("sage2-4b", {{"exceptions", "one heads 0:1"}})};
  trial.reference = attention::with_exact_accumulators(trial.recipe);
  for (const bool backward : {false, true}) {
    const lab::RunResult result = run(set, {trial}, backward);
    CHECK(row_of(result, "one", 0, "o", trial.recipe.name)["max_abs"] == 0.0);
    CHECK(row_of(result, "one", 1, "o", trial.recipe.name)["max_abs"].get<double>() > 0.0);
  }
}

TEST_CASE("A dump is checked against the exceptions' recipe where a head is one") {
  const std::vector<testing::PlainHead> heads = testing::plain_heads(3, 96, 96, 32);
  const attention::Recipe base = recipe_of("int8-tensor"), other = recipe_of("fa2-fp16");
  std::vector<testing::PlainOutput> outputs;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    attention::Problem problem;
    problem.q = heads[h].q;
    problem.k = heads[h].k;
    problem.v = heads[h].v;
    problem.sm_scale = heads[h].sm_scale;
    outputs.push_back({attention::run_recipe(problem, h == 1 ? other : base, format::kFP16).o, {}});
  }
  const ScratchFolder folder;
  testing::write_kernel_dump(folder / "dump.h5", heads, outputs);
  lab::DumpCheckOptions options;
  options.ulp = 0;
  const auto passed = [&](const std::vector<lab::Override>& changes) {
    options.recipe = recipe_of("int8-tensor", changes);
    return lab::check_dump(lab::DumpSet({{folder / "dump.h5"}, "", std::nullopt}), options).passed;
  };
  CHECK(passed({{"exceptions", "attention heads 1"}, {"exception_recipe", "fa2-fp16"}}));
  CHECK_FALSE(passed({}));
  CHECK_FALSE(passed({{"exceptions", "attention heads 0"}, {"exception_recipe", "fa2-fp16"}}));
}

TEST_CASE("A sweep of gradients has the exceptions that a run has") {
  const Calls data({"one"});
  const lab::DumpSet set = data.set();
  const std::vector<lab::Trial> trials = {
      {recipe_of("sagebwd-int8", {{"exceptions", "one heads 1:3"}, {"exception_recipe", "fa2-fp16"}})}};
  const lab::RunResult expected = run(set, trials, true);
  const lab::SweepPlan plan = lab::plan_sweep(set, trials, 3);
  const lab::Results results = lab::run_sweep(set, trials, plan, {data.folder / "out.h5", 1, false});
  const std::vector<lab::Json> rows = lab::rows_of(results).rows;
  REQUIRE(rows.size() == expected.rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(lab::to_json(expected.rows[i]) == lab::to_json(rows[i]));
  }
}

TEST_CASE("A sweep's configuration changes with the file of the exceptions' recipe") {
  const Calls calls({"one"});
  const std::string file = calls.folder / "mine.toml";
  const auto configuration = [&](const std::string& p_format) {
    std::ofstream(file) << "description = \"mine\"\nsource = \"a test\"\nqk_format = \"fp16\"\npv_format = \""
                        << p_format << "\"\n";
    const lab::DumpSet set = calls.set();
    const attention::Recipe recipe =
        recipe_of("int8-token", {{"exceptions", "one heads 1"}, {"exception_recipe", file}});
    const std::vector<lab::Trial> trials = {{recipe, {}}};
    return lab::plan_sweep(set, trials).configuration;
  };
  const std::string first = configuration("fp16");
  CHECK(configuration("bf16") != first);
  CHECK(configuration("fp16") == first);
}
