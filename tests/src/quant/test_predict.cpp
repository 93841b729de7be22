// Predictors on matrices whose answers are known.
#include <limits>

#include "matrices.h"
#include "quant/predict.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::quant;

namespace {

// Columns alternate +a, -a about a mean of m: bias energy m^2 / (m^2 + a^2) when all channels are alike.
MatrixF alternating(std::int64_t rows, std::int64_t columns, float mean, float amplitude) {
  MatrixF x(rows, columns);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) x(r, c) = mean + (r % 2 == 0 ? amplitude : -amplitude);
  return x;
}

}  // namespace

TEST_CASE("Bias energy is the share of the means' energy") {
  CHECK(channel_statistics(alternating(64, 8, 3, 4)).bias_energy == 9.0 / 25.0);
  CHECK(channel_statistics(alternating(64, 8, 0, 4)).bias_energy == 0);
  CHECK(channel_statistics(alternating(64, 8, 3, 0)).bias_energy == 1);
  CHECK(std::isnan(channel_statistics(MatrixF::Zero(8, 8)).bias_energy));
  CHECK(std::isnan(channel_statistics(MatrixF(0, 8)).bias_energy));
}

TEST_CASE("The most biased channel and the outlier channels are found") {
  MatrixF x = alternating(64, 32, 0, 2);
  for (std::int64_t r = 0; r < 64; ++r) x(r, 9) -= 12, x(r, 20) *= 6, x(r, 21) *= 6.5f;
  const ChannelStatistics found = channel_statistics(x);
  CHECK(found.most_biased_channel == 9);
  // Deviations about the means: 30 channels of 2, one of 12, one of 13.
  CHECK(found.largest_bias == Approx(12 / std::sqrt((30 * 4 + 144 + 169) / 32.0)).epsilon(1e-14));
  CHECK(found.median_amax == 2);
  CHECK(found.largest_amax == 14);
  CHECK(found.outlier_channels == std::vector<std::int64_t>{9, 21});
  CHECK(channel_statistics(x, 5.5).outlier_channels == std::vector<std::int64_t>{9, 20, 21});
}

TEST_CASE("A NaN marks its channel as an outlier and does not hide the others") {
  MatrixF x = alternating(16, 8, 0, 1);
  x(3, 5) = std::numeric_limits<float>::quiet_NaN();
  const ChannelStatistics found = channel_statistics(x);
  CHECK(found.median_amax == 1);
  CHECK(found.outlier_channels == std::vector<std::int64_t>{5});
  CHECK(std::isnan(found.largest_amax));
  CHECK(std::isnan(found.bias_energy));
}

TEST_CASE("Smoothing gain is the ratio of the mean scales") {
  const GroupSpec per_thread{.granularity = Granularity::per_thread, .operand = Operand::k};
  CHECK(smoothing_gain(alternating(128, 16, 8, 2), per_thread) == 2.0 / 10.0);
  CHECK(smoothing_gain(alternating(128, 16, 0, 2), per_thread) == 1);
  // Two query blocks of opposite bias: only a mean of each block removes it.
  MatrixF x = alternating(128, 16, 6, 2);
  for (std::int64_t r = 64; r < 128; ++r) x.row(r) *= -1;
  const GroupSpec queries{.granularity = Granularity::per_thread, .operand = Operand::q};
  CHECK(smoothing_gain(x, queries, 64) == 2.0 / 6.0);  // groups of even rows reach 8, of odd rows 4
  CHECK(smoothing_gain(x, queries) == 1);
}

TEST_CASE("Block statistics of a matrix built block by block") {
  // Blocks of 16: ordinary, all zero, one tiny element beside large ones, lost altogether, Inf, twice the first.
  MatrixF x = MatrixF::Zero(1, 96);
  for (std::int64_t c = 0; c < 16; ++c) {
    x(0, c) = 6;
    x(0, 32 + c) = c == 0 ? 0x1p-7f : 24;
    x(0, 48 + c) = 0x1p-12f;
    x(0, 64 + c) = c == 7 ? std::numeric_limits<float>::infinity() : 1;
    x(0, 80 + c) = 12;
  }
  const BlockStatistics found = block_statistics(x, micro_scaled("nvfp4", Operand::q));
  CHECK(found.blocks == 6);
  CHECK(found.zero_blocks == 1);
  CHECK(found.nonfinite_blocks == 1);
  CHECK(found.underflow_blocks == 2);
  CHECK(found.lost_blocks == 1);
  CHECK(found.saturated_blocks == 0);
  CHECK(found.smallest_scale == 1);
  CHECK(found.median_scale == 1);  // 1, 1 (the lost block's, by the policy), 2, 4
  CHECK(found.largest_scale == 4);
  CHECK(found.log2_range == 2);
  CHECK(found.distinct_scales == 3);
  CHECK(found.elements.underflowed == 17);
  CHECK(found.elements.zero_groups == 2);
}

TEST_CASE("Saturated blocks are those whose elements the quantizer counts as saturated") {
  for (const Operand operand : {Operand::q, Operand::v}) {
    const MatrixF x = matrices::wide(64, 64, 31, 10);
    const QuantizerSpec spec = micro_scaled("mxfp8_e4m3", operand);
    const BlockStatistics found = block_statistics(x, spec);
    CHECK(found.blocks == 128);
    CHECK(found.saturated_blocks > 0);
    CHECK(found.saturated_blocks <= found.elements.saturated);
    QuantizerSpec ceil = spec;
    ceil.rule = &find_scale_rule("e8m0_ceil");
    CHECK(block_statistics(x, ceil).saturated_blocks == 0);
  }
}
