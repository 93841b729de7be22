// The central directory, and zlib's raw inflate.
#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <iterator>
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

/// Data are read, inflated and thrown away in pieces of this size.
constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;
/// Deflate looks back so far.
constexpr std::size_t kHistory = 32768;
/// Places where inflating can begin in a member: so many at most, and no closer together than this.
constexpr std::uint64_t kMostPlaces = 128, kClosestPlaces = std::uint64_t{1} << 20;

/// Where inflating can begin: at the end of a deflate block.
struct Place {
  std::uint64_t bytes = 0;   ///< of inflated data before it
  std::uint64_t stored = 0;  ///< bytes of the file before it, of which the last may be in use
  int bits = 0;              ///< of that last byte, which belong to what follows
  std::vector<std::byte> history;
};

}  // namespace

/// Inflates raw deflate data forward from some place on.
class Inflation {
 public:
  Inflation(const InputFile& file, std::uint64_t data_offset, const ZipFile::Member& member, const Place* from)
      : file_(file), data_offset_(data_offset), member_(member) {
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) {
      throw Error(ErrorKind::internal, place(file.path(), member.name) + ": zlib cannot start");
    }
    if (from == nullptr) return;
    position_ = from->bytes;
    consumed_ = from->stored;
    if (from->bits != 0) {
      const std::vector<std::byte> last = file.read(data_offset + from->stored - 1, 1);
      inflatePrime(&stream_, from->bits, std::to_integer<int>(last[0]) >> (8 - from->bits));
    }
    inflateSetDictionary(&stream_, reinterpret_cast<const Bytef*>(from->history.data()),
                         static_cast<uInt>(from->history.size()));
  }
  ~Inflation() { inflateEnd(&stream_); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;

  std::uint64_t position() const { return position_; }

  /// The next bytes, up to as many as `out` takes; with `to_block` no further than the end of the deflate block. Fewer
  /// at the end of the data and where it is damaged.
  std::size_t next(std::span<std::byte> out, bool to_block = false) {
    std::size_t got = 0;
    while (got < out.size()) {
      if (stream_.avail_in == 0) refill();
      const std::size_t room = std::min<std::size_t>(out.size() - got, kPiece);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + got);
      stream_.avail_out = static_cast<uInt>(room);
      const int status = inflate(&stream_, to_block ? Z_BLOCK : Z_NO_FLUSH);
      got += room - stream_.avail_out;
      position_ += room - stream_.avail_out;
      const bool no_more = stream_.avail_in == 0 && consumed_ == member_.stored_bytes && stream_.avail_out == room;
      ended_ = no_more || status == Z_STREAM_END || (status != Z_OK && status != Z_BUF_ERROR);
      if (ended_ || (to_block && at_block_end())) break;
    }
    return got;
  }

  /// Nothing more comes.
  bool ended() const { return ended_; }

  bool at_block_end() const { return (stream_.data_type & 128) != 0 && (stream_.data_type & 64) == 0; }

  /// The place at the end of the block.
  Place here() {
    Place found{position_, consumed_ - stream_.avail_in, stream_.data_type & 7, std::vector<std::byte>(kHistory)};
    uInt size = 0;
    inflateGetDictionary(&stream_, reinterpret_cast<Bytef*>(found.history.data()), &size);
    found.history.resize(size);
    return found;
  }

 private:
  void refill() {
    input_.resize(static_cast<std::size_t>(std::min(kPiece, member_.stored_bytes - consumed_)));
    file_.read(data_offset_ + consumed_, input_);
    consumed_ += input_.size();
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(input_.size());
  }

  const InputFile& file_;
  std::uint64_t data_offset_;
  const ZipFile::Member& member_;
  z_stream stream_{};
  std::vector<std::byte> input_;
  std::uint64_t consumed_ = 0;  ///< stored bytes that have been read
  std::uint64_t position_ = 0;
  bool ended_ = false;
};

namespace {

[[noreturn]] void fail_short(const std::string& where, std::uint64_t bytes) {
  fail(where, "is truncated or damaged: it inflates to " + std::to_string(bytes) + " bytes");
}

}  // namespace

class ZipFile::Index {
 public:
  std::vector<Place> places;  ///< ascending

  /// The last place at or before `offset`; null: the beginning.
  const Place* before(std::uint64_t offset) const {
    const auto after = std::upper_bound(places.begin(), places.end(), offset,
                                        [](std::uint64_t at, const Place& found) { return at < found.bytes; });
    return after == places.begin() ? nullptr : &*std::prev(after);
  }
};

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
  std::vector<std::byte> bytes(static_cast<std::size_t>(wanted));
  Inflation inflation(file_, offset, member, nullptr);
  if (inflation.next(bytes) != wanted) fail_short(place(path(), member.name), inflation.position());
  return bytes;
}

std::vector<std::byte> ZipFile::read(const Member& member) const {
  std::vector<std::byte> bytes = read_prefix(member, member.bytes);
  check_crc(member, crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  return bytes;
}

void ZipFile::check_crc(const Member& member, std::uint64_t crc) const {
  if (crc != member.crc) fail(place(path(), member.name), "is damaged: its checksum does not match");
}

std::shared_ptr<const ZipFile::Index> ZipFile::index(const Member& member) const {
  const std::uint64_t offset = data_offset(member), spacing = std::max(kClosestPlaces, member.bytes / kMostPlaces);
  auto index = std::make_shared<Index>();
  std::vector<std::byte> piece(kPiece);
  Inflation inflation(file_, offset, member, nullptr);
  uLong crc = crc32_z(0, nullptr, 0);
  for (std::uint64_t done = 0, last = 0; done < member.bytes;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, member.bytes - done));
    std::size_t got = wanted;
    if (member.deflated) {
      got = inflation.next(std::span(piece).first(wanted), true);
      if (got == 0 && inflation.ended()) fail_short(place(path(), member.name), inflation.position());
    } else {
      file_.read(offset + done, std::span(piece).first(wanted));
    }
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), got);
    done += got;
    if (member.deflated && inflation.at_block_end() && done - last >= spacing) {
      index->places.push_back(inflation.here());
      last = done;
    }
  }
  check_crc(member, crc);
  return index;
}

ZipFile::Reader::Reader(const ZipFile& zip, const Member& member, const Index& index)
    : zip_(zip), member_(member), index_(index), data_offset_(zip.data_offset(member)) {}

ZipFile::Reader::~Reader() = default;

void ZipFile::Reader::read(std::uint64_t offset, std::span<std::byte> bytes) {
  if (!member_.deflated) return zip_.file_.read(data_offset_ + offset, bytes);
  const Place* from = index_.before(offset);
  const std::uint64_t reach = from == nullptr ? 0 : from->bytes;
  if (inflation_ == nullptr || inflation_->position() > offset || inflation_->position() < reach) {
    inflation_ = std::make_unique<Inflation>(zip_.file_, data_offset_, member_, from);
  }
  std::vector<std::byte> passed(static_cast<std::size_t>(std::min(kPiece, offset - inflation_->position())));
  while (inflation_->position() < offset) {
    const std::uint64_t left = offset - inflation_->position();
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, passed.size()));
    if (inflation_->next(std::span(passed).first(count)) == 0) break;
  }
  if (inflation_->position() != offset || inflation_->next(bytes) != bytes.size()) {
    fail_short(place(zip_.path(), member_.name), inflation_->position());
  }
}

}  // namespace qattn::io
