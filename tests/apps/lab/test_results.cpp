// Cells and rows: the same bytes as an ordinary run, through files and merges too.
#include "apps/tiny_dump.h"
#include "apps/trials.h"
#include "lab/recipe_file.h"
#include "lab/results.h"
#include "lab/results_file.h"
#include "lab/sweep.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;
using testing::text_of;
using testing::TinyShape;
using testing::trials_of;
using testing::write_tiny_dump;

namespace {

/// Everything measured, without any file.
lab::Results measured(const lab::DumpSet& dumps, const std::vector<lab::Trial>& trials) {
  lab::Results results = lab::planned_results(dumps, trials);
  results.sources.push_back({{"commit", "abc"}, {"version", "1"}});
  for (const lab::Piece& piece : lab::pieces_of(dumps)) {
    lab::HeadMeasurement head(dumps, piece);
    for (std::size_t t = 0; t < trials.size(); ++t) {
      const metric::Accuracy accuracy = head.measure(trials[t].recipe);
      results.cells[{piece.call, piece.batch, piece.head, t}] =
          lab::make_cell(0, accuracy, accuracy.first_bad() ? lab::first_bad_input(head.parts()) : "");
    }
  }
  return results;
}

std::string hash_of(const lab::Results& results) { return lab::configuration_hash(results, lab::cell_ids(results)); }

std::string merge_complaint(const lab::Results& a, const lab::Results& b) {
  return message_of([&] { lab::merge_results(a, b); });
}

}  // namespace

TEST_CASE("Rows and summaries from cells are those of an ordinary run, also for NaN, and survive the file") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two"}, TinyShape{2, 2, 1, 20, 8});
  write_tiny_dump(folder / "b.h5", {"nan"}, TinyShape{1, 2, 1, 20, 8},
                  [](const std::string& n, auto, auto h, auto t, auto) {
                    return n == "v" && t == 3 ? std::nan("") : 0.1 * static_cast<double>(t + h);
                  });
  const lab::DumpSet dumps({{folder.path()}, "", {}});
  const std::vector<lab::Trial> trials = trials_of({"exact", "sage2-4b", "int8-token"});
  const lab::RunResult expected = lab::run_trials(dumps, trials, {});
  const lab::Results results = measured(dumps, trials);
  const lab::RunResult got = lab::rows_of(results);
  CHECK(text_of(got.rows) == text_of(expected.rows));
  CHECK(got.summaries == expected.summaries);
  REQUIRE(got.bad.size() == expected.bad.size());
  CHECK(lab::describe(got.bad.at(0)) == lab::describe(expected.bad.at(0)));
  lab::write_results(folder / "r.h5", results);
  const lab::Results read = lab::read_results(folder / "r.h5");
  CHECK(text_of(lab::rows_of(read).rows) == text_of(expected.rows));
  CHECK(hash_of(read) == hash_of(results));
  CHECK(read.sources == results.sources);
  CHECK(read.recipes == results.recipes);
}

TEST_CASE("The columns of a results file are the rows") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 2, 1, 20, 8});
  const lab::DumpSet dumps({{folder / "a.h5"}, "", {}});
  const lab::Results results = measured(dumps, trials_of({"exact", "sage2-4b"}));
  const std::vector<lab::Json> rows = lab::rows_of(results).rows;
  lab::write_results(folder / "r.h5", results);
  const io::Hdf5Reader file(folder / "r.h5");
  CHECK(std::get<std::string>(file.own_attributes("").at("schema")) == "qattn-results/1");
  CHECK(std::get<std::string>(file.own_attributes("").at("configuration_hash")) == hash_of(results));
  CHECK(std::get<std::string>(file.own_attributes("recipes/000001").at("k_format")) == "int4");
  const std::vector<std::int64_t> heads = io::to_integers(file.read_all("rows/head"), "head");
  const Tensor l1 = io::to_tensor(file.read_all("rows/rel_l1"), "rel_l1");
  REQUIRE(heads.size() == rows.size());
  const MatrixD values = decode_matrix(l1, 0, 1, l1.elements());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(heads[i] == (rows[i]["head"].is_null() ? -1 : rows[i]["head"].get<std::int64_t>()));
    CHECK(values(0, static_cast<Eigen::Index>(i)) == rows[i]["rel_l1"].get<double>());
  }
  const std::vector<std::int64_t> recipe = io::to_integers(file.read_all("rows/recipe"), "recipe");
  CHECK(recipe == std::vector<std::int64_t>{0, 1, 0, 1, 0, 1});
}

TEST_CASE("Shards by head, call and recipe merge, in either order, to the rows and the hash of the whole") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one", "two"}, TinyShape{1, 4, 2, 20, 8});
  const std::vector<lab::Trial> trials = trials_of({"exact", "sage2-4b"});
  const lab::Results whole = measured(lab::DumpSet({{folder / "a.h5"}, "", {}}), trials);
  const std::string rows = text_of(lab::rows_of(whole).rows);
  const lab::Results low = measured(lab::DumpSet({{folder / "a.h5"}, "", lab::HeadRange{0, 1}}), trials);
  const lab::Results high = measured(lab::DumpSet({{folder / "a.h5"}, "", lab::HeadRange{1, 4}}), trials);
  const lab::Results merged = lab::merge_results(low, high);
  CHECK(text_of(lab::rows_of(merged).rows) == rows);
  CHECK(text_of(lab::rows_of(lab::merge_results(high, low)).rows) == rows);
  CHECK(hash_of(merged) == hash_of(whole));
  const lab::Results one = measured(lab::DumpSet({{folder / "a.h5"}, "one", {}}), trials);
  const lab::Results two = measured(lab::DumpSet({{folder / "a.h5"}, "two", {}}), trials);
  CHECK(text_of(lab::rows_of(lab::merge_results(one, two)).rows) == rows);
  const lab::Results exact = measured(lab::DumpSet({{folder / "a.h5"}, "", {}}), trials_of({"exact"}));
  const lab::Results sage = measured(lab::DumpSet({{folder / "a.h5"}, "", {}}), trials_of({"sage2-4b"}));
  CHECK(text_of(lab::rows_of(lab::merge_results(exact, sage)).rows) == rows);
  CHECK(text_of(lab::rows_of(lab::merge_results(whole, low)).rows) == rows);
  CHECK(hash_of(low) != hash_of(high));
}

TEST_CASE("The hash tells inputs, keys, heads and calls apart, and not the order of recipes or where a dump lies") {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "elsewhere");
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 2, 1, 20, 8});
  write_tiny_dump(folder / "b.h5", {"one"}, TinyShape{1, 2, 1, 21, 8});
  std::filesystem::copy(folder / "a.h5", folder / "elsewhere/c.h5");
  const auto hash = [&](const char* file, const std::vector<lab::Trial>& trials,
                        std::optional<lab::HeadRange> heads = {}) {
    return lab::plan_sweep(lab::DumpSet({{folder / file}, "", heads}), trials).configuration;
  };
  const std::string base = hash("a.h5", trials_of({"exact", "sage2-4b"}));
  CHECK(base == hash("a.h5", trials_of({"sage2-4b", "exact"})));
  CHECK(base == hash("elsewhere/c.h5", trials_of({"exact", "sage2-4b"})));
  CHECK(base != hash("b.h5", trials_of({"exact", "sage2-4b"})));
  CHECK(base != hash("a.h5", trials_of({"exact"})));
  CHECK(base != hash("a.h5", trials_of({"exact", "sage2-4b"}), lab::HeadRange{0, 1}));
  std::vector<lab::Trial> changed = trials_of({"exact", "sage2-4b"});
  changed[1].recipe.k_block = 128;
  CHECK(base != hash("a.h5", changed));
}

TEST_CASE("Results that do not go together are not merged, and it is said why") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 2, 1, 20, 8});
  const lab::DumpSet dumps({{folder / "a.h5"}, "", {}});
  const lab::Results a = measured(dumps, trials_of({"exact"}));
  lab::Results b = a;
  b.sources.front()["commit"] = "def";
  CHECK(contains(merge_complaint(a, b), "different builds"));
  b = a;
  b.recipes.front().keys["k_block"] = "17";
  CHECK(contains(merge_complaint(a, b), "the recipe 'exact' has other keys"));
  b = a;
  metric::Accuracy other(format::kFP32);
  other.add(1.0, 2.0, {});
  b.cells.begin()->second = lab::make_cell(0, other, "");
  CHECK(contains(merge_complaint(a, b), "one, batch 0, head 0, exact: measured twice with different results"));
}

TEST_CASE("Files that are no results are told and never replaced") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 1, 1, 4, 8});
  const lab::Results results = measured(lab::DumpSet({{folder / "a.h5"}, "", {}}), trials_of({"exact"}));
  CHECK(contains(message_of([&] { lab::read_results(folder / "a.h5"); }), "its schema is qattn-dump/1"));
  const std::string before = io::testing::slurp(folder / "a.h5");
  CHECK(contains(message_of([&] { lab::write_results(folder / "a.h5", results); }), "holds something else"));
  CHECK(io::testing::slurp(folder / "a.h5") == before);
  lab::write_results(folder / "r.h5", results);
  lab::write_results(folder / "r.h5", results);
  const std::string whole = io::testing::slurp(folder / "r.h5");
  io::testing::spill(folder / "cut.h5", whole.substr(0, whole.size() / 2));
  CHECK(contains(message_of([&] { lab::read_results(folder / "cut.h5"); }), "cut.h5"));
}
