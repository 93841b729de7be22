// Heads of a call as matrices of codes, and back.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace qattn::kernels {

/// The codes of one head [N, D] of a tensor [B, H, N, D] of at most 32 bits an element.
MatrixCodes head_codes(const Tensor& tensor, std::int64_t batch, std::int64_t head);
/// Rows [first_row, first_row + rows) of it.
MatrixCodes head_codes(const Tensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first_row,
                       std::int64_t rows);

/// Writes `codes` into consecutive elements of `tensor` from element `offset` on.
void store_codes(Tensor& tensor, std::int64_t offset, std::span<const std::uint32_t> codes);

/// The bits of floats, and the floats of bits.
void to_bits(std::span<const float> values, std::span<std::uint32_t> bits);
void from_bits(std::span<const std::uint32_t> bits, std::span<float> values);

}  // namespace qattn::kernels
