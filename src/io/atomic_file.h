// Files that are there complete or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace qattn::io {

/// A file being written beside its target. commit() makes it durable and puts it in the target's place in one step;
/// without commit() nothing of it remains. Every failure is an Error(input) that names the target and the reason.
class PendingFile {
 public:
  /// Creates an empty file in the target's folder, and removes those that killed processes of this machine left there
  /// for the same target. A target that is a symbolic link is followed; one that exists and
  /// is no regular file is refused.
  explicit PendingFile(const std::string& target);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  /// Where to write until commit(); any descriptor on it must be closed by then.
  const std::string& temporary_path() const { return temporary_; }
  const std::string& target() const { return target_; }
  void commit();

 private:
  std::string target_;
  std::string temporary_;
  bool committed_ = false;
};

/// Writes a whole file atomically. A target that is a device or a pipe (/dev/stdout) is written to directly.
void write_file(const std::string& path, std::string_view text);
void write_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace qattn::io
