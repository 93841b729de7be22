// Writing HDF5: into a file beside the target, which takes the target's place when everything is on the disk.
#include <algorithm>
#include <map>

#include "io/atomic_file.h"
#include "io/fail.h"
#include "io/hdf5_file.h"
#include "io/hdf5_handle.h"

namespace qattn::io {

struct Hdf5Writer::File {
  explicit File(const std::string& path) : pending(path) {}
  ~File() { close(); }
  std::string where(const std::string& object) const { return place(pending.target(), object); }
  /// False when something cannot be written. The library frees what it could not write and then trips over it, so that
  /// such a file must stay open.
  bool close() {
    if (handle && H5Fflush(handle.get(), H5F_SCOPE_GLOBAL) < 0) {
      handle.abandon();
      return false;
    }
    return handle.close();
  }

  PendingFile pending;
  Hdf5Handle handle;
};

namespace {

constexpr unsigned kGzipLevel = 4;
constexpr const char* kCannotWrite = "cannot be written";

std::vector<hsize_t> to_sizes(const std::vector<std::int64_t>& shape) { return {shape.begin(), shape.end()}; }

Hdf5Handle unsigned_type(std::size_t bytes) {
  const hid_t type = bytes == 1   ? H5T_STD_U8LE
                     : bytes == 2 ? H5T_STD_U16LE
                     : bytes == 4 ? H5T_STD_U32LE
                                  : H5T_STD_U64LE;
  return Hdf5Handle(H5Tcopy(type), H5Tclose);
}

/// IEEE binary16, which HDF5 1.10 has no name for; h5py reads it as float16.
Hdf5Handle half_type() {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type.get(), 15, 10, 5, 0, 10);
  H5Tset_size(type.get(), 2);
  H5Tset_ebias(type.get(), 15);
  return type;
}

Hdf5Handle storage_type(const format::Format& format) {
  if (&format == &format::kFP16) return half_type();
  if (&format == &format::kFP32) return Hdf5Handle(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  if (&format == &format::kFP64) return Hdf5Handle(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
  if (&format == &format::kInt8) return Hdf5Handle(H5Tcopy(H5T_STD_I8LE), H5Tclose);
  return unsigned_type(code_bytes(format));
}

/// Objects without time stamps: the same calls then give the same bytes.
Hdf5Handle untimed(hid_t property_class) {
  Hdf5Handle properties(H5Pcreate(property_class), H5Pclose);
  H5Pset_obj_track_times(properties.get(), false);
  return properties;
}

Hdf5Handle link_properties() {
  Hdf5Handle properties(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8);
  return properties;
}

/// Makes `group` and what is missing of the groups around it. (The library's own making of intermediate groups would
/// give them time stamps.)
void make_groups(hid_t file, const std::string& group, const std::string& where) {
  const Hdf5Handle links = link_properties();
  const Hdf5Handle properties = untimed(H5P_GROUP_CREATE);
  for (std::size_t end = 0; end != std::string::npos && !group.empty();) {
    end = group.find('/', end + 1);
    const std::string part = group.substr(0, end);
    if (H5Lexists(file, part.c_str(), H5P_DEFAULT) > 0) continue;
    checked(H5Gcreate2(file, part.c_str(), links.get(), properties.get(), H5P_DEFAULT), H5Gclose, where, kCannotWrite);
  }
}

Hdf5Handle dataset_properties(const std::vector<std::int64_t>& chunk) {
  Hdf5Handle properties = untimed(H5P_DATASET_CREATE);
  if (!chunk.empty()) {
    H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), to_sizes(chunk).data());
    H5Pset_shuffle(properties.get());
    H5Pset_deflate(properties.get(), kGzipLevel);
  }
  return properties;
}

/// The layout of HDF5 1.10: smaller, and its metadata has checksums, so that damage is seen when the file is read.
Hdf5Handle access_properties() {
  Hdf5Handle properties(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(properties.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  return properties;
}

void create(hid_t file, const std::string& dataset, const Hdf5Handle& type, const std::vector<std::int64_t>& shape,
            const std::vector<std::int64_t>& chunk, const std::string& where) {
  make_groups(file, parent_of(dataset), where);
  const std::vector<hsize_t> sizes = to_sizes(shape);
  const Hdf5Handle space =
      checked(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose, where, kCannotWrite);
  const Hdf5Handle links = link_properties();
  const Hdf5Handle properties = dataset_properties(chunk);
  checked(H5Dcreate2(file, dataset.c_str(), type.get(), space.get(), links.get(), properties.get(), H5P_DEFAULT),
          H5Dclose, where, kCannotWrite);
}

/// An attribute's type on the disk and the value's bytes as that type has them.
struct AttributeImage {
  Hdf5Handle type;
  std::vector<std::byte> bytes;
};

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  return {first, first + sizeof(T)};
}

AttributeImage image_of(const AttributeValue& value, const char* const& text) {
  if (const auto* b = std::get_if<bool>(&value)) {
    return {hdf5_boolean_type(), bytes_of(static_cast<std::int8_t>(*b ? 1 : 0))};
  }
  if (const auto* i = std::get_if<std::int64_t>(&value)) return {{H5Tcopy(H5T_NATIVE_INT64), H5Tclose}, bytes_of(*i)};
  if (const auto* d = std::get_if<double>(&value)) return {{H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose}, bytes_of(*d)};
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return {std::move(type), bytes_of(text)};
}

}  // namespace

Hdf5Writer::Hdf5Writer(const std::string& path) : file_(std::make_unique<File>(path)) {
  const Hdf5Lock lock;
  const Hdf5Handle access = access_properties(), creation = untimed(H5P_FILE_CREATE);
  file_->handle =
      checked(H5Fcreate(file_->pending.temporary_path().c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose,
              path, kCannotWrite);
}

Hdf5Writer::~Hdf5Writer() {
  const Hdf5Lock lock;
  file_.reset();
}

void Hdf5Writer::create_group(const std::string& group) {
  const Hdf5Lock lock;
  make_groups(file_->handle.get(), group, file_->where(group));
}

void Hdf5Writer::set_attribute(const std::string& object, const std::string& name, const AttributeValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return;
  const Hdf5Lock lock;
  const std::string where = file_->where(object);
  const auto* text_value = std::get_if<std::string>(&value);
  const char* text = text_value == nullptr ? nullptr : text_value->c_str();
  const AttributeImage image = image_of(value, text);
  const Hdf5Handle opened =
      checked(H5Oopen(file_->handle.get(), ("/" + object).c_str(), H5P_DEFAULT), H5Oclose, where, kCannotWrite);
  const Hdf5Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose, where, kCannotWrite);
  const Hdf5Handle attribute =
      checked(H5Acreate2(opened.get(), name.c_str(), image.type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
              where, kCannotWrite);
  if (H5Awrite(attribute.get(), image.type.get(), image.bytes.data()) < 0) fail_hdf5(where, kCannotWrite);
}

void Hdf5Writer::set_attributes(const std::string& object, const Attributes& attributes) {
  for (const auto& [name, value] : attributes) set_attribute(object, name, value);
}

void Hdf5Writer::create_dataset(const std::string& dataset, const format::Format& format,
                                const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& chunk) {
  const Hdf5Lock lock;
  if (format.dtype.empty()) {
    throw Error(ErrorKind::internal, file_->where(dataset) + ": format " + std::string(format.name) + " has no dtype");
  }
  create(file_->handle.get(), dataset, storage_type(format), shape, chunk, file_->where(dataset));
  set_attribute(dataset, "dtype", std::string(format.dtype));
}

void Hdf5Writer::create_codes(const std::string& dataset, std::size_t element_bytes,
                              const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& chunk) {
  const Hdf5Lock lock;
  create(file_->handle.get(), dataset, unsigned_type(element_bytes), shape, chunk, file_->where(dataset));
}

void Hdf5Writer::create_booleans(const std::string& dataset, const std::vector<std::int64_t>& shape,
                                 const std::vector<std::int64_t>& chunk) {
  const Hdf5Lock lock;
  create(file_->handle.get(), dataset, hdf5_boolean_type(), shape, chunk, file_->where(dataset));
}

void Hdf5Writer::write_integers(const std::string& dataset, const std::vector<std::int64_t>& values) {
  const Hdf5Lock lock;
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(values.size())};
  create(file_->handle.get(), dataset, Hdf5Handle(H5Tcopy(H5T_STD_I64LE), H5Tclose), shape, {}, file_->where(dataset));
  write(dataset, {0}, shape, std::as_bytes(std::span(values)));
}

void Hdf5Writer::write(const std::string& dataset, const std::vector<std::int64_t>& start,
                       const std::vector<std::int64_t>& count, std::span<const std::byte> bytes) {
  const Hdf5Lock lock;
  const std::string where = file_->where(dataset);
  const Hdf5Handle opened =
      checked(H5Dopen2(file_->handle.get(), dataset.c_str(), H5P_DEFAULT), H5Dclose, where, kCannotWrite);
  const Hdf5Handle type = checked(H5Dget_type(opened.get()), H5Tclose, where, kCannotWrite);
  const std::size_t element_bytes = H5Tget_size(type.get());
  const std::int64_t elements = element_count(count, element_bytes, where);
  if (bytes.size() != static_cast<std::size_t>(elements) * element_bytes) {
    throw Error(ErrorKind::internal,
                where + ": block " + to_text(count) + " does not match " + std::to_string(bytes.size()) + " bytes");
  }
  if (elements == 0) return;
  const Hdf5Handle space = checked(H5Dget_space(opened.get()), H5Sclose, where, kCannotWrite);
  const Hdf5Handle memory = checked(H5Screate_simple(static_cast<int>(count.size()), to_sizes(count).data(), nullptr),
                                    H5Sclose, where, kCannotWrite);
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, to_sizes(start).data(), nullptr, to_sizes(count).data(),
                          nullptr) < 0 ||
      H5Dwrite(opened.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, bytes.data()) < 0) {
    fail_hdf5(where, kCannotWrite);
  }
}

void Hdf5Writer::commit() {
  const Hdf5Lock lock;
  if (!file_->close()) fail_hdf5(file_->pending.target(), kCannotWrite);
  file_->pending.commit();
}

}  // namespace qattn::io
