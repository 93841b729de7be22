// POSIX pread behind InputFile.
#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "io/fail.h"

namespace qattn::io {

bool FileStamp::settled() const {
  constexpr std::int64_t kSettled = 2'000'000'000;  // the coarsest clock of a file system in use
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - changed_ns > kSettled;
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(path_, "is not a regular file; give the file itself");
  }
  stamp_ = {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
            std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > size() || bytes.size() > size() - offset) {
    fail(path_, "is truncated: it ends at byte " + std::to_string(size()) + "; copy or capture it again");
  }
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(path_, std::string("cannot be read: ") + (got == 0 ? "unexpected end" : std::strerror(errno)));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::vector<std::byte> InputFile::read(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size() || count > size() - offset) {
    fail(path_, "is truncated: it ends at byte " + std::to_string(size()) + "; copy or capture it again");
  }
  std::vector<std::byte> bytes(count);
  read(offset, bytes);
  return bytes;
}

}  // namespace qattn::io
