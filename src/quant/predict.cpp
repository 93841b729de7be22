#include "quant/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.h"
#include "base/fp_environment.h"
#include "quant/rotate.h"
#include "quant/smooth.h"

namespace qattn::quant {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Sums run in token order, then in channel order.
std::vector<double> channel_means(MatrixView<float> x) {
  std::vector<double> means(static_cast<std::size_t>(x.cols()), 0.0);
  for (std::int64_t r = 0; r < x.rows(); ++r)
    for (std::size_t c = 0; c < means.size(); ++c) means[c] += static_cast<double>(x(r, static_cast<std::int64_t>(c)));
  for (double& mean : means) mean /= static_cast<double>(x.rows());
  return means;
}

// sum (x - centre)^2 with one centre for each channel.
double energy_about(MatrixView<float> x, const std::vector<double>& centres) {
  double sum = 0;
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::size_t c = 0; c < centres.size(); ++c) {
      const double deviation = static_cast<double>(x(r, static_cast<std::int64_t>(c))) - centres[c];
      sum += deviation * deviation;
    }
  }
  return sum;
}

template <class T>
double lower_median(std::vector<T> values) {
  if (values.empty()) return kNaN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

void find_bias(MatrixView<float> x, ChannelStatistics& statistics) {
  const std::vector<double> means = channel_means(x);
  const double energy = energy_about(x, std::vector<double>(means.size(), 0.0));
  double mean_energy = 0;
  for (std::size_t c = 0; c < means.size(); ++c) {
    mean_energy += means[c] * means[c];
    const auto largest = static_cast<std::size_t>(std::max<std::int64_t>(statistics.most_biased_channel, 0));
    if (std::fabs(means[c]) > std::fabs(means[largest]) || statistics.most_biased_channel < 0)
      statistics.most_biased_channel = static_cast<std::int64_t>(c);
  }
  statistics.bias_energy = static_cast<double>(x.rows()) * mean_energy / energy;
  const double deviation = std::sqrt(energy_about(x, means) / static_cast<double>(x.size()));
  statistics.largest_bias = std::fabs(means[static_cast<std::size_t>(statistics.most_biased_channel)]) / deviation;
}

// NaN does not order, so it is left out of the median; a channel with NaN or Inf is always an outlier.
void find_outliers(MatrixView<float> x, double outlier_ratio, ChannelStatistics& statistics) {
  const std::vector<float> amax = channel_amax(x);
  std::vector<float> finite;
  for (const float value : amax)
    if (std::isfinite(value)) finite.push_back(value);
  statistics.median_amax = lower_median(finite);
  statistics.largest_amax = 0;
  for (std::size_t c = 0; c < amax.size(); ++c) {
    const auto value = static_cast<double>(amax[c]);
    if (!(value <= statistics.largest_amax) && !std::isnan(statistics.largest_amax)) statistics.largest_amax = value;
    if (!(value <= outlier_ratio * statistics.median_amax))
      statistics.outlier_channels.push_back(static_cast<std::int64_t>(c));
  }
}

double sum_of_group_amax(MatrixView<float> x, const GroupMap& map) {
  double sum = 0;
  for (const float amax : group_amax(x, map)) sum += static_cast<double>(amax);
  return sum;
}

// What happened in one group.
struct Block {
  float amax = 0;
  bool used = false;
  bool saturated = false;
  bool underflowed = false;
  bool kept = false;  ///< some code is not zero
};

std::vector<Block> visit_blocks(MatrixView<float> x, const Quantized& quantized) {
  const float threshold = saturation_threshold(*quantized.format);
  std::vector<Block> blocks(quantized.scales.size());
  const MatrixF values = dequantize(quantized);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      Block& block = blocks[static_cast<std::size_t>(quantized.groups.index(r, c))];
      const float magnitude = std::fabs(x(r, c));
      block.used = true;
      if (!(magnitude <= block.amax) && !std::isnan(block.amax)) block.amax = magnitude;
      if (magnitude / quantized.outer_scale(r, c) / quantized.scale(r, c) >= threshold) block.saturated = true;
      if (magnitude > 0 && values(r, c) == 0) block.underflowed = true;
      if (values(r, c) != 0) block.kept = true;
    }
  }
  return blocks;
}

void summarise_scales(std::vector<float> scales, BlockStatistics& statistics) {
  statistics.smallest_scale = statistics.largest_scale = statistics.log2_range = kNaN;
  statistics.median_scale = lower_median(scales);
  if (scales.empty()) return;
  std::sort(scales.begin(), scales.end());
  statistics.smallest_scale = static_cast<double>(scales.front());
  statistics.largest_scale = static_cast<double>(scales.back());
  statistics.log2_range = elementary::log2(statistics.largest_scale / statistics.smallest_scale);
  statistics.distinct_scales = std::unique(scales.begin(), scales.end()) - scales.begin();
}

}  // namespace

ChannelStatistics channel_statistics(MatrixView<float> x, double outlier_ratio) {
  const FpEnvironment environment;
  ChannelStatistics statistics;
  if (x.size() == 0) {
    statistics.bias_energy = statistics.largest_bias = statistics.median_amax = statistics.largest_amax = kNaN;
    return statistics;
  }
  find_bias(x, statistics);
  find_outliers(x, outlier_ratio, statistics);
  return statistics;
}

double smoothing_gain(MatrixView<float> x, const GroupSpec& groups, std::int64_t block_rows) {
  const FpEnvironment environment;
  const GroupMap map(groups, x.rows(), x.cols());
  const MatrixF centred = smooth(x, {.block_rows = block_rows}).centred;
  return sum_of_group_amax(centred, map) / sum_of_group_amax(x, map);
}

BlockStatistics block_statistics(MatrixView<float> x, const QuantizerSpec& spec) {
  const FpEnvironment environment;
  const Quantized quantized = quantize(x, spec);
  BlockStatistics statistics;
  statistics.elements = quantized.stats;
  std::vector<float> scales;
  const std::vector<Block> blocks = visit_blocks(x, quantized);
  for (std::size_t g = 0; g < blocks.size(); ++g) {
    const Block& block = blocks[g];
    if (!block.used) continue;
    ++statistics.blocks;
    statistics.saturated_blocks += block.saturated ? 1 : 0;
    statistics.underflow_blocks += block.underflowed ? 1 : 0;
    const float scale = quantized.scales[g];
    if (block.amax == 0)
      ++statistics.zero_blocks;
    else if (!std::isfinite(block.amax) || !std::isfinite(scale))
      ++statistics.nonfinite_blocks;
    else
      scales.push_back(scale);
    if (std::isfinite(block.amax) && block.amax > 0 && !block.kept) ++statistics.lost_blocks;
  }
  summarise_scales(std::move(scales), statistics);
  return statistics;
}

}  // namespace qattn::quant
