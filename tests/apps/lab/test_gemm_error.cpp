// The error of a matrix product against K.
#include <cmath>

#include "base/error.h"
#include "lab/gemm_error.h"
#include "support/catch.h"

using namespace qattn;
using lab::GemmErrorOptions;
using lab::Json;

namespace {

GemmErrorOptions options_for(const char* instruction) {
  GemmErrorOptions options;
  options.instruction = &mma::find_instruction(instruction);
  options.k = {4096};
  options.promotion = {0, 128};
  options.slice = {0};
  options.positive = true;
  options.rows = 16;
  options.columns = 16;
  return options;
}

double number(const Json& row, const char* key) { return row.at(key).get<double>(); }

}  // namespace

TEST_CASE("fast FP8 accumulation loses 7 % of a positive sum of 4096, promotion every 128 leaves 0.06 %") {
  const std::vector<Json> rows = lab::gemm_errors(options_for("sm90.wgmma.m64n64k32.f32.e4m3.e4m3"));
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("promotion") == 0);
  CHECK(number(rows[0], "mean_relative") > 0.067);  // an H200's cuBLASLt: 7.0e-2
  CHECK(number(rows[0], "mean_relative") < 0.073);
  CHECK(rows[1].at("promotion") == 128);
  CHECK(number(rows[1], "mean_relative") > 5.7e-4);  // 6.3e-4
  CHECK(number(rows[1], "mean_relative") < 6.9e-4);
  // Truncation always shrinks: the error is all bias.
  for (const Json& row : rows) {
    CHECK(std::fabs(number(row, "bias") + number(row, "rel_l1")) < 1e-12);
    CHECK(row.at("evidence") == "measured here");
    CHECK(row.at("nan_count") == 0);
  }
}

TEST_CASE("the error grows with K, and every split of K takes a part of it") {
  GemmErrorOptions options = options_for("sm90.wgmma.m64n64k32.f32.e4m3.e4m3");
  options.promotion = {0};
  options.k = {512, 2048, 8192};
  options.slice = {0, 2048, 512};
  const std::vector<Json> rows = lab::gemm_errors(options);
  REQUIRE(rows.size() == 9);
  const auto error = [&](std::size_t k, std::size_t slice) { return number(rows[3 * k + slice], "mean_relative"); };
  CHECK(error(0, 0) == error(0, 1));  // one slice of 512
  CHECK(error(0, 0) < error(1, 0));
  CHECK(error(1, 0) < error(2, 0));
  CHECK(error(2, 1) < error(2, 0));
  CHECK(error(2, 2) < error(2, 1));
}

TEST_CASE("operands of mean zero have an error without bias, and wider adders a smaller one") {
  GemmErrorOptions options = options_for("sm90.wgmma.m64n64k32.f32.e4m3.e4m3");
  options.positive = false;
  options.promotion = {0};
  const Json narrow = lab::gemm_errors(options)[0];
  CHECK(std::fabs(number(narrow, "bias")) < 0.2 * number(narrow, "rel_l1"));
  CHECK(number(narrow, "rel_l1") > 5e-4);
  options.instruction = &mma::find_instruction("sm100.tcgen05.m64n64k32.f32.e4m3.e4m3");
  const Json wide = lab::gemm_errors(options)[0];
  CHECK(number(wide, "rel_l1") < 0.01 * number(narrow, "rel_l1"));
  CHECK(wide.at("evidence").get<std::string>().find("from the literature") == 0);
}

TEST_CASE("TF32 operands are numbers, not the upper bits of their codes") {
  GemmErrorOptions options = options_for("sm90.wgmma.m64n64k8.f32.tf32.tf32");
  options.promotion = {0};
  const Json row = lab::gemm_errors(options)[0];
  CHECK(number(row, "mean_relative") > 0);
  CHECK(number(row, "mean_relative") < 1e-3);
}

TEST_CASE("what does not fit the instruction is refused by name") {
  const auto refused = [](const char* instruction, const auto& change) {
    GemmErrorOptions options = options_for(instruction);
    change(options);
    try {
      lab::gemm_errors(options);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage && std::string(error.what()).starts_with("gemm: ");
    }
    return false;
  };
  const char* fp8 = "sm90.wgmma.m64n64k32.f32.e4m3.e4m3";
  const auto nothing = [](GemmErrorOptions&) {};
  CHECK(!refused(fp8, nothing));
  CHECK(refused(fp8, [](GemmErrorOptions& o) { o.promotion = {100}; }));
  CHECK(refused(fp8, [](GemmErrorOptions& o) { o.slice = {-32}; }));
  CHECK(refused(fp8, [](GemmErrorOptions& o) { o.k = {0}; }));
  CHECK(refused("sm90.wgmma.m64n64k32.s32.s8.s8", nothing));
  CHECK(refused("sm90.mma.m16n8k16.f64.f64.f64", nothing));
  CHECK(refused("sm120.mma.m16n8k32.f32.e4m3.e4m3.block32.ue8m0", nothing));
}
