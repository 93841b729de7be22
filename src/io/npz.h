// NumPy's npz archives: a ZIP of npy arrays.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/array.h"
#include "io/zip.h"

namespace qattn::io {

/// Entries of one element (numbers, booleans, strings) are attributes (see attributes_in_force()), all others arrays.
/// An array is gone through once to check it, then read block by block; it is never in memory as a whole. Compressed
/// arrays are inflated again from the nearest of some hundred places, so blocks that scatter over the whole array (a
/// head under NHD, or in Fortran order) cost a pass over it each. Source of the layout: NumPy's documentation,
/// numpy.lib.format.
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
  /// The member's index; those of the last few compressed arrays are kept, and all others'.
  std::shared_ptr<const ZipFile::Index> index_of(const std::string& path) const;

  ZipFile zip_;
  std::map<std::string, Entry> entries_;
  Attributes scalars_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const ZipFile::Index>> indices_;  ///< guarded by mutex_
  mutable std::list<std::string> recent_;  ///< compressed arrays among them, most recent first; guarded by mutex_
};

}  // namespace qattn::io
