// Compact bytes that are the same on every machine: integers of any size, doubles and texts, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace qattn {

/// Appends to bytes().
class ByteWriter {
 public:
  /// Seven bits a byte from the lowest on; the top bit says that more follow (LEB128).
  void put_unsigned(std::uint64_t x);
  /// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
  void put_signed(std::int64_t x);
  /// The eight bytes of the code, lowest first.
  void put_double(double x);
  /// The length, then the bytes.
  void put_text(std::string_view text);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Takes off the front what ByteWriter appended. Throws Error(input) when the bytes end too early or are none that a
/// ByteWriter makes.
class ByteReader {
 public:
  /// `bytes` must outlive the reader and the texts that it gives.
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t get_unsigned();
  std::int64_t get_signed();
  double get_double();
  std::string_view get_text();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::uint64_t count);

  std::string_view rest_;
};

}  // namespace qattn
