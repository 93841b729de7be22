// Bad input end to end: exit status 2 or 3, one line on stderr that names the place, nothing on stdout.
#include <cmath>

#include "apps/tiny_dump.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::ScratchFolder;
using testing::json_of;
using testing::Outcome;
using testing::TinyShape;
using testing::write_tiny_dump;

namespace {

/// Runs and checks the form of the failure; the message is compared by the caller.
std::string failure(const ScratchFolder& folder, const std::string& arguments, int status) {
  const Outcome outcome = testing::qattn(folder, arguments);
  CAPTURE(arguments, outcome.err);
  CHECK(outcome.status == status);
  CHECK(outcome.out.empty());
  CHECK(testing::is_one_line(outcome.err));
  CHECK(outcome.err.rfind("qattn: ", 0) == 0);
  return outcome.err;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("A wrong command line is status 2") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"});
  CHECK(has(failure(folder, "", 2), "a subcommand is required"));
  CHECK(has(failure(folder, "fly", 2), "no subcommand 'fly'; the subcommands are "));
  CHECK(has(failure(folder, "--nosuch", 2), "see qattn --help"));
  CHECK(has(failure(folder, "info " + folder / "a.h5" + " --blocks --json", 2), "'--json' is no format"));
  CHECK(has(failure(folder, "info --blocks " + folder / "a.h5", 2), "--blocks nvfp4"));
  const std::string synth =
      "synth " + folder / "s.h5" + " --distribution channel-bias --head-dim 32 --biased-channels ";
  CHECK(has(failure(folder, synth + "1.5", 2), "whole number"));
  CHECK(has(failure(folder, synth + "33", 2), "0 to 32"));
  failure(folder, "run", 2);
  failure(folder, "run " + folder / "a.h5", 2);
  const std::string run = "run " + folder / "a.h5" + " --recipe exact ";
  failure(folder, run + "--threads x", 2);
  failure(folder, run + "--threads -1", 2);
  failure(folder, run + "--json --csv", 2);
  failure(folder, run + "--colour red", 2);
  CHECK(has(failure(folder, run + "--heads 3:1", 2), "--heads"));
  CHECK(has(failure(folder, run + "--calls '('", 2), "--calls"));
  CHECK(has(failure(folder, run + "--calls nothing", 2), "leave nothing"));
  CHECK(has(failure(folder, run + "--set smoothing", 2), "KEY=VALUE"));
  CHECK(has(failure(folder, run + "--set colour=red", 2), "colour"));
  CHECK(has(failure(folder, "ablate " + folder / "a.h5" + " --base exact --axis colour", 2), "unknown axis 'colour'"));
  CHECK(has(failure(folder, "table sage9", 2), "unknown table 'sage9'"));
  failure(folder, "table", 2);
  CHECK(has(failure(folder, "table sage1-table4 --calls '['", 2), "--calls"));
  CHECK(has(failure(folder, "table fa3-table3 --calls '['", 2), "draws its own tensors"));
  CHECK(has(failure(folder, "table fa3-table3 --dump " + folder / "a.h5", 2), "draws its own tensors"));
  CHECK(has(failure(folder, "table sage1-table4 --seeds 3", 2), "--seeds"));
  CHECK(has(failure(folder, "table --all", 2), "--output FILE"));
  CHECK(has(failure(folder, "table --all sage1-table4 --output " + folder / "r", 2), "--all"));
  CHECK(has(failure(folder, "table --list sage1-table4", 2), "--list"));
  for (const char* unused : {"--seeds 3", "--dump a.h5", "--calls x", "--heads 0:1"}) {
    CHECK(has(failure(folder, std::string("table --list ") + unused, 2), "measures nothing"));
  }
  CHECK(has(failure(folder, "table sage3-table1c --upstream-seed -1", 2), "--upstream-seed"));
  CHECK(has(failure(folder, "table sage1-table4 --upstream-seed 3", 2), "has no gradients"));
  CHECK(has(failure(folder, "table sagebwd2-table1 --upstream-seed 3", 2), "draws its own tensors"));
  CHECK(has(failure(folder, "table --list --upstream-seed 0", 2), "--upstream-seed"));
  CHECK(has(failure(folder, run + "--upstream-seed 3", 2), "--backward"));
  CHECK(has(failure(folder, "recipes --keys sage2-4b", 2), "--keys"));
  CHECK(has(failure(folder, "table --all --json --output " + folder / "r", 2), "no form"));
  CHECK(has(failure(folder, "table --all --calls '[' --output " + folder / "r", 2), "--calls"));
  CHECK(has(failure(folder, "table --all --output " + folder / "no/r", 3), "no such folder"));
  failure(folder, "info", 2);
  CHECK(has(failure(folder, "info --groups --granularity per_moon", 2), "per_moon"));
}

TEST_CASE("Heads beyond the last are told on stderr, unless it is to be quiet") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"});
  const std::string run = "run " + folder / "a.h5" + " --recipe exact --csv --heads ";
  const Outcome beyond = testing::qattn(folder, run + "0:99");
  CHECK(beyond.status == 0);
  CHECK(has(beyond.err, "--heads 0:99: no call has more than "));
  CHECK(testing::qattn(folder, run + "0:99 --quiet").err.empty());
  CHECK(testing::qattn(folder, run + "0:1").err.empty());
  CHECK(testing::qattn(folder, run + "0:").err.empty());
}

TEST_CASE("An unknown recipe and a bad TOML key are status 2 and name the place") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"});
  CHECK(has(failure(folder, "run " + folder / "a.h5" + " --recipe nope", 2), "unknown recipe 'nope'"));
  io::testing::spill(folder / "bad.toml", "description = \"d\"\nsource = \"s\"\nq_formt = \"int8\"\n");
  const std::string message = failure(folder, "run " + folder / "a.h5" + " --recipe " + folder / "bad.toml", 2);
  CHECK(has(message, "bad.toml:3"));
  CHECK(has(message, "q_formt"));
  CHECK(has(message, "q_format"));
}

TEST_CASE("A truncated, missing or foreign file is status 3 and is named") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"});
  const std::string whole = io::testing::slurp(folder / "a.h5");
  io::testing::spill(folder / "cut.h5", whole.substr(0, whole.size() / 2));
  CHECK(has(failure(folder, "run " + folder / "cut.h5" + " --recipe exact", 3), "cut.h5"));
  CHECK(has(failure(folder, "info " + folder / "cut.h5", 3), "cut.h5"));
  CHECK(has(failure(folder, "run " + folder / "none.h5" + " --recipe exact", 3), "none.h5"));
  io::testing::spill(folder / "text.h5", "no dump at all");
  CHECK(has(failure(folder, "run " + folder / "text.h5" + " --recipe exact --json", 3), "text.h5"));
}

TEST_CASE("A missing dataset, shapes that disagree and an unknown dtype are status 3 and name file and dataset") {
  const ScratchFolder folder;
  const TinyShape shape, longer{1, 2, 1, 41, 16};
  {
    io::DumpWriter writer(folder / "missing.h5");
    writer.begin_call("c");
    for (const char* name : {"q", "k"}) {
      writer.write("c", name, testing::tiny_tensor(name, 2, shape, testing::tiny_value, format::kFP16));
    }
    writer.commit();
  }
  CHECK(has(failure(folder, "run " + folder / "missing.h5" + " --recipe exact", 3), "missing.h5"));
  {
    io::DumpWriter writer(folder / "shapes.h5");
    writer.begin_call("c");
    writer.write("c", "q", testing::tiny_tensor("q", 2, shape, testing::tiny_value, format::kFP16));
    writer.write("c", "k", testing::tiny_tensor("k", 1, shape, testing::tiny_value, format::kFP16));
    writer.write("c", "v", testing::tiny_tensor("v", 1, longer, testing::tiny_value, format::kFP16));
    writer.commit();
  }
  const std::string shapes = failure(folder, "run " + folder / "shapes.h5" + " --recipe exact", 3);
  CHECK(has(shapes, "shapes.h5"));
  CHECK(has(shapes, "41"));
  {
    io::Hdf5Writer writer(folder / "dtype.h5");
    writer.set_attributes("", {{"schema", std::string(io::kDumpSchema)}, {"layout", std::string("HND")}});
    for (const char* name : {"c/q", "c/k", "c/v"}) {
      writer.create_codes(name, 1, {1, 1, 2, 2}, {1, 1, 2, 2});
      const std::vector<std::byte> bytes(4);
      writer.write(name, {0, 0, 0, 0}, {1, 1, 2, 2}, bytes);
      writer.set_attribute(name, "dtype", std::string("float7"));
    }
    writer.commit();
  }
  const std::string dtype = failure(folder, "run " + folder / "dtype.h5" + " --recipe exact", 3);
  CHECK(has(dtype, "dtype.h5"));
  CHECK(has(dtype, "float7"));
  CHECK(has(dtype, "c/"));
}

TEST_CASE(
    "An output that cannot be written is status 3: a folder that is a file, a device, /proc, a full or closed stdout") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"});
  const std::string run = "run " + folder / "a.h5" + " --recipe exact --json ";
  CHECK(has(failure(folder, run + "--output " + folder / "a.h5" + "/rows.json", 3), "a.h5/rows.json"));
  CHECK(has(failure(folder, run + "--output " + folder / "no/such/folder/rows.json", 3), "no/such/folder"));
  CHECK(has(failure(folder, run + "--output /proc/qattn.json", 3), "/proc/qattn.json"));
  CHECK(has(failure(folder, run + "--output /dev/full", 3), "/dev/full"));
  CHECK(has(failure(folder, run + ">/dev/full", 3), "stdout"));
  CHECK(has(failure(folder, run + ">&-", 3), "stdout"));
  CHECK(has(failure(folder, "--help >/dev/full", 3), "stdout"));
}

TEST_CASE("A dump full of NaN finishes with status 1: rows complete, each NaN counted and located") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "nan.h5", {"c"}, {}, [](auto&&...) { return std::nan(""); });
  const Outcome outcome = testing::qattn(folder, "run " + folder / "nan.h5" + " --recipe exact sage2-4b --json");
  CHECK(outcome.status == 1);
  const nlohmann::json rows = json_of(outcome)["rows"];
  REQUIRE(rows.size() == 6);
  for (const nlohmann::json& row : rows) {
    CHECK(row["rel_l1"].is_null());
    CHECK(row["nan_count"].get<int>() > 0);
    CHECK(row["first_bad"]["row"] == 0);
  }
  CHECK(has(outcome.err, "input q[token 0, channel 0] is NaN"));
  CHECK(testing::qattn(folder, "run " + folder / "nan.h5" + " --recipe exact").status == 1);
}

TEST_CASE("One V channel of zeros and one token run through") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "zero.h5", {"c"}, {}, [](const std::string& name, auto b, auto h, auto token, auto channel) {
    return name == "v" && channel == 3 ? 0.0 : testing::tiny_value(name, b, h, token, channel);
  });
  write_tiny_dump(folder / "one.h5", {"c"}, TinyShape{1, 2, 1, 1, 16});
  for (const char* file : {"zero.h5", "one.h5"}) {
    const Outcome outcome =
        testing::qattn(folder, "run " + folder / file + " --recipe exact fp8-tensor sage1-B sage2-4b sage2-8b --json");
    CHECK(outcome.status == 0);
    const nlohmann::json document = json_of(outcome);
    for (const nlohmann::json& row : document["rows"]) CHECK(row["rel_l1"].get<double>() < 0.3);
  }
  const Outcome propagated =
      testing::qattn(folder, "run " + folder / "zero.h5" + " --recipe sage2-8b --set zero_scale=propagate --json");
  CHECK(propagated.status == 1);
  CHECK(has(propagated.err, "channel 3; the inputs are finite"));
}

TEST_CASE("A folder of --cache that cannot keep references is remarked once, and the run passes") {
  const ScratchFolder folder;
  const TinyShape long_enough{1, 2, 1, 2048, 32};  // references of fewer multiply-adds are not kept anyway
  write_tiny_dump(folder / "a.h5", {"c"}, long_enough);
  const std::string run = "run " + folder / "a.h5" + " --recipe fp8-tensor --csv ";
  const std::string cache = "--cache " + folder / "a.h5/below";
  const Outcome outcome = testing::qattn(folder, run + cache);
  CHECK(outcome.status == 0);
  CHECK(testing::is_one_line(outcome.err));
  CHECK(has(outcome.err, "qattn: --cache: " + folder / "a.h5/below: "));
  CHECK(testing::qattn(folder, run + cache + " --quiet").err.empty());
  const Outcome kept = testing::qattn(folder, run + "--cache " + folder / "references");
  CHECK(kept.err.empty());
  CHECK(kept.out == outcome.out);
}
