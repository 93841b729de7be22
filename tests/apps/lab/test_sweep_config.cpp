// Sweep configurations: how grids spread out, and what is said of wrong ones.
#include "lab/data_folder.h"
#include "lab/sweep_config.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;

namespace {

const std::string kDump = "[dump]\nfiles = \"a.h5\"\n";

lab::SweepConfig load(const ScratchFolder& folder, const std::string& text) {
  io::testing::spill(folder / "sweep.toml", text);
  return lab::load_sweep(folder / "sweep.toml");
}

std::vector<std::string> names(const std::string& text) {
  const ScratchFolder folder;
  std::vector<std::string> all;
  for (const lab::Trial& trial : load(folder, kDump + text).trials) all.push_back(trial.recipe.name);
  return all;
}

std::string complaint(const std::string& text) {
  const ScratchFolder folder;
  return message_of([&] { load(folder, text); }, ErrorKind::usage);
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Lists of a grid multiply, bases outermost, then keys in the order of the file") {
  CHECK(names("[[grid]]\nbase = [\"sage2-4b\", \"int8-token\"]\nsmoothing = [\"none\", \"k\"]\npv_format = [\"e4m3\", "
              "\"fp16\"]\n") ==
        Names{"sage2-4b smoothing=none pv_format=e4m3", "sage2-4b smoothing=none pv_format=fp16",
              "sage2-4b smoothing=k pv_format=e4m3", "sage2-4b smoothing=k pv_format=fp16",
              "int8-token smoothing=none pv_format=e4m3", "int8-token smoothing=none pv_format=fp16",
              "int8-token smoothing=k pv_format=e4m3", "int8-token smoothing=k pv_format=fp16"});
}

TEST_CASE("A single value is set in all, and zipped lists advance together and multiply with the rest") {
  CHECK(names("[[grid]]\nbase = \"sage2-4b\"\nrow_sum = \"rounded\"\nsmoothing = [\"k\", \"qk\"]\n"
              "[grid.zip]\nq_block = [64, 128]\nq_warp = [16, 32]\n") ==
        Names{"sage2-4b row_sum=rounded smoothing=k q_block=64 q_warp=16",
              "sage2-4b row_sum=rounded smoothing=k q_block=128 q_warp=32",
              "sage2-4b row_sum=rounded smoothing=qk q_block=64 q_warp=16",
              "sage2-4b row_sum=rounded smoothing=qk q_block=128 q_warp=32"});
  CHECK(names("[[grid]]\nbase = \"exact\"\n[[grid.zip]]\nq_block = [64, 128]\n[[grid.zip]]\nk_block = [64, 128]\n")
            .size() == 4);
}

TEST_CASE("A regular expression chooses recipes, and what two grids share counts once") {
  Names sage;
  for (const std::string& name : lab::data_entries("recipes")) {
    if (name.find("sage2") != std::string::npos) sage.push_back(name);
  }
  REQUIRE(sage.size() >= 2);
  CHECK(names("[[grid]]\nrecipes = \"sage2\"\n") == sage);
  Names both = {"exact"};
  both.insert(both.end(), sage.begin(), sage.end());
  CHECK(names("[[grid]]\nbase = \"exact\"\nrecipes = \"^sage2\"\n[[grid]]\nbase = \"exact\"\n") == both);
}

TEST_CASE("Values of lists reach the recipes, a recipe's file is looked for beside the configuration") {
  const ScratchFolder folder;
  io::testing::spill(folder / "mine.toml",
                     "description = \"d\"\nsource = \"s\"\nextends = \"sage2-4b\"\nq_block = 64\n");
  const lab::SweepConfig config = load(folder,
                                       "output = \"out.h5\"\nthreads = 3\n[dump]\nfiles = [\"mine.toml\", "
                                       "\"elsewhere\"]\ncalls = \"a|b\"\nheads = \"1:3\"\n"
                                       "[[grid]]\nbase = \"mine.toml\"\nk_block = [64, 128]\n");
  REQUIRE(config.trials.size() == 2);
  CHECK(config.trials[0].recipe.q_block == 64);
  CHECK(config.trials[0].recipe.k_block == 64);
  CHECK(config.trials[1].recipe.k_block == 128);
  CHECK(config.threads == 3);
  CHECK(config.output == folder / "out.h5");
  CHECK(config.selection.inputs == Names{folder / "mine.toml", "elsewhere"});
  CHECK(config.selection.calls == "a|b");
  CHECK(config.selection.heads->first == 1);
  CHECK(load(folder, kDump + "[[grid]]\nbase = \"exact\"\n").output == folder / "sweep.h5");
}

TEST_CASE("Combinations that do not fit are errors unless they are to be left out, and then they are told") {
  const std::string grid = "[[grid]]\nbase = \"sage2-8b\"\naccumulator = [\"sm90.wgmma\", \"sm75.mma\"]\n";
  CHECK(contains(complaint(kDump + grid), "sweep.toml:3"));
  CHECK(contains(complaint(kDump + grid), "skip_invalid = true"));
  const ScratchFolder folder;
  const lab::SweepConfig config = load(folder, kDump + grid + "skip_invalid = true\n");
  CHECK(config.trials.size() == 1);
  REQUIRE(config.left_out.size() == 1);
  CHECK(contains(config.left_out.front(), "sm75.mma"));
}

TEST_CASE("Every mistake is told with file, line, key and what is allowed") {
  const std::string grid = "[[grid]]\nbase = \"exact\"\n";
  const auto says = [](const std::string& text, const char* where, const char* what) {
    const std::string message = complaint(text);
    INFO(message);
    CHECK(contains(message, where));
    CHECK(contains(message, what));
  };
  says(grid, "sweep.toml:1", "the table [dump] is missing");
  says("dump = 3\n" + grid, "sweep.toml:1", "'dump' is to be a table");
  says("[dump]\ncalls = \"x\"\n" + grid, "sweep.toml:1", "'files'");
  says("[dump]\nfiles = []\n" + grid, "sweep.toml:2", "'files' is an empty list");
  says("[dump]\nfiles = [3]\n" + grid, "sweep.toml:2", "'files' is to be a string");
  says(kDump + "layers = 3\n" + grid, "sweep.toml:3", "unknown key 'layers'; [dump] takes files, calls, heads");
  says(kDump + "calls = \"(\"\n" + grid, "sweep.toml:3", "'calls' is no regular expression");
  says(kDump + "heads = \"3:1\"\n" + grid, "sweep.toml:3", "3:1");
  says("colour = 1\n" + kDump + grid, "sweep.toml:1",
       "unknown key 'colour'; a sweep takes output, threads, backward, upstream_seed, dump, grid");
  says("threads = -1\n" + kDump + grid, "sweep.toml:1", "'threads'");
  says("output = \"rows.csv\"\n" + kDump + grid, "sweep.toml:1", ".h5");
  says(kDump, "sweep.toml", "there is no [[grid]]");
  says(kDump + "[grid]\nbase = \"exact\"\n", "sweep.toml:3", "[[grid]]");
  says(kDump + "[[grid]]\n", "sweep.toml:3", "'base'");
  says(kDump + "[[grid]]\nbase = \"nope\"\n", "sweep.toml:4", "unknown recipe 'nope'");
  says(kDump + "[[grid]]\nrecipes = \"^nope\"\n", "sweep.toml:4", "no recipe's name has '^nope'");
  says(kDump + grid + "smoothing = []\n", "sweep.toml:5", "the list is empty");
  says(kDump + grid + "smoothng = [\"k\"]\n", "sweep.toml:5", "smoothng");
  says(kDump + grid + "smoothing = [\"k\", \"kk\"]\n", "sweep.toml:5", "kk");
  says(kDump + grid + "smoothing = [[\"k\"]]\n", "sweep.toml:5", "'smoothing'");
  says(kDump + grid + "skip_invalid = 1\n", "sweep.toml:5", "true or false");
  says(kDump + grid + "[grid.zip]\nq_block = [64, 128]\nq_warp = [16]\n", "sweep.toml:7", "'q_warp' has 1 values");
  says(kDump + grid + "[grid.zip]\nq_block = 64\n", "sweep.toml:6", "'q_block' is to be a list");
  says(kDump + grid + "[grid.zip]\n", "sweep.toml:5", "empty zip");
  says(kDump + grid + "zip = 3\n", "sweep.toml:5", "'zip' is to be a table");
  says(kDump + "[[grid]\n", "sweep.toml:3", "");
  CHECK(contains(message_of([] { lab::load_sweep("/no/such/sweep.toml"); }), "/no/such/sweep.toml"));
}

TEST_CASE("Two recipes of one name with different keys are refused") {
  const ScratchFolder folder;
  io::testing::spill(folder / "exact.toml", "description = \"d\"\nsource = \"s\"\nq_format = \"int8\"\n");
  const std::string message =
      message_of([&] { load(folder, kDump + "[[grid]]\nbase = [\"exact\", \"exact.toml\"]\n"); }, ErrorKind::usage);
  CHECK(contains(message, "two recipes with different keys are called 'exact'"));
}
