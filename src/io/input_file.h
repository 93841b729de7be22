// A file opened for reading at any position.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace qattn::io {

/// Which file it is, and which state of it.
struct FileStamp {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t changed_ns = 0;  ///< since 1970

  /// Changed long enough ago for the next change to bear another time.
  bool settled() const;
  auto operator<=>(const FileStamp&) const = default;
};

/// Reads at given positions; several threads may read at once. Every failure is an Error(input) that names the file.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return stamp_.size; }
  const FileStamp& stamp() const { return stamp_; }
  /// Fills `bytes` from `offset` on.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// `count` bytes from `offset` on; checked against the file's size before memory is taken.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  FileStamp stamp_;
};

}  // namespace qattn::io
