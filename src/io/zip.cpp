// The central directory, and zlib's raw inflate.
#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "io/fail.h"
#include "io/little_endian.h"

namespace qattn::io {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kEnd64LocatorSignature = 0x07064b50;
constexpr std::uint32_t kDirectorySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64Bytes = 56, kEnd64LocatorBytes = 20, kDirectoryBytes = 46,
                        kLocalBytes = 30;
constexpr std::uint64_t kLongestComment = 65535;
constexpr std::uint32_t kIn64 = 0xffffffff;  // "the value is in the zip64 field"
/// Deflate cannot shrink data by more than this factor.
constexpr std::uint64_t kLargestRatio = 1032;

std::uint64_t integer(const std::vector<std::byte>& bytes, std::size_t offset, std::size_t size) {
  return load_little_endian(bytes.data() + offset, size);
}

struct Directory {
  std::uint64_t offset, size, count;
};

Directory find_directory64(const InputFile& file, std::uint64_t locator_offset) {
  const std::vector<std::byte> locator = file.read(locator_offset, kEnd64LocatorBytes);
  if (integer(locator, 0, 4) != kEnd64LocatorSignature) fail(file.path(), "is a damaged ZIP archive: no zip64 locator");
  const std::vector<std::byte> end = file.read(integer(locator, 8, 8), kEnd64Bytes);
  if (integer(end, 0, 4) != kEnd64Signature) fail(file.path(), "is a damaged ZIP archive: no zip64 end record");
  return {integer(end, 48, 8), integer(end, 40, 8), integer(end, 32, 8)};
}

Directory find_directory(const InputFile& file) {
  const std::uint64_t tail_bytes = std::min(file.size(), kEndBytes + kLongestComment);
  const std::uint64_t tail_offset = file.size() - tail_bytes;
  const std::vector<std::byte> tail = file.read(tail_offset, tail_bytes);
  for (std::size_t i = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; i-- > 0;) {
    if (integer(tail, i, 4) != kEndSignature) continue;
    const Directory found = {integer(tail, i + 16, 4), integer(tail, i + 12, 4), integer(tail, i + 10, 2)};
    if (found.offset != kIn64 && found.size != kIn64 && found.count != 0xffff) return found;
    if (tail_offset + i < kEnd64LocatorBytes) break;
    return find_directory64(file, tail_offset + i - kEnd64LocatorBytes);
  }
  fail(file.path(), "is no ZIP archive or is truncated: its directory at the end is missing");
}

/// Replaces sizes and offset that the directory entry left to its zip64 extra field, in the order the standard gives.
void apply_zip64(ZipFile::Member& member, const std::vector<std::byte>& extra, const std::string& where) {
  std::size_t position = 0;
  while (position + 4 <= extra.size()) {
    const std::uint64_t id = integer(extra, position, 2);
    const std::size_t size = integer(extra, position + 2, 2);
    position += 4;
    if (size > extra.size() - position) break;
    if (id == 1) {
      const std::size_t end = position + size;
      for (std::uint64_t* value : {&member.bytes, &member.stored_bytes, &member.header_offset}) {
        if (*value != kIn64) continue;
        if (end - position < 8) fail(where, "is damaged: zip64 field too short");
        *value = integer(extra, position, 8);
        position += 8;
      }
      return;
    }
    position += size;
  }
}

/// zlib's state for raw deflate data, freed on every way out.
struct Inflater {
  Inflater() { ready = inflateInit2(&stream, -MAX_WBITS) == Z_OK; }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream stream{};
  bool ready = false;
};

/// Inflates the first `count` bytes of the data at `offset`.
std::vector<std::byte> inflate_member(const InputFile& file, std::uint64_t offset, const ZipFile::Member& member,
                                      std::uint64_t count, const std::string& where) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;
  std::vector<std::byte> result(count);
  Inflater inflater;
  if (!inflater.ready) throw Error(ErrorKind::internal, where + ": zlib cannot start");
  std::vector<std::byte> input;
  std::uint64_t consumed = 0, produced = 0;
  while (produced < count) {
    if (inflater.stream.avail_in == 0) {
      input = file.read(offset + consumed, std::min(kPiece, member.stored_bytes - consumed));
      consumed += input.size();
      inflater.stream.next_in = reinterpret_cast<Bytef*>(input.data());
      inflater.stream.avail_in = static_cast<uInt>(input.size());
    }
    const std::uint64_t room = std::min(count - produced, kPiece);
    inflater.stream.next_out = reinterpret_cast<Bytef*>(result.data() + produced);
    inflater.stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&inflater.stream, Z_NO_FLUSH);
    produced += room - inflater.stream.avail_out;
    if (status == Z_STREAM_END || (status != Z_OK && status != Z_BUF_ERROR)) break;
    if (inflater.stream.avail_in == 0 && consumed == member.stored_bytes && inflater.stream.avail_out == room) break;
  }
  if (produced != count) fail(where, "is truncated or damaged: it inflates to " + std::to_string(produced) + " bytes");
  return result;
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : file_(path) {
  const Directory directory = find_directory(file_);
  if (directory.count > directory.size / kDirectoryBytes) fail(path, "is a damaged ZIP archive: impossible directory");
  read_directory(directory.offset, directory.size, directory.count);
}

void ZipFile::read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count) {
  const std::vector<std::byte> bytes = file_.read(offset, size);
  std::set<std::string> names;
  std::size_t position = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (bytes.size() - position < kDirectoryBytes || integer(bytes, position, 4) != kDirectorySignature) {
      fail(path(), "is a damaged ZIP archive: directory entry " + std::to_string(i));
    }
    const std::size_t name_size = integer(bytes, position + 28, 2), extra_size = integer(bytes, position + 30, 2);
    const std::size_t entry_size = kDirectoryBytes + name_size + extra_size + integer(bytes, position + 32, 2);
    if (bytes.size() - position < entry_size) fail(path(), "is a damaged ZIP archive: directory cut short");
    const std::byte* text = bytes.data() + position + kDirectoryBytes;
    Member member{std::string(reinterpret_cast<const char*>(text), name_size),
                  false,
                  static_cast<std::uint32_t>(integer(bytes, position + 16, 4)),
                  integer(bytes, position + 20, 4),
                  integer(bytes, position + 24, 4),
                  integer(bytes, position + 42, 4)};
    const std::string where = place(path(), member.name);
    apply_zip64(member, {text + name_size, text + name_size + extra_size}, where);
    const std::uint64_t method = integer(bytes, position + 10, 2);
    if (method != 0 && method != 8) fail(where, "is compressed in an unknown way; use numpy.savez or savez_compressed");
    if (integer(bytes, position + 8, 2) & 1) fail(where, "is encrypted");
    member.deflated = method == 8;
    if (member.stored_bytes > file_.size() || member.bytes / kLargestRatio > member.stored_bytes ||
        (!member.deflated && member.bytes != member.stored_bytes)) {
      fail(where, "claims " + std::to_string(member.bytes) + " bytes out of " + std::to_string(member.stored_bytes) +
                      "; the archive is truncated or damaged");
    }
    if (!names.insert(member.name).second) fail(where, "is there twice; the archive is damaged");
    members_.push_back(std::move(member));
    position += entry_size;
  }
}

std::uint64_t ZipFile::data_offset(const Member& member) const {
  const std::vector<std::byte> header = file_.read(member.header_offset, kLocalBytes);
  if (integer(header, 0, 4) != kLocalSignature) fail(place(path(), member.name), "has no local header; it is damaged");
  const std::uint64_t offset = member.header_offset + kLocalBytes + integer(header, 26, 2) + integer(header, 28, 2);
  if (offset > file_.size() || member.stored_bytes > file_.size() - offset) {
    fail(place(path(), member.name), "runs past the end of the file; it is truncated or damaged");
  }
  return offset;
}

std::vector<std::byte> ZipFile::read_prefix(const Member& member, std::uint64_t count) const {
  const std::uint64_t offset = data_offset(member);
  const std::uint64_t wanted = std::min(count, member.bytes);
  if (!member.deflated) return file_.read(offset, wanted);
  return inflate_member(file_, offset, member, wanted, place(path(), member.name));
}

std::vector<std::byte> ZipFile::read(const Member& member) const {
  std::vector<std::byte> bytes = read_prefix(member, member.bytes);
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (crc != member.crc) fail(place(path(), member.name), "is damaged: its checksum does not match");
  return bytes;
}

}  // namespace qattn::io
