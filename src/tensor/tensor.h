// A tensor as files hold it: a format, a shape and raw codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/format.h"
#include "tensor/matrix.h"

namespace qattn {

/// Raw codes of shape `shape`, row-major, one element in element_bytes() bytes, little-endian. `int4` and other
/// formats below a byte take one byte an element.
struct Tensor {
  const format::Format* format = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> codes;

  /// Bytes that one element takes: the smallest of 1, 2, 4, 8 that holds the format's code.
  std::size_t element_bytes() const;
  std::int64_t elements() const;
  /// The code of element `index` (row-major), zero-extended.
  std::uint64_t code(std::int64_t index) const;
  void set_code(std::int64_t index, std::uint64_t code);
};

/// A tensor of zeros.
Tensor make_tensor(const format::Format& format, std::vector<std::int64_t> shape);

/// `rows` x `columns` elements from element `offset` on, decoded; exact. Throws Error(internal) when out of range.
MatrixD decode_matrix(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns);

/// The same as floats. A fp64 tensor is rounded to nearest-even here, the only place where that happens.
MatrixF decode_matrix_float(const Tensor& tensor, std::int64_t offset, std::int64_t rows, std::int64_t columns);

}  // namespace qattn
