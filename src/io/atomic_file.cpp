// Temporary file, fsync, rename, fsync of the folder.
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "io/fail.h"

namespace qattn::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_write(const std::string& target, int error) {
  fail(target, std::string("cannot be written: ") + std::strerror(error));
}

/// The file that a write to `path` changes: symbolic links are followed, also one that points at nothing yet.
std::string resolve(const std::string& path) {
  fs::path target(path);
  std::error_code ignored;
  for (int links = 0; links < 40 && fs::is_symlink(target, ignored); ++links) {
    const fs::path next = fs::read_symlink(target, ignored);
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target.string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Writes everything or returns errno.
int write_everything(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Flushes a file or folder to the disk; returns errno or 0. A file system that knows no fsync is no failure.
int sync_path(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  return error;
}

bool is_special(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

/// Removes what killed processes left beside `target`: ".<name>.<pid>.<number>.tmp" of a process that is gone. A young
/// one stays: another machine that shares the folder may be writing it.
void remove_abandoned(const std::string& target) {
  const std::string prefix = "." + fs::path(target).filename().string() + ".";
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder_of(target), failed)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".tmp")) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    pid_t process = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), process);
    if (error != std::errc() || process <= 0 || *end != '.') continue;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry.path(), failed);
    if (failed || age < std::chrono::minutes(10)) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) ::unlink(entry.path().c_str());
  }
}

void write_directly(const std::string& path, std::span<const std::byte> bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) fail_write(path, errno);
  const int error = write_everything(descriptor, bytes);
  ::close(descriptor);
  if (error != 0) fail_write(path, error);
}

}  // namespace

PendingFile::PendingFile(const std::string& target) : target_(resolve(target)) {
  static std::atomic<unsigned> counter{0};
  std::error_code ignored;
  const fs::file_status status = fs::status(target_, ignored);
  if (fs::is_directory(status)) fail(target_, "cannot be written: it is a folder; give a file's name");
  if (is_special(target_)) fail(target_, "cannot be written: it is no regular file; give another name");
  if (fs::exists(status) && ::access(target_.c_str(), W_OK) != 0) fail_write(target_, errno);
  remove_abandoned(target_);
  const mode_t mode = fs::exists(status) ? static_cast<mode_t>(status.permissions()) & 0777 : 0666;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary_ = folder_of(target_) + "/." + fs::path(target_).filename().string() + "." + std::to_string(::getpid()) +
                 "." + std::to_string(counter++) + ".tmp";
    const int descriptor = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor >= 0) {
      ::close(descriptor);
      return;
    }
    if (errno != EEXIST) break;
  }
  const int error = errno;
  fail_write(target_, error);
}

PendingFile::~PendingFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void PendingFile::commit() {
  if (const int error = sync_path(temporary_, O_RDWR)) fail_write(target_, error);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail_write(target_, errno);
  committed_ = true;
  // The data is safe and in place; a folder that cannot be synced only delays the name's durability.
  sync_path(folder_of(target_), O_RDONLY | O_DIRECTORY);
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  if (is_special(path)) return write_directly(path, bytes);
  PendingFile pending(path);
  const int descriptor = ::open(pending.temporary_path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (descriptor < 0) fail_write(path, errno);
  int error = write_everything(descriptor, bytes);
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (error != 0) fail_write(path, error);
  pending.commit();
}

void write_file(const std::string& path, std::string_view text) { write_file(path, std::as_bytes(std::span(text))); }

}  // namespace qattn::io
