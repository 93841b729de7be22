// Calls of SageAttention that tests make up, and every form that its functions have.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "format/encode.h"
#include "kernels/kernel.h"

namespace qattn::kernels {

/// One function of the library with keyword arguments.
struct SageVariant {
  std::string kernel;
  io::Attributes arguments;
};

inline const std::string kSm90 = "sageattn_qk_int8_pv_fp8_cuda_sm90";
inline const std::string kFp8 = "sageattn_qk_int8_pv_fp8_cuda";
inline const std::string kFp16 = "sageattn_qk_int8_pv_fp16_cuda";
inline const std::string kTriton = "sageattn_qk_int8_pv_fp16_triton";

/// Every combination of arguments that computes something of its own.
inline std::vector<SageVariant> sage_variants() {
  std::vector<SageVariant> all{{kTriton, {}}, {kTriton, {{"smooth_k", false}}}};
  for (const std::string granularity : {"per_thread", "per_warp"}) {
    const io::Attributes base{{"qk_quant_gran", granularity}};
    const auto add = [&](const std::string& kernel, const std::string& accumulator, bool smooth_v) {
      io::Attributes arguments = base;
      arguments["pv_accum_dtype"] = accumulator;
      if (smooth_v) arguments["smooth_v"] = true;
      all.push_back({kernel, arguments});
    };
    add(kSm90, "fp32+fp32", false);
    for (const std::string accumulator : {"fp32", "fp32+fp32", "fp32+fp16"}) add(kFp8, accumulator, false);
    add(kFp8, "fp32", true);
    for (const std::string accumulator : {"fp32", "fp16", "fp16+fp32"}) add(kFp16, accumulator, false);
    add(kFp16, "fp16", true);
    all.push_back({kSm90, io::override_attributes(base, {{"smooth_k", false}})});
  }
  return all;
}

struct SageShape {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_tokens = 0, kv_tokens = 0, head_dim = 64;
};

/// q, k and v of this shape: uniform in (-2, 2), with a bias for each channel that smoothing has to take out.
inline Call made_call(const SageShape& shape, std::uint64_t seed, const format::Format& type = format::kFP16) {
  const auto make = [&](std::int64_t heads, std::int64_t tokens, std::uint64_t stream) {
    Tensor tensor = make_tensor(type, {shape.batch, heads, tokens, shape.head_dim});
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const auto channel = static_cast<std::uint64_t>(i % shape.head_dim);
      const double bias = 2 * random_unit(seed, 10 + stream, channel) - 1;
      const double x = 4 * random_unit(seed, stream, static_cast<std::uint64_t>(i)) - 2 + bias;
      tensor.set_code(i, format::encode(type, x, {}));
    }
    return tensor;
  };
  Call call;
  call.q = make(shape.q_heads, shape.q_tokens, 0);
  call.k = make(shape.kv_heads, shape.kv_tokens, 1);
  call.v = make(shape.kv_heads, shape.kv_tokens, 2);
  call.sm_scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  return call;
}

inline Call with_arguments(Call call, const io::Attributes& arguments) {
  call.arguments = arguments;
  return call;
}

}  // namespace qattn::kernels
