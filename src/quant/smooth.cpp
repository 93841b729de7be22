#include "quant/smooth.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"

namespace qattn::quant {
namespace {

constexpr format::Policy kNearest{.overflow = format::Overflow::inf_or_nan};

template <class T>
float rounded(T value, const format::Format& format) {
  return format::decode_float(format, format::encode(format, value, kNearest));
}

void round_in_place(MatrixF& x, const format::Format& format) {
  if (&format == &format::kFP32) return;
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = rounded(x.data()[i], format);
}

}  // namespace

MatrixF token_means(MatrixView<float> x, std::int64_t block_rows) {
  const FpEnvironment environment;
  if (block_rows < 0) throw Error(ErrorKind::usage, "smoothing: a block of " + std::to_string(block_rows) + " tokens");
  const std::int64_t rows = x.rows();
  const std::int64_t step = block_rows == 0 ? std::max<std::int64_t>(rows, 1) : block_rows;
  const std::int64_t blocks = block_rows == 0 ? 1 : (rows + step - 1) / step;
  MatrixF means(blocks, x.cols());
  std::vector<double> sums(static_cast<std::size_t>(x.cols()));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t end = std::min(rows, (b + 1) * step);
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::int64_t r = b * step; r < end; ++r)
      for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += static_cast<double>(x(r, static_cast<std::int64_t>(c)));
    const auto tokens = static_cast<double>(end - b * step);
    for (std::size_t c = 0; c < sums.size(); ++c)
      means(b, static_cast<std::int64_t>(c)) = static_cast<float>(sums[c] / tokens);
  }
  return means;
}

Smoothed smooth(MatrixView<float> x, const SmoothSpec& spec) {
  const FpEnvironment environment;
  Smoothed result{MatrixF(x.rows(), x.cols()), token_means(x, spec.block_rows)};
  round_in_place(result.means, *spec.mean_format);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const float* mean = result.means.row(spec.block_rows == 0 ? 0 : r / spec.block_rows).data();
    for (std::int64_t c = 0; c < x.cols(); ++c) result.centred(r, c) = x(r, c) - mean[c];
  }
  round_in_place(result.centred, *spec.result_format);
  return result;
}

MatrixF mean_correction(MatrixView<float> q_means, MatrixView<float> k, const format::Format& result_format) {
  const FpEnvironment environment;
  if (q_means.cols() != k.cols())
    throw Error(ErrorKind::internal, "mean_correction: " + std::to_string(q_means.cols()) + " channels of q, " +
                                         std::to_string(k.cols()) + " of k");
  MatrixF correction(q_means.rows(), k.rows());
  for (std::int64_t i = 0; i < q_means.rows(); ++i) {
    for (std::int64_t j = 0; j < k.rows(); ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < k.cols(); ++c)
        sum += static_cast<double>(q_means(i, c)) * static_cast<double>(k(j, c));
      correction(i, j) = rounded(sum, result_format);
    }
  }
  return correction;
}

}  // namespace qattn::quant
