// Order of operations: the published sources and machine code, confirmed on outputs of an H200 (data/vectors/
// fa3_vectors.h5). The build has fast-math: products flush subnormals.
#include "kernels/flash_attention_3.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>

#include "base/fp_environment.h"
#include "kernels/families.h"

namespace qattn::kernels {
namespace {

constexpr std::string_view kName = "flash_attn_3.fwd";
constexpr std::array<const format::Format*, 3> kTypes{&format::kE4M3, &format::kFP16, &format::kBF16};
constexpr double kLog2E = 1.4426950408889634074;

/// The library's tile sizes for head_dims up to `head_dim` (hopper/tile_size.h).
struct TileSize {
  std::int64_t head_dim;
  int rows;
  int keys;
  int keys_causal;
};
constexpr std::array kFp8Tiles{TileSize{64, 192, 160, 160}, TileSize{96, 192, 128, 128}, TileSize{128, 128, 224, 224},
                               TileSize{192, 128, 160, 160}, TileSize{256, 128, 128, 128}};
constexpr std::array kHalfTiles{TileSize{64, 192, 192, 128}, TileSize{96, 192, 144, 144}, TileSize{128, 128, 176, 128},
                                TileSize{192, 128, 112, 112}, TileSize{256, 128, 80, 80}};

std::string unconfirmed(const Call& call) {
  const std::int64_t head_dim = call.head_dim();
  const bool recorded = head_dim == 64 || head_dim == 128 || (head_dim == 256 && call.q.format == &format::kE4M3);
  if (!recorded) return fmt::format("head_dim {} with {} was not recorded", head_dim, call.q.format->name);
  const std::int64_t splits = io::find_integer(call.arguments, "num_splits", std::string(kName)).value_or(1);
  if (splits != 1) return fmt::format("num_splits is {}; this is the kernel for one split", splits);
  return "";
}

Returned run(const Call& call) {
  const Forward kernel = flash_attention_3(call);
  Returned returned = run_forward(kernel, call);
  state_evidence(returned, kernel, call, unconfirmed(call));
  return returned;
}

constexpr std::array kKernels{
    Kernel{kName, "FlashAttention-3 (hopper/, 0251105a)",
           "E4M3 with descales, FP16 and BF16; head_dim up to 256, grouped heads, causal bottom-right", run,
           "num_splits"},
};

}  // namespace

Forward flash_attention_3(const Call& call) {
  const FpEnvironment environment;
  check_call(call, kName, kTypes, 256);
  const bool fp8 = call.q.format == &format::kE4M3;
  Forward kernel;
  kernel.is_causal = call.is_causal && call.q_tokens() > 1;
  kernel.causal_align = attention::CausalAlign::bottom_right;
  kernel.qk = kernel.pv = &instruction_of(call, "wgmma", *call.q.format, fp8 ? 32 : 16);
  kernel.output = fp8 ? &format::kBF16 : call.q.format;
  const auto& tiles = fp8 ? kFp8Tiles : kHalfTiles;
  const auto* size = std::ranges::find_if(tiles, [&](const TileSize& t) { return call.head_dim() <= t.head_dim; });
  kernel.query_tile = size->rows;
  kernel.key_tile = kernel.is_causal ? size->keys_causal : size->keys;
  kernel.keys_descending = true;
  kernel.scale = static_cast<float>(call.sm_scale);
  kernel.c = static_cast<float>(static_cast<double>(kernel.scale) * kLog2E);
  kernel.score_descale = ScoreDescale::together;
  kernel.offset = fp8 ? 8 : 0;
  kernel.exponent = Exponent::fused;
  kernel.rescale = Rescale::difference_first;
  kernel.power = PowerOfTwo::mufu;
  kernel.flush_products = true;
  kernel.row_sum.contracted = true;
  kernel.row_sum.distance_2_first = true;
  kernel.reciprocal = Reciprocal::mufu;
  kernel.output_descale = OutputDescale::of_the_reciprocal;
  kernel.lse_maximum = LseMaximum::times_scaled_ln2;
  kernel.lse_join = LseJoin::fused_maximum;
  kernel.log = Log::mufu;
  kernel.empty = {.guarded = true, .reciprocal = 0, .lse = -std::numeric_limits<float>::infinity()};
  return kernel;
}

std::span<const Kernel> flash_attention_3_kernels() { return kKernels; }

}  // namespace qattn::kernels
