// The safetensors header, checked before anything believes it.
#include "io/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/fail.h"
#include "io/flat_file.h"
#include "io/little_endian.h"

namespace qattn::io {
namespace {

/// The project's own limit for a header.
constexpr std::uint64_t kLargestHeader = 100'000'000;

struct DtypeRow {
  const char* name;
  Storage storage;
  std::size_t bytes;
  bool is_signed;
  const format::Format* format;
};

constexpr DtypeRow kDtypes[] = {
    {"F64", Storage::floating, 8, true, &format::kFP64},
    {"F32", Storage::floating, 4, true, &format::kFP32},
    {"F16", Storage::floating, 2, true, &format::kFP16},
    {"BF16", Storage::floating, 2, true, &format::kBF16},
    {"F8_E4M3", Storage::floating, 1, true, &format::kE4M3},
    {"F8_E5M2", Storage::floating, 1, true, &format::kE5M2},
    {"F8_E8M0", Storage::floating, 1, false, &format::kE8M0},
    {"I8", Storage::integer, 1, true, &format::kInt8},
    {"U8", Storage::integer, 1, false, nullptr},
    {"I16", Storage::integer, 2, true, nullptr},
    {"U16", Storage::integer, 2, false, nullptr},
    {"I32", Storage::integer, 4, true, nullptr},
    {"U32", Storage::integer, 4, false, nullptr},
    {"I64", Storage::integer, 8, true, nullptr},
    {"U64", Storage::integer, 8, false, nullptr},
    {"BOOL", Storage::boolean, 1, false, nullptr},
};

const DtypeRow* find_dtype(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& r) { return name == r.name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

std::string dtype_names() {
  std::string names;
  for (const DtypeRow& row : kDtypes) names += (names.empty() ? "" : " ") + std::string(row.name);
  return names;
}

nlohmann::json parse_header(const InputFile& file, std::uint64_t& data_start) {
  if (file.size() < 8) fail(file.path(), "is no safetensors file: shorter than its header");
  const std::uint64_t length = load_little_endian(file.read(0, 8).data(), 8);
  if (length > kLargestHeader || length > file.size() - 8) {
    fail(file.path(), "is no safetensors file or is truncated: its header claims " + std::to_string(length) + " bytes");
  }
  const std::vector<std::byte> bytes = file.read(8, length);
  const char* text = reinterpret_cast<const char*>(bytes.data());
  nlohmann::json header = nlohmann::json::parse(text, text + bytes.size(), nullptr, false);
  if (!header.is_object()) fail(file.path(), "is no safetensors file or is damaged: its header is no JSON object");
  data_start = 8 + length;
  return header;
}

/// A non-negative integer that fits std::int64_t, or an error.
std::int64_t size_of(const nlohmann::json& value, const std::string& where) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}) {
    return static_cast<std::int64_t>(value.get<std::uint64_t>());
  }
  fail(where, "header entry is damaged: sizes and offsets must be non-negative integers");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const nlohmann::json header = parse_header(file_, data_start_);
  for (const auto& [name, value] : header.items()) {
    const std::string where = place(path, name);
    if (name == "__metadata__") {
      if (!value.is_object()) fail(where, "must be a JSON object of strings");
      for (const auto& [key, text] : value.items()) {
        metadata_[key] = text.is_string() ? AttributeValue(text.get<std::string>()) : AttributeValue();
      }
      continue;
    }
    const bool complete = value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
                          value.contains("shape") && value["shape"].is_array() && value.contains("data_offsets") &&
                          value["data_offsets"].is_array() && value["data_offsets"].size() == 2;
    if (!complete) fail(where, "header entry is damaged: it needs dtype, shape and data_offsets");
    Entry entry{value["dtype"].get<std::string>(), {}, 0, 0};
    for (const auto& size : value["shape"]) entry.shape.push_back(size_of(size, where));
    entry.begin = static_cast<std::uint64_t>(size_of(value["data_offsets"][0], where));
    entry.end = static_cast<std::uint64_t>(size_of(value["data_offsets"][1], where));
    entries_[name] = std::move(entry);
  }
  check_entries();
}

void SafetensorsFile::check_entries() const {
  const std::uint64_t data_size = file_.size() - data_start_;
  std::vector<std::pair<const std::string*, const Entry*>> by_offset;
  for (const auto& [name, entry] : entries_) {
    const std::string where = place(path(), name);
    if (entry.begin > entry.end || entry.end > data_size) {
      fail(where, "lies at bytes " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) + " of " +
                      std::to_string(data_size) + "; the file is truncated or damaged");
    }
    const DtypeRow* row = find_dtype(entry.dtype);
    if (row == nullptr) continue;  // only an error for who reads it
    const std::int64_t bytes = element_count(entry.shape, row->bytes, where) * static_cast<std::int64_t>(row->bytes);
    if (static_cast<std::uint64_t>(bytes) != entry.end - entry.begin) {
      fail(where, "shape " + to_text(entry.shape) + " of " + entry.dtype + " does not take the " +
                      std::to_string(entry.end - entry.begin) + " bytes it has; the header is damaged");
    }
    by_offset.emplace_back(&name, &entry);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    if (by_offset[i].second->begin < by_offset[i - 1].second->end) {
      fail(place(path(), *by_offset[i].first), "overlaps '" + *by_offset[i - 1].first + "'; the header is damaged");
    }
  }
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(place(path(), name), "no such tensor");
  return found->second;
}

std::vector<ArrayName> SafetensorsFile::arrays() const {
  std::vector<ArrayName> names;
  for (const auto& [name, entry] : entries_) names.push_back(split_name(name));
  return names;
}

Attributes SafetensorsFile::attributes(const std::string& group) const { return attributes_in_force(metadata_, group); }

ArrayInfo SafetensorsFile::info(const std::string& name) const {
  const std::string where = place(path(), name);
  const Entry& found = entry(name);
  const DtypeRow* row = find_dtype(found.dtype);
  if (row == nullptr) fail(where, "unknown dtype '" + found.dtype + "'; known are: " + dtype_names());
  ArrayInfo info{found.shape, row->storage, row->bytes, row->is_signed, row->format};
  if (info.format == nullptr) resolve_flat_format(info, metadata_, split_name(name), where);
  return info;
}

Array SafetensorsFile::read(const std::string& name, const std::vector<std::int64_t>& start,
                            const std::vector<std::int64_t>& count) const {
  const std::string where = place(path(), name);
  Array array{info(name), {}};
  check_block(array.info, start, count, where);
  const std::uint64_t first = data_start_ + entry(name).begin;
  const std::int64_t elements = element_count(count, array.info.element_bytes, where);
  array.bytes.resize(static_cast<std::size_t>(elements) * array.info.element_bytes);
  for_each_run(array.info, start, count, [&](std::size_t source, std::size_t target, std::size_t bytes) {
    file_.read(first + source, std::span(array.bytes).subspan(target, bytes));
  });
  array.info.shape = count;
  return array;
}

}  // namespace qattn::io
