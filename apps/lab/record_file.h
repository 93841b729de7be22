// An append-only file of checksummed records: what a kill at any moment leaves can be read and gone on with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace qattn::lab {

/// What a file of records held when it was read.
struct Records {
  std::vector<std::string> records;  ///< the contents of the whole records, in order
  std::uint64_t end = 0;             ///< behind the last whole record
  std::uint64_t damaged = 0;         ///< bytes between the records that belong to none
  std::uint64_t dropped = 0;         ///< bytes behind the last record that are no whole record
};

/// A look at a file that another process may be writing: nothing is locked, made or changed, and a record that is being
/// appended is not there yet. Nothing when there is no such file. Throws Error(input) when it cannot be read or is of
/// another kind.
Records peek_records(const std::string& path);

/// A file of records, opened and locked for this process alone. It begins with the line "QATTNJ1"; a record is its
/// length and its CRC-32 (of length and content), 4 bytes each, lowest first, then its content. Each record is on the
/// disk when append() returns. Damaged bytes are passed over up to the next whole record; behind the last whole record
/// they are dropped when the next one is written.
class RecordFile {
 public:
  /// Opens `path`, or makes it. Throws Error(input) when it cannot be, when another process holds it, or when it is a
  /// file of another kind.
  explicit RecordFile(const std::string& path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return path_; }
  /// The contents of the whole records that were there when the file was opened, in order.
  const std::vector<std::string>& records() const { return found_.records; }
  /// Bytes behind them that are no whole record.
  std::uint64_t dropped_bytes() const { return found_.dropped; }
  /// Bytes between them that belong to none.
  std::uint64_t damaged_bytes() const { return found_.damaged; }

  /// May be called from several threads. Throws Error(input) that names the reason when the record cannot be written;
  /// the file then ends with the record before it.
  void append(std::string_view record);
  /// Makes the file empty.
  void clear();
  /// Deletes the file. Nothing may be appended afterwards.
  void remove();

 private:
  void open_and_lock();
  [[noreturn]] void fail(int error) const;

  std::string path_;
  int descriptor_ = -1;
  Records found_;  ///< `end` grows as records are appended
  std::mutex mutex_;
};

}  // namespace qattn::lab
