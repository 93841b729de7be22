// Gradients through the lab: rows of o, dq, dk and dv, upstream gradients, groups of heads, threads, sweeps.
#include "apps/tiny_dump.h"
#include "apps/trials.h"
#include "lab/backward.h"
#include "lab/recipe_file.h"
#include "lab/results_file.h"
#include "lab/sweep.h"
#include "lab/synth.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;
using testing::text_of;
using testing::trials_of;
using testing::write_tiny_dump;

namespace {

/// One call of four query heads on two key/value heads, 24 tokens.
struct Grouped {
  ScratchFolder folder;
  std::string dump = folder / "a.h5";
  Grouped() { write_tiny_dump(dump, {"one", "two"}, {1, 4, 2, 24, 16}); }
  lab::DumpSet set(std::optional<lab::HeadRange> heads = std::nullopt, const char* calls = "") const {
    return lab::DumpSet({{dump}, calls, heads});
  }
};

lab::RunResult run(const lab::DumpSet& set, const std::vector<lab::Trial>& trials, std::uint64_t seed = 0,
                   int threads = 1) {
  lab::RunOptions options;
  options.threads = threads;
  options.upstream_seed = seed;
  return lab::run_trials(set, trials, options);
}

}  // namespace

TEST_CASE("Gradients have rows of their own: o and dq a query head, dk and dv a key/value head, then the call") {
  const Grouped data;
  const lab::DumpSet set = data.set(std::nullopt, "one");
  const lab::RunResult result = run(set, trials_of({"sagebwd-int8"}));
  std::string order;
  for (const lab::Json& row : result.rows) {
    const lab::Json& head = row["head"];
    order += row["output"].get<std::string>() + (head.is_null() ? "* " : head.dump() + " ");
    CHECK(row["rel_l2"].get<double>() > 1e-4);
    CHECK(row["rel_l2"].get<double>() < 0.1);
  }
  CHECK(order == "o0 dq0 dk0 dv0 o1 dq1 dk1 dv1 o2 dq2 o3 dq3 o* dq* dk* dv* ");
  CHECK(result.summaries.size() == 4);
  const std::vector<lab::Json> summary = lab::summary_rows(trials_of({"sagebwd-int8"}), result);
  CHECK(summary.size() == 8);
  CHECK(summary[6]["output"] == "dv");
  // What is measured forward does not change.
  const lab::RunResult forward = lab::run_trials(set, trials_of({"sagebwd-int8"}), {});
  CHECK(lab::to_json(forward.rows.front()) == lab::to_json(result.rows.front()));
}

TEST_CASE("Without quantization the gradients are exact, whatever the recipe is compared with") {
  const Grouped data;
  for (const lab::Json& row : run(data.set(), trials_of({"exact"})).rows) CHECK(row["rel_l2"].get<double>() < 1e-7);
  std::vector<lab::Trial> trials = trials_of({"sagebwd-int8"});
  trials[0].reference = trials[0].recipe;
  for (const lab::Json& row : run(data.set(), trials).rows) CHECK(row["rel_l2"] == 0.0);
}

TEST_CASE("dk and dv are over all query heads of the group, also when one alone is selected") {
  const Grouped data;
  const std::vector<lab::Json> all = run(data.set(std::nullopt, "one"), trials_of({"sagebwd-int8"})).rows;
  const std::vector<lab::Json> some = run(data.set(lab::HeadRange{3, 4}, "one"), trials_of({"sagebwd-int8"})).rows;
  const auto of = [](const std::vector<lab::Json>& rows, const char* output, int head) {
    for (const lab::Json& row : rows) {
      if (row["output"] == output && row["head"] == head) return lab::to_json(row);
    }
    return std::string("none");
  };
  CHECK(of(some, "dk", 1) == of(all, "dk", 1));
  CHECK(of(some, "dv", 1) == of(all, "dv", 1));
  CHECK(of(some, "dq", 3) == of(all, "dq", 3));
  CHECK(of(some, "dq", 2) == "none");
  CHECK(of(some, "dk", 0) == "none");
}

TEST_CASE("Gradients are the same for every number of threads, and other upstream gradients give others") {
  const Grouped data;
  const std::vector<lab::Trial> trials = trials_of({"sagebwd-int8", "attn-qat"});
  const std::string one = text_of(run(data.set(), trials, 0, 1).rows);
  CHECK(text_of(run(data.set(), trials, 0, 2).rows) == one);
  CHECK(text_of(run(data.set(), trials, 1, 1).rows) != one);
}

TEST_CASE("A dump's own upstream gradient is taken, whatever the seed") {
  const ScratchFolder folder;
  lab::SynthRequest request;
  request.distribution = &lab::find_distribution("sagebwd");
  request.q_heads = request.kv_heads = 1;
  request.q_tokens = request.kv_tokens = 32;
  request.head_dim = 16;
  lab::synthesize(folder / "s.h5", request, {});
  const lab::DumpSet set({{folder / "s.h5"}, "", {}});
  CHECK(lab::upstream_gradient(set, set.calls()[0], 0, 0, 5) == set.read_tensor(set.calls()[0], "do", 0, 0));
  CHECK(text_of(run(set, trials_of({"sagebwd-int8"}), 0).rows) ==
        text_of(run(set, trials_of({"sagebwd-int8"}), 9).rows));
}

TEST_CASE("A seeded upstream gradient is normal and a function of call and head alone") {
  const Grouped data;
  const lab::DumpSet set = data.set(), second = data.set(std::nullopt, "two");
  const auto draw = [&](const lab::DumpSet& from, std::size_t call, std::int64_t head) {
    return lab::upstream_gradient(from, from.calls()[call], 0, head, 3);
  };
  const MatrixD x = draw(set, 1, 2);
  CHECK(x == draw(second, 0, 2));
  CHECK(x != draw(set, 0, 2));
  CHECK(x != draw(set, 1, 3));
  CHECK(std::abs(x.mean()) < 0.15);
  CHECK(x.squaredNorm() / static_cast<double>(x.size()) == Approx(1.0).margin(0.25));
}

TEST_CASE("NaN in an input is met in the gradients, counted and located") {
  const ScratchFolder folder;
  const auto with_nan = [](const std::string& name, auto b, auto h, auto token, auto channel) {
    if (name == "v" && token == 3 && channel == 5) return std::numeric_limits<double>::quiet_NaN();
    return testing::tiny_value(name, b, h, token, channel);
  };
  write_tiny_dump(folder / "a.h5", {"one"}, {1, 1, 1, 24, 16}, with_nan);
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const lab::RunResult result = run(set, trials_of({"exact"}));
  REQUIRE(result.bad.size() == 3);
  CHECK(result.bad[1].output == "dq");
  CHECK(contains(lab::describe(result.bad[1]), "dq of exact has"));
  CHECK(contains(lab::describe(result.bad[1]), "v[token 3, channel 5] is NaN"));
}

TEST_CASE("A sweep of gradients gives run's rows, goes on where it stopped, and is no other sweep") {
  const Grouped data;
  const lab::DumpSet set = data.set(lab::HeadRange{1, 3});
  const std::vector<lab::Trial> trials = trials_of({"sagebwd-int8", "attn-qat", "exact"});
  const std::string expected = text_of(run(set, trials, 7).rows);
  lab::SweepOptions options{data.folder / "out.h5", 1, false};
  std::int64_t measured = 0, stop_after = 5, total = 0;
  options.progress = [&](std::int64_t done, std::int64_t of) { measured = done, total = of; };
  options.cancelled = [&] { return measured >= stop_after; };
  const lab::SweepPlan plan = lab::plan_sweep(set, trials, 7);
  // Two calls, three recipes; two groups of one query head each: o, dq, dk, dv.
  CHECK(plan.cells.size() == 48);
  CHECK_THROWS_AS(lab::run_sweep(set, trials, plan, options), lab::Interrupted);
  CHECK(lab::count_finished(plan, options.output) == 5);
  stop_after = 1000;
  const lab::Results results = lab::run_sweep(set, trials, plan, options);
  CHECK(total == 43);
  CHECK(text_of(lab::rows_of(results).rows) == expected);
  const lab::Results read = lab::read_results(options.output);
  CHECK(text_of(lab::rows_of(read).rows) == expected);
  CHECK(read.upstream_seed == 7u);
  CHECK(lab::plan_sweep(set, trials, 8).configuration != plan.configuration);
  CHECK(lab::plan_sweep(set, trials).configuration != plan.configuration);
  const lab::SweepPlan forward = lab::plan_sweep(set, trials);
  CHECK(contains(message_of([&] { lab::run_sweep(set, trials, forward, options); }, ErrorKind::usage),
                 "another configuration"));
}
