// The sweep engine: every cell once, the rows of an undisturbed run, and what it refuses.
#include "apps/tiny_dump.h"
#include "lab/recipe_file.h"
#include "lab/record_file.h"
#include "lab/results_file.h"
#include "lab/sweep.h"
#include "lab/sweep_cost.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;
using io::testing::slurp;
using io::testing::spill;
using testing::TinyShape;
using testing::write_tiny_dump;

namespace {

/// A sweep of two calls, two heads and three recipes: twelve cells.
struct SmallSweep {
  explicit SmallSweep(const ScratchFolder& folder, const TinyShape& shape = {1, 2, 1, 20, 8})
      : dump(folder / "a.h5"), output(folder / "out.h5"), journal(lab::journal_path(output)) {
    if (!std::filesystem::exists(dump)) write_tiny_dump(dump, {"one", "two"}, shape);
    for (const char* name : {"exact", "sage2-4b", "int8-token"}) trials.push_back({lab::load_recipe(name)});
  }

  lab::DumpSet dumps(std::optional<lab::HeadRange> heads = std::nullopt) const {
    return lab::DumpSet({{dump}, "", heads});
  }

  /// Runs the sweep, and stops it when `stop_after` cells are done.
  lab::Results run(std::int64_t stop_after = -1, int threads = 1, bool restart = false) {
    const lab::DumpSet set = dumps();
    lab::SweepOptions options{output, threads, restart};
    measured = 0;
    remarks.clear();
    options.progress = [&](std::int64_t done, std::int64_t) { measured = done; };
    options.cancelled = [&] { return stop_after >= 0 && measured >= stop_after; };
    options.remark = [&](const std::string& text) { remarks.push_back(text); };
    return lab::run_sweep(set, trials, lab::plan_sweep(set, trials), options);
  }

  std::string rows(const lab::Results& results) const {
    std::string text;
    for (const lab::Json& row : lab::rows_of(results).rows) text += lab::to_json(row) + "\n";
    return text;
  }

  std::string expected_rows() const {
    std::string text;
    for (const lab::Json& row : lab::run_trials(dumps(), trials, {}).rows) text += lab::to_json(row) + "\n";
    return text;
  }

  std::string dump, output, journal;
  std::vector<lab::Trial> trials;
  std::int64_t measured = 0;
  std::vector<std::string> remarks;
};

std::string complaint(SmallSweep& sweep, ErrorKind kind) {
  return message_of([&] { sweep.run(); }, kind);
}

}  // namespace

TEST_CASE("A sweep's rows are those of run, for every number of threads, and the journal is gone, the file complete") {
  for (const int threads : {1, 3}) {
    const ScratchFolder folder;
    SmallSweep sweep(folder);
    CHECK(sweep.rows(sweep.run(-1, threads)) == sweep.expected_rows());
    CHECK(sweep.measured == 12);
    CHECK(!std::filesystem::exists(sweep.journal));
    CHECK(sweep.rows(lab::read_results(sweep.output)) == sweep.expected_rows());
  }
}

TEST_CASE("A complete sweep measures nothing again and prints the same rows") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  const std::string rows = sweep.rows(sweep.run());
  const std::string file = slurp(sweep.output);
  CHECK(sweep.rows(sweep.run()) == rows);
  CHECK(sweep.measured == 0);
  CHECK(contains(sweep.remarks.at(0), "complete, nothing is measured"));
  CHECK(slurp(sweep.output) == file);
  std::reverse(sweep.trials.begin(), sweep.trials.end());
  const std::string reversed = sweep.rows(sweep.run());
  CHECK(sweep.measured == 0);
  CHECK(reversed == sweep.expected_rows());
}

TEST_CASE("A sweep that is stopped after any number of cells goes on with the others") {
  for (std::int64_t stop = 0; stop < 12; ++stop) {
    const ScratchFolder folder;
    SmallSweep sweep(folder);
    CHECK_THROWS_AS(sweep.run(stop), lab::Interrupted);
    CHECK(sweep.measured == stop);
    CHECK(!std::filesystem::exists(sweep.output));
    CHECK(lab::count_finished(lab::plan_sweep(sweep.dumps(), sweep.trials), sweep.output) ==
          static_cast<std::size_t>(stop));
    std::rotate(sweep.trials.begin(), sweep.trials.begin() + 1, sweep.trials.end());
    const lab::Results results = sweep.run();
    CHECK(sweep.measured == 12 - stop);
    CHECK(sweep.rows(results) == sweep.expected_rows());
    CHECK(results.sources.size() == 2);
  }
}

TEST_CASE("A journal that is cut at any byte of its last cell loses that cell alone") {
  const ScratchFolder folder;
  SmallSweep sweep(folder, {1, 1, 1, 4, 4});
  CHECK_THROWS_AS(sweep.run(4), lab::Interrupted);
  const std::string whole = slurp(sweep.journal);
  const std::string last = lab::RecordFile(sweep.journal).records().back();
  const std::size_t start = whole.size() - last.size() - 8;
  const std::string expected = sweep.expected_rows();
  for (std::size_t cut = start; cut <= whole.size(); ++cut) {
    std::filesystem::remove(sweep.output);
    spill(sweep.journal, whole.substr(0, cut));
    const auto plan = lab::plan_sweep(sweep.dumps(), sweep.trials);
    CHECK(lab::count_finished(plan, sweep.output) == (cut == whole.size() ? 4 : 3));
    // Going on from every cut takes long; from some it is done.
    if ((cut - start) % 40 != 1) continue;
    CHECK(sweep.rows(sweep.run()) == expected);
    CHECK(sweep.measured == 3);
    CHECK(contains(sweep.remarks.at(0), "are no whole record"));
  }
}

TEST_CASE("What a kill between writing the results and removing the journal leaves is cleaned up") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  CHECK_THROWS_AS(sweep.run(5), lab::Interrupted);
  const std::string journal = slurp(sweep.journal);
  sweep.run();
  spill(sweep.journal, journal);
  CHECK(sweep.rows(sweep.run()) == sweep.expected_rows());
  CHECK(sweep.measured == 0);
  CHECK(!std::filesystem::exists(sweep.journal));
}

TEST_CASE("Other recipes, heads or builds are refused as usage, a changed input as input, and --restart begins anew") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  CHECK_THROWS_AS(sweep.run(5), lab::Interrupted);
  const std::string journal = slurp(sweep.journal);
  const lab::Trial dropped = sweep.trials.back();
  sweep.trials.pop_back();
  CHECK(contains(complaint(sweep, ErrorKind::usage),
                 "another configuration (recipes only there: int8-token; only here: none)"));
  sweep.trials.push_back({lab::load_recipe("fa2-fp16")});
  CHECK(contains(complaint(sweep, ErrorKind::usage), "only there: int8-token; only here: fa2-fp16"));
  sweep.trials.back() = dropped;
  CHECK(slurp(sweep.journal) == journal);
  std::filesystem::remove(sweep.dump);
  write_tiny_dump(sweep.dump, {"one", "two"}, {1, 2, 1, 21, 8});
  CHECK(contains(complaint(sweep, ErrorKind::input), "a.h5 has changed since the sweep began"));
  CHECK(slurp(sweep.journal) == journal);
  CHECK(sweep.rows(sweep.run(-1, 1, true)) == sweep.expected_rows());
  CHECK(sweep.measured == 12);
  sweep.trials.pop_back();
  CHECK(contains(complaint(sweep, ErrorKind::usage), "out.h5: holds the results of another configuration"));
  CHECK(!std::filesystem::exists(sweep.journal));
  CHECK(sweep.rows(sweep.run(-1, 1, true)) == sweep.expected_rows());
  CHECK(sweep.measured == 8);
}

TEST_CASE("A journal of another build is refused") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  CHECK_THROWS_AS(sweep.run(2), lab::Interrupted);
  std::vector<std::string> records = lab::RecordFile(sweep.journal).records();
  std::string& run = records.front();
  const std::string key = "\"version\":\"";
  run.insert(run.find(key) + key.size(), "9");
  std::filesystem::remove(sweep.journal);
  {
    lab::RecordFile file(sweep.journal);
    for (const std::string& record : records) file.append(record);
  }
  CHECK(contains(complaint(sweep, ErrorKind::usage), "the sweep was begun by a build of version"));
}

TEST_CASE("Two sweeps of one output exclude each other, and a foreign output is left alone") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  {
    const lab::RecordFile other(sweep.journal);
    CHECK(contains(complaint(sweep, ErrorKind::input), "another process writes it"));
  }
  sweep.output = sweep.dump;
  CHECK(contains(complaint(sweep, ErrorKind::input), "holds something else than results"));
  CHECK(!std::filesystem::exists(lab::journal_path(sweep.dump)));
  sweep.output = "/proc/qattn.h5";
  CHECK(contains(complaint(sweep, ErrorKind::input), "/proc/qattn.h5.journal: cannot be written"));
}

TEST_CASE("Recipes with the same keys are measured once and have their own rows") {
  const ScratchFolder folder;
  SmallSweep sweep(folder);
  lab::Trial twin = sweep.trials[1];
  twin.recipe.name = "twin";
  sweep.trials.push_back(twin);
  CHECK(sweep.rows(sweep.run()) == sweep.expected_rows());
  CHECK(sweep.measured == 16);
}

TEST_CASE("NaN in the inputs is told as run tells it, after a resumption too") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two"}, {1, 2, 1, 20, 8},
                  [](const std::string& name, auto, auto, auto t, auto) {
                    return name == "k" && t == 3 ? std::nan("") : 0.1 * static_cast<double>(t);
                  });
  SmallSweep sweep(folder);
  CHECK_THROWS_AS(sweep.run(5), lab::Interrupted);
  const lab::RunResult got = lab::rows_of(sweep.run());
  const lab::RunResult expected = lab::run_trials(sweep.dumps(), sweep.trials, {});
  REQUIRE(got.bad.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) CHECK(lab::describe(got.bad[i]) == lab::describe(expected.bad[i]));
}

TEST_CASE("The cost counts what the causal mask leaves, and every recipe has a rate") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "full.h5", {"c"}, {2, 3, 1, 10, 8});
  write_tiny_dump(folder / "causal.h5", {"c"}, {2, 3, 1, 10, 8}, testing::tiny_value, {{"is_causal", true}});
  const lab::DumpSet full({{folder / "full.h5"}, "", {}}), causal({{folder / "causal.h5"}, "", lab::HeadRange{0, 2}});
  CHECK(lab::multiply_adds(full) == 6 * 100 * 16);
  CHECK(lab::multiply_adds(causal) == 4 * 55 * 16);
  CHECK(lab::head_bytes(full) == 8 * 8 * (5 * 10 + 3 * 10));
  const std::vector<lab::Trial> trials = {{lab::load_recipe("exact")}, {lab::load_recipe("sage2-4b")}};
  const std::vector<double> rates = lab::calibrate(full, trials);
  REQUIRE(rates.size() == 3);
  for (const double rate : rates) CHECK(rate > 0.0);
}
