// Codes in and out of a tensor's bytes, and blocks of it as matrices.
#include "tensor/tensor.h"

#include <bit>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/encode.h"

namespace qattn {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) text.append(text.size() > 1 ? ", " : "").append(std::to_string(extent));
  return text + "]";
}

/// The product of the extents; throws Error(input) where it is negative or does not fit.
std::int64_t count_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      throw Error(ErrorKind::input, "tensor of shape " + shape_text(shape) + ": negative or too large");
    }
  }
  return count;
}

void require_format(const Tensor& tensor) {
  if (tensor.format == nullptr) throw Error(ErrorKind::internal, "tensor without a format: use make_tensor()");
}

std::size_t checked_offset(const Tensor& tensor, std::int64_t index) {
  const std::size_t size = tensor.element_bytes();
  if (index < 0 || static_cast<std::uint64_t>(index) >= tensor.codes.size() / size) {
    throw Error(ErrorKind::internal, "tensor of shape " + shape_text(tensor.shape) + ": element " +
                                         std::to_string(index) + " is out of range");
  }
  return static_cast<std::size_t>(index) * size;
}

std::uint64_t load(const std::byte* bytes, std::size_t size) {
  std::uint64_t code = 0;
  for (std::size_t i = 0; i < size; ++i) code |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return code;
}

/// The first byte of a block of rows x columns elements, after a check that it lies inside.
const std::byte* checked_block(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns) {
  require_format(tensor);
  std::int64_t count = 0;
  std::int64_t end = 0;
  const bool inside = offset >= 0 && rows >= 0 && columns >= 0 && !__builtin_mul_overflow(rows, columns, &count) &&
                      !__builtin_add_overflow(offset, count, &end) &&
                      static_cast<std::uint64_t>(end) <= tensor.codes.size() / tensor.element_bytes();
  if (!inside) {
    throw Error(ErrorKind::internal, "tensor of shape " + shape_text(tensor.shape) + ": block of " +
                                         std::to_string(rows) + " x " + std::to_string(columns) + " from element " +
                                         std::to_string(offset) + " on is out of range");
  }
  return tensor.codes.data() + static_cast<std::size_t>(offset) * tensor.element_bytes();
}

/// A matrix of decode(code) of each element.
template <class T, class Decode>
Matrix<T> decode_block(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns,
                       const Decode& decode_code) {
  const std::byte* bytes = checked_block(tensor, offset, rows, columns);
  const std::size_t size = tensor.element_bytes();
  Matrix<T> result(rows, columns);
  for (std::int64_t i = 0; i < rows * columns; ++i, bytes += size) result.data()[i] = decode_code(load(bytes, size));
  return result;
}

}  // namespace

std::size_t Tensor::element_bytes() const {
  require_format(*this);
  return static_cast<std::size_t>(format::element_bytes(*format));
}

std::int64_t Tensor::elements() const { return count_elements(shape); }

std::uint64_t Tensor::code(std::int64_t index) const {
  return load(codes.data() + checked_offset(*this, index), element_bytes());
}

void Tensor::set_code(std::int64_t index, std::uint64_t code) {
  std::byte* bytes = codes.data() + checked_offset(*this, index);
  for (std::size_t i = 0; i < element_bytes(); ++i) bytes[i] = static_cast<std::byte>(code >> (8 * i) & 0xFF);
}

Tensor make_tensor(const format::Format& format, std::vector<std::int64_t> shape) {
  Tensor tensor{&format, std::move(shape), {}};
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.elements(), static_cast<std::int64_t>(tensor.element_bytes()), &bytes)) {
    throw Error(ErrorKind::input, "tensor of shape " + shape_text(tensor.shape) + ": too large");
  }
  tensor.codes.resize(static_cast<std::size_t>(bytes));
  return tensor;
}

MatrixD decode_matrix(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns) {
  return decode_block<double>(tensor, offset, rows, columns,
                              [&](std::uint64_t code) { return format::decode(*tensor.format, code); });
}

MatrixF decode_matrix_float(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns) {
  require_format(tensor);
  if (tensor.format->bits <= 16) {
    const std::span<const float> table = format::decode_table(*tensor.format);
    return decode_block<float>(tensor, offset, rows, columns,
                               [&](std::uint64_t code) { return table[code & (table.size() - 1)]; });
  }
  if (tensor.format->bits <= 32) {
    return decode_block<float>(tensor, offset, rows, columns,
                               [&](std::uint64_t code) { return format::decode_float(*tensor.format, code); });
  }
  const format::Policy nearest{.overflow = format::Overflow::inf_or_nan};
  return decode_block<float>(tensor, offset, rows, columns, [&](std::uint64_t code) {
    const std::uint64_t bits = format::encode(format::kFP32, format::decode(*tensor.format, code), nearest);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  });
}

}  // namespace qattn
