// SageAttention's replays where no recording is at hand: parts of a call against the whole, layouts, padding, dead
// channels, arguments, other cards, traces.
#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/sage.h"
#include "kernels/softmax_steps.h"
#include "mma/fused_dot.h"
#include "sage_calls.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

Returned run(const SageVariant& variant, const Call& call) {
  return find_kernel(variant.kernel).run(with_arguments(call, variant.arguments));
}

std::string describe(const SageVariant& variant) {
  std::string text = variant.kernel;
  for (const auto& [name, value] : variant.arguments) {
    text += " " + name + "=";
    if (const auto* word = std::get_if<std::string>(&value)) text += *word;
  }
  return text;
}

std::int64_t differences(const Tensor& x, const Tensor& y) {
  REQUIRE(x.shape == y.shape);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < x.elements(); ++i) count += x.code(i) != y.code(i) ? 1 : 0;
  return count;
}

void require_equal(const Tensor& ours, const Tensor& expected) { REQUIRE(differences(ours, expected) == 0); }

/// Heads [first, first + count) along axis 1, or batches along axis 0, of a tensor.
Tensor cut(const Tensor& tensor, std::size_t axis, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape;
  shape[axis] = count;
  Tensor part = make_tensor(*tensor.format, shape);
  std::int64_t inner = 1, outer = 1;
  for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < count * inner; ++i) {
      part.set_code(o * count * inner + i, tensor.code((o * tensor.shape[axis] + first) * inner + i));
    }
  }
  return part;
}

Call cut(const Call& call, std::size_t axis, std::int64_t first, std::int64_t q_count, std::int64_t kv_count) {
  Call part = call;
  part.q = cut(call.q, axis, first * q_count, q_count);
  part.k = cut(call.k, axis, first * kv_count, kv_count);
  part.v = cut(call.v, axis, first * kv_count, kv_count);
  return part;
}

/// [B, X, Y, D] as [B, Y, X, D].
Tensor swapped(const Tensor& tensor) {
  const auto& shape = tensor.shape;
  Tensor result = make_tensor(*tensor.format, {shape[0], shape[2], shape[1], shape[3]});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const std::int64_t d = i % shape[3], y = i / shape[3] % shape[2], x = i / shape[3] / shape[2] % shape[1];
    const std::int64_t b = i / shape[3] / shape[2] / shape[1];
    result.set_code(((b * shape[2] + y) * shape[1] + x) * shape[3] + d, tensor.code(i));
  }
  return result;
}

/// Sets channel `channel` of every token of every head to `code`.
void fill_channel(Tensor& tensor, std::int64_t channel, std::uint64_t code) {
  for (std::int64_t i = channel; i < tensor.elements(); i += tensor.shape[3]) tensor.set_code(i, code);
}

float float_at(const Tensor& tensor, std::int64_t index) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(tensor.code(index)));
}

bool is_fp8(const SageVariant& variant) { return variant.kernel == kSm90 || variant.kernel == kFp8; }

bool smooths_v(const SageVariant& variant) { return io::find_bool(variant.arguments, "smooth_v", "").value_or(false); }

}  // namespace

TEST_CASE("SageAttention: threads, SIMD or the plain engine, the caller's rounding mode: the bits are the same") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = with_arguments(made_call({1, 2, 1, 19, 150, 64}, 3), variant.arguments);
    call.threads = 1;
    const sage::Form form = sage::form_of(variant.kernel, call);
    const Returned one = sage::run(form, call);
    const Returned plain = sage::run(form, call, mma::Path::plain);
    call.threads = 3;
    const Returned three = sage::run(form, call);
    std::fesetround(FE_UPWARD);
    const Returned upward = run(variant, call);
    std::fesetround(FE_TONEAREST);
    for (const auto& [name, tensor] : one.tensors) {
      INFO(name);
      require_equal(plain.tensors.at(name), tensor);
      require_equal(three.tensors.at(name), tensor);
      require_equal(upward.tensors.at(name), tensor);
    }
  }
}

TEST_CASE("SageAttention: a batch of two is two calls, grouped heads are single ones") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = made_call({2, 4, 2, 136, 136, 64}, 5, format::kBF16);
    call.is_causal = true;
    const Returned whole = run(variant, call);
    for (std::int64_t b = 0; b < 2; ++b) {
      const Call one = cut(call, 0, b, 1, 1);
      const Returned part = run(variant, one);
      for (const auto& [name, tensor] : part.tensors) {
        INFO(name);
        require_equal(tensor, cut(whole.tensors.at(name), 0, b, 1));
      }
      for (std::int64_t h = 0; h < 2; ++h) {
        const Returned group = run(variant, cut(one, 1, h, 2, 1));
        require_equal(group.tensors.at("o"), cut(part.tensors.at("o"), 1, 2 * h, 2));
        require_equal(group.tensors.at("lse"), cut(part.tensors.at("lse"), 1, 2 * h, 2));
      }
    }
  }
}

TEST_CASE("SageAttention: the layout changes nothing but the quantized operands' order") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = made_call({1, 4, 2, 77, 200, 64}, 6);
    const Returned hnd = run(variant, call);
    call.layout = io::Layout::nhd;
    const Returned nhd = run(variant, call);
    for (const auto& [name, tensor] : hnd.tensors) {
      INFO(name);
      const bool moves = name.ends_with("_int8") || name.ends_with("v_fp8");
      require_equal(nhd.tensors.at(name), moves ? swapped(tensor) : tensor);
    }
  }
}

TEST_CASE("SageAttention: head_dim 96 is 128 with zero channels and its own scale") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    const Call call = made_call({1, 2, 2, 72, 140, 96}, 7);
    Call padded = call;
    for (Tensor Call::*member : {&Call::q, &Call::k, &Call::v}) {
      const Tensor& from = call.*member;
      Tensor to = make_tensor(*from.format, {from.shape[0], from.shape[1], from.shape[2], 128});
      for (std::int64_t i = 0; i < from.elements(); ++i) to.set_code(i / 96 * 128 + i % 96, from.code(i));
      padded.*member = to;
    }
    const Returned ours = run(variant, call), wide = run(variant, padded);
    require_equal(ours.tensors.at("lse"), wide.tensors.at("lse"));
    require_equal(ours.tensors.at("o"), cut(wide.tensors.at("o"), 3, 0, 96));
    for (const auto& [name, tensor] : ours.tensors) {
      INFO(name);
      if (name.starts_with("quantized/")) require_equal(tensor, wide.tensors.at(name));
    }
    // The zero channels themselves: NaN from FP8's scale of zero, else zero.
    const Tensor rest = cut(wide.tensors.at("o"), 3, 96, 32);
    for (std::int64_t i = 0; i < rest.elements(); ++i) REQUIRE(rest.code(i) == (is_fp8(variant) ? 0x7FFF : 0));
    CHECK(ours.predicted == (variant.kernel == kFp16 && smooths_v(variant)));
  }
}

TEST_CASE("SageAttention: queries do not see each other, so some of them are part of all") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = made_call({1, 1, 1, 200, 90, 64}, 8);
    call.is_causal = variant.kernel != kTriton;
    const Returned all = run(variant, call);
    call.q = cut(call.q, 2, 0, 128);
    require_equal(run(variant, call).tensors.at("o"), cut(all.tensors.at("o"), 2, 0, 128));
  }
}

TEST_CASE("SageAttention: a zero channel of V is NaN in the FP8 kernels and zero in the others") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    const Call alive = made_call({1, 2, 1, 40, 100, 64}, 9);
    Call dead = alive;
    fill_channel(dead.v, 5, 0);
    const Returned ours = run(variant, dead), expected = run(variant, alive);
    const std::uint64_t code = is_fp8(variant) ? 0x7FFF : 0;
    for (std::int64_t i = 0; i < ours.tensors.at("o").elements(); ++i) {
      const bool in_channel = i % 64 == 5;
      REQUIRE(ours.tensors.at("o").code(i) == (in_channel ? code : expected.tensors.at("o").code(i)));
    }
    require_equal(ours.tensors.at("lse"), expected.tensors.at("lse"));
    if (!is_fp8(variant)) continue;
    for (const auto& [name, tensor] : ours.tensors) {
      if (name.ends_with("v_scale")) CHECK(tensor.code(5) == 0);
      if (!name.ends_with("v_fp8")) continue;
      const std::int64_t tokens = tensor.shape[3];
      for (std::int64_t i = 0; i < tokens; ++i) REQUIRE(tensor.code(5 * tokens + i) == 0x7F);
    }
  }
}

TEST_CASE("SageAttention: a constant channel is NaN with smooth_v where its mean is exact, and finite elsewhere") {
  const std::uint64_t tenth_percent = format::encode(format::kFP16, 0.001, {});
  const std::uint64_t third = format::encode(format::kFP16, 0.37, {});
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = made_call({1, 1, 1, 16, 512, 64}, 10);
    fill_channel(call.v, 3, tenth_percent);
    const bool dead = is_fp8(variant) && smooths_v(variant);
    const Returned exact = run(variant, call);
    for (std::int64_t i = 3; i < exact.tensors.at("o").elements(); i += 64) {
      // P is rounded but its sum is not, so that not even a constant comes out exactly.
      const std::uint64_t code = exact.tensors.at("o").code(i);
      if (dead) REQUIRE(code == 0x7FFF);
      if (!dead) REQUIRE((code + 24 >= tenth_percent && code <= tenth_percent + 24));
    }
    // 500 tokens: the mean is taken over 512, of which twelve are zero.
    Call ragged = made_call({1, 1, 1, 16, 500, 64}, 10);
    fill_channel(ragged.v, 3, third);
    const Returned finite = run(variant, ragged);
    for (std::int64_t i = 3; i < finite.tensors.at("o").elements(); i += 64) {
      REQUIRE((finite.tensors.at("o").code(i) & 0x7C00) != 0x7C00);
    }
    if (!dead) continue;
    const Tensor& mean = finite.tensors.at("quantized/v448_smooth/vm");
    const Tensor& scale = finite.tensors.at("quantized/v448_smooth/v_scale");
    CHECK(float_at(mean, 3) == 0.36144257f);
    CHECK(float_at(scale, 3) == sage::fast_divide(0.36144257f, 448.0f));
  }
}

TEST_CASE("SageAttention: the smallest FP16 number is still a scale of V's") {
  for (const SageVariant& variant : sage_variants()) {
    if (smooths_v(variant)) continue;
    INFO(describe(variant));
    Call call = made_call({1, 1, 1, 16, 128, 64}, 11);
    fill_channel(call.v, 3, 2);  // 1.19e-7
    const Returned returned = run(variant, call);
    for (std::int64_t i = 3; i < returned.tensors.at("o").elements(); i += 64) {
      REQUIRE(returned.tensors.at("o").code(i) == 2);
    }
  }
}

TEST_CASE("SageAttention: arguments that the library has not are named with what it has") {
  using Catch::Matchers::Contains;
  const Call call = made_call({1, 2, 1, 16, 16, 64}, 12);
  const auto fails = [&](const std::string& kernel, const Call& bad, ErrorKind kind, const std::string& part) {
    INFO(kernel << " " << part);
    try {
      find_kernel(kernel).run(bad);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == kind);
      CHECK_THAT(error.what(), Contains(part));
    }
  };
  const auto with = [&](const std::string& name, const std::string& value) {
    return with_arguments(call, {{name, value}});
  };
  fails(kSm90, with("qk_quant_gran", "per_block"), ErrorKind::usage, "per_thread per_warp");
  fails(kSm90, with("pv_accum_dtype", "fp32"), ErrorKind::usage, "fp32+fp32");
  fails(kFp8, with("pv_accum_dtype", "fp16"), ErrorKind::usage, "fp32+fp16 fp32+fp32 fp32");
  fails(kFp16, with("pv_accum_dtype", "fp32+fp16"), ErrorKind::usage, "fp32 fp16 fp16+fp32");
  fails(kTriton, with("quantization_backend", "cutlass"), ErrorKind::usage, "triton cuda");
  fails(kFp16, with("smooth_k", "maybe"), ErrorKind::input, "smooth_k");
  Call other = call;
  other.arch = "sm89";
  fails(kSm90, other, ErrorKind::usage, "sm90");
  other.arch = "sm80";
  fails(kFp8, other, ErrorKind::usage, "sm80.mma");
  other.arch = "sm42";
  fails(kFp16, other, ErrorKind::usage, "sm80 sm89 sm90 sm100 sm120");
  Call causal = made_call({1, 1, 1, 16, 24, 64}, 12);
  causal.is_causal = true;
  fails(kTriton, causal, ErrorKind::usage, "16 and 24");
  causal.causal_align = attention::CausalAlign::bottom_right;
  fails(kFp16, causal, ErrorKind::input, "top left");
  fails(kFp16, made_call({1, 1, 1, 8, 8, 160}, 12), ErrorKind::input, "160");
  fails(kFp16, made_call({1, 3, 2, 8, 8, 64}, 12), ErrorKind::input, "multiple");
  fails(kFp16, made_call({1, 1, 1, 8, 8, 64}, 12, format::kFP32), ErrorKind::input, "float16 or bfloat16");
}

TEST_CASE("SageAttention: defaults are the library's") {
  const Call call = made_call({1, 1, 1, 40, 100, 64}, 13);
  const auto same = [&](const std::string& kernel, const io::Attributes& spelled_out) {
    require_equal(run({kernel, {}}, call).tensors.at("o"), run({kernel, spelled_out}, call).tensors.at("o"));
  };
  const std::string thread = "per_thread";
  same(kSm90, {{"qk_quant_gran", thread}, {"pv_accum_dtype", std::string("fp32+fp32")}, {"smooth_k", true}});
  same(kFp8, {{"qk_quant_gran", thread}, {"pv_accum_dtype", std::string("fp32+fp16")}, {"smooth_v", false}});
  same(kFp16, {{"qk_quant_gran", thread}, {"pv_accum_dtype", std::string("fp32")}, {"smooth_v", false}});
  same(kTriton, {{"quantization_backend", std::string("triton")}, {"smooth_k", true}});
  // smooth_v is ignored where the library ignores it.
  same(kFp16, {{"smooth_v", true}});
  same(kFp8, {{"smooth_v", true}});
}

TEST_CASE("SageAttention: another card's tensor core is predicted, and shows") {
  const Trial trial = trials("kernel_vectors_1.h5", kFp8, "c0").at(0);
  Call call = trial.call;
  const auto on = [&](const std::string& arch, const std::string& accumulator) {
    call.arch = arch;
    call.arguments["pv_accum_dtype"] = accumulator;
    return find_kernel(kFp8).run(call);
  };
  // Hopper's FP8 mma.sync adds in f32 after all, so that the buffer changes next to nothing (what is fused differs);
  // Ada's FP22 shows the difference.
  const Returned ada = on("sm89", "fp32"), buffered = on("sm89", "fp32+fp32"), hopper = on("sm90", "fp32");
  CHECK(differences(hopper.tensors.at("o"), on("sm90", "fp32+fp32").tensors.at("o")) == 4);
  CHECK(differences(ada.tensors.at("o"), buffered.tensors.at("o")) > 3000);
  CHECK(differences(ada.tensors.at("o"), hopper.tensors.at("o")) > 3000);
  CHECK(ada.predicted);
  CHECK_THAT(ada.evidence, Catch::Matchers::Contains("predicted: sm89.mma.m16n8k32.f32.e4m3.e4m3") &&
                               Catch::Matchers::Contains("literature"));
  CHECK(hopper.evidence == "measured here (H200)");
  // What does not pass through that instruction is the same on both.
  require_equal(ada.tensors.at("lse"), hopper.tensors.at("lse"));
  require_equal(ada.tensors.at("quantized/v448/v_fp8"), hopper.tensors.at("quantized/v448/v_fp8"));
  CHECK(run({kFp16, {}}, made_call({1, 1, 1, 8, 8, 40}, 1)).predicted);
  CHECK(run({kTriton, {{"quantization_backend", std::string("cuda")}}}, made_call({1, 1, 1, 8, 8, 64}, 1)).predicted);
}

TEST_CASE("SageAttention: a trace shows a row's stages and changes nothing") {
  for (const SageVariant& variant : sage_variants()) {
    INFO(describe(variant));
    Call call = made_call({1, 2, 2, 150, 150, 64}, 14);
    call.is_causal = true;
    const Returned plain = run(variant, call);
    RowTrace trace{0, 1, 140, {}};
    call.trace = &trace;
    const Returned traced = run(variant, call);
    for (const auto& [name, tensor] : plain.tensors) require_equal(traced.tensors.at(name), tensor);
    const auto stage = [&](const std::string& name) -> const std::vector<float>& {
      const auto found = std::ranges::find(trace.stages, name, &Stage::name);
      REQUIRE(found != trace.stages.end());
      return found->values;
    };
    const std::size_t tile = variant.kernel == kSm90 ? 128 : 64;
    const std::size_t last = 150 / tile;
    const std::string prefix = "tile " + std::to_string(last) + " ";
    const std::vector<float>& p = stage(prefix + "P");
    REQUIRE(p.size() == tile);
    for (std::size_t i = 0; i < p.size(); ++i) CHECK((p[i] == 0) == (last * tile + i > 140));
    CHECK(stage(prefix + "integer scores").size() == tile);
    CHECK(stage(prefix + "dequantized scores").size() == tile);
    CHECK(stage(prefix + "rounded P, in V's order").size() == tile);
    CHECK(stage(prefix + "partial sums").size() == 64);
    CHECK(stage(prefix + "row max").size() == 1);
    // What follows in the same tile was made of what stands in the trace.
    const std::vector<float> o = stage("O");
    for (std::int64_t c = 0; c < 64; ++c) {
      const std::int64_t at = (150 + 140) * 64 + c;
      const auto code = format::encode(format::kFP16, o[static_cast<std::size_t>(c)], {});
      CHECK(code == plain.tensors.at("o").code(at));
    }
    CHECK(stage("row sum").at(0) == stage(prefix + "row sum").at(0));
  }
}

TEST_CASE("SageAttention: cuBLAS's order for lse's correction, by shape") {
  using sage::DotOrder;
  struct Case {
    const format::Format* type;
    std::int64_t heads, q_tokens, depth;
    DotOrder::Kind kind;
    int lanes;
    bool recorded;
  };
  const auto half = &format::kFP16, bfloat = &format::kBF16;
  constexpr auto core = DotOrder::Kind::tensor_core, runs = DotOrder::Kind::runs, strided = DotOrder::Kind::strided,
                 tree = DotOrder::Kind::strided_tree;
  for (const Case& c : {Case{half, 1, 8, 64, core, 0, true},           Case{bfloat, 32, 3000, 128, core, 0, true},
                        Case{half, 32, 300, 64, core, 0, true},        Case{half, 9, 1002, 64, runs, 8, false},
                        Case{half, 9, 1000, 64, core, 0, true},        Case{half, 9, 998, 128, strided, 16, true},
                        Case{bfloat, 32, 350, 64, core, 0, true},      Case{bfloat, 10, 998, 64, runs, 4, false},
                        Case{half, 2, 333, 64, runs, 16, true},        Case{half, 1, 7, 64, runs, 4, true},
                        Case{half, 1, 5, 64, runs, 16, true},          Case{half, 1, 1, 64, runs, 16, false},
                        Case{half, 12, 777, 64, runs, 4, true},        Case{half, 20, 777, 64, runs, 8, true},
                        Case{half, 32, 2999, 64, runs, 4, true},       Case{half, 9, 777, 128, strided, 16, true},
                        Case{half, 12, 777, 128, tree, 8, true},       Case{bfloat, 1, 333, 64, runs, 32, true},
                        Case{bfloat, 2, 333, 64, runs, 16, true},      Case{bfloat, 3, 333, 64, runs, 4, true},
                        Case{bfloat, 4, 333, 128, runs, 16, true},     Case{bfloat, 8, 99, 128, runs, 32, true},
                        Case{bfloat, 8, 131, 128, runs, 16, true},     Case{bfloat, 8, 495, 128, tree, 16, true},
                        Case{bfloat, 8, 777, 128, strided, 16, true},  Case{bfloat, 14, 777, 128, tree, 8, true},
                        Case{bfloat, 10, 315, 128, strided, 16, false}}) {
    INFO(c.type->name << " " << c.heads << " x " << c.q_tokens << " x " << c.depth);
    const DotOrder order = sage::correction_order(*c.type, c.heads, c.q_tokens, c.depth);
    CHECK(order.kind == c.kind);
    CHECK(order.lanes == c.lanes);
    CHECK(order.recorded == c.recorded);
  }
}

TEST_CASE("SageAttention: each order of lse's correction adds as it says") {
  using sage::DotOrder;
  constexpr std::int64_t depth = 64;
  // Large products that cancel and small ones that do not: f32 keeps of the latter what the order leaves.
  const auto number = [](std::uint64_t stream, std::int64_t i) {
    const std::int64_t column = i % depth, half = depth / 2;
    const bool large = column % half < half / 2, second = column >= half;
    const double unit = random_unit(4, stream, static_cast<std::uint64_t>(large && second ? i - half : i));
    if (!large) return 2 * unit - 1;
    return stream == 0 ? (second ? -1 : 1) * std::ldexp(unit, 15) : std::ldexp(1 + unit, 8);
  };
  const auto codes_of = [&](std::uint64_t stream, std::int64_t rows) {
    MatrixCodes codes(rows, depth);
    for (std::int64_t i = 0; i < codes.size(); ++i) {
      codes.data()[i] = static_cast<std::uint32_t>(format::encode(format::kFP16, number(stream, i), {}));
    }
    return codes;
  };
  const auto value = [](std::uint32_t code) { return format::decode_float(format::kFP16, code); };
  const auto rounded = [&](float x) { return value(static_cast<std::uint32_t>(format::encode(format::kFP16, x, {}))); };
  const MatrixCodes q = codes_of(0, 400), mean = codes_of(1, 1);
  const mma::Instruction& core = mma::find_instruction("sm90.mma.m16n8k16.f32.f16.f16");
  const auto sums = [&](const DotOrder& order) { return sage::correction(format::kFP16, q, mean, order, core); };
  const std::vector<float> four = sums({DotOrder::Kind::runs, 4}), strided = sums({DotOrder::Kind::strided, 16}),
                           tree = sums({DotOrder::Kind::strided_tree, 8}), chain = sums({});
  CHECK(four != strided);
  CHECK(four != chain);
  CHECK(strided != tree);
  for (std::int64_t row = 0; row < q.rows(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    const auto in_turn = [&](std::int64_t first, std::int64_t step, std::int64_t count) {
      float sum = 0;
      for (std::int64_t i = first; i < first + step * count; i += step) sum += value(q(row, i)) * value(mean(0, i));
      return sum;
    };
    CHECK(four[at] == rounded((in_turn(0, 1, 16) + in_turn(32, 1, 16)) + (in_turn(16, 1, 16) + in_turn(48, 1, 16))));
    float by_lanes = in_turn(0, 16, 4);
    for (std::int64_t lane = 1; lane < 16; ++lane) by_lanes += in_turn(lane, 16, 4);
    CHECK(strided[at] == rounded(by_lanes));
    const auto pair = [&](std::int64_t lane) { return in_turn(lane, 8, 8) + in_turn(lane + 4, 8, 8); };
    CHECK(tree[at] == rounded((pair(0) + pair(2)) + (pair(1) + pair(3))));
    std::uint64_t sum = 0;
    for (std::int64_t k = 0; k < depth; k += 16) {
      std::vector<std::uint64_t> a, b;
      for (std::int64_t i = k; i < k + 16; ++i) {
        a.push_back(q(row, i));
        b.push_back(mean(0, i));
      }
      sum = mma::dot(core, {a, b, sum});
    }
    CHECK(chain[at] == rounded(std::bit_cast<float>(static_cast<std::uint32_t>(sum))));
  }
}

TEST_CASE("SageAttention: the block sum of V's mean goes on after 2048 tokens") {
  std::vector<float> x(4096 + 48);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_unit(6, 0, i) * 3 - 1);
  std::vector<float> threads(256);
  for (std::size_t i = 0; i < x.size(); ++i) threads[i / 8 % 256] += x[i];
  // Lanes at distances 16 ... 1 inside a warp, then the warps at distances 4, 2, 1.
  const auto tree = [](std::vector<float> values) {
    for (std::size_t d = values.size() / 2; d > 0; d /= 2) {
      for (std::size_t i = 0; i < d; ++i) values[i] += values[i + d];
    }
    return values[0];
  };
  std::vector<float> warps;
  for (auto first = threads.begin(); first != threads.end(); first += 32) warps.push_back(tree({first, first + 32}));
  CHECK(sage::block_sum(x) == tree(warps));
}

TEST_CASE("steps of a softmax round once, whatever the length") {
  std::vector<float> x(77), gain(77), y(77);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(random_unit(1, 0, i) * 100 - 50);
    gain[i] = static_cast<float>(random_unit(1, 1, i));
  }
  for (std::size_t n = 0; n <= x.size(); ++n) {
    const std::span<const float> part(x.data(), n);
    fma_row(part, {gain.data(), n}, -3.7f, {y.data(), n});
    std::vector<float> sum(gain.begin(), gain.begin() + static_cast<std::ptrdiff_t>(n));
    rescale_add(sum, 0.3f, part);
    for (std::size_t i = 0; i < n; ++i) {
      REQUIRE(y[i] == std::fma(x[i], gain[i], -3.7f));
      REQUIRE(sum[i] == std::fma(gain[i], 0.3f, x[i]));
    }
  }
}

}  // namespace qattn::kernels
