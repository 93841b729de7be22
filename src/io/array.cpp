// The dtype rules of the file formats, in one place for every container.
#include "io/array.h"

#include <limits>

#include "io/fail.h"
#include "io/little_endian.h"

namespace qattn::io {
namespace {

std::string dtype_names() {
  std::string names;
  for (const format::Format* f : format::formats()) {
    if (!f->dtype.empty()) names += (names.empty() ? "" : " ") + std::string(f->dtype);
  }
  return names;
}

bool names_itself(const ArrayInfo& info) {
  return info.format == &format::kFP16 || info.format == &format::kFP32 || info.format == &format::kFP64;
}

/// Whether `dtype` only repeats the width and signedness of a plain integer: "int32", "uint8".
bool repeats_integer_type(const ArrayInfo& info, std::string_view dtype) {
  return info.storage == Storage::integer &&
         dtype == (info.is_signed ? "int" : "uint") + std::to_string(8 * info.element_bytes);
}

/// Codes narrower than their byte must leave the high bits zero: a sign-extended int4 means that the writer and the
/// reader do not agree on the layout.
void check_high_bits(const Array& array, const std::string& where) {
  const int bits = array.info.format->bits;
  if (bits == 8 * static_cast<int>(array.info.element_bytes)) return;
  const std::int64_t count = static_cast<std::int64_t>(array.bytes.size() / array.info.element_bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    if (array.code(i) >> bits != 0) {
      fail(where, "element " + std::to_string(i) + " does not fit " + std::string(array.info.format->dtype) +
                      "; store the code in the low " + std::to_string(bits) + " bits with the others zero");
    }
  }
}

}  // namespace

std::string describe(const ArrayInfo& info) {
  const std::string size = std::to_string(info.element_bytes) + "-byte ";
  switch (info.storage) {
    case Storage::floating:
      return info.format != nullptr ? std::string(info.format->dtype) + " numbers" : size + "floats of no known kind";
    case Storage::integer:
      return size + (info.is_signed ? "signed" : "unsigned") + " integers";
    case Storage::boolean:
      return "booleans";
    case Storage::opaque:
      return size + "opaque elements";
  }
  return "elements";
}

std::uint64_t Array::code(std::int64_t index) const {
  return load_little_endian(bytes.data() + static_cast<std::size_t>(index) * info.element_bytes, info.element_bytes);
}

Array ArrayFile::read_all(const std::string& array) const {
  const ArrayInfo known = info(array);
  return read(array, std::vector<std::int64_t>(known.shape.size(), 0), known.shape);
}

std::int64_t element_count(const std::vector<std::int64_t>& shape, std::size_t element_bytes,
                           const std::string& where) {
  std::int64_t count = 1;
  std::int64_t bytes = 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      fail(where, "shape " + to_text(shape) + " is impossible; the file is damaged");
    }
  }
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(element_bytes), &bytes)) {
    fail(where, "shape " + to_text(shape) + " is impossible; the file is damaged");
  }
  return count;
}

void check_block(const ArrayInfo& info, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
                 const std::string& where) {
  bool inside = start.size() == info.shape.size() && count.size() == info.shape.size();
  for (std::size_t i = 0; inside && i < start.size(); ++i) {
    inside = start[i] >= 0 && count[i] >= 0 && start[i] <= info.shape[i] && count[i] <= info.shape[i] - start[i];
  }
  if (!inside) {
    fail(where, "block " + to_text(count) + " at " + to_text(start) + " is outside of shape " + to_text(info.shape));
  }
}

std::size_t code_bytes(const format::Format& format) {
  std::size_t bytes = 1;
  while (8 * bytes < static_cast<std::size_t>(format.bits)) bytes *= 2;
  return bytes;
}

const format::Format& format_of_dtype(std::string_view dtype, const std::string& where) {
  for (const format::Format* f : format::formats()) {
    if (!dtype.empty() && f->dtype == dtype) return *f;
  }
  fail(where, "unknown dtype '" + std::string(dtype) + "'; known are: " + dtype_names());
}

void resolve_format(ArrayInfo& info, const std::optional<std::string>& dtype, const std::string& where) {
  if (!dtype) {
    if (info.storage == Storage::integer && info.is_signed && info.element_bytes == 1) info.format = &format::kInt8;
    if (info.storage == Storage::floating && !names_itself(info)) {
      fail(where,
           "holds " + describe(info) + "; name the format in the attribute 'dtype' (one of " + dtype_names() + ")");
    }
    return;
  }
  if (repeats_integer_type(info, *dtype) && *dtype != format::kInt8.dtype) return;
  if (*dtype == "bool" && info.element_bytes == 1 && info.storage != Storage::floating) {
    info.format = nullptr;
    info.storage = Storage::boolean;
    return;
  }
  const format::Format& named = format_of_dtype(*dtype, where);
  const bool fits = info.storage == Storage::floating
                        ? info.format == &named
                        : info.storage != Storage::boolean && info.element_bytes == code_bytes(named);
  if (!fits) fail(where, "dtype says " + *dtype + " but the elements are " + describe(info));
  info.format = &named;
}

Tensor to_tensor(Array array, const std::string& where) {
  if (array.info.format == nullptr) {
    fail(where, "holds " + describe(array.info) +
                    " without a dtype; add the attribute 'dtype' (in npz an entry, np.savez(..., dtype='bfloat16') or "
                    "'q.dtype' for q alone; in safetensors metadata), one of " +
                    dtype_names());
  }
  check_high_bits(array, where);
  return Tensor{array.info.format, std::move(array.info.shape), std::move(array.bytes)};
}

std::vector<std::int64_t> to_integers(const Array& array, const std::string& where) {
  if (array.info.storage != Storage::integer) fail(where, "must hold integers, but holds " + describe(array.info));
  const int unused = 64 - 8 * static_cast<int>(array.info.element_bytes);
  std::vector<std::int64_t> values(array.bytes.size() / array.info.element_bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t code = array.code(static_cast<std::int64_t>(i));
    if (!array.info.is_signed && code > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      fail(where, "integer " + std::to_string(code) + " is out of range");
    }
    values[i] =
        array.info.is_signed ? static_cast<std::int64_t>(code << unused) >> unused : static_cast<std::int64_t>(code);
  }
  return values;
}

std::vector<std::uint8_t> to_booleans(const Array& array, const std::string& where) {
  if (array.info.storage != Storage::boolean && array.info.storage != Storage::integer) {
    fail(where, "must hold booleans, but holds " + describe(array.info));
  }
  std::vector<std::uint8_t> values(array.bytes.size() / array.info.element_bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t code = array.code(static_cast<std::int64_t>(i));
    if (code > 1) fail(where, "element " + std::to_string(i) + " is " + std::to_string(code) + ", no boolean (0 or 1)");
    values[i] = static_cast<std::uint8_t>(code);
  }
  return values;
}

}  // namespace qattn::io
