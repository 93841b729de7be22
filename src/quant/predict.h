// What a matrix says before anything is run: bias and outlier channels, what smoothing would buy, and how well the
// blocks of a micro-scaled format fit it.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/groups.h"
#include "quant/quantize.h"
#include "tensor/matrix.h"

namespace qattn::quant {

/// Statistics of the channels of one head of Q, K or V, [tokens, channels], in f64. NaN without elements; NaN and Inf
/// in the input come through.
struct ChannelStatistics {
  /// The share of the energy that smoothing removes: tokens * |mean over tokens|^2 / sum x^2, in [0, 1] up to rounding.
  /// NaN when x is all zero.
  double bias_energy = 0;
  /// The channel with the largest |mean|, and that over the standard deviation of all elements about their channels'
  /// means (Inf when nothing varies; NaN when also the mean is zero).
  std::int64_t most_biased_channel = -1;
  double largest_bias = 0;
  /// Channels whose amax exceeds `outlier_ratio` times the median channel's, ascending.
  std::vector<std::int64_t> outlier_channels;
  double median_amax = 0;  ///< lower median of the channels' amax
  double largest_amax = 0;
};

ChannelStatistics channel_statistics(MatrixView<float> x, double outlier_ratio = 6);

/// mean over groups of amax after smoothing / the same before: how much smaller the quantization steps become (1 buys
/// nothing). Groups without elements are left out. NaN when all is zero before.
/// `block_rows` as in SmoothSpec: 0 for K and V, the query block for Q.
double smoothing_gain(MatrixView<float> x, const GroupSpec& groups, std::int64_t block_rows = 0);

/// How the scales of a quantized matrix spread over its groups, and what the elements lost in them.
struct BlockStatistics {
  std::int64_t blocks = 0;       ///< groups that have elements
  std::int64_t zero_blocks = 0;  ///< all elements zero
  /// Over the blocks that are not zero and have a finite scale; the lower median. NaN without any.
  double smallest_scale = 0;
  double median_scale = 0;
  double largest_scale = 0;
  double log2_range = 0;              ///< log2(largest / smallest)
  std::int64_t nonfinite_blocks = 0;  ///< with a NaN or Inf among the elements or as scale
  std::int64_t saturated_blocks = 0;  ///< |x / scale| of an element is half a step above the largest code or more
  std::int64_t underflow_blocks = 0;  ///< blocks in which a nonzero element has code zero
  std::int64_t lost_blocks = 0;       ///< not zero, but all codes are
  std::int64_t distinct_scales = 0;   ///< different scales among those counted
  QuantStats elements;                ///< the same by element
};

BlockStatistics block_statistics(MatrixView<float> x, const QuantizerSpec& spec);

}  // namespace qattn::quant
