#include "base/byte_stream.h"

#include <bit>

#include "base/error.h"

namespace qattn {
namespace {

[[noreturn]] void fail(const char* reason) {
  throw Error(ErrorKind::input, std::string("stored values are damaged: ") + reason);
}

}  // namespace

void ByteWriter::put_unsigned(std::uint64_t x) {
  for (; x >= 0x80; x >>= 7) bytes_ += static_cast<char>(0x80 | (x & 0x7F));
  bytes_ += static_cast<char>(x);
}

void ByteWriter::put_signed(std::int64_t x) {
  put_unsigned((static_cast<std::uint64_t>(x) << 1) ^ static_cast<std::uint64_t>(x >> 63));
}

void ByteWriter::put_double(double x) {
  const auto code = std::bit_cast<std::uint64_t>(x);
  for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>((code >> (8 * i)) & 0xFF);
}

void ByteWriter::put_text(std::string_view text) {
  put_unsigned(text.size());
  bytes_ += text;
}

std::string_view ByteReader::take(std::uint64_t count) {
  if (count > rest_.size()) fail("they end too early");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint64_t ByteReader::get_unsigned() {
  std::uint64_t x = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint64_t>(static_cast<unsigned char>(take(1)[0]));
    if (shift == 63 && byte > 1) break;
    x |= (byte & 0x7F) << shift;
    if (byte < 0x80) return x;
  }
  fail("an integer has more than 64 bits");
}

std::int64_t ByteReader::get_signed() {
  const std::uint64_t x = get_unsigned();
  return static_cast<std::int64_t>((x >> 1) ^ (std::uint64_t{0} - (x & 1)));
}

double ByteReader::get_double() {
  const std::string_view bytes = take(8);
  std::uint64_t code = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    code |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return std::bit_cast<double>(code);
}

std::string_view ByteReader::get_text() { return take(get_unsigned()); }

}  // namespace qattn
