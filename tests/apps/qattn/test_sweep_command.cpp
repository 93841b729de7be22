// qattn sweep from the command line: kills, signals, full disks, and the contract's forms.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "base/random.h"
#include "lab/record_file.h"
#include "lab/synth.h"
#include "program.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using io::testing::slurp;
using io::testing::spill;
using testing::json_of;
using testing::Outcome;

namespace {

/// A qattn that runs beside the test.
class Child {
 public:
  Child(const ScratchFolder& folder, const std::vector<std::string>& arguments) : err_(folder / "child.err") {
    std::vector<const char*> argv = {QATTN_PROGRAM};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    const std::string out = folder / "child.out";
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    execv(QATTN_PROGRAM, const_cast<char* const*>(argv.data()));
    _exit(127);
  }
  ~Child() {
    if (!ended_) kill_and_wait(SIGKILL);
  }

  bool running() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }
  /// The exit status as a shell has it.
  int kill_and_wait(int signal) {
    if (!ended_) {
      ::kill(pid_, signal);
      waitpid(pid_, &status_, 0);
      ended_ = true;
    }
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }
  std::string err() const { return slurp(err_); }

 private:
  std::string err_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

/// 2 calls, 4 heads, 15 recipes: 120 cells of some milliseconds each.
struct Sweep {
  explicit Sweep(const ScratchFolder& folder, const char* name = "out") {
    dump = folder / "dump.h5";
    config = folder / (std::string(name) + ".toml");
    output = folder / (std::string(name) + ".h5");
    journal = output + ".journal";
    if (!std::filesystem::exists(dump)) {
      lab::SynthRequest request;
      request.distribution = &lab::find_distribution("channel-bias");
      request.calls = 2;
      request.q_heads = request.kv_heads = 4;
      request.q_tokens = request.kv_tokens = 192;
      request.head_dim = 64;
      lab::synthesize(dump, request, {});
    }
    spill(
        config,
        "threads = 1\n[dump]\nfiles = \"dump.h5\"\n[[grid]]\nbase = [\"sage2-4b\", \"int8-token\", \"exact\"]\n"
        "smoothing = [\"none\", \"k\", \"q\", \"qk\"]\n[[grid]]\nbase = [\"sage1-B\", \"sage2-8b\", \"fp8-tensor\"]\n");
  }
  std::string dump, config, output, journal;
};

/// From "rows" on, what two runs have to share; the context holds times.
std::string rows_of(const Outcome& outcome) { return outcome.out.substr(outcome.out.find("\"rows\"")); }

/// The cells of a journal; fails when one is there twice.
std::size_t unique_cells(const std::string& journal) {
  std::size_t cells = 0;
  std::set<std::string> ids;
  const lab::RecordFile file(journal);
  for (const std::string& record : file.records()) {
    if (record.front() != 'C') continue;
    ++cells;
    // Call, batch, head and recipe are one byte each in a sweep of this size.
    ids.insert(record.substr(1, 4));
  }
  CHECK(ids.size() == cells);
  return cells;
}

}  // namespace

/// Waits until a sweep that has just begun has finished `cells` more than were there, or has ended. Cells are counted, not
/// bytes: the journal's head, which names every recipe, is longer than many cells and may be there in part.
void wait_for_cells(Child& child, const std::string& journal, std::size_t cells) {
  const auto finished = [&] {
    std::size_t count = 0;
    for (const std::string& record : lab::peek_records(journal).records) count += record.front() == 'C' ? 1 : 0;
    return count;
  };
  const std::size_t before = finished();
  while (child.running() && finished() < before + cells) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

TEST_CASE("A sweep that is killed 20 times at random moments ends with the bytes of an undisturbed one") {
  const ScratchFolder folder;
  const Sweep calm(folder, "calm"), killed(folder, "killed");
  const Outcome undisturbed = testing::qattn(folder, "sweep " + calm.config + " --json --threads 2");
  REQUIRE(undisturbed.status == 0);
  REQUIRE(json_of(undisturbed)["context"]["cells"] == 120);
  int hit = 0;
  std::set<std::size_t> progress;
  for (std::uint64_t i = 0; i < 20; ++i) {
    Child child(folder, {"sweep", killed.config});
    // At any moment of its first milliseconds, or while it writes one of its next cells.
    if (i % 4 != 0) wait_for_cells(child, killed.journal, random_bits(2024, 0, i) % 8);
    std::this_thread::sleep_for(std::chrono::microseconds(random_bits(2024, 1, i) % 20000));
    if (child.kill_and_wait(SIGKILL) != 128 + SIGKILL) continue;
    ++hit;
    progress.insert(unique_cells(killed.journal));
  }
  INFO("killed in flight: " << hit << ", at so many different numbers of cells: " << progress.size());
  CHECK(hit >= 15);
  CHECK(progress.size() > 5);
  const std::size_t kept = std::filesystem::exists(killed.journal) ? unique_cells(killed.journal) : 120;
  const Outcome finished = testing::qattn(folder, "sweep " + killed.config + " --json --quiet");
  REQUIRE(finished.status == 0);
  CHECK(json_of(finished)["context"]["cells_measured_now"] == 120 - kept);
  CHECK(rows_of(finished) == rows_of(undisturbed));
  CHECK(!std::filesystem::exists(killed.journal));
  const Outcome again = testing::qattn(folder, "sweep " + killed.config + " --json --quiet");
  CHECK(json_of(again)["context"]["cells_measured_now"] == 0);
  CHECK(rows_of(again) == rows_of(undisturbed));
}

TEST_CASE("A journal that is damaged in the middle costs the cells that stood there alone") {
  const ScratchFolder folder;
  const Sweep calm(folder, "calm"), damaged(folder, "damaged");
  const Outcome undisturbed = testing::qattn(folder, "sweep " + calm.config + " --json");
  REQUIRE(undisturbed.status == 0);
  Child child(folder, {"sweep", damaged.config});
  wait_for_cells(child, damaged.journal, 8);
  REQUIRE(child.kill_and_wait(SIGTERM) == 128 + SIGTERM);
  const std::size_t kept = unique_cells(damaged.journal);
  REQUIRE(kept >= 8);
  const std::string first = lab::peek_records(damaged.journal).records.at(0);
  std::string bytes = io::testing::slurp(damaged.journal);
  for (const std::size_t behind : {40, 41, 42}) bytes[8 + 8 + first.size() + behind] ^= 0x55;
  io::testing::spill(damaged.journal, bytes);
  const Outcome finished = testing::qattn(folder, "sweep " + damaged.config + " --json");
  REQUIRE(finished.status == 0);
  CHECK(contains(finished.err, "bytes between its records are damaged"));
  const std::size_t again = json_of(finished)["context"]["cells_measured_now"].get<std::size_t>() - (120 - kept);
  CHECK((again == 1 || again == 2));
  CHECK(rows_of(finished) == rows_of(undisturbed));
}

TEST_CASE("Ctrl-C and SIGTERM finish the cell in hand, keep it, and say how to go on") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  for (const int number : {SIGINT, SIGTERM}) {
    Child child(folder, {"sweep", sweep.config});
    wait_for_cells(child, sweep.journal, 3);
    CHECK(child.kill_and_wait(number) == 128 + number);
    CHECK(contains(child.err(), "are kept in " + sweep.journal));
    CHECK(lab::RecordFile(sweep.journal).dropped_bytes() == 0);
    CHECK(!std::filesystem::exists(sweep.output));
  }
  const std::size_t kept = unique_cells(sweep.journal);
  CHECK(kept >= 6);
  const Outcome finished = testing::qattn(folder, "sweep " + sweep.config + " --json");
  CHECK(json_of(finished)["context"]["cells_measured_now"] == 120 - kept);
  CHECK(contains(finished.err, std::to_string(kept) + " of 120 cells are done, going on"));
}

TEST_CASE("A full disk is status 3 and keeps the finished cells, and another sweep of the same output is refused") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  const std::string err = folder / "err";
  // In sh the unit is 512 bytes: room for the journal's head and some cells.
  const std::string command =
      "sh -c \"ulimit -f 80; '" QATTN_PROGRAM "' sweep " + sweep.config + " >/dev/null 2>" + err + "\"";
  const int status = std::system(command.c_str());
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(testing::is_one_line(slurp(err)));
  CHECK(contains(slurp(err), "out.h5.journal: cannot be written: File too large"));
  const std::size_t kept = unique_cells(sweep.journal);
  CHECK(kept > 4);
  CHECK(kept < 120);
  CHECK(contains(slurp(err), "(" + std::to_string(kept) + " of 120 cells are kept"));
  {
    const lab::RecordFile other(sweep.journal);
    const Outcome refused = testing::qattn(folder, "sweep " + sweep.config);
    CHECK(refused.status == 3);
    CHECK(contains(refused.err, "another process writes it"));
  }
  const Outcome finished = testing::qattn(folder, "sweep " + sweep.config + " --json --quiet");
  CHECK(finished.status == 0);
  CHECK(json_of(finished)["context"]["cells_measured_now"] == 120 - kept);
}

TEST_CASE("a sweep's --dry-run prints cells, cost and memory and writes nothing") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  const std::size_t before = folder.entries();
  const Outcome outcome = testing::qattn(folder, "sweep " + sweep.config + " --dry-run --json");
  REQUIRE(outcome.status == 0);
  const nlohmann::json document = json_of(outcome);
  REQUIRE(document["rows"].size() == 15);
  CHECK(document["rows"][0]["recipe"] == "sage2-4b smoothing=none");
  CHECK(document["rows"][0]["cells"] == 8);
  CHECK(document["rows"][0]["multiply_adds"] == 8 * 192 * 192 * 2 * 64);
  CHECK(document["summary"]["cells"] == 120);
  CHECK(document["summary"]["finished"] == 0);
  CHECK(document["summary"]["estimated_seconds"] > 0.0);
  CHECK(document["summary"]["estimated_bytes"] > 1000);
  CHECK(contains(testing::qattn(folder, "sweep " + sweep.config + " --dry-run").out, "120 cells, 0 of them finished"));
  CHECK(folder.entries() == before + 2);  // stdout and stderr of the program itself
}

TEST_CASE("The rows have the contract's keys in every form, and --output names results or the printed rows") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  spill(sweep.config, "[dump]\nfiles = \"dump.h5\"\nheads = \"0:2\"\n[[grid]]\nbase = [\"exact\", \"sage2-8b\"]\n");
  const Outcome json = testing::qattn(folder, "sweep " + sweep.config + " --json");
  const nlohmann::json document = json_of(json);
  REQUIRE(document["rows"].size() == 12);
  for (const char* key : {"call", "batch", "head", "recipe", "output", "cos_sim", "rel_l1", "rmse", "nan_count"}) {
    CHECK(document["rows"][0].contains(key));
  }
  CHECK(document["rows"][4]["head"].is_null());
  for (const char* key : {"configuration_hash", "inputs", "recipes", "sources", "cells", "results", "commit"}) {
    CHECK(document["context"].contains(key));
  }
  CHECK(document["context"]["sources"][0]["threads"].get<int>() >= 1);
  CHECK(document["summary"].size() == 4);
  CHECK(contains(testing::qattn(folder, "sweep " + sweep.config + " --csv").out, "call,batch,head,recipe,"));
  CHECK(contains(testing::qattn(folder, "sweep " + sweep.config).out, "out.h5: 8 cells, 0 measured now"));
  CHECK(testing::qattn(folder, "sweep " + sweep.config + " --output " + folder / "rows.csv").status == 0);
  CHECK(contains(slurp(folder / "rows.csv"), "call,batch,head,recipe,"));
  const Outcome moved = testing::qattn(folder, "sweep " + sweep.config + " --json --output " + folder / "other.h5");
  CHECK(rows_of(moved) == rows_of(json));
  CHECK(std::filesystem::exists(folder / "other.h5"));
}

TEST_CASE("a sweep's --merge joins shards to the rows of the whole, and refuses what does not fit") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  const auto shard = [&](const char* name, const char* heads) {
    spill(folder / name + std::string(".toml"), std::string("[dump]\nfiles = \"dump.h5\"\nheads = \"") + heads +
                                                    "\"\n[[grid]]\nbase = [\"exact\", \"sage2-8b\"]\n");
    return testing::qattn(folder, "sweep " + folder / name + ".toml --json --quiet");
  };
  const Outcome whole = shard("whole", "0:4");
  shard("low", "0:1");
  shard("high", "1:4");
  const std::string parts = folder / "low.h5" + " " + folder / "high.h5";
  const Outcome merged = testing::qattn(folder, "sweep --merge " + parts + " --output " + folder / "c.h5 --json");
  REQUIRE(merged.status == 0);
  CHECK(rows_of(merged) == rows_of(whole));
  CHECK(json_of(merged)["context"]["configuration_hash"] == json_of(whole)["context"]["configuration_hash"]);
  const Outcome known =
      testing::qattn(folder, "sweep " + folder / "whole.toml --json --quiet --output " + folder / "c.h5");
  CHECK(json_of(known)["context"]["cells_measured_now"] == 0);
  CHECK(testing::qattn(folder, "sweep --merge " + parts).status == 2);
  CHECK(testing::qattn(folder, "sweep --merge " + parts + " --output " + sweep.dump).status == 3);
  CHECK(testing::qattn(folder, "sweep --merge " + folder / "low.h5 " + sweep.dump + " --output " + folder / "d.h5")
            .status == 3);
}

TEST_CASE("A wrong sweep is told in one line with the place: status 2, or 3 when a file is at fault") {
  const ScratchFolder folder;
  const Sweep sweep(folder);
  const auto fails = [&](const std::string& text, int status, const char* what) {
    spill(sweep.config, text);
    const Outcome outcome = testing::qattn(folder, "sweep " + sweep.config);
    INFO(outcome.err);
    CHECK(outcome.status == status);
    CHECK(testing::is_one_line(outcome.err));
    CHECK(contains(outcome.err, "out.toml"));
    CHECK(contains(outcome.err, what));
    CHECK(!std::filesystem::exists(sweep.output));
    CHECK(!std::filesystem::exists(sweep.journal));
  };
  const std::string dump = "[dump]\nfiles = \"dump.h5\"\n";
  fails(dump + "[[grid]]\nbase = \"nope\"\n", 2, "out.toml:4: unknown recipe 'nope'");
  fails(dump, 2, "there is no [[grid]]");
  fails(dump + "calls = \"nothing\"\n[[grid]]\nbase = \"exact\"\n", 2, "leave nothing");
  fails("[dump]\nfiles = \"none.h5\"\n[[grid]]\nbase = \"exact\"\n", 3, "none.h5");
  CHECK(testing::qattn(folder, "sweep").status == 2);
  CHECK(testing::qattn(folder, "sweep " + folder / "none.toml").status == 3);
  const Sweep good(folder);
  const Outcome unwritable = testing::qattn(folder, "sweep " + good.config + " --output /proc/x.h5");
  CHECK(unwritable.status == 3);
  CHECK(contains(unwritable.err, "/proc/x.h5"));
}
