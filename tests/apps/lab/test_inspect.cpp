// qattn info: statistics of cases small enough to know.
#include <cmath>

#include "apps/tiny_dump.h"
#include "base/error.h"
#include "lab/inspect.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using testing::TinyShape;

TEST_CASE("A biased channel of K is found, its energy and what smoothing buys") {
  const ScratchFolder folder;
  const auto biased = [](const std::string& name, auto b, auto h, auto token, auto channel) {
    if (name != "k") return testing::tiny_value(name, b, h, token, channel);
    return channel == 3 && h == 1 ? 8.0 : (token % 2 == 0 ? 1.0 : -1.0);
  };
  testing::write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 4, 2, 64, 16}, biased);
  const lab::Report report = lab::inspect_dump(lab::DumpSet({{folder / "a.h5"}, "", {}}), 2);
  REQUIRE(report.rows.size() == 3);
  const lab::Json& k = report.rows[1];
  CHECK(k["tensor"] == "k");
  CHECK(lab::to_json(k["shape"]) == "[1, 2, 64, 16]");
  CHECK(k["dtype"] == "float16");
  CHECK(k["min"] == -1.0);
  CHECK(k["max"] == 8.0);
  CHECK(k["bias_head"] == 1);
  CHECK(k["bias_channel"] == 3);
  CHECK(k["outlier_channels"] == 1);
  CHECK(k["largest_to_median"] == 8.0);
  CHECK(k["bias_energy"].get<double>() == Approx(0.5 * 64 / (64 + 15)));
  CHECK(k["smoothing_gain"].get<double>() == Approx((1.0 + 1.0 / 8) / 2));
  CHECK(report.rows[0]["tensor"] == "q");
}

TEST_CASE("NaN and Inf of a dump are counted and located") {
  const ScratchFolder folder;
  const auto bad = [](const std::string& name, auto b, auto h, auto token, auto channel) {
    if (name == "v" && token == 2 && channel == 1) return std::nan("");
    return testing::tiny_value(name, b, h, token, channel);
  };
  testing::write_tiny_dump(folder / "a.h5", {"one"}, {}, bad);
  const lab::Report report = lab::inspect_dump(lab::DumpSet({{folder / "a.h5"}, "", {}}), 1);
  CHECK(report.rows[2]["nan_count"] == 1);
  CHECK(lab::to_json(report.rows[2]["first_bad"]) == R"({"batch": 0, "head": 0, "row": 2, "column": 1})");
  CHECK(report.rows[0]["nan_count"] == 0);
}

TEST_CASE("Groups are printed as their members: the per-thread map of SageAttention2's section 3.2") {
  quant::GroupSpec spec;
  spec.granularity = quant::Granularity::per_thread;
  const lab::Report q = lab::inspect_groups(spec, 128, 64);
  REQUIRE(q.rows.size() == 32);
  CHECK(q.rows[9]["members"] == "rows {33,41,49,57}");
  CHECK(q.rows[9]["elements"] == 4 * 64);
  spec.operand = quant::Operand::k;
  const lab::Report k = lab::inspect_groups(spec, 64, 64);
  REQUIRE(k.rows.size() == 4);
  CHECK(k.rows[1]["members"].get<std::string>().rfind("rows {2,3,10,11,", 0) == 0);
}

TEST_CASE("Blocks of a micro-scaled format: a zero block and the spread of scales") {
  const ScratchFolder folder;
  const auto values = [](const std::string&, auto, auto, auto token, auto) {
    return token == 0 ? 0.0 : std::ldexp(1.0, static_cast<int>(token));
  };
  testing::write_tiny_dump(folder / "a.h5", {"one"}, TinyShape{1, 1, 1, 5, 32}, values);
  const lab::Report report = lab::inspect_blocks(lab::DumpSet({{folder / "a.h5"}, "", {}}), "mxfp4", 1);
  REQUIRE(report.rows.size() == 3);
  CHECK(report.rows[0]["blocks"] == 5);
  CHECK(report.rows[0]["zero_blocks"] == 1);
  CHECK(report.rows[0]["log2_range"] == 3.0);
  CHECK_THROWS_AS(lab::inspect_blocks(lab::DumpSet({{folder / "a.h5"}, "", {}}), "mxfp3", 1), Error);
}
