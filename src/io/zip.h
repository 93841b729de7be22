// The part of ZIP that npz files use: stored and deflated members, also beyond 4 GiB.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/input_file.h"

namespace qattn::io {

class Inflation;

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

  /// What a pass over a whole member finds: that its CRC-32 is right and, in deflated data, where inflating can begin
  /// anew. At most 4 MiB, whatever the member's size.
  class Index;

  /// Reads any part of a member in bounded memory. Going back, or far ahead, starts from the index's nearest place;
  /// otherwise it goes on from where it was. For one thread; refers to its arguments.
  class Reader;

  explicit ZipFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<Member>& members() const { return members_; }
  /// The first `count` bytes of a member, or all of it when it is shorter.
  std::vector<std::byte> read_prefix(const Member& member, std::uint64_t count) const;
  /// A whole member; its CRC-32 is checked.
  std::vector<std::byte> read(const Member& member) const;

  /// Throws Error(input) when the checksum or the length is wrong.
  std::shared_ptr<const Index> index(const Member& member) const;

 private:
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);
  std::uint64_t data_offset(const Member& member) const;
  void check_crc(const Member& member, std::uint64_t crc) const;

  InputFile file_;
  std::vector<Member> members_;
};

class ZipFile::Reader {
 public:
  Reader(const ZipFile& zip, const Member& member, const Index& index);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Fills `bytes` from `offset` of the member's data on.
  void read(std::uint64_t offset, std::span<std::byte> bytes);

 private:
  const ZipFile& zip_;
  const Member& member_;
  const Index& index_;
  std::uint64_t data_offset_;
  std::unique_ptr<Inflation> inflation_;
};

}  // namespace qattn::io
