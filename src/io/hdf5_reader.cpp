// Reading HDF5: the memory type is always the file's own, so that the library only copies.
#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "io/fail.h"
#include "io/hdf5_file.h"
#include "io/hdf5_handle.h"
#include "io/input_file.h"
#include "io/little_endian.h"
#include "io/trial.h"

namespace qattn::io {

struct Hdf5Reader::File {
  Hdf5Handle handle;
};

namespace {

/// Deeper than any model nests its layers.
constexpr std::size_t kDeepestGroup = 64;

/// Deflate cannot shrink data by more than a factor of 1032, so that a dataset that claims more is damaged or sparse.
constexpr std::uint64_t kLargestRatio = 1032;
constexpr std::uint64_t kUncheckedBytes = std::uint64_t{1} << 30;

std::string join(const std::string& group, const std::string& name) {
  return group.empty() ? name : group + "/" + name;
}

std::vector<std::int64_t> shape_of(hid_t space, const std::string& where) {
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0 || H5Sget_simple_extent_type(space) == H5S_NULL) fail(where, "has no shape");
  std::vector<hsize_t> sizes(static_cast<std::size_t>(rank));
  if (rank > 0 && H5Sget_simple_extent_dims(space, sizes.data(), nullptr) < 0) fail_hdf5(where, "has no shape");
  std::vector<std::int64_t> shape;
  for (const hsize_t size : sizes) shape.push_back(static_cast<std::int64_t>(size));
  return shape;
}

/// The known format that a stored floating type is, by its fields; null for any other.
const format::Format* format_of_float(hid_t type) {
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) return nullptr;
  if (H5Tget_offset(type) != 0 || mantissa != 0 || exponent != mantissa_bits) return nullptr;
  if (sign != mantissa_bits + exponent_bits || H5Tget_precision(type) != sign + 1) return nullptr;
  for (const format::Format* f : format::formats()) {
    if (!f->dtype.empty() && f->has_sign && f->exponent_bits == static_cast<int>(exponent_bits) &&
        f->mantissa_bits == static_cast<int>(mantissa_bits) && f->bias == static_cast<int>(H5Tget_ebias(type))) {
      return f;
    }
  }
  return nullptr;
}

bool is_boolean_enum(hid_t type) {
  std::int8_t value = -1;
  return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 && H5Tenum_valueof(type, "FALSE", &value) >= 0 &&
         value == 0 && H5Tenum_valueof(type, "TRUE", &value) >= 0 && value == 1;
}

/// What the stored type says by itself.
ArrayInfo stored_info(hid_t type, const std::string& where) {
  ArrayInfo info;
  info.element_bytes = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      info.storage = Storage::floating;
      info.format = format_of_float(type);
      break;
    case H5T_INTEGER:
      info.storage = Storage::integer;
      info.is_signed = H5Tget_sign(type) == H5T_SGN_2;
      if (H5Tget_precision(type) != 8 * info.element_bytes) fail(where, "holds integers of an unusual width");
      break;
    case H5T_ENUM:
      if (!is_boolean_enum(type)) fail(where, "holds an enumeration; store codes as unsigned integers");
      info.storage = Storage::boolean;
      break;
    case H5T_OPAQUE:
      info.storage = Storage::opaque;
      break;
    default:
      fail(where, "holds strings, records or references; store codes as unsigned integers");
  }
  const std::size_t bytes = info.element_bytes;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
    fail(where, "has elements of " + std::to_string(bytes) + " bytes; codes take 1, 2, 4 or 8");
  }
  return info;
}

// ---- Attributes ----

std::optional<std::string> read_fixed_text(hid_t attribute, hid_t type) {
  std::string text(H5Tget_size(type), '\0');
  if (text.empty() || H5Aread(attribute, type, text.data()) < 0) return std::nullopt;
  if (H5Tget_strpad(type) != H5T_STR_SPACEPAD) return text.substr(0, text.find('\0'));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::optional<std::string> read_variable_text(hid_t attribute, hid_t type, hid_t space) {
  char* text = nullptr;
  if (H5Aread(attribute, type, &text) < 0) return std::nullopt;
  std::string copy = text == nullptr ? "" : text;
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, &text);
  return copy;
}

/// Attributes are read as the library's own wide types: they are plain numbers, not codes.
template <class T>
AttributeValue read_number(hid_t attribute, hid_t memory_type) {
  T value{};
  if (H5Aread(attribute, memory_type, &value) < 0) return std::monostate{};
  return value;
}

AttributeValue read_enum(hid_t attribute, hid_t type) {
  std::int8_t value = 0;
  if (!is_boolean_enum(type) || H5Aread(attribute, type, &value) < 0) return std::monostate{};
  return value != 0;
}

AttributeValue read_value(hid_t attribute) {
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  if (!type || !space || H5Sget_simple_extent_npoints(space.get()) != 1) return std::monostate{};
  switch (H5Tget_class(type.get())) {
    case H5T_STRING: {
      const auto text = H5Tis_variable_str(type.get()) > 0 ? read_variable_text(attribute, type.get(), space.get())
                                                           : read_fixed_text(attribute, type.get());
      return text ? AttributeValue(*text) : AttributeValue();
    }
    case H5T_INTEGER:
      return read_number<std::int64_t>(attribute, H5T_NATIVE_INT64);
    case H5T_FLOAT:
      return read_number<double>(attribute, H5T_NATIVE_DOUBLE);
    case H5T_ENUM:
      return read_enum(attribute, type.get());
    default:
      return std::monostate{};
  }
}

std::string attribute_name(hid_t attribute) {
  const ssize_t length = H5Aget_name(attribute, 0, nullptr);
  if (length < 0) return "";
  std::string name(static_cast<std::size_t>(length) + 1, '\0');
  H5Aget_name(attribute, name.size(), name.data());
  name.pop_back();
  return name;
}

Attributes read_attributes(hid_t object, const std::string& where) {
  const int count = H5Aget_num_attrs(object);
  if (count < 0) fail_hdf5(where, "attributes cannot be read");
  Attributes result;
  for (int i = 0; i < count; ++i) {
    const Hdf5Handle attribute = checked(
        H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, static_cast<hsize_t>(i), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose, where, "attributes cannot be read");
    result[attribute_name(attribute.get())] = read_value(attribute.get());
    H5Eclear2(H5E_DEFAULT);
  }
  return result;
}

/// The names of a group's links. Fetched by index, the one way that is the same in HDF5 1.10 and 1.14.
std::vector<std::string> link_names(hid_t group, const std::string& where) {
  H5G_info_t info{};
  if (H5Gget_info(group, &info) < 0) fail_hdf5(where, "cannot be listed");
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (length < 0) fail_hdf5(where, "cannot be listed");
    std::string name(static_cast<std::size_t>(length) + 1, '\0');
    H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT);
    name.pop_back();
    names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The address of an object's header and its file's number, which HDF5 1.12 hides in a token.
std::string identity_of(hid_t object) {
#if H5_VERSION_GE(1, 12, 0)
  H5O_info2_t info{};
  H5Oget_info3(object, &info, H5O_INFO_BASIC);
  const std::string address(reinterpret_cast<const char*>(&info.token), sizeof info.token);
#else
  H5O_info_t info{};
  H5Oget_info1(object, &info);
  const std::string address = std::to_string(info.addr);
#endif
  return address + "@" + std::to_string(info.fileno);
}

/// A soft or external link may lead nowhere; a hard link whose object cannot be opened means damage.
Hdf5Reader::Child describe_child(hid_t group, const std::string& name, const std::string& where) {
  const Hdf5Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
  if (!object) {
    const std::string reason = hdf5_reason();
    H5L_info_t link{};
    const bool known = H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) >= 0;
    if (!known || link.type == H5L_TYPE_HARD) fail(where, "'" + name + "' cannot be opened (HDF5: " + reason + ")");
    return {name, Hdf5Reader::Kind::other, ""};
  }
  const H5I_type_t type = H5Iget_type(object.get());
  const auto kind = type == H5I_GROUP     ? Hdf5Reader::Kind::group
                    : type == H5I_DATASET ? Hdf5Reader::Kind::dataset
                                          : Hdf5Reader::Kind::other;
  return {name, kind, identity_of(object.get())};
}

// ---- Datasets ----

/// How a dataset is stored beside what its elements mean.
struct Opened {
  Hdf5Handle dataset, type, space;
  ArrayInfo info;       ///< logical: two nibbles of a packed byte count as two elements
  bool packed = false;  ///< low nibble first
};

bool is_packed(const Attributes& attributes, const ArrayInfo& info, const std::string& where) {
  const auto packing = find_text(attributes, "packed", where);
  if (!packing) return false;
  if (*packing != "low_nibble_first") fail(where, "unknown packing '" + *packing + "'; known is: low_nibble_first");
  if (info.format == nullptr || info.format->bits != 4 || info.shape.empty()) {
    fail(where, "attribute 'packed' goes with dtype int4 or float4_e2m1fn only");
  }
  return true;
}

Opened open_for_reading(hid_t file, const std::string& dataset, const std::string& where) {
  const std::string inside = "/" + dataset;
  Opened opened;
  opened.dataset =
      checked(H5Dopen2(file, inside.c_str(), H5P_DEFAULT), H5Dclose, where, "cannot be opened as a dataset");
  opened.type = checked(H5Dget_type(opened.dataset.get()), H5Tclose, where, "has no readable type");
  opened.space = checked(H5Dget_space(opened.dataset.get()), H5Sclose, where, "has no readable shape");
  const Attributes attributes = read_attributes(opened.dataset.get(), where);
  opened.info = stored_info(opened.type.get(), where);
  opened.info.shape = shape_of(opened.space.get(), where);
  resolve_format(opened.info, find_text(attributes, "dtype", where), where);
  opened.packed = is_packed(attributes, opened.info, where);
  element_count(opened.info.shape, 2 * opened.info.element_bytes, where);
  if (opened.packed) opened.info.shape.back() *= 2;
  return opened;
}

Array unpack_nibbles(const std::vector<std::byte>& packed, ArrayInfo info) {
  Array array{std::move(info), {}};
  array.bytes.reserve(2 * packed.size());
  for (const std::byte pair : packed) {
    array.bytes.push_back(pair & std::byte{0x0f});
    array.bytes.push_back(pair >> 4);
  }
  return array;
}

void check_plausible(hid_t dataset, std::int64_t bytes, const std::string& where) {
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  if (static_cast<std::uint64_t>(bytes) > kUncheckedBytes &&
      static_cast<std::uint64_t>(bytes) / kLargestRatio > stored) {
    fail(where, "claims " + std::to_string(bytes) + " bytes but the file stores " + std::to_string(stored) +
                    "; the file is damaged or was never filled");
  }
}

Hdf5Handle memory_space(const std::vector<std::int64_t>& count, const std::string& where) {
  if (count.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, where, "cannot be read");
  const std::vector<hsize_t> sizes(count.begin(), count.end());
  return checked(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose, where,
                 "cannot be read");
}

void select_block(hid_t space, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
                  const std::string& where) {
  if (count.empty()) return;
  const std::vector<hsize_t> first(start.begin(), start.end());
  const std::vector<hsize_t> sizes(count.begin(), count.end());
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, sizes.data(), nullptr) < 0) {
    fail_hdf5(where, "cannot be read");
  }
}

// ---- The first reading, in a process of its own ----

/// Everything below an open object but the elements: attributes, links, types, shapes, and the index of a dataset's
/// chunks. What the library refuses is left to the reading proper.
void walk(hid_t object, std::vector<std::string>& ancestors) {
  try {
    read_attributes(object, "");
    if (H5Iget_type(object) == H5I_DATASET) H5Dget_storage_size(object);
    if (H5Iget_type(object) != H5I_GROUP) return;
    for (const std::string& name : link_names(object, "")) {
      const Hdf5Handle child(H5Oopen(object, name.c_str(), H5P_DEFAULT), H5Oclose);
      if (!child) continue;
      std::string identity = identity_of(child.get());
      const bool ring = std::find(ancestors.begin(), ancestors.end(), identity) != ancestors.end();
      if (ring || ancestors.size() > kDeepestGroup) continue;
      ancestors.push_back(std::move(identity));
      walk(child.get(), ancestors);
      ancestors.pop_back();
    }
  } catch (const Error&) {
  }
}

/// Files whose metadata this process has tried; used under an Hdf5Lock alone. One that was written in the last seconds
/// is not among them, because its time would not tell another change.
std::set<FileStamp>& tried_files() {
  static std::set<FileStamp> files;
  return files;
}

/// HDF5 itself can crash or loop on damaged metadata, and with it everything that this process has computed. So a copy
/// of the process reads the metadata first. Needs an Hdf5Lock, so that no other thread is inside the library while the
/// process is copied.
void try_metadata(const std::string& path, const InputFile& file) {
  if (tried_files().contains(file.stamp())) return;
  constexpr std::uint64_t kBytesASecond = std::uint64_t{16} << 20;
  const auto seconds = static_cast<unsigned>(5 + file.stamp().size / kBytesASecond);
  const TrialEnd end = try_apart(
      [&] {
        const Hdf5Handle opened(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
        const Hdf5Handle root(opened ? H5Gopen2(opened.get(), "/", H5P_DEFAULT) : -1, H5Gclose);
        if (!root) return;
        std::vector<std::string> ancestors = {identity_of(root.get())};
        walk(root.get(), ancestors);
      },
      seconds);
  if (end != TrialEnd::finished) {
    fail(path, std::string("the HDF5 library ") +
                   (end == TrialEnd::hung ? "does not come to an end" : "itself crashes") +
                   " while it reads the file's metadata; the file is damaged, copy or capture it again");
  }
  if (file.stamp().settled()) tried_files().insert(file.stamp());
}

}  // namespace

Hdf5Reader::Hdf5Reader(const std::string& path) : path_(path), file_(std::make_unique<File>()) {
  const InputFile probe(path);  // a missing or unreadable file gets the system's own words
  const Hdf5Lock lock;
  try_metadata(path, probe);
  file_->handle =
      checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, path, "cannot be opened as an HDF5 file");
}

Hdf5Reader::~Hdf5Reader() {
  const Hdf5Lock lock;
  file_.reset();
}

std::vector<Hdf5Reader::Child> Hdf5Reader::children(const std::string& group) const {
  const Hdf5Lock lock;
  const std::string where = place(path_, group);
  const std::string inside = "/" + group;
  const Hdf5Handle opened = checked(H5Gopen2(file_->handle.get(), inside.c_str(), H5P_DEFAULT), H5Gclose, where,
                                    "cannot be opened as a group");
  std::vector<Child> result;
  for (const std::string& name : link_names(opened.get(), where)) {
    result.push_back(describe_child(opened.get(), name, where));
  }
  return result;
}

bool Hdf5Reader::exists(const std::string& object) const {
  const Hdf5Lock lock;
  const Hdf5Handle opened(H5Oopen(file_->handle.get(), ("/" + object).c_str(), H5P_DEFAULT), H5Oclose);
  if (!opened) H5Eclear2(H5E_DEFAULT);
  return static_cast<bool>(opened);
}

Attributes Hdf5Reader::own_attributes(const std::string& object) const {
  const Hdf5Lock lock;
  const std::string where = place(path_, object);
  const std::string inside = "/" + object;
  const Hdf5Handle opened =
      checked(H5Oopen(file_->handle.get(), inside.c_str(), H5P_DEFAULT), H5Oclose, where, "cannot be opened");
  return read_attributes(opened.get(), where);
}

Attributes Hdf5Reader::attributes(const std::string& group) const {
  Attributes result = own_attributes(group);
  std::string parent = group;
  while (!parent.empty()) {
    parent = parent_of(parent);
    result = override_attributes(own_attributes(parent), result);
  }
  return result;
}

void Hdf5Reader::collect_arrays(const std::string& group, std::vector<std::string>& ancestors,
                                std::vector<ArrayName>& found) const {
  if (ancestors.size() > kDeepestGroup) fail(place(path_, group), "groups nest too deep; at most 64 levels are read");
  for (const Child& child : children(group)) {
    const std::string path = join(group, child.name);
    if (child.kind == Kind::dataset) found.push_back({path, group, child.name});
    const bool ring = std::find(ancestors.begin(), ancestors.end(), child.identity) != ancestors.end();
    if (child.kind != Kind::group || ring) continue;
    ancestors.push_back(child.identity);
    collect_arrays(path, ancestors, found);
    ancestors.pop_back();
  }
}

std::vector<ArrayName> Hdf5Reader::arrays() const {
  std::vector<std::string> ancestors;
  {
    const Hdf5Lock lock;
    ancestors.push_back(identity_of(file_->handle.get()));
  }
  std::vector<ArrayName> found;
  collect_arrays("", ancestors, found);
  std::sort(found.begin(), found.end(), [](const ArrayName& a, const ArrayName& b) { return a.path < b.path; });
  return found;
}

ArrayInfo Hdf5Reader::info(const std::string& dataset) const {
  const Hdf5Lock lock;
  return open_for_reading(file_->handle.get(), dataset, place(path_, dataset)).info;
}

Array Hdf5Reader::read(const std::string& dataset, const std::vector<std::int64_t>& start,
                       const std::vector<std::int64_t>& count) const {
  const Hdf5Lock lock;
  const std::string where = place(path_, dataset);
  Opened opened = open_for_reading(file_->handle.get(), dataset, where);
  check_block(opened.info, start, count, where);
  std::vector<std::int64_t> stored_start = start, stored_count = count;
  if (opened.packed) {
    if (start.back() % 2 != 0 || count.back() % 2 != 0) fail(where, "packed elements are read in pairs");
    stored_start.back() /= 2;
    stored_count.back() /= 2;
  }
  const std::int64_t bytes = element_count(stored_count, opened.info.element_bytes, where) *
                             static_cast<std::int64_t>(opened.info.element_bytes);
  check_plausible(opened.dataset.get(), bytes, where);
  Array array{opened.info, std::vector<std::byte>(static_cast<std::size_t>(bytes))};
  array.info.shape = count;
  if (bytes == 0) return array;
  select_block(opened.space.get(), stored_start, stored_count, where);
  const Hdf5Handle memory = memory_space(stored_count, where);
  if (H5Dread(opened.dataset.get(), opened.type.get(), memory.get(), opened.space.get(), H5P_DEFAULT,
              array.bytes.data()) < 0) {
    fail_hdf5(where, "cannot be read; it is truncated, damaged or compressed in a way that this HDF5 lacks");
  }
  if (H5Tget_order(opened.type.get()) == H5T_ORDER_BE) reverse_each(array.bytes, opened.info.element_bytes);
  if (!opened.packed) return array;
  return unpack_nibbles(array.bytes, std::move(array.info));
}

}  // namespace qattn::io
