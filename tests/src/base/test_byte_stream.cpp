// Byte streams: every length of integer there and back, and what is not a stream.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/byte_stream.h"
#include "base/error.h"
#include "support/catch.h"

using qattn::ByteReader;
using qattn::ByteWriter;

TEST_CASE("Integers around every power of two, doubles and texts come back as they were") {
  std::vector<std::uint64_t> integers = {0, std::numeric_limits<std::uint64_t>::max()};
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    integers.insert(integers.end(), {power - 1, power, power + 1});
  }
  const std::vector<double> doubles = {0.0, -0.0, 0.1, 5e-324, -std::numeric_limits<double>::infinity(), std::nan("")};
  ByteWriter writer;
  for (const std::uint64_t x : integers) {
    writer.put_unsigned(x);
    writer.put_signed(static_cast<std::int64_t>(x));
    writer.put_signed(-static_cast<std::int64_t>(x >> 1));
  }
  for (const double x : doubles) writer.put_double(x);
  writer.put_text("");
  writer.put_text(std::string("a\0b\xff", 4));
  ByteReader reader(writer.bytes());
  for (const std::uint64_t x : integers) {
    CHECK(reader.get_unsigned() == x);
    CHECK(reader.get_signed() == static_cast<std::int64_t>(x));
    CHECK(reader.get_signed() == -static_cast<std::int64_t>(x >> 1));
  }
  for (const double x : doubles) {
    CHECK(std::bit_cast<std::uint64_t>(reader.get_double()) == std::bit_cast<std::uint64_t>(x));
  }
  CHECK(reader.get_text().empty());
  CHECK(reader.get_text() == std::string("a\0b\xff", 4));
  CHECK(reader.at_end());
}

TEST_CASE("The bytes are those that the description says") {
  ByteWriter writer;
  writer.put_unsigned(300);
  writer.put_signed(-1);
  writer.put_double(1.0);
  writer.put_text("hi");
  CHECK(writer.bytes() == std::string("\xAC\x02\x01\0\0\0\0\0\0\xF0\x3F\x02hi", 14));
}

TEST_CASE("Bytes that end too early or hold more than 64 bits are refused") {
  const auto refused = [](const std::string& bytes, auto get) {
    ByteReader reader(bytes);
    CHECK_THROWS_AS(get(reader), qattn::Error);
  };
  const auto integer = [](ByteReader& r) { return r.get_unsigned(); };
  refused("", integer);
  refused("\x80", integer);
  refused(std::string(9, '\xFF') + '\x02', integer);
  refused(std::string(10, '\xFF') + '\x01', integer);
  refused(std::string(7, '\0'), [](ByteReader& r) { return r.get_double(); });
  refused("\x03hi", [](ByteReader& r) { return r.get_text(); });
  refused(std::string(9, '\xFF') + '\x01', [](ByteReader& r) { return r.get_text(); });
}
