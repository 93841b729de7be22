// pwrite, fdatasync, flock.
#include "lab/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"

namespace qattn::lab {
namespace {

constexpr std::string_view kSignature = "QATTNJ1\n";
constexpr std::size_t kFrameBytes = 8;

void put_word(std::string& bytes, std::uint32_t word) {
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>((word >> (8 * i)) & 0xFF);
}

std::uint32_t word_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    word |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return word;
}

/// Of the length's four bytes and the content: a stretch of zeros is no record.
std::uint32_t checksum(std::string_view record) {
  std::string length;
  put_word(length, static_cast<std::uint32_t>(record.size()));
  const auto* head = reinterpret_cast<const Bytef*>(length.data());
  const auto* body = reinterpret_cast<const Bytef*>(record.data());
  return static_cast<std::uint32_t>(crc32_z(crc32_z(0, head, length.size()), body, record.size()));
}

std::string frame_of(std::string_view record) {
  std::string frame;
  put_word(frame, static_cast<std::uint32_t>(record.size()));
  put_word(frame, checksum(record));
  return frame.append(record);
}

/// Writes everything at `offset` or returns errno.
int write_at(int descriptor, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    offset += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// The whole file, or errno in `error`.
std::string read_all(int descriptor, int& error) {
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::pread(descriptor, buffer, sizeof buffer, static_cast<off_t>(bytes.size()));
    if (got < 0 && errno == EINTR) continue;
    error = got < 0 ? errno : 0;
    if (got <= 0) return bytes;
    bytes.append(buffer, static_cast<std::size_t>(got));
  }
}

[[noreturn]] void fail_read(const std::string& path, int error) {
  throw Error(ErrorKind::input, fmt::format("{}: cannot be read: {}", path, std::strerror(error)));
}

/// The content of a whole record that begins at `offset`; nothing when there is none.
std::optional<std::string_view> record_at(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < kFrameBytes) return std::nullopt;
  const std::uint64_t length = word_at(bytes, offset);
  if (length > bytes.size() - offset - kFrameBytes) return std::nullopt;
  const std::string_view record = bytes.substr(offset + kFrameBytes, length);
  return checksum(record) == word_at(bytes, offset + 4) ? std::optional(record) : std::nullopt;
}

Records records_of(const std::string& path, int descriptor) {
  int error = 0;
  const std::string bytes = read_all(descriptor, error);
  if (error != 0) fail_read(path, error);
  if (!bytes.starts_with(kSignature) && !kSignature.starts_with(bytes)) {
    throw Error(ErrorKind::input, path + ": is no journal of qattn and is left alone; choose another output");
  }
  Records found;
  if (bytes.size() < kSignature.size()) {
    found.dropped = bytes.size();
    return found;
  }
  found.end = kSignature.size();
  for (std::uint64_t offset = found.end; offset < bytes.size();) {
    const std::optional<std::string_view> record = record_at(bytes, offset);
    if (!record) {
      ++offset;
      continue;
    }
    found.damaged += offset - found.end;
    found.records.emplace_back(*record);
    offset += kFrameBytes + record->size();
    found.end = offset;
  }
  found.dropped = bytes.size() - found.end;
  return found;
}

}  // namespace

Records peek_records(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) return {};
  if (descriptor < 0) fail_read(path, errno);
  try {
    Records found = records_of(path, descriptor);
    ::close(descriptor);
    return found;
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

RecordFile::RecordFile(const std::string& path) : path_(path) {
  try {
    open_and_lock();
    found_ = records_of(path_, descriptor_);
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

RecordFile::~RecordFile() { ::close(descriptor_); }

void RecordFile::fail(int error) const {
  throw Error(ErrorKind::input, fmt::format("{}: cannot be written: {}", path_, std::strerror(error)));
}

void RecordFile::open_and_lock() {
  for (;;) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail(errno);
      throw Error(ErrorKind::input, path_ + ": another process writes it; wait for it or choose another output");
    }
    // Whoever had it before may have deleted it between open and lock.
    struct stat opened = {}, named = {};
    if (::fstat(descriptor_, &opened) != 0) fail(errno);
    if (::stat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
      if (S_ISREG(opened.st_mode)) return;
      throw Error(ErrorKind::input, path_ + ": is no regular file; choose another output");
    }
    ::close(descriptor_);
  }
}

void RecordFile::append(std::string_view record) {
  if (record.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorKind::internal, path_ + ": a record is larger than 4 GiB");
  }
  const std::lock_guard lock(mutex_);
  std::string bytes;
  if (found_.end == 0) bytes = kSignature;
  bytes += frame_of(record);
  int error = ::ftruncate(descriptor_, static_cast<off_t>(found_.end)) == 0 ? 0 : errno;
  if (error == 0) error = write_at(descriptor_, bytes, found_.end);
  if (error == 0 && ::fdatasync(descriptor_) != 0 && errno != EINVAL) error = errno;
  if (error != 0) {
    // Best effort: what cannot be taken back is no whole record and will be dropped when the file is read.
    static_cast<void>(::ftruncate(descriptor_, static_cast<off_t>(found_.end)) == 0);
    fail(error);
  }
  found_.end += bytes.size();
}

void RecordFile::clear() {
  const std::lock_guard lock(mutex_);
  if (::ftruncate(descriptor_, 0) != 0) fail(errno);
  found_.end = 0;
  found_.records.clear();
  found_.damaged = found_.dropped = 0;
}

void RecordFile::remove() {
  const std::lock_guard lock(mutex_);
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) fail(errno);
}

}  // namespace qattn::lab
