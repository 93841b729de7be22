// qattn synth from the command line.
#include "io/dump.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using testing::json_of;
using testing::Outcome;

namespace {

const char* kSmall = " --q-heads 4 --kv-heads 2 --tokens 30 --kv-tokens 20 --head-dim 16 ";

}  // namespace

TEST_CASE("synth writes a dump of the shape asked for, and prints a row a tensor") {
  const ScratchFolder folder;
  const Outcome outcome =
      testing::qattn(folder, "synth " + folder / "s.h5" + " --distribution sagebwd --sigma 3" + kSmall +
                                 "--calls 2 --batch 2 --causal --dtype bfloat16 --layout NHD --json");
  REQUIRE(outcome.status == 0);
  CHECK(outcome.err.empty());
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 8);
  CHECK(document["rows"][7]["call"] == "layer_01");
  CHECK(document["rows"][7]["tensor"] == "do");
  CHECK(document["rows"][7]["shape"] == nlohmann::json({2, 4, 30, 16}));
  CHECK(document["rows"][0]["dtype"] == "bfloat16");
  CHECK(contains(document["context"]["command_line"], "--sigma 3 --seed 0"));
  const io::DumpReader dump(folder / "s.h5");
  REQUIRE(dump.calls().size() == 2);
  const io::AttentionCall& call = dump.calls().front();
  CHECK(call.batch == 2);
  CHECK(call.kv_heads == 2);
  CHECK(call.q_tokens == 30);
  CHECK(call.kv_tokens == 20);
  CHECK(call.is_causal);
  CHECK(call.layout == io::Layout::nhd);
  CHECK(testing::qattn(folder, "run " + folder / "s.h5" + " --recipe sage2-8b").status == 0);
}

TEST_CASE("synth is the same file for the same seed, another for another") {
  const ScratchFolder folder;
  const auto bytes = [&](const std::string& more) {
    REQUIRE(
        testing::qattn(folder, "synth " + folder / "s.h5" + " --distribution channel-bias" + kSmall + more).status ==
        0);
    return io::testing::slurp(folder / "s.h5");
  };
  const std::string one = bytes("--seed 7 --threads 1");
  CHECK(one == bytes("--seed 7 --threads 2"));
  CHECK(one != bytes("--seed 8"));
  CHECK(one != bytes("--seed 7 --k-bias 9"));
}

TEST_CASE("synth --list has every distribution with its parameters") {
  const ScratchFolder folder;
  const nlohmann::json rows = json_of(testing::qattn(folder, "synth --list --json"))["rows"];
  REQUIRE(rows.size() == 5);
  CHECK(rows[1]["name"] == "channel-bias");
  CHECK(rows[1]["parameters"]["k-bias"] == 8.0);
  CHECK(contains(testing::qattn(folder, "synth --list").out, "--outlier-rate (0.001)"));
}

TEST_CASE("synth refuses what does not fit with status 2 and an unwritable file with status 3") {
  const ScratchFolder folder;
  const auto fails = [&](const std::string& arguments, int status, const char* what) {
    const Outcome outcome = testing::qattn(folder, "synth " + arguments);
    INFO(outcome.err);
    CHECK(outcome.status == status);
    CHECK(testing::is_one_line(outcome.err));
    CHECK(contains(outcome.err, what));
  };
  const std::string out = folder / "s.h5";
  fails("", 2, "--distribution");
  fails(out, 2, "--distribution");
  fails(out + " --distribution cauchy", 2, "unknown distribution 'cauchy'");
  fails(out + " --distribution normal --k-bias 3", 2, "has no such parameter");
  fails(out + " --distribution normal --sigma -1", 2, "--sigma");
  fails(out + " --distribution normal --tokens 0", 2, "--tokens");
  fails(out + " --distribution normal --q-heads 3 --kv-heads 2", 2, "multiple");
  fails(out + " --distribution normal --dtype float7", 2, "float7");
  fails(out + " --distribution normal --layout DNH", 2, "--layout");
  CHECK(!std::filesystem::exists(out));
  fails(folder / "no/such/s.h5" + " --distribution normal" + kSmall, 3, "no/such/s.h5");
  fails(std::string("/proc/s.h5 --distribution normal") + kSmall, 3, "/proc/s.h5");
}
