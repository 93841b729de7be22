// The papers' tables: the entries that come with the program, bad entries, and orderings.
#include "apps/tiny_dump.h"
#include "lab/backward.h"
#include "lab/paper_table.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::message_of;
using io::testing::ScratchFolder;
using io::testing::spill;

namespace {

const char* const kTable =
    "title = \"t\"\nsource = \"s\"\ntensors = \"theirs\"\nstatistic = \"average\"\nbase = \"int8-token\"\n";
const char* const kRows =
    "[[row]]\nlabel = \"eight\"\npaper = { rel_l1 = 0.1, cos_sim = 0.9 }\n"
    "[[row]]\nlabel = \"four\"\nset = [\"qk_format=int4\"]\npaper = { rel_l1 = 0.05, cos_sim = 0.8 }\n"
    "[[row]]\nlabel = \"same\"\npaper = { rel_l1 = 0.1 }\n";

std::string complaint(const std::string& text) {
  const ScratchFolder folder;
  spill(folder / "bad.toml", text);
  const std::string message = message_of([&] { lab::load_paper_table(folder / "bad.toml"); }, ErrorKind::usage);
  return message.substr(std::min(message.find("bad.toml"), message.size()));
}

}  // namespace

TEST_CASE("Every table that comes with the program loads, with a recipe and three figures a row") {
  const std::vector<lab::PaperTable> tables = lab::load_all_paper_tables();
  REQUIRE(tables.size() >= 7);
  for (const lab::PaperTable& table : tables) {
    INFO(table.id);
    CHECK(table.rows.size() >= 2);
    CHECK_FALSE(table.tensors.empty());
  }
}

TEST_CASE("SageAttention2's Table 4 holds the paper's figures and recipes") {
  const lab::PaperTable table = lab::load_paper_table("sage2-table4");
  REQUIRE(table.rows.size() == 6);
  CHECK(table.statistic == "average");
  CHECK(table.rows[0].label == "None");
  CHECK(table.rows[0].paper["rel_l1"] == 0.3906);
  CHECK(table.rows[5].paper["cos_sim"] == 0.9946);
  CHECK(table.rows[3].recipe->name == "sage2-4b smoothing=k");
  CHECK(lab::load_paper_table("sage2-table17").statistic == "worst");
}

TEST_CASE("A wrong table is a usage error that names file and line") {
  CHECK(complaint(kTable).find("[[row]]") != std::string::npos);
  CHECK(complaint(std::string(kTable) + "[[row]]\nlabel = \"x\"\n").rfind("bad.toml:6: a row needs 'paper'", 0) == 0);
  CHECK(complaint(std::string(kTable) + "colour = 1\n" + kRows).rfind("bad.toml:6: unknown key 'colour'", 0) == 0);
  CHECK(complaint(std::string(kTable) + "[[row]]\nlabel = \"x\"\npaper = { speed = 1 }\n").rfind("bad.toml:8: ", 0) ==
        0);
  CHECK(complaint(std::string(kTable) + "[[row]]\nlabel = \"x\"\npaper = { rmse = nan }\n").rfind("bad.toml:8: ", 0) ==
        0);
  CHECK(complaint(std::string(kTable) + "[[row]]\nlabel = \"x\"\nset = [\"a\"]\npaper = {}\n").find("KEY=VALUE") !=
        std::string::npos);
  CHECK(
      complaint(std::string(kTable) + "[[row]]\nlabel = \"x\"\nset = [\"a=b\"]\npaper = {}\n").find("recipe key 'a'") !=
      std::string::npos);
  CHECK(
      complaint("title = \"t\"\nsource = \"s\"\ntensors = \"x\"\nstatistic = \"median\"\n").rfind("bad.toml:4: ", 0) ==
      0);
  CHECK(message_of([] { lab::load_paper_table("sage9-table1"); }, ErrorKind::usage).find("sage2-table4") !=
        std::string::npos);
}

TEST_CASE("Orderings that the paper prints are held against ours, and equal and missing figures order nothing") {
  const ScratchFolder folder;
  spill(folder / "t.toml", std::string(kTable) + kRows);
  const lab::PaperTable table = lab::load_paper_table(folder / "t.toml");
  const std::vector<lab::Json> ours = {
      {{"rel_l1", 0.1}, {"cos_sim", 0.9}}, {{"rel_l1", 0.3}, {"cos_sim", 0.5}}, {{"rel_l1", 0.2}}};
  const std::vector<lab::Ordering> all = lab::orderings(table, ours);
  REQUIRE(all.size() == 3);
  CHECK(all[0].metric == "cos_sim");
  CHECK(all[0].better == 0);
  CHECK(all[0].holds);
  CHECK(all[1].metric == "rel_l1");
  CHECK(all[1].better == 1);
  CHECK(all[1].worse == 0);
  CHECK_FALSE(all[1].holds);
  CHECK_FALSE(all[2].holds);
}

TEST_CASE("A comparison has the paper's figures in every row, ours beside them, and tells which orderings break") {
  const ScratchFolder folder;
  spill(folder / "t.toml", std::string(kTable) + kRows);
  testing::write_tiny_dump(folder / "a.h5", {"one"});
  const lab::PaperTable table = lab::load_paper_table(folder / "t.toml");
  const lab::DumpSet dumps({{folder / "a.h5"}, "", {}});
  const std::vector<lab::Trial> trials = lab::trials_of(table);
  const lab::RunResult result = lab::run_trials(dumps, trials, {});
  const lab::Report report = lab::compare(table, dumps, result);
  REQUIRE(report.rows.size() == 9);
  CHECK(report.rows[1]["paper"]["rel_l1"] == 0.05);
  CHECK(report.rows[1]["row"] == "four");
  CHECK(report.rows[1]["recipe"] == "int8-token qk_format=int4");
  CHECK(report.summary["rows"][0]["ours"]["rel_l1"] == report.rows[6]["rel_l1"]);
  CHECK(report.summary["rows"][0]["paper"]["rel_l1"] == 0.1);
  const std::string text = lab::render(report, lab::Form::text);
  CHECK(text.find("other tensors: theirs") != std::string::npos);
  CHECK(text.find("Orderings that these tensors break") != std::string::npos);
  CHECK(text.find("Rel. L1  four                 eight") != std::string::npos);
  CHECK(text.find("a.h5") != std::string::npos);
}

TEST_CASE("A table of gradients has each row's own output, and says where the upstream gradients come from") {
  const ScratchFolder folder;
  const char* const rows =
      "[[row]]\nlabel = \"INT8, dQ\"\noutput = \"dq\"\npaper = { rel_l1 = 0.1 }\n"
      "[[row]]\nlabel = \"INT8, dV\"\noutput = \"dv\"\npaper = { rel_l1 = 0.1 }\n"
      "[[row]]\nlabel = \"coarse, dQ\"\noutput = \"dq\"\nset = [\"dq_format=int4\"]\npaper = { rel_l1 = 0.4 }\n"
      "[[row]]\nlabel = \"O\"\npaper = { rel_l1 = 0.1 }\n";
  std::string head = kTable;
  head.replace(head.find("int8-token"), 10, "sagebwd-int8");
  spill(folder / "t.toml", head + rows);
  testing::write_tiny_dump(folder / "a.h5", {"one"}, {1, 2, 1, 24, 16});
  const lab::PaperTable table = lab::load_paper_table(folder / "t.toml");
  REQUIRE(lab::needs_gradients(table));
  const lab::DumpSet dumps({{folder / "a.h5"}, "", {}});
  lab::RunOptions options;
  options.upstream_seed = 5;
  const lab::RunResult result = lab::run_trials(dumps, lab::trials_of(table), options);
  const lab::Report report = lab::compare(table, dumps, result, 5);
  // Two query heads and the call for o and dq, one key/value head and the call for dv.
  CHECK(report.rows.size() == 3 + 2 + 3 + 3);
  for (const lab::Json& row : report.rows) {
    const std::string label = row["row"];
    CHECK(row["output"] == (label == "O" ? "o" : label == "INT8, dV" ? "dv" : "dq"));
  }
  const auto whole_call = [&](const char* recipe, const char* output) {
    for (const lab::Json& row : result.rows) {
      if (row["head"].is_null() && row["recipe"] == recipe && row["output"] == output) return row["rel_l1"];
    }
    return lab::Json();
  };
  const lab::Json& ours = report.summary["rows"];
  CHECK(ours[0]["ours"]["rel_l1"] == whole_call("sagebwd-int8", "dq"));
  CHECK(ours[1]["ours"]["rel_l1"] == whole_call("sagebwd-int8", "dv"));
  CHECK(ours[2]["ours"]["rel_l1"] == whole_call("sagebwd-int8 dq_format=int4", "dq"));
  CHECK(ours[3]["ours"]["rel_l1"] == whole_call("sagebwd-int8", "o"));
  CHECK(ours[0]["ours"]["rel_l1"] != ours[1]["ours"]["rel_l1"]);
  // dQ of two recipes is the one ordering; dV and O have no rival.
  CHECK(report.summary["orderings"].size() == 1);
  CHECK(report.summary["calls"].size() == 8);
  const std::string text = lab::render(report, lab::Form::text);
  CHECK(text.find("N(0, 1) drawn from seed 5 (--upstream-seed); the dump has no `do`") != std::string::npos);
}

TEST_CASE("SageAttention3's tables of gradients hold the paper's figures") {
  const lab::PaperTable format_of_dp = lab::load_paper_table("sage3-table1c");
  CHECK(format_of_dp.rows[0].recipe->name == "sagebwd-int8-dp");
  CHECK(format_of_dp.rows[0].paper["rmse"] == 2.44);
  CHECK(format_of_dp.rows[1].recipe->name == "sagebwd-int8");
  CHECK(format_of_dp.rows[1].output == "dq");
  for (const char* id : {"sage3-table6", "sage3-table7"}) {
    const lab::PaperTable table = lab::load_paper_table(id);
    REQUIRE(table.rows.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(table.rows[i].recipe->name == (i < 3 ? "sagebwd-int8" : "sagebwd-fp8"));
      CHECK(table.rows[i].output == lab::kOutputs.at(1 + i % 3));
    }
  }
  CHECK(lab::load_paper_table("sage3-table6").rows[5].paper["rel_l1"] == 0.0873);
  CHECK(lab::load_paper_table("sage3-table7").rows[0].paper["cos_sim"] == 0.9987);
}

TEST_CASE("The dumps that tables of models run on are the language model's two") {
  const std::vector<std::string> dumps = lab::default_dumps();
  REQUIRE(dumps.size() == 2);
  CHECK(lab::DumpSet({dumps, "", {}}).heads() == 54);
}
