// qattn check end to end: exit statuses, JUnit, JSON, and the options of dumps and of kernel vectors.
#include "apps/kernel_dump.h"
#include "apps/tiny_dump.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using io::testing::slurp;
using testing::json_of;
using testing::Outcome;

namespace {

Outcome check(const ScratchFolder& folder, const std::string& arguments) {
  return testing::qattn(folder, "check " + arguments);
}

/// Two heads, right ones; the second in zeros if `broken`.
std::string write_dump(const ScratchFolder& folder, const std::string& name, bool broken) {
  const std::vector<testing::PlainHead> heads = testing::plain_heads(2, 100, 100, 16);
  std::vector<testing::PlainOutput> outputs;
  for (const testing::PlainHead& head : heads) outputs.push_back(testing::plain_attention(head));
  if (broken) outputs[1].o.setZero();
  testing::write_kernel_dump(folder / name, heads, outputs);
  return folder / name;
}

/// Whether Python's parser takes the document; true where there is no Python.
bool is_well_formed(const std::string& path) {
  if (std::system("python3 -c 'import xml.dom.minidom' >/dev/null 2>&1") != 0) return true;
  const std::string command = "python3 -c 'import sys, xml.dom.minidom as d; d.parse(sys.argv[1])' '" + path + "'";
  return std::system(command.c_str()) == 0;
}

std::string vectors(const std::string& name) { return std::string(QATTN_SOURCE_DIR) + "/data/vectors/" + name; }

}  // namespace

TEST_CASE("check: a right dump is status 0, a wrong one 1, in every form") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false), wrong = write_dump(folder, "wrong.h5", true);
  CHECK(check(folder, right + " --recipe fa2-fp16").status == 0);
  const Outcome json = check(folder, wrong + " --recipe fa2-fp16 --json");
  CHECK(json.status == 1);
  const nlohmann::json document = json_of(json);
  CHECK(document["summary"]["passed"] == false);
  REQUIRE(document["rows"].size() == 5);
  for (const char* key : {"case", "kind", "name", "output", "elements", "mismatches", "max_ulp", "passed"}) {
    CHECK(document["rows"][0].contains(key));
  }
  CHECK(document["rows"][0]["kind"] == "dump");
  CHECK(document["rows"][0]["passed"] == true);
  CHECK(document["rows"][2]["diagnosis"] == "all zeros");
  const Outcome text = check(folder, wrong + " --recipe fa2-fp16");
  CHECK(contains(text.out, "looks like all zeros"));
  CHECK(contains(text.out, "FAILED: 2 of 5 outputs"));
  CHECK(contains(check(folder, wrong + " --recipe fa2-fp16 --csv").out, "all zeros"));
  CHECK(check(folder, wrong + " --recipe fa2-fp16 --heads 0:1").status == 0);
}

TEST_CASE("check: rows are the same bytes with 1 and 2 threads") {
  const ScratchFolder folder;
  const std::string wrong = write_dump(folder, "wrong.h5", true);
  const auto rows = [&](const char* threads) {
    const std::string text = check(folder, wrong + " --recipe sage2-8b --explain --json --threads " + threads).out;
    return text.substr(text.find("\"rows\""));
  };
  CHECK(rows("1") == rows("2"));
}

TEST_CASE("check: JUnit is written when all passes, when something fails, and when a file cannot be read") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false), wrong = write_dump(folder, "wrong.h5", true);
  const std::string junit = folder / "junit.xml";
  CHECK(check(folder, right + " --recipe fa2-fp16 --junit " + junit).status == 0);
  CHECK(is_well_formed(junit));
  CHECK(contains(slurp(junit), "tests=\"5\" failures=\"0\" errors=\"0\""));
  CHECK(check(folder, wrong + " --recipe fa2-fp16 --junit " + junit).status == 1);
  CHECK(is_well_formed(junit));
  CHECK(contains(slurp(junit), "failures=\"2\""));
  CHECK(contains(slurp(junit), "name=\"attention/batch 0/head 1/o\""));
  CHECK(contains(slurp(junit), "all zeros"));
  io::testing::spill(folder / "text.h5", "no dump at all");
  CHECK(check(folder, folder / "text.h5" + " --recipe fa2-fp16 --junit " + junit).status == 3);
  CHECK(is_well_formed(junit));
  CHECK(contains(slurp(junit), "errors=\"1\""));
  CHECK(contains(slurp(junit), "text.h5"));
  CHECK(check(folder, right + " --recipe fa2-fp16 --junit " + folder / "no/such/folder.xml").status == 3);
}

TEST_CASE("check: options that do not fit are status 2, a dump without o is status 3") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false);
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    const Outcome outcome = check(folder, arguments);
    CAPTURE(arguments, outcome.err);
    CHECK(outcome.status == 2);
    CHECK(testing::is_one_line(outcome.err));
    CHECK(contains(outcome.err, part));
  };
  refused(right, "--recipe");
  refused(right + " --recipe fa2-fp16 --kernel aten._scaled_dot_product_flash_attention", "--recipe");
  refused(right + " --recipe nope", "nope");
  refused(right + " --recipe fa2-fp16 --set colour=red", "colour");
  refused(right + " --kernel nope", "nope");
  refused(right + " --kernel aten._scaled_dot_product_flash_attention --set colour=red", "colour");
  refused(right + " --recipe fa2-fp16 --ulp -1", "ulp");
  refused(right + " --recipe fa2-fp16 --factor 0", "factor");
  for (const char* number : {"nan", "inf", "-1", "two"}) {
    refused(right + " --recipe fa2-fp16 --factor " + number, "no finite number above 0");
    refused(right + " --recipe fa2-fp16 --lse-tolerance " + number, "no finite number of at least 0");
  }
  refused(right + " --recipe fa2-fp16 --ulp 1.5", "no whole number");
  refused(vectors("kernel_vectors_1.h5") + " --cases '^c0$' --arch sm999", "sm999");
  refused(vectors("sdpa_vectors.h5") + " --kernels zzz", "no kernel matches 'zzz'");
  refused(right + " --recipe fa2-fp16 --lse 10", "--lse");
  refused(right + " --recipe fa2-fp16 --arch sm89", "--arch");
  refused(vectors("gemm_vectors.h5") + " --recipe fa2-fp16", "none among the files");
  testing::write_tiny_dump(folder / "tiny.h5", {"c"});
  const Outcome without = check(folder, folder / "tiny.h5" + " --recipe exact");
  CHECK(without.status == 3);
  CHECK(contains(without.err, "tiny.h5: c: holds no 'o'"));
}

TEST_CASE("check: --explain says what an output looks like") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false);
  const Outcome outcome = check(folder, right +
                                            " --recipe fa2-fp16 --set qk_format=int8 --set granularity=per_tensor "
                                            "--set qk_accumulator=exact --explain");
  CHECK(contains(outcome.out, "explain: looks like Q and K in "));
}

TEST_CASE("check: kernel vectors have rows of kind kernel, and --kernels selects") {
  const ScratchFolder folder;
  const Outcome outcome = check(folder, vectors("sdpa_vectors.h5") + " --cases '^s6$' --kernels efficient --json");
  CHECK(outcome.status == 0);
  const nlohmann::json rows = json_of(outcome)["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["case"] == "s6");
  CHECK(rows[0]["kind"] == "kernel");
  CHECK(rows[0]["name"] == "efficient");
  CHECK(rows[1]["output"] == "o");
  CHECK(rows[1]["mismatches"] == 0);
  CHECK(check(folder, vectors("sdpa_vectors.h5") + " --kernels '('").status == 2);
}

TEST_CASE("check: what cannot be compared is told beside what can, and the status is 3") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false), junit = folder / "junit.xml";
  testing::write_tiny_dump(folder / "tiny.h5", {"c"});
  io::testing::spill(folder / "text.h5", "no dump at all");
  const std::string all = right + " " + folder / "tiny.h5" + " " + folder / "text.h5";
  const Outcome outcome = check(folder, all + " --recipe fa2-fp16 --json --junit " + junit);
  CHECK(outcome.status == 3);
  const nlohmann::json summary = json_of(outcome)["summary"];
  CHECK(summary["passed"] == false);
  REQUIRE(summary["errors"].size() == 2);
  CHECK(contains(summary["errors"][0]["file"].get<std::string>(), "text.h5"));
  CHECK(contains(summary["errors"][1]["file"].get<std::string>(), "tiny.h5"));
  CHECK(summary["errors"][1]["case"] == "c");
  CHECK(json_of(outcome)["rows"].size() == 5);
  CHECK(is_well_formed(junit));
  CHECK(contains(slurp(junit), "tests=\"7\" failures=\"0\" errors=\"2\""));
  CHECK(contains(slurp(junit), "tiny.h5/c\""));
  CHECK(contains(check(folder, all + " --recipe fa2-fp16").out, "INCOMPLETE: 5 of 5 outputs, 2 could not be checked"));
  // Something that fails is worse than something that cannot be read.
  CHECK(check(folder, write_dump(folder, "wrong.h5", true) + " " + all + " --recipe fa2-fp16").status == 1);
}

TEST_CASE("check: skipped kernels stand in the JSON summary and in JUnit, and skipping all is status 2") {
  const ScratchFolder folder;
  const std::string junit = folder / "junit.xml", c0 = vectors("kernel_vectors_1.h5") + " --cases '^c0$' --arch sm89";
  const std::string one = c0 + " --kernels '^sm90_fp8_per_thread ' --junit " + junit;
  const Outcome skipped = check(folder, one);
  CHECK(skipped.status == 2);
  CHECK(contains(skipped.err, "nothing was compared, all 1 were skipped"));
  CHECK(is_well_formed(junit));
  CHECK(contains(slurp(junit), "<skipped message="));
  const Outcome some = check(folder, c0 + " --kernels '^(sm90_fp8_per_thread|sm89_fp8_per_warp_fp32) ' --json");
  const nlohmann::json document = json_of(some);
  REQUIRE(document["summary"]["skipped"].size() == 1);
  CHECK(document["summary"]["skipped"][0]["case"] == "c0/sm90_fp8_per_thread");
  CHECK(document["context"]["arch"] == "sm89");
}

TEST_CASE("check: in bit mode the text says what the replay rests on") {
  const ScratchFolder folder;
  const std::string right = write_dump(folder, "right.h5", false);
  const Outcome text = check(folder, right + " --kernel aten._scaled_dot_product_efficient_attention --arch sm80");
  CHECK(contains(text.out, "aten._scaled_dot_product_efficient_attention: predicted"));
  const Outcome json =
      check(folder, right + " --kernel aten._scaled_dot_product_efficient_attention --arch sm80 --json");
  CHECK(json_of(json)["context"]["arch"] == "sm80");
  CHECK(contains(json_of(json)["rows"][0]["evidence"].get<std::string>(), "predicted"));
}
