#include "kernels/codes.h"

#include <cstring>

#include "base/error.h"

namespace qattn::kernels {
namespace {

template <class Code>
void widen(const std::byte* from, std::span<std::uint32_t> codes) {
  for (std::uint32_t& code : codes) {
    Code narrow;
    std::memcpy(&narrow, from, sizeof(Code));
    code = narrow;
    from += sizeof(Code);
  }
}

template <class Code>
void narrow(std::span<const std::uint32_t> codes, std::byte* to) {
  for (const std::uint32_t code : codes) {
    const auto value = static_cast<Code>(code);
    std::memcpy(to, &value, sizeof(Code));
    to += sizeof(Code);
  }
}

void require_inside(const Tensor& tensor, std::int64_t offset, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(tensor.element_bytes());
  if (size > 4 || offset < 0 || (offset + count) * size > static_cast<std::int64_t>(tensor.codes.size())) {
    throw Error(ErrorKind::internal, "kernels: a block of codes lies outside its tensor");
  }
}

}  // namespace

MatrixCodes head_codes(const Tensor& tensor, std::int64_t batch, std::int64_t head) {
  return head_codes(tensor, batch, head, 0, tensor.shape.at(2));
}

MatrixCodes head_codes(const Tensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first_row,
                       std::int64_t rows) {
  const std::int64_t columns = tensor.shape.at(3);
  const std::int64_t offset = ((batch * tensor.shape[1] + head) * tensor.shape[2] + first_row) * columns;
  require_inside(tensor, offset, rows * columns);
  MatrixCodes codes(rows, columns);
  const std::span<std::uint32_t> all(codes.data(), static_cast<std::size_t>(codes.size()));
  const std::size_t size = tensor.element_bytes();
  const std::byte* from = tensor.codes.data() + static_cast<std::size_t>(offset) * size;
  if (size == 1) widen<std::uint8_t>(from, all);
  if (size == 2) widen<std::uint16_t>(from, all);
  if (size == 4) widen<std::uint32_t>(from, all);
  return codes;
}

void store_codes(Tensor& tensor, std::int64_t offset, std::span<const std::uint32_t> codes) {
  require_inside(tensor, offset, static_cast<std::int64_t>(codes.size()));
  const std::size_t size = tensor.element_bytes();
  std::byte* to = tensor.codes.data() + static_cast<std::size_t>(offset) * size;
  if (size == 1) narrow<std::uint8_t>(codes, to);
  if (size == 2) narrow<std::uint16_t>(codes, to);
  if (size == 4) narrow<std::uint32_t>(codes, to);
}

void to_bits(std::span<const float> values, std::span<std::uint32_t> bits) {
  std::memcpy(bits.data(), values.data(), values.size_bytes());
}

void from_bits(std::span<const std::uint32_t> bits, std::span<float> values) {
  std::memcpy(values.data(), bits.data(), bits.size_bytes());
}

}  // namespace qattn::kernels
