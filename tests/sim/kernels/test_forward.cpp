// The float kernels' forward replays against what an H200 returned, and beyond what was recorded.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "attention/reference.h"
#include "base/error.h"
#include "format/encode.h"
#include "kernels/flash_attention_2.h"
#include "kernels/flash_attention_3.h"
#include "kernels/sdpa.h"
#include "sim/attention/heads.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

const std::string kFlash2 = "aten._scaled_dot_product_flash_attention";
const std::string kFlash3 = "flash_attn_3.fwd";
const std::string kCudnn = "aten._scaled_dot_product_cudnn_attention";
const std::string kEfficient = "aten._scaled_dot_product_efficient_attention";

TEST_CASE("every recorded output of the float kernels comes out bit for bit from q, k and v") {
  const std::string file = GENERATE("fa2_vectors.h5", "fa3_vectors.h5", "sdpa_vectors.h5");
  std::map<std::string, std::int64_t> outputs;
  for (Trial& trial : trials(file)) {
    trial.call.d_o.reset();
    const Returned returned = find_kernel(trial.kernel).run(trial.call);
    INFO(trial.name << ": " << returned.evidence);
    CHECK(mismatches(returned, trial.recorded, "o") == 0);
    CHECK(mismatches(returned, trial.recorded, "lse") == 0);
    CHECK_FALSE(returned.predicted);
    outputs[trial.kernel] += trial.recorded.at("o").elements() + trial.recorded.at("lse").elements();
  }
  for (const auto& [kernel, count] : outputs) CHECK(count > 100000);
}

struct Shape {
  std::int64_t batch, q_heads, kv_heads, q_tokens, kv_tokens, head_dim;
  bool is_causal = false;
};

Tensor normal_tensor(const format::Format& type, std::uint64_t seed, std::vector<std::int64_t> shape) {
  Tensor tensor = make_tensor(type, std::move(shape));
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double value = attention::testing::normal(seed, 0, static_cast<std::uint64_t>(i));
    tensor.set_code(i, format::encode(type, value, format::Policy{}));
  }
  return tensor;
}

Call make_call(const format::Format& type, const Shape& shape) {
  Call call;
  call.q = normal_tensor(type, 1, {shape.batch, shape.q_heads, shape.q_tokens, shape.head_dim});
  call.k = normal_tensor(type, 2, {shape.batch, shape.kv_heads, shape.kv_tokens, shape.head_dim});
  call.v = normal_tensor(type, 3, {shape.batch, shape.kv_heads, shape.kv_tokens, shape.head_dim});
  call.is_causal = shape.is_causal;
  call.sm_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  return call;
}

MatrixD head_values(const Tensor& tensor, std::int64_t batch, std::int64_t head) {
  const std::int64_t size = tensor.shape[2] * tensor.shape[3];
  return decode_matrix(tensor, (batch * tensor.shape[1] + head) * size, tensor.shape[2], tensor.shape[3]);
}

/// Relative L1 of o against float64, and the largest difference of a finite lse.
struct Distance {
  double o = 0, lse = 0;
};

Distance from_exact(const Call& call, const Returned& returned, attention::CausalAlign align) {
  double difference = 0, size = 0;
  Distance distance;
  for (std::int64_t b = 0; b < call.batch(); ++b) {
    for (std::int64_t h = 0; h < call.q_heads(); ++h) {
      const std::int64_t kv = h / (call.q_heads() / call.kv_heads());
      const attention::Problem problem{.q = head_values(call.q, b, h),
                                       .k = head_values(call.k, b, kv),
                                       .v = head_values(call.v, b, kv),
                                       .sm_scale = call.sm_scale,
                                       .is_causal = call.is_causal,
                                       .causal_align = align,
                                       .mask = {}};
      const attention::Output exact = attention::reference_attention(problem);
      const MatrixD o = head_values(returned.tensors.at("o"), b, h);
      difference += (o - exact.o).cwiseAbs().sum();
      size += exact.o.cwiseAbs().sum();
      for (std::int64_t i = 0; i < call.q_tokens(); ++i) {
        const Tensor& lse = returned.tensors.at("lse");
        const double ours = decode_matrix(lse, (b * call.q_heads() + h) * call.q_tokens() + i, 1, 1)(0, 0);
        const double theirs = exact.lse[static_cast<std::size_t>(i)];
        if (std::isfinite(theirs)) distance.lse = std::max(distance.lse, std::fabs(ours - theirs));
      }
    }
  }
  distance.o = difference / size;
  return distance;
}

// These have no recording in the tree: the arithmetic's order is a prediction or rests on other recordings, that it is
// attention at all is checked here.
TEST_CASE("shapes that were not recorded are close to float64") {
  struct Case {
    std::string kernel;
    const format::Format* type;
    Shape shape;
    double o;
    bool predicted;
  };
  const Case c = GENERATE_COPY(values<Case>({
      {kFlash2, &format::kFP16, {2, 4, 2, 70, 150, 32, true}, 1e-3, false},
      {kFlash2, &format::kBF16, {1, 2, 1, 150, 70, 96, true}, 6e-3, false},
      {kFlash2, &format::kFP16, {1, 1, 1, 40, 300, 160}, 1e-3, true},
      {kFlash2, &format::kFP16, {1, 2, 1, 65, 130, 256, true}, 1e-3, false},
      {kFlash2, &format::kFP16, {1, 8, 2, 1, 2500, 64, true}, 1e-3, true},
      {kFlash2, &format::kFP16, {1, 1, 1, 30, 5000, 128}, 1e-3, true},
      {kFlash3, &format::kFP16, {1, 2, 1, 60, 300, 96}, 1e-3, true},
      {kFlash3, &format::kBF16, {1, 2, 1, 60, 300, 192, true}, 6e-3, true},
      {kFlash3, &format::kFP16, {1, 2, 1, 60, 300, 256}, 1e-3, true},
      {kFlash3, &format::kE4M3, {1, 2, 1, 60, 300, 96, true}, 6e-2, true},
      {kFlash3, &format::kE4M3, {1, 2, 1, 60, 400, 192}, 6e-2, true},
      {kFlash3, &format::kE4M3, {1, 2, 1, 1, 400, 128, true}, 6e-2, false},
      {kCudnn, &format::kFP16, {1, 2, 1, 60, 300, 32}, 1e-3, true},
      {kCudnn, &format::kFP16, {1, 2, 1, 60, 300, 256, true}, 1e-3, true},
      {kCudnn, &format::kFP16, {1, 2, 2, 1, 300, 64}, 1e-3, true},
      {kEfficient, &format::kFP16, {1, 2, 1, 60, 300, 256}, 1e-3, false},
      {kEfficient, &format::kBF16, {1, 2, 1, 60, 300, 160, true}, 6e-3, true},
      {kEfficient, &format::kFP16, {1, 2, 1, 300, 60, 256, true}, 1e-3, true},
  }));
  const Call call = make_call(*c.type, c.shape);
  const Returned returned = find_kernel(c.kernel).run(call);
  const bool bottom_right = c.kernel == kFlash2 || c.kernel == kFlash3;
  const Distance distance = from_exact(
      call, returned, bottom_right ? attention::CausalAlign::bottom_right : attention::CausalAlign::top_left);
  INFO(c.kernel << " " << c.type->name << " head_dim " << c.shape.head_dim << ": " << returned.evidence);
  CHECK(distance.o < c.o);
  CHECK(distance.lse < (c.type == &format::kE4M3 ? 2e-3 : 1e-4));
  CHECK(returned.predicted == c.predicted);
  CHECK((returned.evidence.rfind("predicted: ", 0) == 0) == c.predicted);
}

TEST_CASE("a row without keys is zero, and its lse is what each library writes") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [kernel, lse] : std::map<std::string, float>{{kFlash2, inf}, {kFlash3, -inf}}) {
    const Call call = make_call(format::kFP16, {1, 2, 1, 200, 90, 64, true});
    const Returned returned = find_kernel(kernel).run(call);
    for (const std::int64_t row : {0, 109, 309}) {
      CHECK(decode_matrix_float(returned.tensors.at("lse"), row, 1, 1)(0, 0) == lse);
      CHECK(decode_matrix(returned.tensors.at("o"), row * 64, 1, 64).cwiseAbs().maxCoeff() == 0);
    }
    CHECK(std::isfinite(decode_matrix_float(returned.tensors.at("lse"), 110, 1, 1)(0, 0)));
  }
}

TEST_CASE("FlashAttention-2 splits the keys by batch, heads, lengths and multiprocessors") {
  const auto parts = [](const Shape& shape, int sm_count = 132) {
    Call call = make_call(format::kFP16, shape);
    call.sm_count = sm_count;
    return flash_attention_2_parts(call);
  };
  CHECK(parts({1, 2, 2, 256, 256, 64}) == 1);  // the recorded ones: one tile, then 3, 4, 4 and 3 of 6 tiles
  CHECK(parts({1, 2, 2, 333, 333, 128}) == 3);
  CHECK(parts({1, 1, 1, 1000, 1000, 64}) == 4);
  CHECK(parts({1, 1, 1, 512, 512, 128}) == 4);
  CHECK(parts({1, 3, 3, 1500, 1500, 64}) == 3);
  CHECK(parts({1, 3, 3, 1500, 1500, 64}, 40) == 1);  // 72 blocks fill 0.8 of 80 places
  CHECK(parts({1, 3, 3, 1500, 1500, 64}, 46) == 6);  // of 92 places 6 parts waste least, and the others 15 % more
  CHECK(parts({1, 8, 2, 1, 2560, 64}, 5) == 5);      // one query: a group's 4 heads are rows of one block, 2 blocks
  CHECK(parts({1, 8, 2, 2, 2560, 64}, 5) == 1);      // two queries: 8 blocks
}

TEST_CASE("libraries keep their own causal mask, and say so when a file names the other") {
  for (const std::string& kernel : {kFlash2, kFlash3, kCudnn, kEfficient}) {
    const bool bottom_right = kernel == kFlash2 || kernel == kFlash3;
    Call call = make_call(format::kFP16, {1, 1, 1, 40, 90, 64, true});
    const Returned own = find_kernel(kernel).run(call);
    call.causal_align = bottom_right ? attention::CausalAlign::top_left : attention::CausalAlign::bottom_right;
    const Returned named = find_kernel(kernel).run(call);
    CHECK(own.tensors.at("o").codes == named.tensors.at("o").codes);
    CHECK(own.evidence == "measured here (H200)");
    CHECK(named.evidence.find(bottom_right ? "is bottom_right, whatever" : "is top_left, whatever") !=
          std::string::npos);
    CHECK_FALSE(named.predicted);
  }
}

using Maker = Forward (*)(const Call&);
const std::map<std::string, Maker> kMakers{{kFlash2, flash_attention_2},
                                           {kFlash3, flash_attention_3},
                                           {kCudnn, cudnn_attention},
                                           {kEfficient, efficient_attention}};

TEST_CASE("the float kernels give the same bits on 1 and 2 threads and on the plain path") {
  for (const auto& [name, maker] : kMakers) {
    Call call = make_call(format::kFP16, {1, 2, 1, 130, 70, 32, true});
    INFO(name);
    Forward kernel = maker(call);
    call.threads = 1;
    const Returned one = run_forward(kernel, call);
    call.threads = 2;
    const Returned two = run_forward(kernel, call);
    kernel.path = mma::Path::plain;
    const Returned plain = run_forward(kernel, call);
    for (const char* tensor : {"o", "lse"}) {
      CHECK(one.tensors.at(tensor).codes == two.tensors.at(tensor).codes);
      CHECK(one.tensors.at(tensor).codes == plain.tensors.at(tensor).codes);
    }
  }
}

TEST_CASE("the caller's rounding mode reaches no result") {
  for (const auto& [name, maker] : kMakers) {
    INFO(name);
    Call call = make_call(format::kFP16, {1, 1, 1, 40, 600, 64});
    call.sm_scale = 0.1;
    const Returned nearest = find_kernel(name).run(call);
    std::fesetround(FE_UPWARD);
    const Returned upward = find_kernel(name).run(call);
    std::fesetround(FE_TONEAREST);
    for (const char* tensor : {"o", "lse"}) CHECK(nearest.tensors.at(tensor).codes == upward.tensors.at(tensor).codes);
  }
}

TEST_CASE("a traced row shows its stages and changes no result") {
  for (const auto& [name, maker] : kMakers) {
    INFO(name);
    Call call = make_call(format::kFP16, {1, 2, 1, 70, 300, 64});
    const Forward kernel = maker(call);
    const Returned untraced = run_forward(kernel, call);
    RowTrace trace{.batch = 0, .head = 1, .row = 66, .stages = {}};
    call.trace = &trace;
    const Returned returned = run_forward(kernel, call);
    CHECK(untraced.tensors.at("o").codes == returned.tensors.at("o").codes);
    REQUIRE(trace.stages.size() > 8);
    std::map<std::string, std::vector<float>> last;
    for (const Stage& stage : trace.stages) last[stage.name] = stage.values;
    const std::string part = kernel.split.parts > 1 ? "part 0 " : "";
    const std::string tile = part + "tile 0 ";
    CHECK(last.at(tile + "scores").size() == static_cast<std::size_t>(kernel.key_tile));
    CHECK(last.at(tile + "P").size() == static_cast<std::size_t>(kernel.key_tile));
    CHECK(last.at(tile + "P rounded").size() == static_cast<std::size_t>(kernel.key_tile));
    CHECK(last.at(tile + "O so far").size() == 64);
    CHECK(last.at(tile + "row sum by lane").size() == 4);
    const double exact = [&] {
      const MatrixD scores = head_values(call.k, 0, 0) * head_values(call.q, 0, 1).row(66).transpose();
      return (scores.array() * call.sm_scale).exp().sum();
    }();
    const float lse = decode_matrix_float(returned.tensors.at("lse"), 70 + 66, 1, 1)(0, 0);
    CHECK(std::fabs(static_cast<double>(lse) - std::log(exact)) < 1e-4);
    if (kernel.split.parts == 1) {
      CHECK(last.at("lse").at(0) == lse);
      CHECK(last.at("row sum").at(0) > 1);
      CHECK(last.at("O scaled").size() == 64);
    }
  }
}

TEST_CASE("another architecture's instructions are a prediction, and what a kernel does not take is an error") {
  Call call = make_call(format::kFP16, {1, 1, 1, 40, 200, 64});
  const Returned hopper = find_kernel(kFlash2).run(call);
  call.arch = "sm80";
  const Returned ampere = find_kernel(kFlash2).run(call);
  CHECK(ampere.predicted);
  CHECK(ampere.evidence.find("sm80") != std::string::npos);
  CHECK(ampere.tensors.at("lse").codes != hopper.tensors.at("lse").codes);
  call.arch = "sm90";

  const auto refused = [](const std::string& kernel, const Call& wrong) {
    try {
      find_kernel(kernel).run(wrong);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage && std::string(error.what()).find(kernel) == 0;
    }
    return false;
  };
  Call wrong = call;
  wrong.v = make_tensor(format::kFP16, {1, 1, 200, 32});
  CHECK(refused(kFlash3, wrong));
  wrong = call;
  wrong.k_descale = {1, 1};
  CHECK(refused(kFlash3, wrong));
  CHECK(refused(kCudnn, make_call(format::kE4M3, {1, 1, 1, 40, 50, 64})));
  CHECK(refused(kFlash2, make_call(format::kFP16, {1, 1, 1, 4, 5, 264})));
  CHECK(refused(kEfficient, make_call(format::kFP16, {1, 3, 2, 4, 5, 64})));
}

TEST_CASE("NaN and Inf stay in the rows that they concern") {
  for (const auto& [name, maker] : kMakers) {
    INFO(name);
    Call call = make_call(format::kFP16, {1, 1, 1, 40, 50, 64});
    const Returned clean = find_kernel(name).run(call);
    call.q.set_code(7 * 64, 0x7E00);
    const Returned returned = find_kernel(name).run(call);
    for (std::int64_t row = 0; row < 40; ++row) {
      const bool same = decode_matrix(returned.tensors.at("o"), row * 64, 1, 64) ==
                        decode_matrix(clean.tensors.at("o"), row * 64, 1, 64);
      CHECK(same == (row != 7));
    }
    CHECK(returned.tensors.at("o").code(7 * 64) == 0x7FFF);
    const std::uint64_t lse = returned.tensors.at("lse").code(7);
    CHECK(lse == (name == kFlash2 ? 0x7F800000 : name == kFlash3 ? 0xFF800000 : 0x7FFFFFFF));
  }
}

}  // namespace
}  // namespace qattn::kernels
