// HDF5 files behind a small layer that owns its handles and never lets the library convert an element.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.h"

namespace qattn::io {

/// An HDF5 file opened for reading. Paths inside it have no leading slash; "" is the root group. Safe to use from
/// several threads, which take turns inside the library. Every failure is an Error(input) that names file, object and
/// the library's own reason.
class Hdf5Reader : public ArrayFile {
 public:
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader() override;

  const std::string& path() const override { return path_; }

  enum class Kind { group, dataset, other };
  struct Child {
    std::string name;
    Kind kind;
    std::string identity;  ///< the same for two links to one object
  };
  /// What a group holds, in the order of the names' bytes. A link that leads nowhere is `other`.
  std::vector<Child> children(const std::string& group) const;
  bool exists(const std::string& object) const;

  /// The attributes of a group or dataset itself.
  Attributes own_attributes(const std::string& object) const;
  /// Its own attributes, then those of the groups around it, the nearest first.
  Attributes attributes(const std::string& group) const override;

  /// A group that contains itself through a link is not entered again.
  std::vector<ArrayName> arrays() const override;
  ArrayInfo info(const std::string& dataset) const override;
  Array read(const std::string& dataset, const std::vector<std::int64_t>& start,
             const std::vector<std::int64_t>& count) const override;

 private:
  void collect_arrays(const std::string& group, std::vector<std::string>& ancestors,
                      std::vector<ArrayName>& found) const;

  struct File;
  std::string path_;
  std::unique_ptr<File> file_;
};

/// An HDF5 file being written: it appears under its name, complete and on the disk, when commit() returns, and not at
/// all otherwise. The same calls give the same bytes (no time stamps). Groups are created as paths need them.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::string& path);
  ~Hdf5Writer();

  /// Does nothing when the group is there already.
  void create_group(const std::string& group);
  void set_attribute(const std::string& object, const std::string& name, const AttributeValue& value);
  void set_attributes(const std::string& object, const Attributes& attributes);

  /// A dataset of codes of `format`, with the attribute `dtype`. float16, float32, float64 and int8 are stored as
  /// themselves, all others as unsigned integers. Compressed with gzip after shuffle in chunks of `chunk`.
  void create_dataset(const std::string& dataset, const format::Format& format, const std::vector<std::int64_t>& shape,
                      const std::vector<std::int64_t>& chunk);
  /// A dataset of unsigned integers of 1, 2, 4 or 8 bytes, without a dtype.
  void create_codes(const std::string& dataset, std::size_t element_bytes, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& chunk);
  void create_booleans(const std::string& dataset, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& chunk);
  /// Signed 64-bit integers, not compressed.
  void write_integers(const std::string& dataset, const std::vector<std::int64_t>& values);

  /// Fills the block of `count` elements from `start` on with `bytes` (row-major, little-endian).
  void write(const std::string& dataset, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
             std::span<const std::byte> bytes);

  void commit();

 private:
  struct File;
  std::unique_ptr<File> file_;
};

}  // namespace qattn::io
