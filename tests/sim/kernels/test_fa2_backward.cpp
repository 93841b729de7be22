// FlashAttention-2's gradients: every recorded bit, what another order of the atomic additions may give, and which
// roundings the recordings decide.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/elementary.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "base/random.h"
#include "format/encode.h"
#include "kernels/atomic_sum.h"
#include "kernels/fa2_backward.h"
#include "mma/instruction.h"
#include "sim/kernels/exact_gradients.h"
#include "sim/kernels/tile_rule.h"
#include "sim/kernels/trial.h"
#include "support/catch.h"

namespace qattn::kernels {
namespace {

using Eigen::Index;

const std::string kFlash = "aten._scaled_dot_product_flash_attention";

/// Elements of a recorded dq that no order that was tried gives.
std::int64_t unreached(const Returned& returned, const io::Tensors& recorded) {
  const Tensor &ours = returned.tensors.at("dq"), &theirs = recorded.at("dq");
  const auto free = returned.order_free.find("dq");
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < theirs.elements(); ++i) {
    if (ours.code(i) == theirs.code(i)) continue;
    if (free == returned.order_free.end() || !free->second.reachable(i, theirs.code(i))) ++count;
  }
  return count;
}

TEST_CASE("every recorded dk and dv comes out bit for bit, and every dq in some order of the additions") {
  for (const Trial& trial : trials("fa2_vectors.h5")) {
    INFO(trial.name);
    const Returned returned = find_kernel(kFlash).run(trial.call);
    CHECK(returned.evidence == "measured here (H200)");
    for (const char* output : {"o", "lse", "dk", "dv"}) CHECK(mismatches(returned, trial.recorded, output) == 0);
    CHECK(unreached(returned, trial.recorded) == 0);
    const bool two_tiles = trial.call.kv_tokens() <= 256;
    CHECK(returned.order_free.count("dq") == (two_tiles ? 0u : 1u));
    if (!two_tiles) {
      CHECK(returned.order_free.at("dq").orders == "all 6 orders of 3 or fewer key tiles");
      CHECK(returned.order_free.at("dq").fixed == 2 * 256 * 128);
    }
  }
}

TEST_CASE("the number of threads changes no bit of the gradients") {
  Trial trial = trials("fa2_vectors.h5").at(1);
  trial.call.threads = 1;
  const Returned one = find_kernel(kFlash).run(trial.call);
  trial.call.threads = 3;
  const Returned three = find_kernel(kFlash).run(trial.call);
  for (const auto& [name, tensor] : one.tensors) CHECK(tensor.codes == three.tensors.at(name).codes);
}

// ---- orders ---------------------------------------------------------------------------------------------------------

/// Every sum that some order gives, by choosing the next term each time.
void brute_force(std::vector<float> left, float sum, std::set<float>& sums) {
  if (left.empty()) sums.insert(sum);
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::vector<float> rest = left;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
    brute_force(rest, sum + left[i], sums);
  }
}

std::set<float> tried_sums(const std::vector<float>& terms) {
  std::set<float> sums;
  for (const AdditionOrder& order : addition_orders(terms.size())) sums.insert(atomic_sum(terms.data(), 1, order));
  return sums;
}

std::vector<float> random_terms(std::size_t count, std::uint64_t stream) {
  std::vector<float> terms;
  for (std::size_t i = 0; i < count; ++i)
    terms.push_back(static_cast<float>(random_unit(5, stream, i) - 0.5) * (i % 3 == 0 ? 64.0f : 1.0f));
  return terms;
}

TEST_CASE("up to 6 terms the tried orders give exactly the sums that a brute force finds") {
  const FpEnvironment environment;
  bool order_mattered = false;
  for (std::size_t count = 1; count <= kMostTermsOfAllOrders; ++count) {
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
      const std::vector<float> terms = random_terms(count, stream);
      std::set<float> expected;
      brute_force(terms, 0, expected);
      CHECK(tried_sums(terms) == expected);
      if (count <= 2) CHECK(expected.size() == 1);
      order_mattered = order_mattered || expected.size() > 2;
    }
  }
  CHECK(order_mattered);
}

TEST_CASE("of more terms ascending, descending and a seeded sample are tried, always the same") {
  const auto orders = addition_orders(9);
  CHECK(orders.size() == kSampledOrders);
  CHECK(kSampledOrders >= 300);
  CHECK(orders[0] == AdditionOrder{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(orders[1] == AdditionOrder{8, 7, 6, 5, 4, 3, 2, 1, 0});
  std::set<AdditionOrder> different(orders.begin(), orders.end());
  CHECK(different.size() >= kSampledOrders - 2);  // of 362,880
  for (AdditionOrder order : orders) {
    std::ranges::sort(order);
    CHECK(order == orders[0]);
  }
  CHECK(addition_orders(9).data() == orders.data());
  CHECK(describe_orders(4) == "all 24 orders of 4");
  CHECK(describe_orders(9) == "ascending, descending and 298 seeded orders of 9");
}

TEST_CASE("atomic additions flush subnormal terms and sums") {
  const FpEnvironment environment;
  const std::vector<float> terms{0x1p-126f, -0x1.8p-127f, 0x1p-126f};
  CHECK(atomic_sum(terms.data(), 1, {0, 1, 2}) == 0x1p-125f);
  const std::vector<float> close{0x1.8p-126f, -0x1p-126f, 0x1p-100f};
  CHECK(atomic_sum(close.data(), 1, {0, 1, 2}) == 0x1p-100f);
  CHECK(atomic_sum(close.data(), 1, {0, 1}) == 0);
}

Call random_call(const format::Format& type, std::vector<std::int64_t> q, std::vector<std::int64_t> kv,
                 bool is_causal) {
  Call call;
  call.q = random_tensor(type, q, 1);
  call.k = random_tensor(type, kv, 2);
  call.v = random_tensor(type, kv, 3);
  call.d_o = random_tensor(type, q, 4);
  call.is_causal = is_causal;
  call.sm_scale = 1 / std::sqrt(static_cast<double>(q.back()));
  return call;
}

TEST_CASE("the caller's rounding mode reaches no gradient") {
  Call call = random_call(format::kBF16, {1, 1, 40, 64}, {1, 1, 600, 64}, false);
  call.sm_scale = 0.1;
  const Returned nearest = find_kernel(kFlash).run(call);
  std::fesetround(FE_UPWARD);
  const Returned upward = find_kernel(kFlash).run(call);
  const bool reachable = upward.order_free.at("dq").reachable(0, upward.tensors.at("dq").code(0));
  std::fesetround(FE_TONEAREST);
  CHECK(reachable);
  for (const auto& [name, tensor] : nearest.tensors) CHECK(tensor.codes == upward.tensors.at(name).codes);
}

TEST_CASE("where more than six key tiles add, other orders' bits are reachable and wrong bits are not") {
  const Call call = random_call(format::kFP16, {1, 1, 128, 64}, {1, 1, 1024, 64}, false);
  const Returned returned = find_kernel(kFlash).run(call);
  const OrderFree& free = returned.order_free.at("dq");
  CHECK(free.fixed == 0);
  CHECK(free.orders == "ascending, descending and 298 seeded orders of 8 key tiles");
  const Tensor& dq = returned.tensors.at("dq");
  std::int64_t several = 0;
  for (std::int64_t i = 0; i < dq.elements(); ++i) {
    const std::uint64_t code = dq.code(i);
    CHECK(free.reachable(i, code));
    CHECK_FALSE(free.reachable(i, code ^ 0x8000));
    CHECK_FALSE(free.reachable(i, code + 64));
    if (free.reachable(i, code + 1) || free.reachable(i, code - 1)) ++several;
  }
  INFO(several << " of " << dq.elements() << " depend on the order");
  CHECK(several > 0);
  CHECK(several < dq.elements() / 100);
}

// ---- what the recordings decide -------------------------------------------------------------------------------------

/// The call's m16n8k16 with other parameters; lives as long as the program.
template <int fraction_bits, mma::Rounding rounding>
const mma::Instruction* dot_like(const Call& call) {
  const auto changed = [](const char* name) {
    mma::Instruction dot = mma::find_instruction(name);
    dot.fusion.fraction_bits = fraction_bits;
    dot.fusion.rounding = rounding;
    return dot;
  };
  static const mma::Instruction half = changed("sm90.mma.m16n8k16.f32.f16.f16");
  static const mma::Instruction bfloat = changed("sm90.mma.m16n8k16.f32.bf16.bf16");
  return call.q.format == &format::kFP16 ? &half : &bfloat;
}

void rounded_ex2(scalar::Codes32 x, std::span<std::uint32_t> y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = std::bit_cast<std::uint32_t>(elementary::exp2_float(std::bit_cast<float>(x[i])));
}

struct Mutation {
  std::string name;
  void (*apply)(Fa2Backward& arithmetic, const Call& call);
  bool changes_dk, changes_dv;
};

constexpr auto kTruncated = mma::Rounding::toward_zero;

const std::vector<Mutation> kMutations = {
    {"23 fraction bits", [](Fa2Backward& a, const Call& c) { a.dot = dot_like<23, kTruncated>(c); }, true, true},
    {"24 fraction bits", [](Fa2Backward& a, const Call& c) { a.dot = dot_like<24, kTruncated>(c); }, true, true},
    {"26 fraction bits", [](Fa2Backward& a, const Call& c) { a.dot = dot_like<26, kTruncated>(c); }, true, true},
    {"nearest, not truncated",
     [](Fa2Backward& a, const Call& c) { a.dot = dot_like<25, mma::Rounding::nearest_even>(c); }, true, true},
    {"a product's own exponent",
     [](Fa2Backward& a, const Call& c) {
       SlowRule rule = slow_rule(*mma::find("sm90.mma", "f32", *c.q.format, *c.q.format, 16));
       rule.normalised = true;
       a.rule = tile_rule(rule);
     },
     true, true},
    {"ex2 rounded", [](Fa2Backward& a, const Call&) { a.ex2 = rounded_ex2; }, true, true},
    {"exponent fused", [](Fa2Backward& a, const Call&) { a.fuse_exponent = true; }, true, true},
    {"delta's neighbours first", [](Fa2Backward& a, const Call&) { a.delta_far_lanes_first = false; }, true, false},
    {"dS contracted", [](Fa2Backward& a, const Call&) { a.fuse_ds = true; }, true, false},
    {"dS from the rounded P", [](Fa2Backward& a, const Call&) { a.ds_from_rounded_p = true; }, true, false},
    {"query tiles ascending", [](Fa2Backward& a, const Call&) { a.descending_queries = false; }, true, true},
    {"query tile 64 or 128", [](Fa2Backward& a, const Call& c) { a.query_tile = c.head_dim() == 64 ? 64 : 128; }, true,
     true},
};

/// The recording of two heads of 256 tokens: two key tiles, so that dq is exact too.
TEST_CASE("each rounding, order and tile of the gradients, changed, breaks the recordings") {
  const Trial trial = trials("fa2_vectors.h5").at(0);
  const Returned forward = find_kernel(kFlash).run(trial.call);
  for (const Mutation& mutation : kMutations) {
    Fa2Backward arithmetic;
    mutation.apply(arithmetic, trial.call);
    Returned returned = forward;
    add_fa2_backward(trial.call, returned, arithmetic);
    const std::int64_t dk = mismatches(returned, trial.recorded, "dk"), dv = mismatches(returned, trial.recorded, "dv");
    INFO(mutation.name << ": " << dk << " of dk, " << dv << " of dv");
    CHECK((dk > 0) == mutation.changes_dk);
    CHECK((dv > 0) == mutation.changes_dv);
  }
}

/// Some hundred FP16 codes of P and dS are subnormal in this recording; at which exponent such an operand is aligned
/// shows in none of its gradients. The tensor core's own vectors decide it.
TEST_CASE("the slow form of the matrix products gives the same gradients, also with subnormals at their own exponent") {
  const Trial trial = trials("fa2_vectors.h5").at(0);
  Returned returned = find_kernel(kFlash).run(trial.call);
  for (const bool floored : {true, false}) {
    SlowRule rule = slow_rule(*mma::find("sm90.mma", "f32", format::kFP16, format::kFP16, 16));
    rule.subnormals_floored = floored;
    Fa2Backward arithmetic;
    arithmetic.rule = tile_rule(rule);
    add_fa2_backward(trial.call, returned, arithmetic);
    for (const char* output : {"dk", "dv", "dq"}) CHECK(mismatches(returned, trial.recorded, output) == 0);
  }
}

TEST_CASE("another key tile breaks dq, which adds other terms then, and nothing else") {
  const Trial trial = trials("fa2_vectors.h5").at(0);
  Returned returned = find_kernel(kFlash).run(trial.call);
  Fa2Backward arithmetic;
  arithmetic.key_tile = 64;
  add_fa2_backward(trial.call, returned, arithmetic);
  CHECK(mismatches(returned, trial.recorded, "dk") == 0);
  CHECK(mismatches(returned, trial.recorded, "dv") == 0);
  CHECK(unreached(returned, trial.recorded) > 0);
}

// ---- beyond the recordings ------------------------------------------------------------------------------------------

TEST_CASE("masks, lengths, batches, groups and other head_dims stay close to float64 gradients") {
  struct Made {
    std::string name;
    std::vector<std::int64_t> q, kv;
    bool is_causal;
  };
  for (const Made& made :
       {Made{"more keys, causal", {1, 1, 70, 64}, {1, 1, 150, 64}, true},
        Made{"more queries, causal", {1, 1, 300, 64}, {1, 1, 140, 64}, true},
        Made{"one query", {1, 1, 1, 64}, {1, 1, 130, 64}, true}, Made{"batch", {2, 2, 33, 32}, {2, 2, 33, 32}, false},
        Made{"groups of 5", {1, 10, 40, 96}, {1, 2, 40, 96}, true}, Made{"72", {1, 1, 65, 72}, {1, 1, 65, 72}, false},
        Made{"192", {1, 1, 65, 192}, {1, 1, 65, 192}, true}, Made{"256", {1, 1, 90, 256}, {1, 1, 90, 256}, false}}) {
    const Call call = random_call(format::kFP16, made.q, made.kv, made.is_causal);
    const Returned returned = find_kernel(kFlash).run(call);
    CHECK(returned.predicted);
    CHECK(returned.evidence.find("predicted") != std::string::npos);
    const Index group = made.q[1] / made.kv[1];
    const auto visible = [&call](Index i) {
      return call.is_causal ? i + 1 + call.kv_tokens() - call.q_tokens() : call.kv_tokens();
    };
    for (Index kv_head = 0; kv_head < made.q[0] * made.kv[1]; ++kv_head) {
      MatrixD dk = MatrixD::Zero(made.kv[2], made.kv[3]), dv = dk;
      for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const auto exact = exact_gradients(head_of(call.q, head), head_of(call.k, kv_head), head_of(call.v, kv_head),
                                           head_of(*call.d_o, head), call.sm_scale, visible);
        dk += exact.at("dk");
        dv += exact.at("dv");
        INFO(made.name);
        CHECK(relative_l2(head_of(returned.tensors.at("dq"), head), exact.at("dq")) < 0.003);
      }
      INFO(made.name);
      CHECK(relative_l2(head_of(returned.tensors.at("dk"), kv_head), dk) < 0.003);
      CHECK(relative_l2(head_of(returned.tensors.at("dv"), kv_head), dv) < 0.003);
    }
  }
}

TEST_CASE("a group's gradients are those of its heads, rounded, then added in f32") {
  const Call grouped = random_call(format::kBF16, {1, 2, 40, 64}, {1, 1, 40, 64}, false);
  Call repeated = grouped;
  for (Tensor* tensor : {&repeated.k, &repeated.v}) {
    tensor->shape[1] = 2;
    tensor->codes.insert(tensor->codes.end(), tensor->codes.begin(), tensor->codes.end());
  }
  const Returned of_group = find_kernel(kFlash).run(grouped), of_heads = find_kernel(kFlash).run(repeated);
  for (const char* name : {"dk", "dv"}) {
    const Tensor &sum = of_group.tensors.at(name), &parts = of_heads.tensors.at(name);
    for (std::int64_t i = 0; i < sum.elements(); ++i) {
      const double exact =
          format::decode(format::kBF16, parts.code(i)) + format::decode(format::kBF16, parts.code(i + sum.elements()));
      CHECK(sum.code(i) == format::encode(format::kBF16, exact, {}));
    }
  }
  CHECK(of_group.evidence.find("grouped heads") != std::string::npos);
}

TEST_CASE("calls without what the gradients need are refused") {
  const Call good = random_call(format::kFP16, {1, 1, 8, 64}, {1, 1, 8, 64}, false);
  const auto message = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  Returned forward = find_kernel(kFlash).run(good);
  Call without = good;
  without.d_o.reset();
  CHECK(message([&] { add_fa2_backward(without, forward); }).find("has no do") != std::string::npos);
  CHECK(find_kernel(kFlash).run(without).tensors.count("dq") == 0);
  Call shorter = good;
  shorter.d_o = random_tensor(format::kFP16, {1, 1, 7, 64}, 4);
  CHECK(message([&] { find_kernel(kFlash).run(shorter); }) == kFlash + ": do must have q's shape and format");
  Call other_type = good;
  other_type.d_o = random_tensor(format::kBF16, {1, 1, 8, 64}, 4);
  CHECK(message([&] { find_kernel(kFlash).run(other_type); }) == kFlash + ": do must have q's shape and format");
  const Call wide = random_call(format::kFP16, {1, 1, 8, 264}, {1, 1, 8, 264}, false);
  CHECK(message([&] { find_kernel(kFlash).run(wide); }).find("head_dim is 264; at most 256") != std::string::npos);
}

}  // namespace
}  // namespace qattn::kernels
