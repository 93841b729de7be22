// Codes in and out of tensors of every format, blocks as matrices, and what is refused.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "format/encode.h"
#include "support/catch.h"
#include "tensor/tensor.h"

using namespace qattn;

namespace {

/// Whether two numbers have the same bits; NaN compares like any other.
template <class T>
bool same_bits(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

Tensor spread(const format::Format& format, std::vector<std::int64_t> shape) {
  Tensor tensor = make_tensor(format, std::move(shape));
  const std::uint64_t mask = format.bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << format.bits) - 1;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.set_code(i, (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15 >> 7) & mask);
  }
  return tensor;
}

}  // namespace

TEST_CASE("codes of every format come back, little-endian, in the smallest element that holds them") {
  for (const format::Format* format : format::formats()) {
    CAPTURE(format->name);
    Tensor tensor = make_tensor(*format, {2, 3});
    CHECK(tensor.elements() == 6);
    CHECK(tensor.codes.size() == 6 * tensor.element_bytes());
    const std::uint64_t code = 0x8123456789ABCDEF >> (64 - format->bits);
    tensor.set_code(4, code);
    CHECK(tensor.code(4) == code);
    CHECK(tensor.code(3) == 0);
    CHECK(tensor.code(5) == 0);
    CHECK(std::to_integer<std::uint64_t>(tensor.codes[4 * tensor.element_bytes()]) == (code & 0xFF));
  }
  CHECK(make_tensor(format::kInt4, {1}).element_bytes() == 1);
  CHECK(make_tensor(format::kFP16, {1}).element_bytes() == 2);
  CHECK(make_tensor(format::kTF32, {1}).element_bytes() == 4);
  CHECK(make_tensor(format::kFP64, {1}).element_bytes() == 8);
}

TEST_CASE("a block decodes element by element, as double and as float") {
  for (const format::Format* format : format::formats()) {
    CAPTURE(format->name);
    const Tensor tensor = spread(*format, {4, 5, 6});
    const MatrixD values = decode_matrix(tensor, 12, 7, 9);
    const MatrixF floats = decode_matrix_float(tensor, 12, 7, 9);
    REQUIRE(values.rows() == 7);
    REQUIRE(values.cols() == 9);
    for (std::int64_t i = 0; i < 63; ++i) {
      const std::uint64_t code = tensor.code(12 + i);
      CHECK(same_bits(values(i / 9, i % 9), format::decode(*format, code)));
      if (format != &format::kFP64) CHECK(same_bits(floats(i / 9, i % 9), format::decode_float(*format, code)));
    }
  }
}

TEST_CASE("float64 tensors become floats by rounding to nearest-even") {
  Tensor tensor = make_tensor(format::kFP64, {5});
  const double values[] = {1.0 + 0x1p-24, 1.0 + 0x1.8p-23, 0x1.FFFFFFp127, -0x1p-150, std::nan("")};
  for (std::int64_t i = 0; i < 5; ++i) tensor.set_code(i, std::bit_cast<std::uint64_t>(values[i]));
  const MatrixF floats = decode_matrix_float(tensor, 0, 1, 5);
  CHECK(floats(0, 0) == 1.0f);
  CHECK(floats(0, 1) == 1.0f + 0x1p-22f);
  CHECK(floats(0, 2) == std::numeric_limits<float>::infinity());
  CHECK(same_bits(floats(0, 3), -0.0f));
  CHECK(std::isnan(floats(0, 4)));
}

TEST_CASE("empty tensors and empty blocks are allowed") {
  const Tensor tensor = make_tensor(format::kBF16, {3, 0, 2});
  CHECK(tensor.elements() == 0);
  CHECK(tensor.codes.empty());
  CHECK(decode_matrix(tensor, 0, 0, 2).size() == 0);
  CHECK(make_tensor(format::kBF16, {}).elements() == 1);
}

TEST_CASE("what lies outside a tensor is refused") {
  Tensor tensor = make_tensor(format::kFP16, {2, 3});
  CHECK_THROWS_AS(tensor.code(6), Error);
  CHECK_THROWS_AS(tensor.code(-1), Error);
  CHECK_THROWS_AS(tensor.set_code(6, 0), Error);
  CHECK_THROWS_AS(decode_matrix(tensor, 1, 2, 3), Error);
  CHECK_THROWS_AS(decode_matrix(tensor, -1, 1, 1), Error);
  CHECK_THROWS_AS(decode_matrix(tensor, 0, -1, -1), Error);
  CHECK_THROWS_AS(decode_matrix_float(tensor, 1, std::numeric_limits<std::int64_t>::max(), 2), Error);
  CHECK_THROWS_AS(Tensor{}.element_bytes(), Error);
  CHECK_THROWS_AS(make_tensor(format::kFP16, {2, -1}), Error);
  CHECK_THROWS_AS(make_tensor(format::kFP16, {std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  CHECK_THROWS_AS(make_tensor(format::kFP64, {std::int64_t{1} << 61}), Error);
}
