// Files appear complete or not at all.
#include "io/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>

#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;

TEST_CASE("a written file holds exactly the bytes, and nothing else is left in the folder") {
  const ScratchFolder folder;
  const std::string binary("a\0b\n\xff", 5);
  write_file(folder / "out", binary);
  CHECK(slurp(folder / "out") == binary);
  write_file(folder / "out", std::string_view("second"));
  CHECK(slurp(folder / "out") == "second");
  write_file(folder / "empty", std::string_view());
  CHECK(std::filesystem::file_size(folder / "empty") == 0);
  CHECK(folder.entries() == 2);
}

TEST_CASE("without commit the old file stays and the new one vanishes") {
  const ScratchFolder folder;
  spill(folder / "out", "old");
  {
    const PendingFile pending(folder / "out");
    spill(pending.temporary_path(), "half of the new");
    CHECK(folder.entries() == 2);
  }
  CHECK(slurp(folder / "out") == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("permissions of an existing file are kept and links are followed") {
  const ScratchFolder folder;
  spill(folder / "target", "old");
  REQUIRE(::chmod((folder / "target").c_str(), 0640) == 0);
  std::filesystem::create_symlink("target", folder / "link");
  write_file(folder / "link", std::string_view("new"));
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(slurp(folder / "target") == "new");
  CHECK((std::filesystem::status(folder / "target").permissions() & std::filesystem::perms::mask) ==
        std::filesystem::perms(0640));
}

TEST_CASE("places that cannot be written give one line with file and reason") {
  const ScratchFolder folder;
  spill(folder / "file", "x");
  const auto write_to = [](const std::string& path) {
    return message_of([&] { write_file(path, std::string_view("text")); });
  };
  CHECK(contains(write_to(folder / "file/below"), "file/below: cannot be written: Not a directory"));
  CHECK(contains(write_to(folder / "missing/file"), "missing/file: cannot be written: No such file or directory"));
  CHECK(contains(write_to(folder.path()), "it is a folder"));
  CHECK(contains(write_to("/dev/full"), "/dev/full: cannot be written: No space left on device"));
  CHECK(contains(message_of([] { const PendingFile pending("/dev/null"); }), "no regular file"));
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK(folder.entries() == 1);
}

TEST_CASE("a write that fails half way leaves the old file and no other") {
  const ScratchFolder folder;
  spill(folder / "out", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small = {1000, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = message_of([&] { write_file(folder / "out", std::string(5000, 'x')); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(contains(message, "out: cannot be written: File too large"));
  CHECK(slurp(folder / "out") == "old");
  CHECK(folder.entries() == 1);
}

TEST_CASE("temporary files of processes that are gone are removed, those of living ones are not") {
  const ScratchFolder folder;
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  REQUIRE(gone > 0);
  REQUIRE(::waitpid(gone, nullptr, 0) == gone);
  const std::string abandoned = folder / (".a.h5." + std::to_string(gone) + ".0.tmp");
  const std::string living = folder / (".a.h5." + std::to_string(::getppid()) + ".7.tmp");
  const std::string other = folder / (".b.h5." + std::to_string(gone) + ".0.tmp");
  const std::string fresh = folder / (".a.h5." + std::to_string(gone) + ".1.tmp");
  for (const std::string& path : {abandoned, fresh, living, other, folder / ".a.h5.x.tmp"}) spill(path, "x");
  const auto old = std::filesystem::last_write_time(abandoned) - std::chrono::hours(1);
  for (const std::string& path : {abandoned, living, other}) std::filesystem::last_write_time(path, old);
  write_file(folder / "a.h5", std::string_view("whole"));
  CHECK_FALSE(std::filesystem::exists(abandoned));
  CHECK(std::filesystem::exists(fresh));
  CHECK(std::filesystem::exists(living));
  CHECK(std::filesystem::exists(other));
  CHECK(std::filesystem::exists(folder / ".a.h5.x.tmp"));
}

}  // namespace
}  // namespace qattn::io
