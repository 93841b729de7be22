// Record files: what any cut, any damaged byte and a full disk leave.
#include <sys/resource.h>

#include <csignal>

#include "lab/record_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::message_of;
using io::testing::ScratchFolder;
using io::testing::slurp;
using io::testing::spill;
using lab::RecordFile;

namespace {

using Records = std::vector<std::string>;

const Records kThree = {"first", "", std::string("third\0with zero and \n", 22)};

std::string file_of(const ScratchFolder& folder, const Records& records) {
  const std::string path = folder / "made.journal";
  std::filesystem::remove(path);
  RecordFile file(path);
  for (const std::string& record : records) file.append(record);
  return slurp(path);
}

}  // namespace

TEST_CASE("Records come back in order, and a file that was closed goes on") {
  const ScratchFolder folder;
  const std::string path = folder / "a.journal";
  for (std::size_t i = 0; i < kThree.size(); ++i) {
    RecordFile file(path);
    CHECK(file.records() == Records(kThree.begin(), kThree.begin() + static_cast<std::ptrdiff_t>(i)));
    CHECK(file.dropped_bytes() == 0);
    file.append(kThree[i]);
  }
  RecordFile file(path);
  CHECK(file.records() == kThree);
  file.remove();
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("A file that is cut at any byte keeps the whole records before the cut, and goes on after them") {
  const ScratchFolder folder;
  const std::string whole = file_of(folder, kThree);
  const std::vector<std::size_t> ends = {8, 8 + 8 + 5, 8 + 8 + 5 + 8, whole.size()};
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    spill(folder / "cut.journal", whole.substr(0, cut));
    std::size_t kept = 0;
    while (kept < 3 && ends[kept + 1] <= cut) ++kept;
    Records expected(kThree.begin(), kThree.begin() + static_cast<std::ptrdiff_t>(kept));
    {
      RecordFile file(folder / "cut.journal");
      CHECK(file.records() == expected);
      CHECK(file.dropped_bytes() == (cut < 8 ? cut : cut - ends[kept]));
      file.append("more");
    }
    expected.emplace_back("more");
    RecordFile again(folder / "cut.journal");
    CHECK(again.records() == expected);
    CHECK(again.dropped_bytes() == 0);
  }
}

TEST_CASE("Any damaged byte of the last record drops it, and zeros behind the last record are none") {
  const ScratchFolder folder;
  const std::string whole = file_of(folder, kThree);
  for (std::size_t i = 8 + 8 + 5 + 8; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x80}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      spill(folder / "bad.journal", damaged);
      const RecordFile file(folder / "bad.journal");
      CHECK(file.records() == Records(kThree.begin(), kThree.begin() + 2));
    }
  }
  spill(folder / "zeros.journal", whole + std::string(100, '\0'));
  const RecordFile file(folder / "zeros.journal");
  CHECK(file.records() == kThree);
  CHECK(file.dropped_bytes() == 100);
}

TEST_CASE("Damage between records costs those that it touches alone, and the file goes on behind the others") {
  const ScratchFolder folder;
  const std::string whole = file_of(folder, kThree);
  const std::string path = folder / "bad.journal";
  for (std::size_t i = 8; i < 8 + 8 + 5; ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    spill(path, damaged);
    {
      RecordFile file(path);
      CHECK(file.records() == Records(kThree.begin() + 1, kThree.end()));
      CHECK(file.damaged_bytes() == 8 + 5);
      CHECK(file.dropped_bytes() == 0);
      file.append("more");
    }
    const RecordFile again(path);
    CHECK(again.records() == Records{kThree[1], kThree[2], "more"});
  }
  spill(path, whole.substr(0, 8 + 8 + 5) + std::string(1000, '\x7f') + whole.substr(8 + 8 + 5));
  CHECK(RecordFile(path).records() == kThree);
  CHECK(RecordFile(path).damaged_bytes() == 1000);
}

TEST_CASE("A file of another kind is left alone, and one that is open elsewhere is refused") {
  const ScratchFolder folder;
  spill(folder / "text.journal", "a user's own notes");
  CHECK(contains(message_of([&] { RecordFile(folder / "text.journal"); }), "is no journal"));
  CHECK(slurp(folder / "text.journal") == "a user's own notes");
  {
    const RecordFile open(folder / "a.journal");
    CHECK(contains(message_of([&] { RecordFile(folder / "a.journal"); }), "another process writes it"));
  }
  CHECK(message_of([&] { RecordFile(folder / "a.journal"); }).empty());
  CHECK(contains(message_of([&] { RecordFile(folder / "no/folder/a.journal"); }), "cannot be written"));
  CHECK(contains(message_of([&] { RecordFile("/proc/qattn.journal"); }), "/proc/qattn.journal"));
  CHECK(contains(message_of([&] { RecordFile(folder.path()); }), "cannot be written"));
}

TEST_CASE("When the disk is full the records that are there stay, and later there is room again") {
  const ScratchFolder folder;
  const std::string path = folder / "a.journal";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  {
    RecordFile file(path);
    file.append("kept");
    const rlimit small = {100, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string message = message_of([&] { file.append(std::string(500, 'x')); });
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(contains(message, "a.journal: cannot be written: File too large"));
    CHECK(slurp(path).size() == 8 + 8 + 4);
    file.append("later");
  }
  CHECK(RecordFile(path).records() == Records{"kept", "later"});
}

TEST_CASE("A look at records that another has locked changes nothing") {
  const ScratchFolder folder;
  CHECK(lab::peek_records(folder / "none").records.empty());
  CHECK_FALSE(std::filesystem::exists(folder / "none"));
  lab::RecordFile file(folder / "r");
  file.append("one");
  file.append("two");
  const std::string before = slurp(folder / "r");
  CHECK(lab::peek_records(folder / "r").records == std::vector<std::string>{"one", "two"});
  CHECK(slurp(folder / "r") == before);
  file.append("three");
  CHECK(lab::peek_records(folder / "r").records.size() == 3);
}
