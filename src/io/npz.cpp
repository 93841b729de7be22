// npy headers, and arrays in C or Fortran order.
#include "io/npz.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "format/encode.h"
#include "io/fail.h"
#include "io/flat_file.h"
#include "io/little_endian.h"

namespace qattn::io {
namespace {

/// Compressed arrays whose index is kept: q, k, v, o and more of the call in hand and the next.
constexpr std::size_t kKeptIndices = 12;
constexpr std::uint64_t kLargestHeader = 65536;

/// The value of `key` in the header's Python dictionary, as text up to the key's end; nothing when it is absent.
std::optional<std::string_view> after_key(std::string_view header, std::string_view key) {
  const std::size_t found = header.find("'" + std::string(key) + "':");
  if (found == std::string_view::npos) return std::nullopt;
  std::string_view rest = header.substr(found + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

/// A quoted type, or "" for a record type.
std::string parse_descr(std::string_view text) {
  if (text.empty() || text.front() != '\'') return "";
  const std::size_t end = text.find('\'', 1);
  return end == std::string_view::npos ? "" : std::string(text.substr(1, end - 1));
}

std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  std::vector<std::int64_t> shape;
  const std::size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) return std::nullopt;
  const char* position = text.data() + 1;
  const char* last = text.data() + end;
  while (position != last) {
    if (*position == ' ' || *position == ',') {
      ++position;
      continue;
    }
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(position, last, size);
    if (error != std::errc() || size < 0) return std::nullopt;
    shape.push_back(size);
    position = next;
  }
  return shape;
}

/// Type letter and element size of "<f2"; size 0 when the text is no such type.
struct Descr {
  char order = '|';
  char kind = '?';
  std::size_t size = 0;
};

Descr split_descr(const std::string& text) {
  Descr descr;
  if (text.size() < 3 || text.size() > 8) return descr;
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size()) return descr;
  descr = {text[0], text[1], size};
  if (descr.kind == 'U') descr.size *= 4;  // UCS-4 characters
  return descr;
}

const format::Format* plain_float(std::size_t bytes) {
  return bytes == 2 ? &format::kFP16 : bytes == 4 ? &format::kFP32 : bytes == 8 ? &format::kFP64 : nullptr;
}

ArrayInfo stored_info(const std::string& text, const std::string& where) {
  const Descr descr = split_descr(text);
  ArrayInfo info;
  info.element_bytes = descr.size;
  const bool power = descr.size == 1 || descr.size == 2 || descr.size == 4 || descr.size == 8;
  if (descr.kind == 'f' && descr.size >= 2 && power) {
    info.storage = Storage::floating;
    info.format = plain_float(descr.size);
  } else if ((descr.kind == 'i' || descr.kind == 'u') && power) {
    info.storage = Storage::integer;
    info.is_signed = descr.kind == 'i';
  } else if (descr.kind == 'b' && descr.size == 1) {
    info.storage = Storage::boolean;
  } else if ((descr.kind == 'V' || descr.kind == 'f') && (descr.size == 1 || descr.size == 2)) {
    info.storage = Storage::opaque;  // ml_dtypes' formats; NumPy saves some of them as '<f1'
  } else {
    fail(where, "has elements of type '" + text + "'; save floats, integers or booleans");
  }
  return info;
}

void append_utf8(std::string& text, std::uint64_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
             static_cast<char>(0x80 | (c & 0x3f))};
  } else {
    text += {static_cast<char>(0xf0 | (c >> 18 & 7)), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
             static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
  }
}

/// NumPy pads texts with zeros.
std::string text_of(const std::vector<std::byte>& bytes, std::size_t character_bytes) {
  std::string text;
  for (std::size_t i = 0; i + character_bytes <= bytes.size(); i += character_bytes) {
    const std::uint64_t c = load_little_endian(bytes.data() + i, character_bytes);
    if (c == 0) break;
    if (character_bytes == 1) {
      text += static_cast<char>(c);
    } else {
      append_utf8(text, c);
    }
  }
  return text;
}

/// Fortran order has the first dimension fastest; returns the same elements in C order.
std::vector<std::byte> to_c_order(const std::vector<std::byte>& source, const std::vector<std::int64_t>& shape,
                                  std::size_t element_bytes) {
  std::vector<std::byte> target(source.size());
  std::vector<std::int64_t> index(shape.size(), 0);
  for (std::size_t to = 0; to < source.size(); to += element_bytes) {
    std::int64_t from = 0;
    for (std::size_t i = shape.size(); i-- > 0;) from = from * shape[i] + index[i];
    std::memcpy(target.data() + to, source.data() + static_cast<std::size_t>(from) * element_bytes, element_bytes);
    for (std::size_t i = shape.size(); i-- > 0 && ++index[i] == shape[i];) index[i] = 0;
  }
  return target;
}

}  // namespace

NpzFile::NpzFile(const std::string& path) : zip_(path) {
  for (const ZipFile::Member& member : zip_.members()) {
    constexpr std::string_view kSuffix = ".npy";
    if (!std::string_view(member.name).ends_with(kSuffix)) continue;
    const std::string name = member.name.substr(0, member.name.size() - kSuffix.size());
    Entry entry = read_header(member);
    if (entry.shape.empty() || entry.shape == std::vector<std::int64_t>{1}) {
      scalars_[name] = read_scalar(entry);
    } else {
      entries_[name] = std::move(entry);
    }
  }
}

NpzFile::Entry NpzFile::read_header(const ZipFile::Member& member) const {
  const std::string where = place(path(), member.name);
  const std::vector<std::byte> head = zip_.read_prefix(member, 12 + kLargestHeader);
  const bool magic = head.size() >= 12 && std::memcmp(head.data(), "\x93NUMPY", 6) == 0;
  const int version = magic ? std::to_integer<int>(head[6]) : 0;
  if (version < 1 || version > 3) fail(where, "is no npy array of version 1 to 3");
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::uint64_t length = load_little_endian(head.data() + 8, length_bytes);
  const std::uint64_t start = 8 + length_bytes;
  if (length > kLargestHeader || length > head.size() - start) fail(where, "has a damaged npy header");
  const std::string_view header(reinterpret_cast<const char*>(head.data()) + start, length);
  const auto descr = after_key(header, "descr"), order = after_key(header, "fortran_order"),
             shape_text = after_key(header, "shape");
  const auto shape = shape_text ? parse_shape(*shape_text) : std::nullopt;
  if (!descr || !order || !shape) fail(where, "has a damaged npy header");
  return {&member, parse_descr(*descr), order->starts_with("True"), *shape, start + length};
}

AttributeValue NpzFile::read_scalar(const Entry& entry) const {
  const std::string where = place(path(), entry.member->name);
  const Descr descr = split_descr(entry.descr);
  std::vector<std::byte> bytes = zip_.read(*entry.member);
  bytes.erase(bytes.begin(),
              bytes.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(entry.data_offset, bytes.size())));
  if (descr.size == 0 || bytes.size() != descr.size) return std::monostate{};
  if (descr.order == '>') reverse_each(bytes, descr.kind == 'U' ? 4 : descr.size);
  if (descr.kind == 'U' || descr.kind == 'S') return text_of(bytes, descr.kind == 'U' ? 4 : 1);
  Array value{stored_info(entry.descr, where), std::move(bytes)};
  if (value.info.storage == Storage::boolean) return to_booleans(value, where).front() != 0;
  if (value.info.storage == Storage::integer) return to_integers(value, where).front();
  if (value.info.format == nullptr) return std::monostate{};
  return format::decode(*value.info.format, value.code(0));
}

const NpzFile::Entry& NpzFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(place(path(), name), "no such array");
  return found->second;
}

std::vector<ArrayName> NpzFile::arrays() const {
  std::vector<ArrayName> names;
  for (const auto& [name, entry] : entries_) names.push_back(split_name(name));
  return names;
}

Attributes NpzFile::attributes(const std::string& group) const { return attributes_in_force(scalars_, group); }

ArrayInfo NpzFile::info(const std::string& name) const {
  const std::string where = place(path(), name);
  const Entry& found = entry(name);
  ArrayInfo info = stored_info(found.descr, where);
  info.shape = found.shape;
  resolve_flat_format(info, scalars_, split_name(name), where);
  // Before anybody makes room for as many heads as the header claims.
  const std::int64_t elements = element_count(found.shape, info.element_bytes, where);
  const std::uint64_t expected = static_cast<std::uint64_t>(elements) * info.element_bytes;
  if (found.member->bytes < found.data_offset || found.member->bytes - found.data_offset != expected) {
    fail(where, "shape " + to_text(found.shape) + " of '" + found.descr + "' does not take the " +
                    std::to_string(found.member->bytes) + " bytes it has; the array is damaged");
  }
  return info;
}

std::shared_ptr<const ZipFile::Index> NpzFile::index_of(const std::string& name) const {
  const Entry& found = entry(name);
  const std::lock_guard<std::mutex> guard(mutex_);
  std::shared_ptr<const ZipFile::Index>& index = indices_[name];
  if (index == nullptr) index = zip_.index(*found.member);
  if (!found.member->deflated) return index;
  const std::shared_ptr<const ZipFile::Index> result = index;
  recent_.remove(name);
  recent_.push_front(name);
  if (recent_.size() > kKeptIndices) {
    indices_.erase(recent_.back());
    recent_.pop_back();
  }
  return result;
}

Array NpzFile::read(const std::string& name, const std::vector<std::int64_t>& start,
                    const std::vector<std::int64_t>& count) const {
  const std::string where = place(path(), name);
  const Entry& found = entry(name);
  Array block{info(name), {}};
  const std::size_t element_bytes = block.info.element_bytes;
  check_block(block.info, start, count, where);
  // Fortran order is C order of the dimensions from last to first.
  ArrayInfo stored = block.info;
  std::vector<std::int64_t> first = start, size = count;
  if (found.fortran_order) {
    for (std::vector<std::int64_t>* dimensions : {&stored.shape, &first, &size}) {
      std::reverse(dimensions->begin(), dimensions->end());
    }
  }
  block.bytes.resize(static_cast<std::size_t>(element_count(count, element_bytes, where)) * element_bytes);
  const std::shared_ptr<const ZipFile::Index> index = index_of(name);
  ZipFile::Reader reader(zip_, *found.member, *index);
  for_each_run(stored, first, size, [&](std::size_t source, std::size_t target, std::size_t bytes) {
    reader.read(found.data_offset + source, std::span(block.bytes).subspan(target, bytes));
  });
  if (found.descr.front() == '>') reverse_each(block.bytes, element_bytes);
  if (found.fortran_order) block.bytes = to_c_order(block.bytes, count, element_bytes);
  block.info.shape = count;
  return block;
}

}  // namespace qattn::io
