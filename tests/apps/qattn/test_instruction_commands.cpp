// mma, gemm, instructions and scalar end to end.
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using testing::json_of;
using testing::Outcome;

namespace {

nlohmann::json first_row(const ScratchFolder& folder, const std::string& arguments) {
  const Outcome outcome = testing::qattn(folder, arguments + " --json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json document = json_of(outcome);
  return document["rows"][0];
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("mma gives numbers to every kind of instruction as its formats hold them") {
  const ScratchFolder folder;
  struct Case {
    const char* instruction;
    const char* d_code;
  };
  // 1.5 * 2 + 0.5 * -1 + 0.25 = 2.75; as integers, to nearest even, 2 * 2 + 0 * -1 + 0 = 4.
  const Case cases[] = {
      {"sm90.wgmma.m64n8k32.f32.e4m3.e4m3", "0x40300000"}, {"sm90.mma.m16n8k8.f32.tf32.tf32", "0x40300000"},
      {"sm90.mma.m16n8k16.f16.f16.f16", "0x4180"},         {"sm90.mma.m16n8k16.f64.f64.f64", "0x4006000000000000"},
      {"sm90.mma.m16n8k32.f32.e4m3.e4m3", "0x40300000"},   {"sm90.mma.m16n8k32.s32.s8.s8", "0x00000004"},
      {"cdna3.mfma.m16n16k8.f32.xf32.xf32", "0x40300000"},
  };
  for (const Case& c : cases) {
    INFO(c.instruction);
    const nlohmann::json row =
        first_row(folder, std::string("mma ") + c.instruction + " --a 1.5,0.5 --b 2,-1 --c 0.25");
    CHECK(row["d_code"] == c.d_code);
    if (!has(c.instruction, "s32")) CHECK(row["f64_sum"] == 2.75);
    CHECK(!row["evidence"].get<std::string>().empty());
  }
}

TEST_CASE("mma takes the scales of block-scaled instructions, and traces them") {
  const ScratchFolder folder;
  const std::string mx = "mma sm120.mma.m16n8k32.f32.e4m3.e4m3.block32.ue8m0 --a 1.5,0.5 --b 2,-1 --c 0.25 ";
  CHECK(first_row(folder, mx)["d"] == 2.75);
  CHECK(first_row(folder, mx + "--scale-a 4 --scale-b 0.5")["d"] == 5.25);
  CHECK(first_row(folder, mx + "--scale-a 4 --scale-b 0.5")["f64_sum"] == 5.25);
  const std::string nv = "mma sm120.mma.m16n8k64.f32.e2m1.e2m1.block16.ue4m3 --a 1.5,0.5 --b 2,-1 --c 0.25 ";
  CHECK(first_row(folder, nv + "--scale-a 1.5,8 --scale-b 3")["d"] == 11.5);
  const Outcome trace = testing::qattn(folder, nv + "--scale-a 1.5 --scale-b 3 --trace");
  CHECK(trace.status == 0);
  for (const char* part : {"a[0..15] b[0..15]", "e_max", "aligned", "from the literature"}) {
    CHECK(has(trace.out, part));
  }
  const Outcome many = testing::qattn(folder, mx + "--scale-a 1,2");
  CHECK(many.status == 2);
  CHECK(has(many.err, "2 numbers for 1 scales"));
  CHECK(testing::qattn(folder, "mma sm90.wgmma.m64n8k32.f32.e4m3.e4m3 --scale-a 1").status == 2);
}

TEST_CASE("mma takes Inf, NaN and codes as the formats hold them, and refuses what they cannot") {
  const ScratchFolder folder;
  const std::string f16 = "mma sm90.wgmma.m64nNk16.f32.f16.f16 ";
  CHECK(first_row(folder, f16 + "--a=inf --b=0")["d_code"] == "0x7FFFFFFF");
  CHECK(first_row(folder, f16 + "--a -inf --b 1")["d_code"] == "0xFF800000");
  CHECK(first_row(folder, f16 + "--a nan --b 1")["d_code"] == "0x7FFFFFFF");
  CHECK(first_row(folder, f16 + "--a 0x3E00,0x8001 --b 2,0 --c 0x3F800000")["d"] == 4.0);
  CHECK(first_row(folder, "mma sm90.mma.m16n8k8.f32.tf32.tf32 --a 0x3FC00000 --b 2")["d"] == 3.0);
  CHECK(first_row(folder, "mma sm90.wgmma.m64nNk32.s32.s8.s8 --a -128 --b 1 --c 2147483647")["d"] == 2147483519.0);
  const struct {
    const char* arguments;
    const char* option;
  } refused[] = {
      {"sm90.wgmma.m64nNk16.f16.f16.f16 --c 70000", "--c '70000'"},
      {"sm90.wgmma.m64nNk16.f32.f16.f16 --a 0x10000", "--a '0x10000'"},
      {"sm90.wgmma.m64nNk16.f32.f16.f16 --b 1,two", "--b 'two'"},
      {"sm90.wgmma.m64nNk32.f32.e4m3.e4m3 --a=inf", "--a 'inf'"},
      {"sm90.wgmma.m64nNk32.s32.s8.s8 --c 1e10", "--c '1e10'"},
      {"sm80.mma.m16n8k64.s32.s4.s4 --a 8", "--a '8'"},
      {"sm80.mma.m16n8k64.s32.u4.u4 --a=-1", "--a '-1'"},
      {"sm120.mma.m16n8k32.f32.e4m3.e4m3.block32.ue8m0 --scale-a=-1", "--scale-a '-1'"},
      {"sm120.mma.m16n8k32.f32.e4m3.e4m3.block32.ue8m0 --scale-b 3", "--scale-b '3'"},
  };
  for (const auto& [arguments, option] : refused) {
    const Outcome outcome = testing::qattn(folder, std::string("mma ") + arguments);
    INFO(arguments << ": " << outcome.err);
    CHECK(outcome.status == 2);
    CHECK(has(outcome.err, option));
  }
}

TEST_CASE("mma says which numbers it rounded, and traces the code of every operand") {
  const ScratchFolder folder;
  const std::string command = "mma sm90.wgmma.m64nNk32.f32.e4m3.e4m3 --a 0.3 --b 1 --c 0.25 --trace";
  const Outcome outcome = testing::qattn(folder, command);
  CHECK(outcome.status == 0);
  CHECK(outcome.err == "qattn: --a 0.3 is rounded to 0.3125, the nearest e4m3 (0x2A)\n");
  for (const char* part : {"c 0x3E800000 = 0.25", "a[0] 0x2A = 0.3125, b[0] 0x38 = 1", "a[31] 0x00 = 0"}) {
    CHECK(has(outcome.out, part));
  }
  CHECK(testing::qattn(folder, command + " --quiet").err.empty());
}

TEST_CASE("scalar takes negative infinity and NaN as words of their own") {
  const ScratchFolder folder;
  CHECK(first_row(folder, "scalar ex2.approx.ftz.f32 -inf")["y_code"] == "0x00000000");
  CHECK(first_row(folder, "scalar ex2.approx.ftz.f32 -nan")["x_code"] == "0x7FC00000");
  CHECK(first_row(folder, "scalar ex2.approx.ftz.f32 -1")["y"] == 0.5);
  CHECK(testing::qattn(folder, "scalar ex2.approx.ftz.f32 -infinite").status == 2);
}

TEST_CASE("gemm shows the bias of fast accumulation, with the evidence for it, in every form") {
  const ScratchFolder folder;
  const std::string command =
      "gemm sm90.wgmma.m64n128k32.f32.e4m3.e4m3 --distribution positive --k 256,4096 "
      "--rows 8 --columns 8 ";
  const Outcome outcome = testing::qattn(folder, command + "--json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 4);
  for (const nlohmann::json& row : document["rows"]) CHECK(row["evidence"] == "measured here");
  CHECK(document["rows"][2]["mean_relative"].get<double>() > 0.06);
  CHECK(document["rows"][3]["mean_relative"].get<double>() < 0.001);
  CHECK(document["rows"][3]["promotion"] == 128);
  CHECK(has(testing::qattn(folder, command + "--csv").out, "name,k,promotion,slice"));
  CHECK(has(testing::qattn(folder, command).out, "measured here"));
  CHECK(json_of(testing::qattn(folder, command + "--slice 0,128 --promotion 0 --json"))["rows"].size() == 4);
  CHECK(testing::qattn(folder, command + "--promotion 33").status == 2);
  CHECK(testing::qattn(folder, "gemm sm90.wgmma.m64n8k32.s32.s8.s8").status == 2);
  CHECK(testing::qattn(folder, "gemm nothing").status == 2);
}

TEST_CASE("scalar --errors says how many inputs hardware has seen, and the largest error over all") {
  const ScratchFolder folder;
  const nlohmann::json row = first_row(folder, "scalar cvt.rn.satfinite.e4m3x2.f16x2 --errors");
  CHECK(row["inputs_on_hardware"] == 65536);
  CHECK(row["lowest"] == -0.5);
  CHECK(row["highest"] == 0.5);
  CHECK(row["evidence"] == "measured here");
  const nlohmann::json manual = first_row(folder, "scalar cvt.rn.f16x2.e2m3x2 --errors");
  CHECK(manual["inputs_on_hardware"] == 0);
  CHECK(manual["inputs"] == 64);
  CHECK(manual["largest"] == 0);
  CHECK(testing::qattn(folder, "scalar nothing --errors").status == 2);
}
