// The engine: what its rows say on cases small enough to know, and that they do not depend on threads.
#include <atomic>
#include <cmath>
#include <limits>

#include "apps/tiny_dump.h"
#include "lab/ablation.h"
#include "lab/recipe_file.h"
#include "lab/runner.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using testing::TinyShape;
using testing::write_tiny_dump;

namespace {

std::vector<lab::Trial> trials_of(std::initializer_list<const char*> names) {
  std::vector<lab::Trial> trials;
  for (const char* name : names) trials.push_back({lab::load_recipe(name)});
  return trials;
}

std::string all_rows(const lab::RunResult& result) {
  std::string text;
  for (const lab::Json& row : result.rows) text += lab::to_json(row) + "\n";
  return text;
}

double number(const lab::Json& row, const char* key) { return lab::find(row, key).get<double>(); }

}  // namespace

TEST_CASE("Rows come call by call: each head under each recipe, then the whole call") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two"});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const std::vector<lab::Trial> trials = trials_of({"exact", "int4-token"});
  const lab::RunResult result = lab::run_trials(set, trials, {});
  REQUIRE(result.rows.size() == 12);
  std::string order;
  for (const lab::Json& row : result.rows) {
    order +=
        row["call"].get<std::string>().substr(0, 1) + row["head"].dump() + row["recipe"].get<std::string>()[0] + " ";
  }
  CHECK(order == "o0e o0i o1e o1i onulle onulli t0e t0i t1e t1i tnulle tnulli ");
  CHECK(result.bad.empty());
}

TEST_CASE("exact differs from the reference by one rounding to FP32, INT4 by far more") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const lab::RunResult result = lab::run_trials(set, trials_of({"exact", "int4-token"}), {});
  CHECK(number(result.rows[4], "rel_l1") > 0.0);
  CHECK(number(result.rows[4], "rel_l1") < 6e-8);
  CHECK(number(result.rows[4], "max_ulp") == 0);
  CHECK(number(result.rows[5], "rel_l1") > 1e-2);
  CHECK(number(result.rows[5], "cos_sim") < 1.0);
  CHECK(number(result.rows[5], "elements") == 2 * 40 * 16);
}

TEST_CASE("One token: attention is V itself, and FP16 holds it") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 2, 2, 1, 8});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const lab::RunResult result = lab::run_trials(set, trials_of({"int4-token", "sage2-4b"}), {});
  CHECK(number(result.rows[4], "max_abs") == 0.0);
  CHECK(number(result.rows[4], "cos_sim") == Approx(1.0).epsilon(1e-15));
  CHECK(number(result.rows[5], "rel_l1") < 0.01);
}

TEST_CASE("Rows are the same bytes for every number of threads") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two", "three"}, TinyShape{2, 3, 3, 70, 16});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  std::vector<lab::Trial> trials = trials_of({"exact", "fa2-fp16", "fp8-tensor", "sage1-B", "sage2-4b", "sage2-8b"});
  const std::vector<lab::Trial> stages = lab::ablate(trials.back().recipe, "stage").trials;
  trials.insert(trials.end(), stages.begin(), stages.end());
  const lab::RunResult one = lab::run_trials(set, trials, {1});
  const lab::RunResult four = lab::run_trials(set, trials, {4});
  CHECK(all_rows(one) == all_rows(four));
  CHECK(one.summaries == four.summaries);
}

TEST_CASE("A head range gives the rows of the full run, and its own call") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 4, 2, 20, 8});
  const lab::DumpSet all({{folder / "a.h5"}, "", {}}), part({{folder / "a.h5"}, "", lab::HeadRange{2, 3}});
  const std::vector<lab::Trial> trials = trials_of({"int8-token"});
  const lab::RunResult whole = lab::run_trials(all, trials, {}), cut = lab::run_trials(part, trials, {});
  REQUIRE(cut.rows.size() == 2);
  CHECK(lab::to_json(cut.rows[0]) == lab::to_json(whole.rows[2]));
  CHECK(number(cut.rows[1], "rel_l1") == number(whole.rows[2], "rel_l1"));
}

TEST_CASE("NaN in V is counted and located in rows, and reaches no average") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"bad", "good"}, {}, testing::tiny_value);
  write_tiny_dump(folder / "b.h5", {"nan"}, {}, [](const std::string& name, auto b, auto h, auto token, auto channel) {
    if (name == "v" && channel == 5) return std::numeric_limits<double>::quiet_NaN();
    return testing::tiny_value(name, b, h, token, channel);
  });
  const lab::DumpSet set({{folder / "b.h5"}, "", {}});
  const std::vector<lab::Trial> trials = trials_of({"exact"});
  const lab::RunResult result = lab::run_trials(set, trials, {});
  const lab::Json& row = result.rows.back();
  CHECK(row["nan_count"] == 2 * 40);
  CHECK(row["bad_reference_count"] == 2 * 40);
  CHECK(lab::to_json(row["first_bad"]) == R"({"batch": 0, "head": 0, "row": 0, "column": 5})");
  CHECK(lab::to_json(row["rel_l1"]) == "null");
  CHECK(row["max_ulp"].is_null());
  REQUIRE(result.bad.size() == 2);
  CHECK(lab::describe(result.bad[1]) ==
        "nan, batch 0, head 1: the output of exact has 40 NaN and 0 Inf, the first at token 0, channel 5; input "
        "v[token 0, channel 5] is NaN");
  const std::vector<lab::Json> summary = lab::summary_rows(trials, result);
  CHECK(lab::to_json(summary[0]["rel_l1"]) == "null");
  CHECK(summary[0]["nan_count"] == 80);
}

TEST_CASE("Average is the mean over calls, worst the worst call, metric by metric") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"flat", "steep"}, {}, [](const std::string& name, auto b, auto h, auto t, auto c) {
    return testing::tiny_value(name, b, h, t, c) * (name == "v" ? 10.0 : 1.0);
  });
  write_tiny_dump(folder / "b.h5", {"small"});
  const lab::DumpSet set({{folder.path()}, "", {}});
  const std::vector<lab::Trial> trials = trials_of({"sage2-4b"});
  const lab::RunResult result = lab::run_trials(set, trials, {});
  std::vector<lab::Json> calls;
  for (const lab::Json& row : result.rows) {
    if (row["head"].is_null()) calls.push_back(row);
  }
  REQUIRE(calls.size() == 3);
  const std::vector<lab::Json> summary = lab::summary_rows(trials, result);
  const double sum = number(calls[0], "rmse") + number(calls[1], "rmse") + number(calls[2], "rmse");
  CHECK(number(summary[0], "rmse") == Approx(sum / 3).epsilon(1e-15));
  CHECK(number(summary[1], "rmse") == std::max(number(calls[0], "rmse"), number(calls[1], "rmse")));
  CHECK(summary[1]["rmse_call"].get<std::string>() != "small");
  CHECK(summary[0]["calls"] == 3);
}

TEST_CASE("Padded channels are no part of the metrics") {
  const ScratchFolder folder;
  const auto padded = [](const std::string& name, auto b, auto h, auto token, auto channel) {
    return channel >= 12 ? 0.0 : testing::tiny_value(name, b, h, token, channel);
  };
  write_tiny_dump(folder / "a.h5", {"one"}, {}, padded, {{"head_dim_original", std::int64_t{12}}});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const lab::RunResult result = lab::run_trials(set, trials_of({"exact"}), {});
  CHECK(number(result.rows.back(), "elements") == 2 * 40 * 12);
}

TEST_CASE("A cancelled run ends with Interrupted, and progress counts every head") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two"});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const std::vector<lab::Trial> trials = trials_of({"exact"});
  lab::RunOptions options;
  std::int64_t last = 0;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    CHECK(total == 4);
    CHECK(done == last + 1);
    last = done;
  };
  lab::run_trials(set, trials, options);
  CHECK(last == 4);
  options.cancelled = [] { return true; };
  CHECK_THROWS_AS(lab::run_trials(set, trials, options), lab::Interrupted);
}
