// The table of SageAttention's kernels.
#include "kernels/sage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/families.h"
#include "kernels/numbers.h"
#include "kernels/softmax_steps.h"
#include "scalar/mufu.h"
#include "scalar/ptx.h"
#include "scalar/span.h"

namespace qattn::kernels {
namespace sage {
namespace {

constexpr std::string_view kLibrary = "SageAttention 2.2.0 (d1a57a5)";
constexpr std::string_view kSm90 = "sageattn_qk_int8_pv_fp8_cuda_sm90";
constexpr std::string_view kFp8 = "sageattn_qk_int8_pv_fp8_cuda";
constexpr std::string_view kFp16 = "sageattn_qk_int8_pv_fp16_cuda";
constexpr std::string_view kTriton = "sageattn_qk_int8_pv_fp16_triton";

/// The kernels' -infinity, and the exponent by which FP8 P is lifted to 448.
constexpr float kHidden = -5000000.0f;
constexpr float kFp8Offset = 8.807f;

float (*const kRcp)(float) = scalar::mufu_rcp;
float (*const kLg2)(float) = scalar::mufu_lg2;

/// A keyword argument that names one of `choices`; absent: the first.
std::string choice(std::string_view kernel, const Call& call, std::string_view name,
                   std::initializer_list<std::string_view> choices) {
  const std::string value =
      io::find_text(call.arguments, name, std::string(kernel)).value_or(std::string(*choices.begin()));
  for (const std::string_view known : choices) {
    if (known == value) return value;
  }
  throw Error(ErrorKind::usage,
              fmt::format("{}: {} is '{}'; it must be one of: {}", kernel, name, value, fmt::join(choices, " ")));
}

bool flag(std::string_view kernel, const Call& call, std::string_view name, bool absent) {
  return io::find_bool(call.arguments, name, std::string(kernel)).value_or(absent);
}

const mma::Instruction& instruction(std::string_view kernel, const std::string& family, std::string_view d,
                                    const format::Format& a) {
  if (const mma::Instruction* found = mma::find(family, d, a, a)) return *found;
  throw Error(ErrorKind::usage, fmt::format("{}: there is no {} instruction that multiplies {} into {}; choose another "
                                            "arch of: sm80 sm89 sm90 sm100 sm120",
                                            kernel, family, a.name, d));
}

/// What the CUDA kernels share: tiles of 128 queries by 64 keys, scores dequantized first in the last two of them.
Form cuda_form(std::string_view kernel, const Call& call) {
  Form form;
  form.grouping = "sm89";
  form.tiling = quant::kSm89Tiling;
  form.int8 = choice(kernel, call, "qk_quant_gran", {"per_thread", "per_warp"}) == "per_thread" ? kTritonPerThread
                                                                                                : kCudaPerWarp;
  form.smooth_k = flag(kernel, call, "smooth_k", true);
  form.qk = &instruction(kernel, call.arch + ".mma", "s32", format::kInt8);
  form.correction_instruction = &instruction(kernel, call.arch + ".mma", "f32", *call.q.format);
  form.dequantized_tiles = 2;
  form.hidden = kHidden;
  form.start = kHidden;
  form.scaled_max = fused_max;
  form.exponents = fma_row;
  form.ex2 = scalar::ex2_approx_ftz;
  form.rcp = kRcp;
  form.lg2 = kLg2;
  form.rescale = rescale;
  form.rescale_add = rescale_add;
  form.correction_order = correction_order;
  return form;
}

/// FP8 P and V: P is lifted to fill E4M3, and its row sum is kept by four threads.
Form fp8_form(std::string_view kernel, const Call& call) {
  Form form = cuda_form(kernel, call);
  form.p_format = &format::kE4M3;
  form.offset = kFp8Offset;
  form.add_row = add_thread_sums;
  form.total = total_of_threads;
  form.output = scaled_output;
  form.v_fp8 = kV448;
  return form;
}

Form sm90_form(const Call& call) {
  if (call.arch != "sm90") {
    throw Error(ErrorKind::usage,
                fmt::format("{}: needs Hopper's wgmma, so that arch must be sm90, not {}", kSm90, call.arch));
  }
  choice(kSm90, call, "pv_accum_dtype", {"fp32+fp32"});
  Form form = fp8_form(kSm90, call);
  form.grouping = "sm90";
  form.tiling = quant::kSm90Tiling;
  form.v_padding = 128;
  form.dequantized_tiles = 1;
  form.pv = &instruction(kSm90, "sm90.wgmma", "f32", format::kE4M3);
  return form;
}

Form sm89_form(const Call& call) {
  const std::string accumulator = choice(kFp8, call, "pv_accum_dtype", {"fp32+fp16", "fp32+fp32", "fp32"});
  const bool smooth_v = flag(kFp8, call, "smooth_v", false);
  Form form = fp8_form(kFp8, call);
  form.in_place = accumulator == "fp32";
  form.pv = &instruction(kFp8, call.arch + ".mma", accumulator == "fp32+fp16" ? "f16" : "f32", format::kE4M3);
  if (accumulator == "fp32+fp16") form.v_fp8 = kV225;
  if (smooth_v && form.in_place) {  // ignored otherwise, as the library does
    form.v_fp8 = kV448Smooth;
    form.output = scaled_smooth_output;
  }
  return form;
}

Form sm80_form(const Call& call) {
  const std::string accumulator = choice(kFp16, call, "pv_accum_dtype", {"fp32", "fp16", "fp16+fp32"});
  const bool smooth_v = flag(kFp16, call, "smooth_v", false);
  Form form = cuda_form(kFp16, call);
  form.p_format = &format::kFP16;
  form.row_sum = &instruction(kFp16, call.arch + ".mma", "f32", format::kFP16);
  form.total = first_sum;
  form.pv = &instruction(kFp16, call.arch + ".mma", accumulator == "fp32" ? "f32" : "f16", format::kFP16);
  form.in_place = accumulator != "fp16+fp32";
  form.output = flushed_output;
  if (accumulator == "fp16") {
    form.centred_half_v = smooth_v;
    form.rescale = rescale_half;
    form.output = smooth_v ? half_smooth_output : half_output;
    if (smooth_v) form.prediction = "smooth_v with FP16 accumulators follows the library's source, no recording";
  }
  if (accumulator == "fp16+fp32" && call.head_dim() > 64) {
    form.grouping = "sm80_q16";
    form.tiling = {"sm80_q16", 128, 16, 64, 64};
  }
  return form;
}

Form triton_form(const Call& call) {
  if (call.is_causal && call.q_tokens() != call.kv_tokens()) {
    throw Error(ErrorKind::usage, fmt::format("{}: causal attention needs as many queries as keys, not {} and {}",
                                              kTriton, call.q_tokens(), call.kv_tokens()));
  }
  const std::string backend = choice(kTriton, call, "quantization_backend", {"triton", "cuda"});
  const std::string family = call.arch + (call.arch == "sm90" ? ".wgmma" : call.arch == "sm100" ? ".tcgen05" : ".mma");
  Form form = cuda_form(kTriton, call);
  form.grouping = backend == "triton" ? "triton" : "triton_cuda";
  form.int8 = backend == "triton" ? kTritonPerBlock : kCudaPerBlock;
  form.scales_q = true;
  form.dequantized_tiles = std::numeric_limits<int>::max();
  form.hidden = call.is_causal ? -std::numeric_limits<float>::infinity() : -1.0e6f;
  form.start = -std::numeric_limits<float>::infinity();
  form.lg2 = library_log2;
  form.p_format = &format::kFP16;
  form.pv = &instruction(kTriton, family, "f16", format::kFP16);
  form.add_row = add_triton_sum;
  form.total = first_sum;
  form.output = plain_output;
  if (backend == "cuda") form.prediction = "this quantization backend was not recorded";
  return form;
}

std::string prediction(const Form& form, const Call& call) {
  if (call.arch != "sm90") {
    return fmt::format("{} on {} in place of an H200, its tensor core {}", form.pv->name, call.arch,
                       mma::evidence_text(*form.pv));
  }
  const std::int64_t depth = call.head_dim();
  if (depth != 64 && depth != 96 && depth != 128) return fmt::format("head_dim {} was not recorded", depth);
  return form.prediction;
}

Form bare_form(std::string_view kernel, const Call& call) {
  if (kernel == kSm90) return sm90_form(call);
  if (kernel == kFp8) return sm89_form(call);
  if (kernel == kFp16) return sm80_form(call);
  if (kernel == kTriton) return triton_form(call);
  throw Error(ErrorKind::internal, fmt::format("SageAttention has no kernel '{}'", kernel));
}

template <const std::string_view& name>
Returned run_named(const Call& call) {
  check(call);
  return run(form_of(name, call), call);
}

}  // namespace

Form form_of(std::string_view kernel, const Call& call) {
  Form form = bare_form(kernel, call);
  form.prediction = prediction(form, call);
  return form;
}

}  // namespace sage

std::span<const Kernel> sage_kernels() {
  using namespace sage;
  static constexpr std::array kTable{
      Kernel{kSm90, kLibrary, "INT8 QK, FP8 PV by wgmma with FP22 partial sums", run_named<kSm90>,
             "qk_quant_gran pv_accum_dtype smooth_k"},
      Kernel{kFp8, kLibrary, "INT8 QK, FP8 PV by mma.sync", run_named<kFp8>,
             "qk_quant_gran pv_accum_dtype smooth_k smooth_v"},
      Kernel{kFp16, kLibrary, "INT8 QK, FP16 PV by mma.sync", run_named<kFp16>,
             "qk_quant_gran pv_accum_dtype smooth_k smooth_v"},
      Kernel{kTriton, kLibrary, "INT8 QK, FP16 PV, written in Triton", run_named<kTriton>, "smooth_k"},
  };
  return kTable;
}

}  // namespace qattn::kernels
