#include "kernels/sage_lse.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "base/fp_environment.h"
#include "format/encode.h"
#include "kernels/lanes.h"
#include "kernels/numbers.h"
#include "mma/tile.h"

namespace qattn::kernels::sage {
namespace {

using Kind = DotOrder::Kind;

/// Shapes that no tensor-core kernel takes, in FP16.
DotOrder half_order(std::int64_t heads, std::int64_t q_tokens, std::int64_t depth) {
  const std::int64_t rows = heads * q_tokens;
  const bool odd = q_tokens % 2 != 0;
  if (rows <= 3000) return {Kind::runs, heads == 1 && odd && q_tokens >= 7 ? 4 : 16, rows > 1};
  if (depth == 128) {
    if (odd && rows >= 9300) return {Kind::strided_tree, 8};
    return {Kind::strided, 16};
  }
  const bool four = odd && ((rows >= 9324 && rows <= 12432) || rows >= 48016);
  return {Kind::runs, four ? 4 : 8};
}

/// The same in BF16.
DotOrder bfloat_order(std::int64_t heads, std::int64_t q_tokens, std::int64_t depth) {
  const std::int64_t rows = heads * q_tokens, blocks = heads * ceil_div(q_tokens, 32);
  if (depth == 128 && rows > 3100) {
    if (rows == 3200 || rows == 3960 || rows == 4000) return {Kind::strided_tree, 16};
    if (q_tokens % 2 != 0 && rows >= 10600) return {Kind::strided_tree, 8};
    return {Kind::strided, 16, rows > 4000};
  }
  if (heads == 1) return {Kind::runs, 32, rows > 1};
  if (depth == 64) return {Kind::runs, blocks <= 22 ? 16 : 4};
  return {Kind::runs, q_tokens <= 129 && blocks >= 24 && blocks <= 40 ? 32 : 16};
}

float dot(std::span<const float> x, std::span<const float> y, const DotOrder& order) {
  const auto count = static_cast<std::size_t>(order.lanes);
  std::vector<float> lanes(count);
  const std::size_t run = x.size() / count;
  for (std::size_t i = 0; i < x.size(); ++i) lanes[order.kind == Kind::runs ? i / run : i % count] += x[i] * y[i];
  if (order.kind != Kind::strided) return butterfly(lanes);
  float sum = lanes[0];
  for (std::size_t i = 1; i < count; ++i) sum += lanes[i];
  return sum;
}

std::vector<float> decoded(const format::Format& type, std::span<const std::uint32_t> codes) {
  std::vector<float> values(codes.size());
  format::decode_span(type, codes, values);
  return values;
}

std::vector<float> lane_products(const format::Format& type, const MatrixCodes& q, const MatrixCodes& k_mean,
                                 const DotOrder& order) {
  const auto depth = static_cast<std::size_t>(q.cols());
  const std::vector<float> mean = decoded(type, {k_mean.data(), depth});
  std::vector<float> products;
  for (std::int64_t row = 0; row < q.rows(); ++row) {
    products.push_back(dot(decoded(type, {q.row(row).data(), depth}), mean, order));
  }
  return products;
}

std::vector<float> tensor_core_products(const MatrixCodes& q, const MatrixCodes& k_mean,
                                        const mma::Instruction& instruction) {
  MatrixCodes sums = MatrixCodes::Zero(q.rows(), 1);
  mma::multiply_accumulate(instruction, mma::Operand(instruction, mma::Side::a, q),
                           mma::Operand(instruction, mma::Side::b, k_mean), sums);
  std::vector<float> products;
  for (std::int64_t row = 0; row < q.rows(); ++row) products.push_back(std::bit_cast<float>(sums(row, 0)));
  return products;
}

}  // namespace

DotOrder correction_order(const format::Format& type, std::int64_t heads, std::int64_t q_tokens, std::int64_t depth) {
  if (q_tokens % 8 == 0) return {Kind::tensor_core, 0};
  const bool half = &type == &format::kFP16;
  // On even lengths the tensor core was seen from `seen` products on and not at `unseen` or below.
  const std::int64_t rows = heads * q_tokens, seen = half ? 9600 : 11200, unseen = half ? 9000 : 9600;
  if (q_tokens % 2 == 0 && rows >= seen) return {Kind::tensor_core, 0};
  DotOrder order = half ? half_order(heads, q_tokens, depth) : bfloat_order(heads, q_tokens, depth);
  if (q_tokens % 2 == 0 && rows > unseen) order.recorded = false;
  return order;
}

std::vector<float> correction(const format::Format& type, const MatrixCodes& q, const MatrixCodes& k_mean,
                              const DotOrder& order, const mma::Instruction& instruction) {
  const FpEnvironment environment;
  std::vector<float> products = order.kind == Kind::tensor_core ? tensor_core_products(q, k_mean, instruction)
                                                                : lane_products(type, q, k_mean, order);
  for (float& value : products) {
    value = format::decode_float(type, format::encode(type, value, {.overflow = format::Overflow::inf_or_nan}));
  }
  return products;
}

}  // namespace qattn::kernels::sage
