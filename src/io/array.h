// Arrays as any container holds them (HDF5, safetensors, npz), and how they become tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/format.h"
#include "io/attributes.h"
#include "tensor/tensor.h"

namespace qattn::io {

enum class Storage : std::uint8_t {
  floating,
  integer,
  boolean,  ///< one byte an element, 0 or 1
  opaque,   ///< bytes without a meaning of their own
};

/// What is known of an array before it is read.
struct ArrayInfo {
  std::vector<std::int64_t> shape;
  Storage storage = Storage::integer;
  std::size_t element_bytes = 1;
  bool is_signed = false;
  /// The format of the codes; null for booleans and for integers that nothing names.
  const format::Format* format = nullptr;
};

/// What the elements are, for messages: "2-byte unsigned integers", "float32 numbers".
std::string describe(const ArrayInfo& info);

/// An array, or a block of one: elements row-major and little-endian, one code in `element_bytes` bytes.
struct Array {
  ArrayInfo info;
  std::vector<std::byte> bytes;

  std::uint64_t code(std::int64_t index) const;  ///< element `index`, zero-extended
};

/// Where an array lies: "layer_00/q" is array "q" of group "layer_00".
struct ArrayName {
  std::string path;
  std::string group;
  std::string name;
};

/// A file of named arrays with attributes. Every method may be called from several threads.
class ArrayFile {
 public:
  virtual ~ArrayFile() = default;
  virtual const std::string& path() const = 0;
  /// Every array, sorted by path.
  virtual std::vector<ArrayName> arrays() const = 0;
  /// The attributes in force at a group: its own, then its parents', then the file's.
  virtual Attributes attributes(const std::string& group) const = 0;
  virtual ArrayInfo info(const std::string& path) const = 0;
  /// The block of `count` elements from `start` on, dimension by dimension. Nothing is converted.
  virtual Array read(const std::string& path, const std::vector<std::int64_t>& start,
                     const std::vector<std::int64_t>& count) const = 0;

  Array read_all(const std::string& path) const;
};

/// The number of elements of a shape. Throws Error(input) on a negative size or when `element_bytes` times the number
/// does not fit 63 bits.
std::int64_t element_count(const std::vector<std::int64_t>& shape, std::size_t element_bytes, const std::string& where);

/// Throws Error(input) unless the block of `count` elements from `start` on lies inside of `info.shape`.
void check_block(const ArrayInfo& info, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
                 const std::string& where);

/// Bytes that one code of `format` takes in a file and in a Tensor: 1, 2, 4 or 8.
std::size_t code_bytes(const format::Format& format);

/// The format that a file calls `dtype`. Throws Error(input) that lists the names.
const format::Format& format_of_dtype(std::string_view dtype, const std::string& where);

/// Settles what the codes of an array mean (file formats, first section). `info.format` holds what a stored floating
/// type is by itself, if it is any known format. Without `dtype` only float16, float32, float64 and int8 name
/// themselves. With `dtype` the storage has to be able to hold that format's codes; "bool" and the name of the stored
/// integer type itself ("int32") are accepted and name no format.
void resolve_format(ArrayInfo& info, const std::optional<std::string>& dtype, const std::string& where);

/// The array as a tensor. Throws Error(input) when it has no format or when a code does not fit its format.
Tensor to_tensor(Array array, const std::string& where);
/// The array's integers (any width, signed or not). Throws Error(input) for anything else.
std::vector<std::int64_t> to_integers(const Array& array, const std::string& where);
/// Booleans, or integers that are all 0 or 1, one byte each.
std::vector<std::uint8_t> to_booleans(const Array& array, const std::string& where);

}  // namespace qattn::io
