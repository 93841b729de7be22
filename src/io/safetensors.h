// Files in the safetensors layout: 8 bytes of header length, a JSON header, raw little-endian tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/array.h"
#include "io/input_file.h"

namespace qattn::io {

/// Reads blocks straight from the file. The header is checked as a whole on opening: sizes against shapes, ranges
/// against the file, ranges against each other. Texts of `__metadata__` are the attributes (see attributes_in_force()).
/// Source of the layout: the README of the safetensors project ("Format").
class SafetensorsFile : public ArrayFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  std::vector<ArrayName> arrays() const override;
  Attributes attributes(const std::string& group) const override;
  ArrayInfo info(const std::string& path) const override;
  Array read(const std::string& path, const std::vector<std::int64_t>& start,
             const std::vector<std::int64_t>& count) const override;

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  ///< from the start of the data
  };
  void check_entries() const;
  const Entry& entry(const std::string& path) const;

  InputFile file_;
  std::uint64_t data_start_ = 0;
  std::map<std::string, Entry> entries_;
  Attributes metadata_;
};

}  // namespace qattn::io
