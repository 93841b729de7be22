#include "inputs.h"

#include <cmath>

#include "base/random.h"
#include "format/encode.h"

namespace qattn::bench {
namespace {

constexpr std::uint64_t kSeed = 1;

float normal(std::uint64_t stream, std::uint64_t index) {
  double sum = -6.0;
  for (std::uint64_t i = 0; i < 12; ++i) sum += random_unit(kSeed, stream, 12 * index + i);
  return static_cast<float>(sum);
}

MatrixD half_precision(const MatrixF& x) {
  MatrixD rounded(x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    rounded.data()[i] = format::decode(format::kFP16, format::encode(format::kFP16, x.data()[i], format::Policy{}));
  }
  return rounded;
}

}  // namespace

MatrixF normal_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  MatrixF x(rows, columns);
  for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = normal(stream, static_cast<std::uint64_t>(i));
  return x;
}

MatrixCodes normal_codes(const format::Format& format, std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  MatrixF x = normal_matrix(rows, columns, stream);
  if (format.specials == format::Specials::integer) {
    x *= std::ldexp(1.0F, format.mantissa_bits) / 3.0F;
    if (!format.has_sign) x = x.cwiseAbs();
  }
  MatrixCodes codes(rows, columns);
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    const float value = x.data()[i];
    codes.data()[i] = format.has_sign
                          ? static_cast<std::uint32_t>(format::encode(format, value, format::Policy{}))
                          : static_cast<std::uint32_t>(std::min(value, std::ldexp(1.0F, format.mantissa_bits) - 1.0F));
  }
  return codes;
}

attention::Problem normal_problem(std::int64_t tokens, std::int64_t head_dim) {
  attention::Problem problem;
  problem.q = half_precision(normal_matrix(tokens, head_dim, 1));
  problem.k = half_precision(normal_matrix(tokens, head_dim, 2));
  problem.v = half_precision(normal_matrix(tokens, head_dim, 3));
  problem.sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return problem;
}

}  // namespace qattn::bench
