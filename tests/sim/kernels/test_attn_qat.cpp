// Attn-QAT's training kernel: every recorded bit, the identity that its high-precision output keeps, and calls beyond
// the recordings against a float64 attention.
#include <cfenv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/elementary.h"
#include "base/error.h"
#include "kernels/attn_qat.h"
#include "sim/kernels/exact_gradients.h"
#include "sim/kernels/trial.h"
#include "support/catch.h"

namespace qattn::kernels::attn_qat {
namespace {

using Eigen::Index;

/// What a call beyond the recordings is made of.
struct Made {
  std::string name;
  Index batch, q_tokens, kv_tokens, head_dim;
  bool causal;
};

Tensor operand(Index batch, Index tokens, Index head_dim, std::uint64_t stream) {
  return random_tensor(format::kBF16, {batch, 1, tokens, head_dim}, stream);
}

Call call_like(const Made& made) {
  Call call;
  call.q = operand(made.batch, made.q_tokens, made.head_dim, 1);
  call.k = operand(made.batch, made.kv_tokens, made.head_dim, 2);
  call.v = operand(made.batch, made.kv_tokens, made.head_dim, 3);
  call.d_o = operand(made.batch, made.q_tokens, made.head_dim, 4);
  call.is_causal = made.causal;
  call.sm_scale = 1 / std::sqrt(static_cast<double>(made.head_dim));
  call.arguments = {{"smooth_k", false},
                    {"two_level_p", false},
                    {"global_scale", false},
                    {"high_precision_o", true},
                    {"fake_quant_p_backward", false}};
  return call;
}

TEST_CASE("every recorded o, dq, dk and dv comes out bit for bit") {
  const std::vector<Trial> all = trials("backward_vectors.h5");
  CHECK(all.size() == 10);
  for (const Trial& trial : all) {
    const Returned returned = find_kernel("fastvideo.attn_qat").run(trial.call);
    CHECK(returned.evidence == "measured here (H200)");
    CHECK_FALSE(returned.predicted);
    CHECK(trial.recorded.size() == 4);
    for (const auto& [output, tensor] : trial.recorded) {
      INFO(trial.name << " " << output);
      CHECK(mismatches(returned, trial.recorded, output) == 0);
    }
  }
}

TEST_CASE("files of the backward schema name no kernel and are Attn-QAT's") {
  const io::VectorReader reader(QATTN_SOURCE_DIR "/data/vectors/backward_vectors.h5");
  io::RecordedCase recorded = reader.recorded("q0");
  CHECK(kernel_of(recorded, recorded.kernels.at(0)).name == "fastvideo.attn_qat");
  recorded.schema = io::kKernelSchema;
  CHECK_THROWS_AS(kernel_of(recorded, recorded.kernels.at(0)), Error);
}

TEST_CASE("the library's own names of its arguments are understood, and its defaults") {
  std::vector<Trial> all = trials("backward_vectors.h5");
  Trial& defaults = all.at(0);
  REQUIRE(defaults.name == "backward_vectors.h5 q0 defaults");
  defaults.call.arguments.clear();
  CHECK(mismatches(attn_qat::run(defaults.call, {}), defaults.recorded, "dq") == 0);
  Trial& naive = all.at(1);
  REQUIRE(naive.name == "backward_vectors.h5 q0 naive_bwd");
  naive.call.arguments = {{"use_qat_qkv_backward", false},
                          {"smooth_k", false},
                          {"two_level_quant_P", false},
                          {"use_global_sf_P", false},
                          {"use_global_sf_QKV", false}};
  const Returned returned = attn_qat::run(naive.call, {});
  for (const char* output : {"o", "dq", "dk", "dv"}) CHECK(mismatches(returned, naive.recorded, output) == 0);
}

TEST_CASE("the number of threads changes no bit") {
  Trial trial = trials("backward_vectors.h5").at(0);
  trial.call.threads = 1;
  const Returned one = attn_qat::run(trial.call, {});
  trial.call.threads = 3;
  const Returned three = attn_qat::run(trial.call, {});
  CHECK(one.tensors.size() == three.tensors.size());
  for (const auto& [name, tensor] : one.tensors) CHECK(tensor.codes == three.tensors.at(name).codes);
}

TEST_CASE("the caller's rounding mode reaches no result") {
  Call call = call_like({"", 1, 45, 45, 64, true});
  call.arguments.clear();
  call.sm_scale = 0.1;
  const Returned nearest = attn_qat::run(call, {});
  std::fesetround(FE_UPWARD);
  const Returned upward = attn_qat::run(call, {});
  std::fesetround(FE_TONEAREST);
  for (const auto& [name, tensor] : nearest.tensors) CHECK(tensor.codes == upward.tensors.at(name).codes);
}

TEST_CASE("a traced row shows its stages and changes no result") {
  Trial trial = trials("backward_vectors.h5").at(0);
  const Returned plain = attn_qat::run(trial.call, {});
  RowTrace trace{0, 1, 100, {}};
  trial.call.trace = &trace;
  const Returned traced = attn_qat::run(trial.call, {});
  for (const auto& [name, tensor] : plain.tensors) CHECK(tensor.codes == traced.tensors.at(name).codes);
  REQUIRE(trace.stages.size() == 8 * 7);
  CHECK(trace.stages[0].name == "tile 0 scores");
  CHECK(trace.stages[0].values.size() == 32);
  // O / l in bfloat16 is the recorded row.
  const Stage &sum = trace.stages[trace.stages.size() - 3], &o = trace.stages[trace.stages.size() - 2];
  CHECK(sum.name == "tile 7 row sum");
  CHECK(o.name == "tile 7 O");
  const MatrixD recorded = head_of(trial.recorded.at("o"), 1).row(100);
  MatrixD ours(1, recorded.cols());
  for (Index i = 0; i < ours.cols(); ++i)
    ours(0, i) = static_cast<double>(o.values.at(static_cast<std::size_t>(i)) / sum.values.at(0));
  CHECK(relative_l2(ours, recorded) < 0.003);
}

// P and dP as the backward pass has them, in float64: the flash backward's delta is right for the output of the P that
// dS uses, and that P is not quantized.
TEST_CASE("rowsum(P dP) is dO o' with the unquantized P's output, and is not dO o") {
  for (const Trial& trial : trials("backward_vectors.h5")) {
    if (trial.name.find("qat_hp") == std::string::npos) continue;
    const Returned returned = attn_qat::run(trial.call, {});
    const Index tokens = trial.call.q_tokens();
    MatrixD identity(tokens, 1), high_precision(tokens, 1), quantized(tokens, 1);
    const MatrixD q = head_of(returned.tensors.at("saved/q"), 0), k = head_of(returned.tensors.at("saved/k"), 0);
    const MatrixD v = head_of(returned.tensors.at("saved/v"), 0), d_o = head_of(*trial.call.d_o, 0);
    const MatrixD o = head_of(trial.recorded.at("o"), 0), o_high = head_of(returned.tensors.at("saved/high_prec_o"), 0);
    const MatrixD m = decode_matrix(returned.tensors.at("saved/m"), 0, tokens, 1);
    for (Index i = 0; i < tokens; ++i) {
      identity(i, 0) = 0;
      for (Index j = 0; j < tokens; ++j) {
        const double score = q.row(i).dot(k.row(j)) * trial.call.sm_scale * 1.4426950408889634;
        identity(i, 0) += elementary::exp2(score - m(i, 0)) * d_o.row(i).dot(v.row(j));
      }
      high_precision(i, 0) = d_o.row(i).dot(o_high.row(i));
      quantized(i, 0) = d_o.row(i).dot(o.row(i));
    }
    const double kept = relative_l2(high_precision, identity), broken = relative_l2(quantized, identity);
    INFO(trial.name << ": " << kept << " with o', " << broken << " with o");
    CHECK(kept < 0.005);
    CHECK(broken > 20 * kept);
  }
}

/// Of a head in float64, from the quantized q, k and v.
std::map<std::string, MatrixD> exact_attention(const Call& call, const Returned& returned, Index head) {
  const auto visible = [&call](Index i) { return call.is_causal ? i + 1 : call.kv_tokens(); };
  auto exact =
      exact_gradients(head_of(returned.tensors.at("saved/q"), head), head_of(returned.tensors.at("saved/k"), head),
                      head_of(returned.tensors.at("saved/v"), head), head_of(*call.d_o, head), call.sm_scale, visible);
  exact["saved/high_prec_o"] = exact.extract("o").mapped();
  return exact;
}

TEST_CASE("masks, ragged lengths, unequal lengths, batches and other head_dims stay close to float64 attention") {
  for (const Made& made : {Made{"causal", 1, 96, 96, 64, true}, Made{"ragged", 1, 45, 45, 64, false},
                           Made{"one token", 1, 1, 1, 64, false}, Made{"causal and ragged", 1, 77, 77, 64, true},
                           Made{"more keys", 1, 40, 75, 64, false}, Made{"more queries", 1, 75, 40, 128, false},
                           Made{"batch", 2, 33, 33, 32, false}, Made{"head_dim 256", 1, 32, 64, 256, false}}) {
    const Call call = call_like(made);
    const Returned returned = attn_qat::run(call, {});
    CHECK(returned.predicted);
    CHECK(returned.evidence.rfind("predicted: ", 0) == 0);
    for (Index head = 0; head < made.batch; ++head) {
      for (const auto& [name, exact] : exact_attention(call, returned, head)) {
        const MatrixD got = head_of(returned.tensors.at(name), head);
        INFO(made.name << ", " << name);
        CHECK((exact.norm() < 1e-9 ? got.norm() : relative_l2(got, exact)) < 0.015);
      }
    }
  }
}

TEST_CASE("the k_mean term of the kernel for unequal lengths is as small as the sum of dS that it multiplies") {
  Call call = call_like({"", 1, 40, 75, 64, false});
  call.arguments["smooth_k"] = true;
  const Returned smoothed = attn_qat::run(call, {});
  const MatrixD exact = exact_attention(call, smoothed, 0).at("dq");
  CHECK(relative_l2(head_of(smoothed.tensors.at("dq"), 0), exact) < 0.02);
}

TEST_CASE("calls that the library refuses are refused with the kernel's name and the reason") {
  const Made made{"", 1, 32, 32, 64, false};
  using Spoil = void (*)(Call&);
  const std::vector<std::pair<std::string, Spoil>> spoiled = {
      {"k and v must have one shape", [](Call& c) { c.v = operand(1, 31, 64, 3); }},
      {"do must have q's shape", [](Call& c) { c.d_o = operand(1, 31, 64, 4); }},
      {"do must have q's shape",
       [](Call& c) {
         c.d_o = make_tensor(format::kFP16, {1, 1, 32, 64});
       }},
      {"q must have k's batch and head_dim", [](Call& c) { c.k = c.v = operand(1, 32, 32, 2); }},
      {"q must have k's batch and head_dim", [](Call& c) { c.k = c.v = operand(2, 32, 64, 2); }},
      {"must be [B, H, N, D]",
       [](Call& c) {
         c.q.shape = {32, 64};
       }},
      {"not empty",
       [](Call& c) {
         c.q = make_tensor(format::kBF16, {1, 1, 0, 64});
       }},
      {"must have one format",
       [](Call& c) {
         c.q = make_tensor(format::kFP16, {1, 1, 32, 64});
       }},
      {"takes no fp16 operands",
       [](Call& c) {
         c.q = c.k = c.v = make_tensor(format::kFP16, {1, 1, 32, 64});
       }},
      {"2 query heads share 1 key heads",
       [](Call& c) {
         c.q = *(c.d_o = make_tensor(format::kBF16, {1, 2, 32, 64}));
       }},
      {"head_dim is 48; it must be 32, 64, 128 or 256",
       [](Call& c) { c.q = c.k = c.v = *(c.d_o = operand(1, 32, 48, 1)); }},
      {"does not implement smooth_q", [](Call& c) { c.arguments["smooth_q"] = true; }},
      {"sm100 runs another kernel", [](Call& c) { c.arch = "sm100"; }},
      {"sm75 has no m16n8k16", [](Call& c) { c.arch = "sm75"; }},
      {"aligned top_left", [](Call& c) { c.is_causal = true, c.causal_align = attention::CausalAlign::bottom_right; }},
  };
  for (const auto& [reason, spoil] : spoiled) {
    Call call = call_like(made);
    spoil(call);
    std::string message;
    try {
      attn_qat::run(call, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      message = error.what();
    }
    INFO(reason << " | " << message);
    CHECK(message.find("fastvideo.attn_qat: ") == 0);
    CHECK(message.find(reason) != std::string::npos);
  }
  Call wrong = call_like(made);
  wrong.arguments["smooth_k"] = std::string("perhaps");
  CHECK_THROWS_AS(attn_qat::run(wrong, {}), Error);
  Call forward_only = call_like(made);
  forward_only.d_o.reset();
  CHECK(attn_qat::run(forward_only, {}).tensors.count("dq") == 0);
}

}  // namespace
}  // namespace qattn::kernels::attn_qat
