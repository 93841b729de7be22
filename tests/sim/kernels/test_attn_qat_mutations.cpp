// Which roundings and orders of Attn-QAT's kernel the recorded outputs decide: one of them changed at a time.
#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/elementary.h"
#include "kernels/attn_qat.h"
#include "mma/instruction.h"
#include "sim/kernels/trial.h"
#include "support/catch.h"

namespace qattn::kernels::attn_qat {
namespace {

mma::Instruction dot_like(int fraction_bits, mma::Rounding rounding) {
  mma::Instruction dot = mma::find_instruction("sm90.mma.m16n8k16.f32.bf16.bf16");
  dot.fusion.fraction_bits = fraction_bits;
  dot.fusion.rounding = rounding;
  return dot;
}

const mma::Instruction kTwentyFourBits = dot_like(24, mma::Rounding::toward_zero);
const mma::Instruction kTwentySixBits = dot_like(26, mma::Rounding::toward_zero);
const mma::Instruction kNearest = dot_like(25, mma::Rounding::nearest_even);

void rounded_ex2(std::span<const float> x, std::span<float> y) { elementary::exp2_float(x, y); }
float rounded_reciprocal(float x) { return 1.0F / x; }
float rounded_log2(float x) { return static_cast<float>(elementary::log2(static_cast<double>(x))); }
float unit_log2(float x) { return scalar::mufu_lg2(x); }

struct Mutation {
  std::string name;
  void (*apply)(Arithmetic& arithmetic);
  std::string trial;                 ///< where it shows
  std::vector<std::string> changed;  ///< the outputs that differ there
};

const std::vector<Mutation> kDecided = {
    {"24 fraction bits", [](Arithmetic& a) { a.dot = &kTwentyFourBits; }, "q2 qat_nofqP", {"o", "dv", "dk", "dq"}},
    {"26 fraction bits", [](Arithmetic& a) { a.dot = &kTwentySixBits; }, "q2 qat_nofqP", {"o", "dv", "dk", "dq"}},
    {"nearest, not truncated", [](Arithmetic& a) { a.dot = &kNearest; }, "q0 defaults", {"o", "dv", "dk", "dq"}},
    {"a tile from zero", [](Arithmetic& a) { a.chain_tiles = false; }, "q2 qat_nofqP", {"o", "dv", "dk", "dq"}},
    {"natural key order, forward", [](Arithmetic& a) { a.interleave_p_forward = false; }, "q0 naive_bwd", {"o"}},
    {"natural order, dV", [](Arithmetic& a) { a.interleave_p_backward = false; }, "q0 defaults", {"dv"}},
    {"row sum in f32", [](Arithmetic& a) { a.sum_in_bf16 = false; }, "q2 qat_hp", {"o", "dv", "dk", "dq"}},
    {"lanes 1 then 2", [](Arithmetic& a) { a.sum_far_lanes_first = false; }, "q0 qat_hp", {"o", "dv", "dk", "dq"}},
    {"backward exponent", [](Arithmetic& a) { a.fuse_backward_exponent = false; }, "q2 defaults", {"dk", "dq"}},
    {"division by 6", [](Arithmetic& a) { a.multiply_by_sixth = false; }, "q0 defaults", {"o", "dk", "dq"}},
    {"sticky bits in E2M1", [](Arithmetic& a) { a.forget_shifted_bits = false; }, "q0 defaults", {"o", "dk", "dq"}},
    {"ex2 rounded", [](Arithmetic& a) { a.ex2 = rounded_ex2; }, "q0 defaults", {"o", "dk", "dq"}},
    {"rcp rounded", [](Arithmetic& a) { a.rcp = rounded_reciprocal; }, "q2 defaults", {"o", "dv", "dk", "dq"}},
    {"log2 by MUFU", [](Arithmetic& a) { a.log2 = unit_log2; }, "q0 qat_nofqP", {"dv", "dk", "dq"}},
    {"delta's neighbours first", [](Arithmetic& a) { a.delta_far_lanes_first = false; }, "q2 defaults", {"dk", "dq"}},
    {"dS contracted", [](Arithmetic& a) { a.fuse_ds = true; }, "q2 defaults", {"dk", "dq"}},
    {"dV descending", [](Arithmetic& a) { a.ascending_dv = false; }, "q0 defaults", {"dv"}},
    {"dK descending", [](Arithmetic& a) { a.ascending_dk = false; }, "q0 defaults", {"dk"}},
    {"dQ descending", [](Arithmetic& a) { a.ascending_dq = false; }, "q0 defaults", {"dq"}},
    {"dS from quantized P", [](Arithmetic& a) { a.ds_from_quantized_p = true; }, "q0 qat_hp", {"dk", "dq"}},
    {"no k_mean term", [](Arithmetic& a) { a.mean_term = MeanTerm::left_out; }, "q0 defaults", {"dq"}},
    {"k_mean from BF16 dS", [](Arithmetic& a) { a.mean_term = MeanTerm::from_bf16; }, "q0 defaults", {"dq"}},
    {"k_mean, near warps first", [](Arithmetic& a) { a.mean_far_warps_first = false; }, "q0 defaults", {"dq"}},
    {"k_mean added unfused", [](Arithmetic& a) { a.fuse_mean = false; }, "q0 defaults", {"dq"}},
};

/// What no recorded output in the tree shows; these rest on the compiled code that the order of operations was read
/// from. The forward exponent and l reach the outputs through BF16 only; the row maximum's exponent is near 0, where
/// both forms agree. The division shows in none of the head_dim 64 recordings. M is not recorded, so that the last bit
/// of log2 is seen through p alone; and rowsum(dS) is small beside dQ.
const std::vector<Mutation> kUndecided = {
    {"forward exponent not fused", [](Arithmetic& a) { a.fuse_forward_exponent = false; }, {}, {}},
    {"l not fused", [](Arithmetic& a) { a.fuse_sum = false; }, {}, {}},
    {"o by a rounded division", [](Arithmetic& a) { a.divide_output = true; }, {}, {}},
    {"log2 correctly rounded", [](Arithmetic& a) { a.log2 = rounded_log2; }, {}, {}},
    {"k_mean of rounded products", [](Arithmetic& a) { a.mean_term = MeanTerm::rounded_products; }, {}, {}},
};

Arithmetic changed_by(const Mutation& mutation) {
  Arithmetic arithmetic;
  mutation.apply(arithmetic);
  return arithmetic;
}

TEST_CASE("each rounding and order that the recordings decide, changed, breaks them") {
  const std::vector<Trial> all = trials("backward_vectors.h5");
  for (const Mutation& mutation : kDecided) {
    INFO(mutation.name);
    const auto trial = std::ranges::find(all, "backward_vectors.h5 " + mutation.trial, &Trial::name);
    REQUIRE(trial != all.end());
    const Returned returned = run(trial->call, changed_by(mutation));
    for (const auto& [output, recorded] : trial->recorded) {
      const std::int64_t count = mismatches(returned, trial->recorded, output);
      INFO(output << ": " << count << " differ");
      const bool expected = std::ranges::find(mutation.changed, output) != mutation.changed.end();
      CHECK((count > 0) == expected);
    }
  }
}

TEST_CASE("what the recordings do not decide changes no recorded bit") {
  for (const Trial& trial : trials("backward_vectors.h5")) {
    for (const Mutation& mutation : kUndecided) {
      INFO(trial.name << ", " << mutation.name);
      const Returned returned = run(trial.call, changed_by(mutation));
      for (const char* output : {"o", "dq", "dk", "dv"}) CHECK(mismatches(returned, trial.recorded, output) == 0);
    }
  }
}

}  // namespace
}  // namespace qattn::kernels::attn_qat
