#include "kernels/sage_quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/fp_environment.h"
#include "format/format.h"
#include "kernels/numbers.h"
#include "scalar/ptx.h"
#include "scalar/span.h"

namespace qattn::kernels::sage {
namespace {

float triton_per_thread_scale(float amax) { return std::fma(amax, 1.0f / 127.0f, 1e-7f); }
float triton_per_block_scale(float amax) { return amax * (1.0f / 127.0f); }
float cuda_scale(float amax) { return fast_divide(amax, 127.0f); }

float reciprocal_of_scale(float, float scale) { return scalar::mufu_rcp(scale); }
float range_over_amax(float amax, float) { return fast_divide(127.0f, amax); }

/// NaN (of a group of zeros) gives 0, as cvt does.
std::int32_t half_away(float x, float factor) {
  const float y = x * factor;
  if (std::isnan(y)) return 0;
  return static_cast<std::int32_t>(y + (y >= 0 ? 0.5f : -0.5f));
}

std::int32_t nearest_even(float x, float factor) {
  return static_cast<std::int8_t>(scalar::cast_s8(scalar::IntegerRounding::rni, f32_bits(x * factor)));
}

/// The lanes' values after an exchange at each of the distances 16 ... 1; every lane has the sum.
float warp_sum(std::array<float, 32> lane) {
  for (std::size_t distance = 16; distance > 0; distance /= 2) {
    const std::array<float, 32> other = lane;
    for (std::size_t i = 0; i < lane.size(); ++i) lane[i] = flush_subnormal(other[i] + other[i ^ distance]);
  }
  return lane[0];
}

}  // namespace

float fast_divide(float x, float y) {
  return std::bit_cast<float>(scalar::cuda_fast::fdividef(f32_bits(x), f32_bits(y)));
}

const Int8Quantizer kTritonPerThread{
    quant::Granularity::per_thread, true, false, 0, triton_per_thread_scale, reciprocal_of_scale, half_away};
const Int8Quantizer kTritonPerBlock{quant::Granularity::per_block, true,     false, 0, triton_per_block_scale,
                                    reciprocal_of_scale,           half_away};
const Int8Quantizer kCudaPerWarp{
    quant::Granularity::per_warp, false, true, 1e-7f, cuda_scale, range_over_amax, nearest_even};
const Int8Quantizer kCudaPerBlock{
    quant::Granularity::per_block, false, true, 1e-7f, cuda_scale, range_over_amax, nearest_even};

Int8Matrix quantize_int8(MatrixView<float> x, const Int8Quantizer& quantizer, quant::Operand operand,
                         const quant::Tiling& tiling) {
  const FpEnvironment environment;
  const std::int64_t block = operand == quant::Operand::q ? tiling.q_block : tiling.k_block;
  const quant::GroupSpec spec{.granularity = quantizer.granularity, .operand = operand, .tiling = tiling};
  Int8Matrix result{MatrixCodes(x.rows(), x.cols()), quant::GroupMap(spec, round_up(x.rows(), block), 1), {}};
  const auto read = [&](std::int64_t row, std::int64_t column) {
    return quantizer.flushes ? flush_subnormal(x(row, column)) : x(row, column);
  };
  std::vector<float> amax(static_cast<std::size_t>(result.groups.groups()), quantizer.least_amax);
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    float& largest = amax[static_cast<std::size_t>(result.groups.index(r, 0))];
    for (std::int64_t c = 0; c < x.cols(); ++c) largest = std::max(largest, std::fabs(read(r, c)));
  }
  std::vector<float> factors(amax.size());
  result.scales.resize(amax.size());
  for (std::size_t g = 0; g < amax.size(); ++g) {
    result.scales[g] = quantizer.scale(amax[g]);
    factors[g] = quantizer.factor(amax[g], result.scales[g]);
  }
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    const float factor = factors[static_cast<std::size_t>(result.groups.index(r, 0))];
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      result.codes(r, c) = static_cast<std::uint32_t>(quantizer.code(read(r, c), factor)) & 0xFF;
    }
  }
  return result;
}

float block_sum(std::span<const float> stored) {
  constexpr std::size_t kThreads = 256, kRun = 8;
  std::array<float, 32> warps{};
  for (std::size_t warp = 0; warp < kThreads / 32; ++warp) {
    std::array<float, 32> lane{};
    for (std::size_t i = 0; i < lane.size(); ++i) {
      for (std::size_t run = (warp * 32 + i) * kRun; run < stored.size(); run += kThreads * kRun) {
        for (std::size_t k = run; k < std::min(run + kRun, stored.size()); ++k) {
          lane[i] = flush_subnormal(lane[i] + stored[k]);
        }
      }
    }
    warps[warp] = warp_sum(lane);
  }
  return warp_sum(warps);
}

const Fp8Quantizer kV448{"v448", 448.0f, false, fast_divide, block_sum};
const Fp8Quantizer kV225{"v225", 2.25f, false, fast_divide, block_sum};
const Fp8Quantizer kV448Smooth{"v448_smooth", 448.0f, true, fast_divide, block_sum};

Fp8Matrix quantize_fp8(MatrixView<float> v, std::int64_t padded_tokens, const Fp8Quantizer& quantizer) {
  const FpEnvironment environment;
  const auto columns = static_cast<std::size_t>(padded_tokens);
  const auto counted = static_cast<std::size_t>(round_up(v.rows(), 16));
  const scalar::CastSpec e4m3 = scalar::cast_spec(format::kE4M3, scalar::Cast::rn_satfinite);
  Fp8Matrix result{MatrixCodes(v.cols(), padded_tokens), {}, {}};
  std::vector<float> stored(columns);
  std::vector<std::uint32_t> scaled(columns);
  for (std::int64_t channel = 0; channel < v.cols(); ++channel) {
    for (std::size_t p = 0; p < columns; ++p) {
      const auto token = static_cast<std::int64_t>(p / 16 * 16) + kStoredToken[p % 16];
      stored[p] = token < v.rows() ? flush_subnormal(v(token, channel)) : 0.0f;
    }
    const std::span<const float> tokens(stored.data(), counted);
    float largest = -1e6f, smallest = 1e6f;  // where the kernel's searches start
    for (const float x : tokens) {
      largest = std::max(largest, x);
      smallest = std::min(smallest, x);
    }
    float mean = 0;
    if (quantizer.smooth) {
      mean = quantizer.divide(quantizer.sum(tokens), static_cast<float>(counted));
      result.means.push_back(mean);
    }
    const float amax =
        std::max(std::fabs(flush_subnormal(largest - mean)), std::fabs(flush_subnormal(smallest - mean)));
    result.scales.push_back(quantizer.divide(amax, quantizer.scale_max));
    const float factor = quantizer.divide(quantizer.scale_max, amax);
    for (std::size_t p = 0; p < columns; ++p) scaled[p] = f32_bits(flush_subnormal(stored[p] - mean) * factor);
    scalar::apply(e4m3, scaled, {result.codes.row(channel).data(), columns});
  }
  return result;
}

}  // namespace qattn::kernels::sage
