// A file opened for reading at any position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace qattn::io {

/// Reads at given positions; several threads may read at once. Every failure is an Error(input) that names the file.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Fills `bytes` from `offset` on.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// `count` bytes from `offset` on; checked against the file's size before memory is taken.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace qattn::io
