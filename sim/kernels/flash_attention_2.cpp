// Order of operations: the published sources, every rounding confirmed on outputs of an H200 (data/vectors/
// fa2_vectors.h5; head_dims other than 64 and 128, grouped heads and unequal lengths on recordings that are not kept
// here).
#include "kernels/flash_attention_2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/fp_environment.h"
#include "kernels/fa2_backward.h"
#include "kernels/families.h"
#include "kernels/numbers.h"

namespace qattn::kernels {
namespace {

constexpr std::string_view kName = "aten._scaled_dot_product_flash_attention";
constexpr std::array<const format::Format*, 2> kTypes{&format::kFP16, &format::kBF16};
constexpr double kLog2E = 1.4426950408889634074;

/// One query token: the query heads of a group become the rows of one head, which is what the heuristic then counts.
bool swaps_groups(const Call& call) { return call.q_tokens() == 1 && call.q_heads() > call.kv_heads(); }

/// Key tiles of the two kernels for a head_dim.
int split_key_tile(std::int64_t head_dim) { return head_dim <= 64 ? 256 : head_dim <= 128 ? 128 : 64; }

int ordinary_key_tile(const Call& call, bool is_causal) {
  const std::int64_t head_dim = call.head_dim();
  if (head_dim <= 64) return 128;
  const bool is_sm8x = call.arch == "sm89";  // less shared memory than an A100
  return is_sm8x && head_dim > 96 && head_dim <= 128 && !is_causal ? 32 : 64;
}

int ordinary_query_tile(const Call& call, bool is_causal) {
  const bool is_sm8x = call.arch == "sm89";
  const std::int64_t head_dim = call.head_dim();
  if (is_sm8x && head_dim > 64 && head_dim <= 128 && is_causal) return 64;
  return head_dim <= 192 || call.arch == "sm80" ? 128 : 64;
}

/// Lanes over which the combining kernel's exchange runs: 128 threads over its block's rows.
int combine_lanes(std::int64_t head_dim) {
  const std::int64_t padded = head_dim <= 128 ? (head_dim + 31) / 32 * 32 : (head_dim + 63) / 64 * 64;
  return padded % 128 == 0 ? 32 : padded % 64 == 0 ? 16 : 8;
}

std::string unconfirmed(const Forward& kernel, const Call& call) {
  constexpr std::array<std::int64_t, 5> kRecorded{32, 64, 96, 128, 256};
  if (std::ranges::find(kRecorded, call.head_dim()) == kRecorded.end()) {
    return fmt::format("head_dim {} was not recorded", call.head_dim());
  }
  if (kernel.split.parts > 4) return fmt::format("no split into {} parts was recorded", kernel.split.parts);
  return "";
}

Returned run(const Call& call) {
  const Forward kernel = flash_attention_2(call);
  Returned returned = run_forward(kernel, call);
  state_evidence(returned, kernel, call, unconfirmed(kernel, call));
  if (call.d_o) add_fa2_backward(call, returned);
  return returned;
}

constexpr std::array kKernels{
    Kernel{kName, "PyTorch 2.11 (FlashAttention-2)",
           "FP16 and BF16, head_dim up to 256, grouped heads, causal bottom-right; split over keys by heuristic", run},
};

}  // namespace

int flash_attention_2_parts(const Call& call) {
  const FpEnvironment environment;
  const std::int64_t rows = swaps_groups(call) ? call.q_heads() / call.kv_heads() : call.q_tokens();
  const std::int64_t heads = swaps_groups(call) ? call.kv_heads() : call.q_heads();
  const std::int64_t tile = split_key_tile(call.head_dim());
  const std::int64_t blocks = call.batch() * heads * ceil_div(rows, 64);
  const std::int64_t tiles = ceil_div(call.kv_tokens(), tile);
  const std::int64_t places = 2 * std::int64_t{call.sm_count};
  if (static_cast<float>(blocks) >= 0.8f * static_cast<float>(places)) return 1;
  const std::int64_t most = std::min<std::int64_t>({128, places, tiles});
  const auto each = [&](std::int64_t parts) { return ceil_div(tiles, parts); };
  std::vector<float> efficiency(static_cast<std::size_t>(most) + 1, 0.0f);  // of 1 ... most; 0: not considered
  for (std::int64_t parts = 1; parts <= most; ++parts) {
    if (parts > 1 && each(parts) == each(parts - 1)) continue;
    const float waves = static_cast<float>(blocks * parts) / static_cast<float>(places);
    efficiency[static_cast<std::size_t>(parts)] = waves / std::ceil(waves);
  }
  const double enough = 0.85 * static_cast<double>(*std::ranges::max_element(efficiency));
  const auto chosen =
      std::ranges::find_if(efficiency, [&](float e) { return e > 0 && static_cast<double>(e) >= enough; });
  return static_cast<int>(chosen - efficiency.begin());
}

Forward flash_attention_2(const Call& call) {
  const FpEnvironment environment;
  check_call(call, kName, kTypes, 256);
  Forward kernel;
  kernel.is_causal = call.is_causal && call.q_tokens() > 1;
  kernel.causal_align = attention::CausalAlign::bottom_right;
  kernel.qk = kernel.pv = &instruction_of(call, "mma", *call.q.format, 16);
  kernel.output = call.q.format;
  kernel.split.parts = flash_attention_2_parts(call);
  kernel.split.lse_rows = combine_lanes(call.head_dim());
  const bool split = kernel.split.parts > 1;
  kernel.query_tile = split ? 64 : ordinary_query_tile(call, kernel.is_causal);
  kernel.key_tile = split ? split_key_tile(call.head_dim()) : ordinary_key_tile(call, kernel.is_causal);
  kernel.keys_descending = true;
  kernel.scale = static_cast<float>(call.sm_scale);
  kernel.c = static_cast<float>(static_cast<double>(kernel.scale) * kLog2E);
  kernel.exponent = Exponent::two_roundings;
  kernel.rescale = Rescale::difference_first;
  kernel.power = PowerOfTwo::approx;
  kernel.row_sum.contracted = true;
  kernel.row_sum.distance_2_first = true;
  kernel.reciprocal = Reciprocal::rounded;
  kernel.lse_maximum = LseMaximum::times_scale;
  kernel.lse_join = LseJoin::fused_maximum;
  kernel.log = Log::approx;
  const float inf = std::numeric_limits<float>::infinity();
  kernel.empty = {.guarded = true, .reciprocal = 1, .lse = split ? -inf : inf};
  return kernel;
}

std::span<const Kernel> flash_attention_2_kernels() { return kKernels; }

}  // namespace qattn::kernels
