// The part of ZIP that npz files use: stored and deflated members, also beyond 4 GiB.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/input_file.h"

namespace qattn::io {

/// A ZIP archive opened for reading. Nothing of it is believed before it is checked against the file's size.
/// Source of the layout: PKWARE APPNOTE.TXT 6.3, sections 4.3 and 4.5.3.
class ZipFile {
 public:
  struct Member {
    std::string name;
    bool deflated = false;
    std::uint32_t crc = 0;
    std::uint64_t stored_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint64_t header_offset = 0;
  };

  explicit ZipFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<Member>& members() const { return members_; }
  /// The first `count` bytes of a member, or all of it when it is shorter.
  std::vector<std::byte> read_prefix(const Member& member, std::uint64_t count) const;
  /// A whole member; its CRC-32 is checked.
  std::vector<std::byte> read(const Member& member) const;

 private:
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);
  std::uint64_t data_offset(const Member& member) const;

  InputFile file_;
  std::vector<Member> members_;
};

}  // namespace qattn::io
