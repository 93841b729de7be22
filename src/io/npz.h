// NumPy's npz archives: a ZIP of npy arrays.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "io/array.h"
#include "io/zip.h"

namespace qattn::io {

/// Entries of one element (numbers, booleans, strings) are attributes (see attributes_in_force()), all others arrays.
/// An array is read whole, checked, and kept while it is among the last few used: dumps that do not fit the memory
/// belong in HDF5 or safetensors. Source of the layout: NumPy's documentation, numpy.lib.format.
class NpzFile : public ArrayFile {
 public:
  explicit NpzFile(const std::string& path);

  const std::string& path() const override { return zip_.path(); }
  std::vector<ArrayName> arrays() const override;
  Attributes attributes(const std::string& group) const override;
  ArrayInfo info(const std::string& path) const override;
  Array read(const std::string& path, const std::vector<std::int64_t>& start,
             const std::vector<std::int64_t>& count) const override;

 private:
  struct Entry {
    const ZipFile::Member* member = nullptr;
    std::string descr;  ///< NumPy's name of the element type, "<f2"
    bool fortran_order = false;
    std::vector<std::int64_t> shape;
    std::uint64_t data_offset = 0;
  };
  Entry read_header(const ZipFile::Member& member) const;
  AttributeValue read_scalar(const Entry& entry) const;
  const Entry& entry(const std::string& path) const;
  std::vector<std::byte> load(const std::string& path) const;

  ZipFile zip_;
  std::map<std::string, Entry> entries_;
  Attributes scalars_;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<std::string, std::vector<std::byte>>> recent_;  ///< most recent first, guarded by mutex_
};

}  // namespace qattn::io
