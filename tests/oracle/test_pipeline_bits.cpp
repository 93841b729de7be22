// The pipeline against the slow program, element by element: the same O, bit for bit, for every kind of choice that the
// slow program knows.
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention.h"
#include "attention/pipeline.h"
#include "dump.h"
#include "options.h"
#include "support/catch.h"

namespace {

using namespace qattn;

/// One recipe twice: in the slow program's words and in those of recipe.h, separated by spaces.
struct Pair {
  std::string slow;
  std::string pipeline;
};

const std::vector<Pair> kPairs{
    // Nothing but FP32.
    {"tiles=128x64", "tiling=sm89"},
    {"tiles=64x128", "tiling=sm90"},
    // Formats and what shares a scale.
    {"tiles=128x64 qk=int8/tensor p=int8 v=int8/channel",
     "tiling=sm89 qk_format=int8 granularity=per_tensor pv_format=int8 v_granularity=per_channel"},
    {"tiles=64x128 qk=int4/block p=e5m2 v=e5m2/tensor",
     "tiling=sm90 qk_format=int4 granularity=per_block pv_format=e5m2 v_granularity=per_tensor"},
    {"tiles=64x128 qk=e4m3/warp p=e4m3 v=fp16",
     "tiling=sm90 qk_format=e4m3 granularity=per_warp p_format=e4m3 v_format=fp16"},
    {"tiles=128x64 q=int8/token k=int4/thread v=e4m3/channel",
     "tiling=sm89 q_format=int8 q_granularity=per_token k_format=int4 k_granularity=per_thread v_format=e4m3 "
     "v_granularity=per_channel"},
    {"tiles=128x64 qk=int8/thread ties=away", "tiling=sm89 qk_format=int8 granularity=per_thread rounding=half_away"},
    {"tiles=128x64 p=e4m3 p_scale=256", "tiling=sm89 p_format=e4m3 p_scale=256"},
    {"tiles=128x64 p=e4m3 row_sum=rounded", "tiling=sm89 p_format=e4m3 row_sum=rounded"},
    // Smoothing.
    {"tiles=128x64 smooth=k qk=int8/block", "tiling=sm89 smoothing=k qk_format=int8 granularity=per_block"},
    {"tiles=64x128 smooth=q qk=int4/thread", "tiling=sm90 smoothing=q qk_format=int4 granularity=per_thread"},
    {"tiles=128x64 smooth=qk qk=int4/token", "tiling=sm89 smoothing=qk qk_format=int4 granularity=per_token"},
    {"tiles=128x64 smooth=qk qk=int4/thread correction=codes",
     "tiling=sm89 smoothing=qk qk_format=int4 granularity=per_thread correction=quantized_k"},
    {"tiles=128x64 smooth_v=yes p=e4m3 v=e4m3/channel",
     "tiling=sm89 smooth_v=true pv_format=e4m3 v_granularity=per_channel"},
    // Accumulators.
    {"tiles=128x64 p=fp16 v=fp16 pv_sum=f32", "tiling=sm89 pv_format=fp16 accumulator=f32"},
    {"tiles=128x64 qk=fp16 p=fp16 v=fp16 qk_sum=ampere-f16 pv_sum=ampere-f16-to-f16",
     "tiling=sm80 qk_format=fp16 pv_format=fp16 qk_accumulator=sm80.mma accumulator=sm80.mma.f16"},
    {"tiles=64x128 qk=fp16 p=fp16 v=fp16 qk_sum=hopper-f16 pv_sum=hopper-f16",
     "tiling=sm90 qk_format=fp16 pv_format=fp16 qk_accumulator=sm90.wgmma accumulator=sm90.wgmma"},
    {"tiles=128x64 qk=e4m3/tensor p=e4m3 v=e4m3/channel qk_sum=ada-fp8 pv_sum=ada-fp8",
     "tiling=sm89 qk_format=e4m3 granularity=per_tensor pv_format=e4m3 v_granularity=per_channel "
     "qk_accumulator=sm89.mma accumulator=sm89.mma"},
    {"tiles=64x128 qk=e5m2/tensor p=e5m2 v=e5m2/channel qk_sum=hopper-wgmma-fp8 pv_sum=hopper-wgmma-fp8",
     "tiling=sm90 qk_format=e5m2 granularity=per_tensor pv_format=e5m2 v_granularity=per_channel "
     "qk_accumulator=sm90.wgmma accumulator=sm90.wgmma"},
    // Promotion.
    {"tiles=64x128 p=e4m3 v=e4m3/channel pv_sum=hopper-wgmma-fp8 promotion=1",
     "tiling=sm90 pv_format=e4m3 v_granularity=per_channel accumulator=sm90.wgmma promotion=1"},
    {"tiles=64x128 p=e4m3 v=e4m3/channel pv_sum=hopper-wgmma-fp8 promotion=2",
     "tiling=sm90 pv_format=e4m3 v_granularity=per_channel accumulator=sm90.wgmma promotion=2"},
    {"tiles=64x128 p=e4m3 v=e4m3/channel pv_sum=hopper-wgmma-fp8 promotion=0",
     "tiling=sm90 pv_format=e4m3 v_granularity=per_channel accumulator=sm90.wgmma promotion=never"},
    // SageAttention2++: ranges of P and V for FP16 sums.
    {"tiles=128x64 p=e4m3 p_scale=224 v=e4m3/channel v_range=4.5 pv_sum=ada-fp8-to-f16",
     "tiling=sm89 pv_format=e4m3 p_scale=224 v_granularity=per_channel v_range=4.5 accumulator=sm89.mma.f16"},
    {"tiles=128x64 p=e4m3 p_scale=448 v=e4m3/channel v_range=2.25 pv_sum=ada-fp8-to-f16 promotion=1",
     "tiling=sm89 pv_format=e4m3 p_scale=448 v_granularity=per_channel v_range=2.25 accumulator=sm89.mma.f16 "
     "promotion=1"},
    // Micro-scaled operands: exact sums, then block-scaled instructions; the second level of P in both its forms.
    {"tiles=128x64 qk=nvfp4 p=nvfp4 v=nvfp4", "tiling=sm89 qk_format=nvfp4 pv_format=nvfp4"},
    {"tiles=64x128 smooth=qk qk=nvfp4 p=nvfp4 p_level=row v=nvfp4 qk_sum=blackwell-fp4 pv_sum=blackwell-fp4",
     "tiling=sm90 smoothing=qk qk_format=nvfp4 pv_format=nvfp4 p_second_level=row qk_accumulator=sm120.mma "
     "accumulator=sm120.mma"},
    {"tiles=128x64 qk=nvfp4 p=nvfp4 p_scale=2688 p_divisor=true v=nvfp4 pv_sum=blackwell-fp4 promotion=0",
     "tiling=sm89 qk_format=nvfp4 pv_format=nvfp4 p_scale=2688 p_divisor=unrounded accumulator=sm100.tcgen05 "
     "promotion=never"},
    {"tiles=128x64 qk=mxfp4 p=mxfp4 v=mxfp4 qk_sum=blackwell-fp4 pv_sum=blackwell-fp4",
     "tiling=sm89 qk_format=mxfp4 pv_format=mxfp4 qk_accumulator=sm120.mma accumulator=sm120.mma"},
    {"tiles=128x64 qk=mxfp8 v=fp16", "tiling=sm89 qk_format=mxfp8_e4m3 v_format=fp16"},
    {"tiles=128x64 p=int8/token v=int8/channel",
     "tiling=sm89 pv_format=int8 p_granularity=per_token v_granularity=per_channel"},
    // The softmax path.
    {"tiles=128x64 qk=e4m3/tensor p=e4m3 p_scale=256 v=e4m3/tensor order=backwards pv_sum=hopper-wgmma-fp8 promotion=0",
     "tiling=sm89 qk_format=e4m3 granularity=per_tensor pv_format=e4m3 p_scale=256 v_granularity=per_tensor "
     "tile_order=descending accumulator=sm90.wgmma promotion=never"},
    {"tiles=128x64 p=fp16 v=fp16 patience=1.5", "tiling=sm89 pv_format=fp16 rescale_threshold=1.5"},
    {"tiles=128x64 p=e4m3 max_of=all", "tiling=sm89 p_format=e4m3 row_max=before_mask"},
    {"tiles=128xall s=fp16 p=fp16 v=fp16 p_normalized=yes",
     "q_block=128 k_block=65536 s_format=fp16 pv_format=fp16 p_normalized=true"},
    {"tiles=128x64 scale_in=q smooth=k qk=int8/block",
     "tiling=sm89 scale_place=q smoothing=k qk_format=int8 granularity=per_block"},
    {"tiles=128x64 p=fp16 v=fp16 pv_sum=ampere-f16 promotion=0 o=fp16",
     "tiling=sm80 pv_format=fp16 accumulator=sm80.mma promotion=never o_format=fp16"},
};

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> result(1);
  for (const char c : text)
    if (c == ' ')
      result.emplace_back();
    else
      result.back() += c;
  return result;
}

MatrixD to_matrix(const oracle::Matrix& m) {
  MatrixD result(m.rows, m.columns);
  for (int r = 0; r < m.rows; ++r)
    for (int c = 0; c < m.columns; ++c) result(r, c) = m(r, c);
  return result;
}

/// Elements of O whose bits differ.
int mismatches(const oracle::Head& head, const Pair& pair) {
  attention::Recipe recipe;
  for (const std::string& word : words(pair.pipeline)) {
    const std::size_t equals = word.find('=');
    attention::set(recipe, word.substr(0, equals), word.substr(equals + 1));
  }
  attention::Problem problem;
  problem.q = to_matrix(head.q);
  problem.k = to_matrix(head.k);
  problem.v = to_matrix(head.v);
  problem.sm_scale = head.sm_scale;
  problem.is_causal = head.causal;
  const MatrixD fast = attention::run_recipe(problem, recipe, format::kFP16).o;
  const oracle::Matrix slow =
      oracle::attention(oracle::options_of(words("tiled=yes f32=yes o=fp32 " + pair.slow)), head);
  int count = 0;
  for (int r = 0; r < slow.rows; ++r)
    for (int c = 0; c < slow.columns; ++c)
      count += std::bit_cast<std::uint64_t>(fast(r, c)) == std::bit_cast<std::uint64_t>(slow(r, c)) ? 0 : 1;
  return count;
}

void check_all(const std::string& file, const std::string& call, int batch, int head_number) {
  const oracle::Head head = oracle::read_head(QATTN_SOURCE_DIR "/data/real/" + file, call, batch, head_number);
  for (const Pair& pair : kPairs) {
    CAPTURE(file, call, batch, head_number, pair.pipeline);
    CHECK(mismatches(head, pair) == 0);
  }
}

}  // namespace

TEST_CASE("the pipeline has the slow program's bits, 99 tokens that see each other") {
  check_all("kwt1_qkv.h5", "layer_07", 2, 0);
}

TEST_CASE("the pipeline has the slow program's bits, causal with 1,024 tokens", "[.][exhaustive]") {
  check_all("smollm2_1.h5", "layer_00", 0, 8);
  check_all("smollm2_2.h5", "layer_18", 0, 5);
}
