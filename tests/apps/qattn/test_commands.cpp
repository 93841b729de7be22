// Every subcommand end to end: what scripts rely on.
#include <cstdlib>

#include "apps/tiny_dump.h"
#include "base/simd_target.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using testing::json_of;
using testing::Outcome;
using testing::write_tiny_dump;

namespace {

Outcome run(const ScratchFolder& folder, const std::string& arguments) { return testing::qattn(folder, arguments); }

}  // namespace

TEST_CASE("run --json has the contract's keys, provenance, and a summary") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00", "layer_01"});
  const Outcome outcome = run(folder, "run " + folder / "a.h5" + " --recipe sage2-8b int8-token --json");
  REQUIRE(outcome.status == 0);
  CHECK(outcome.err.empty());
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 12);
  for (const char* key : {"call", "batch", "head", "recipe", "output", "cos_sim", "rel_l1", "rmse", "max_abs",
                          "max_ulp", "nan_count", "inf_count", "first_bad"}) {
    CHECK(document["rows"][0].contains(key));
  }
  CHECK(document["rows"][0]["call"] == "layer_00");
  CHECK(document["rows"][4]["batch"].is_null());
  CHECK(document["rows"][4]["head"].is_null());
  CHECK(document["rows"][0]["output"] == "o");
  CHECK(document["rows"][0]["evidence"].get<std::string>().find("sm90.wgmma") != std::string::npos);
  const nlohmann::json& context = document["context"];
  CHECK(context["inputs"][0]["sha256"].get<std::string>().size() == 64);
  CHECK(context["recipes"]["sage2-8b"]["k_format"] == "int8");
  for (const char* key : {"tool", "version", "commit", "compiler", "simd", "threads", "options_hash", "seconds"}) {
    CHECK(context.contains(key));
  }
  CHECK(document["summary"].size() == 4);
}

TEST_CASE("rows are the same bytes with 1 and 2 threads") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00", "layer_01"}, {2, 4, 2, 50, 16});
  const auto rows = [&](const char* threads) {
    const std::string text =
        run(folder, "run " + folder / "a.h5" + " --recipe sage2-4b --json --threads " + threads).out;
    return text.substr(text.find("\"rows\""));
  };
  const std::string one = rows("1");
  CHECK(one.size() > 1000);
  CHECK(one == rows("2"));
}

TEST_CASE("rows are the same bytes on every SIMD target that QATTN_SIMD names, and no other name is taken") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00"}, {1, 2, 1, 70, 32});
  const std::string command = "run " + folder / "a.h5" + " --recipe sage2-8b fa2-fp16 sage3-nvfp4 int8-token --json";
  const std::string usual = run(folder, command).out;
  const std::string rows = usual.substr(usual.find("\"rows\""));
  CHECK(rows.size() > 1000);
  for (const std::int64_t target : simd_targets()) {
    const std::string name(simd_target_name(target));
    INFO(name);
    setenv("QATTN_SIMD", name.c_str(), 1);
    const Outcome outcome = run(folder, command);
    unsetenv("QATTN_SIMD");
    REQUIRE(outcome.status == 0);
    CHECK(json_of(outcome)["context"]["simd"] == name);
    CHECK(outcome.out.substr(outcome.out.find("\"rows\"")) == rows);
  }
  setenv("QATTN_SIMD", "MMX", 1);
  const Outcome unknown = run(folder, command);
  unsetenv("QATTN_SIMD");
  CHECK(unknown.status == 2);
  CHECK(testing::is_one_line(unknown.err));
  CHECK(unknown.err.find("QATTN_SIMD=MMX is no SIMD target of this machine; it has") != std::string::npos);
  CHECK(unknown.out.empty());
}

TEST_CASE("run takes several files and a folder, filters, and overrides that show in the recipe") {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "dumps");
  write_tiny_dump(folder / "dumps/a.h5", {"layer_00", "layer_01"});
  write_tiny_dump(folder / "dumps/b.h5", {"layer_02"});
  const std::string options =
      " --recipe sage2-4b --set pv_format=exact --set smoothing=none --heads 1:2 --calls '[02]$' --csv";
  const Outcome folder_run = run(folder, "run " + folder / "dumps" + options);
  const Outcome file_run = run(folder, "run " + folder / "dumps/a.h5" + " " + folder / "dumps/b.h5" + options);
  REQUIRE(folder_run.status == 0);
  CHECK(folder_run.out == file_run.out);
  CHECK(folder_run.out.rfind("call,batch,head,recipe,reference,output,cos_sim,rel_l1,rmse,", 0) == 0);
  CHECK(folder_run.out.find("\nlayer_00,0,1,sage2-4b pv_format=exact smoothing=none,float64,o,") != std::string::npos);
  CHECK(folder_run.out.find("layer_01") == std::string::npos);
  CHECK(folder_run.out.find("layer_02") != std::string::npos);
}

TEST_CASE("The readable table, Markdown and LaTeX have the rows, the summary and the evidence") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00"});
  const std::string command = "run " + folder / "a.h5" + " --recipe sage2-8b";
  for (const char* form : {"", " --markdown", " --latex"}) {
    const Outcome outcome = run(folder, command + form);
    CHECK(outcome.status == 0);
    CHECK(outcome.out.find("CosSim") != std::string::npos);
    CHECK(outcome.out.find("average") != std::string::npos);
    CHECK(outcome.out.find("sm90.wgmma") != std::string::npos);
  }
  CHECK(run(folder, command + " --latex").out.find("\\toprule") != std::string::npos);
}

TEST_CASE("the option --output writes the file in one step, in the form that its ending names") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00"});
  const Outcome outcome = run(folder, "run " + folder / "a.h5" + " --recipe exact --output " + folder / "rows.json");
  CHECK(outcome.status == 0);
  CHECK(outcome.out.empty());
  CHECK(nlohmann::json::parse(io::testing::slurp(folder / "rows.json"))["rows"].size() == 3);
  CHECK(folder.entries() == 4);
}

TEST_CASE("ablate has axis and value in every row, and the stage's reference") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00"});
  const Outcome outcome = run(folder, "ablate " + folder / "a.h5" + " --base sage2-4b --axis smoothing stage --json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json rows = json_of(outcome)["rows"];
  REQUIRE(rows.size() == 27);
  CHECK(rows[0]["axis"] == "smoothing");
  CHECK(rows[0]["value"] == "none");
  CHECK(rows[0]["reference"] == "float64");
  CHECK(rows[8]["axis"] == "stage");
  CHECK(rows[8]["value"] == "accumulator");
  CHECK(rows[8]["reference"] == "sage2-4b accumulator=exact");
  CHECK(rows[4]["recipe"] == "sage2-4b stage=q");
}

TEST_CASE("a rotation that does not take a dump's head_dim: the table leaves its row out, a run says where") {
  const ScratchFolder folder;
  const std::string dump = folder / "a.h5";
  write_tiny_dump(dump, {"layer_00"}, {1, 1, 1, 70, 48});
  const nlohmann::json document = json_of(run(folder, "table sage2-table4 --json --dump " + dump));
  const nlohmann::json& rows = document["summary"]["rows"];
  REQUIRE(rows.size() > 3);
  int measured = 0;
  for (const nlohmann::json& row : rows) measured += row["ours"].is_null() ? 0 : 1;
  CHECK(measured == static_cast<int>(rows.size()) - 1);
  const Outcome text = run(folder, "table sage2-table4 --dump " + dump);
  CHECK(text.status == 0);
  CHECK(text.out.find("'HadmdAttn' is not measured: " + dump + ": layer_00: recipe sage2-4b ") != std::string::npos);
  const Outcome failed = run(folder, "run " + dump + " --recipe fa3-fp8-hadamard");
  CHECK(failed.status == 2);
  CHECK(failed.err.find(dump + ": layer_00: recipe fa3-fp8-hadamard: Hadamard rotation of 48") != std::string::npos);
}

TEST_CASE("exceptions that find no head are remarked, and rows of several files name theirs") {
  const ScratchFolder folder;
  const std::string a = folder / "a.h5", b = folder / "b.h5";
  write_tiny_dump(a, {"layer_00"});
  write_tiny_dump(b, {"layer_00"});
  const std::string command = "run " + a + " --recipe int8-token --set 'exceptions=layer_00 heads 1; layer_7'";
  const Outcome outcome = run(folder, command + " --json");
  CHECK(outcome.status == 0);
  CHECK(outcome.err.find("exceptions 'layer_7' finds none of the selected heads") != std::string::npos);
  CHECK(outcome.err.find("heads 1'") == std::string::npos);
  CHECK(json_of(outcome)["context"]["idle_exceptions"].size() == 1);
  const Outcome one = run(folder, "run " + a + " --recipe int8-token");
  const Outcome two = run(folder, "run " + a + " " + b + " --recipe int8-token");
  CHECK(one.out.find(a) == std::string::npos);
  CHECK(two.out.find(a) != std::string::npos);
  CHECK(two.out.find(b) != std::string::npos);
}

TEST_CASE("table prints the paper's figures beside ours, and lists what is known") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00"});
  const Outcome outcome = run(folder, "table sage2-table6 --dump " + folder / "a.h5" + " --json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 12);
  CHECK(document["rows"][0]["paper"]["rel_l1"] == 0.0649);
  CHECK(document["summary"]["rows"].size() == 4);
  CHECK(document["summary"]["orderings"].size() > 10);
  const Outcome text = run(folder, "table sage2-table6 --dump " + folder / "a.h5");
  CHECK(text.out.find("other tensors") != std::string::npos);
  const nlohmann::json list = json_of(run(folder, "table --list --json"))["rows"];
  CHECK(list.size() >= 7);
  CHECK(list[0].contains("name"));
  // Without a dump the language model's is measured.
  const nlohmann::json own = json_of(run(folder, "table sage3-table1c --calls layer_18 --heads 0:1 --json"));
  REQUIRE(own["rows"].size() == 4);
  CHECK(own["rows"][0]["output"] == "dq");
  CHECK(own["rows"][0]["rel_l1"].get<double>() > 0.01);
  CHECK(own["context"]["inputs"].size() == 2);
  CHECK(own["context"]["upstream_seed"] == 0);
}

TEST_CASE("plan gives each layer a recipe, and what it prints as exceptions gives the same model") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00", "layer_01", "layer_02"});
  const Outcome outcome = run(folder, "plan " + folder / "a.h5" + " --budget 1 --recipe int4-token --json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 3);
  std::string kept;
  int planned = 0;
  for (const nlohmann::json& row : document["rows"]) {
    CHECK(row["head"].is_null());
    if (row["recipe"] != "fa2-fp16") continue;
    kept = row["call"];
    ++planned;
  }
  CHECK(planned == 1);
  // What it prints as exceptions is the same model, --set included.
  const std::string options = " --recipe int4-token --set o_format=fp32";
  const std::string text = run(folder, "plan " + folder / "a.h5" + " --budget 1" + options).out;
  const std::string mark = "the same with qattn run: ";
  const std::string printed = text.substr(text.find(mark) + mark.size());
  CHECK(printed.find("exceptions=^(" + kept + ")$") != std::string::npos);
  const Outcome again = run(folder, "run " + folder / "a.h5" + " --json " + printed.substr(0, printed.find('\n')));
  REQUIRE(again.status == 0);
  const nlohmann::json model = json_of(run(folder, "plan " + folder / "a.h5" + " --budget 1 --json" + options));
  CHECK(json_of(again)["summary"][0]["rel_l1"] == model["summary"]["model"][0]["rel_l1"]);
  // Two files that hold the same calls: a path does not say which.
  write_tiny_dump(folder / "b.h5", {"layer_00", "layer_01", "layer_02"});
  CHECK(run(folder, "plan " + folder / "a.h5" + " " + folder / "b.h5" + " --budget 1").out.find("several files") !=
        std::string::npos);
  const auto seconds = [&](const char* threshold) {
    const nlohmann::json plan = json_of(run(folder, "plan " + folder / "a.h5" + " --json --threshold " + threshold));
    int count = 0;
    for (const nlohmann::json& layer : plan["summary"]["layers"]) count += layer["recipe"] == "sage1-B" ? 1 : 0;
    return count;
  };
  CHECK(seconds("-1") == 0);
  CHECK(seconds("1") == 3);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --budget 1 --threshold 0.5").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --budget 1 --threshold 0.998").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --budget 1 --by size").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --by rmse").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --budget 99999999999999999999").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --layer '['").status == 2);
  CHECK(run(folder, "plan " + folder / "a.h5" + " --set exceptions=layer_00").status == 2);
}

TEST_CASE("recipes name the bound of FP16 sums") {
  const ScratchFolder folder;
  const nlohmann::json rows = json_of(run(folder, "recipes sage2pp-224 sage1-B --json"))["rows"];
  CHECK(rows[0]["bound"].get<std::string>().find("at most 64512, below 65504: cannot overflow") != std::string::npos);
  CHECK(rows[1]["bound"].get<std::string>().find("overflows") != std::string::npos);
  CHECK(json_of(run(folder, "recipes --json"))["rows"].size() >= 30);
  // Every parameter is resolved: the range that "auto" is.
  const nlohmann::json resolved = json_of(run(folder, "recipes sage2-8b sage1-vB sage3-nvfp4 --json"))["rows"];
  const std::pair<const char*, const char*> kRanges[] = {{"448", "448"}, {"127", "127"}, {"1", "6"}};  // of P and V
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(resolved[i]["p_scale"] == kRanges[i].first);
    CHECK(resolved[i]["v_range"] == kRanges[i].second);
  }
}

TEST_CASE("recipes, formats and info speak every form, and rows have names") {
  const ScratchFolder folder;
  CHECK(json_of(run(folder, "recipes --json"))["rows"].size() >= 8);
  CHECK(json_of(run(folder, "recipes --json"))["rows"][0].contains("name"));
  CHECK(run(folder, "recipes sage2-4b").out.find("accumulator") != std::string::npos);
  CHECK(json_of(run(folder, "recipes --keys --json"))["rows"].size() > 20);
  const nlohmann::json formats = json_of(run(folder, "formats --json"))["rows"];
  CHECK(formats.size() >= 8);
  CHECK(formats[0]["name"] == "fp64");
  write_tiny_dump(folder / "a.h5", {"layer_00"});
  CHECK(json_of(run(folder, "info " + folder / "a.h5" + " --json"))["rows"].size() == 3);
  CHECK(json_of(run(folder, "info --groups --granularity per_block --tokens 200 --json"))["rows"].size() == 2);
  CHECK(run(folder, "info " + folder / "a.h5" + " --markdown").out.find("| layer_00 |") != std::string::npos);
}

TEST_CASE("help and version go to stdout with status 0") {
  const ScratchFolder folder;
  const Outcome help = run(folder, "--help");
  CHECK(help.status == 0);
  CHECK(help.out.find("ablate") != std::string::npos);
  CHECK(run(folder, "run --help").out.find("--recipe") != std::string::npos);
  CHECK(run(folder, "--version").out.rfind("qattn 0.", 0) == 0);
}
