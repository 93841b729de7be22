// Orders of operations confirmed on outputs of an H200 (data/vectors/sdpa_vectors.h5). Both masks are top-left, also
// for unequal lengths.
#include "kernels/sdpa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/fp_environment.h"
#include "kernels/families.h"
#include "scalar/constants.h"

namespace qattn::kernels {
namespace {

using scalar::constants::kLog2E;

constexpr std::string_view kCudnn = "aten._scaled_dot_product_cudnn_attention";
constexpr std::string_view kEfficient = "aten._scaled_dot_product_efficient_attention";
constexpr std::array<const format::Format*, 2> kTypes{&format::kFP16, &format::kBF16};

/// Why head_dim was not seen: recorded were 64, 96 and 128, and 256 without a mask.
std::string unconfirmed_head_dim(const Call& call) {
  constexpr std::array<std::int64_t, 4> kRecorded{64, 96, 128, 256};
  const bool recorded = std::ranges::find(kRecorded, call.head_dim()) != kRecorded.end();
  if (!recorded) return fmt::format("head_dim {} was not recorded", call.head_dim());
  if (call.head_dim() > 128 && call.is_causal) return "causal calls with head_dim above 128 were not recorded";
  return "";
}

Returned run_cudnn(const Call& call) {
  const Forward kernel = cudnn_attention(call);
  Returned returned = run_forward(kernel, call);
  std::string reason = unconfirmed_head_dim(call);
  if (call.q_tokens() == 1) reason = "for one query token cuDNN runs another kernel, whose order is not known";
  state_evidence(returned, kernel, call, reason);
  return returned;
}

Returned run_efficient(const Call& call) {
  const Forward kernel = efficient_attention(call);
  Returned returned = run_forward(kernel, call);
  std::string reason = unconfirmed_head_dim(call);
  if (reason.empty() && call.head_dim() > 128 && call.q.format == &format::kBF16) {
    reason = "BF16 with head_dim above 128 was not recorded";
  }
  state_evidence(returned, kernel, call, reason);
  return returned;
}

constexpr std::array kKernels{
    Kernel{kCudnn, "PyTorch 2.11, cuDNN 9.19",
           "FP16 and BF16, head_dim up to 256, grouped heads, causal top-left; one query is predicted", run_cudnn},
    Kernel{kEfficient, "PyTorch 2.11 (CUTLASS, xformers)",
           "FP16 and BF16, any head_dim, grouped heads, causal top-left, no bias", run_efficient},
};

}  // namespace

Forward cudnn_attention(const Call& call) {
  const FpEnvironment environment;
  check_call(call, kCudnn, kTypes, 256);
  Forward kernel;
  kernel.is_causal = call.is_causal;
  kernel.causal_align = attention::CausalAlign::top_left;
  kernel.qk = kernel.pv = &instruction_of(call, "wgmma", *call.q.format, 16);
  kernel.output = call.q.format;
  kernel.query_tile = 64;
  kernel.key_tile = 128;
  kernel.scale = static_cast<float>(call.sm_scale);
  kernel.c = kernel.scale * kLog2E;
  kernel.exponent = Exponent::two_roundings;
  kernel.rescale = Rescale::products_first;
  kernel.power = PowerOfTwo::mufu;
  kernel.row_sum = {.terms = SumTerms::tile_totals, .contracted = true, .distance_2_first = false};
  kernel.reciprocal = Reciprocal::mufu;
  kernel.lse_maximum = LseMaximum::rounded_times_ln2;
  kernel.lse_join = LseJoin::fused_maximum;
  kernel.log = Log::mufu;
  return kernel;
}

Forward efficient_attention(const Call& call) {
  const FpEnvironment environment;
  constexpr std::int64_t kAnyHeadDim = 65536;
  check_call(call, kEfficient, kTypes, kAnyHeadDim);
  const bool in_registers = call.head_dim() <= 128;
  Forward kernel;
  kernel.is_causal = call.is_causal;
  kernel.causal_align = attention::CausalAlign::top_left;
  kernel.qk = kernel.pv = &instruction_of(call, "mma", *call.q.format, 8);
  kernel.output = call.q.format;
  kernel.query_tile = in_registers ? 64 : 32;
  kernel.key_tile = call.head_dim() <= 64 ? 64 : 128;
  // Scores are scaled, then times log2 e, then compared: the maximum of the scaled scores times log2 e is the same.
  kernel.score_factor = static_cast<float>(call.sm_scale);
  kernel.c = kLog2E;
  kernel.exponent = Exponent::two_roundings;
  kernel.rescale = Rescale::products_first;
  kernel.power = PowerOfTwo::approx;
  kernel.row_sum = {.terms = SumTerms::warp_totals, .contracted = false, .distance_2_first = false};
  kernel.accumulate = in_registers ? Accumulate::chained : Accumulate::fused;
  kernel.last_tile = in_registers ? LastTile::like_others : LastTile::scaled;
  kernel.reciprocal = Reciprocal::rounded;
  kernel.lse_maximum = LseMaximum::over_log2e;
  kernel.lse_join = LseJoin::rounded;
  kernel.log = Log::logf;
  return kernel;
}

std::span<const Kernel> sdpa_kernels() { return kKernels; }

}  // namespace qattn::kernels
