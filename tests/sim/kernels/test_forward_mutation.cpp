// What the recorded outputs decide: the replays with one ingredient changed at a time. Every change listed under
// `decided` must contradict a committed recording of its kernel; those under `undecided` contradict none, and say why.
#include <algorithm>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/flash_attention_2.h"
#include "kernels/flash_attention_3.h"
#include "kernels/sdpa.h"
#include "support/catch.h"
#include "tile_rule.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

using Change = std::function<void(Forward&)>;

struct Mutation {
  std::string name;
  Change change;
};

struct Undecided {
  std::string name;
  Change change;
  std::string reason;
};

std::int64_t work(const Call& call) {
  return call.batch() * call.q_heads() * call.q_tokens() * call.kv_tokens() * call.head_dim();
}

/// The recordings of one kernel, the quickest first.
std::vector<Trial> trials_of(const std::string& file, const std::string& kernel,
                             const std::function<bool(const Call&)>& wanted = {}) {
  std::vector<Trial> all = trials(file, kernel);
  if (wanted) std::erase_if(all, [&](const Trial& trial) { return !wanted(trial.call); });
  std::ranges::sort(all, {}, [](const Trial& trial) { return work(trial.call); });
  for (Trial& trial : all) trial.call.d_o.reset();
  return all;
}

using Maker = Forward (*)(const Call&);

/// The first recording that the changed replay contradicts, and by how much; empty if there is none.
std::string contradicted(Maker maker, const std::vector<Trial>& all, const Change& change) {
  for (const Trial& trial : all) {
    Forward kernel = maker(trial.call);
    change(kernel);
    const Returned returned = run_forward(kernel, trial.call);
    const std::int64_t o = mismatches(returned, trial.recorded, "o");
    const std::int64_t lse = mismatches(returned, trial.recorded, "lse");
    if (o + lse > 0) return trial.name + ": " + std::to_string(o) + " o, " + std::to_string(lse) + " lse";
  }
  return "";
}

void check_undecided(Maker maker, const std::vector<Trial>& all, const std::vector<Undecided>& mutations) {
  for (const Undecided& mutation : mutations) {
    INFO(mutation.name << " is decided now; it was not since " << mutation.reason);
    CHECK(contradicted(maker, all, mutation.change).empty());
  }
}

/// One product by the slow rule with a change.
Change qk(const std::function<void(SlowRule&)>& change) {
  return [change](Forward& kernel) {
    SlowRule rule = slow_rule(*kernel.qk);
    change(rule);
    kernel.qk_rule = tile_rule(rule);
  };
}
Change pv(const std::function<void(SlowRule&)>& change) {
  return [change](Forward& kernel) {
    SlowRule rule = slow_rule(*kernel.pv);
    change(rule);
    kernel.pv_rule = tile_rule(rule);
  };
}

void exact(SlowRule& rule) {
  rule.fraction_bits = 60;
  rule.mantissa_bits = 23;
  rule.nearest = true;
}

/// What the instruction does, for either product.
std::vector<Mutation> instruction_mutations() {
  return {
      {"QK: F - 1", qk([](SlowRule& r) { --r.fraction_bits; })},
      {"QK: F + 1", qk([](SlowRule& r) { ++r.fraction_bits; })},
      {"PV: F - 1", pv([](SlowRule& r) { --r.fraction_bits; })},
      {"PV: F + 1", pv([](SlowRule& r) { ++r.fraction_bits; })},
      {"QK: exact", qk(exact)},
      {"PV: exact", pv(exact)},
      {"QK: output rounded to nearest", qk([](SlowRule& r) { r.nearest = true; })},
      {"PV: output rounded to nearest", pv([](SlowRule& r) { r.nearest = true; })},
      {"QK: product exponents normalised", qk([](SlowRule& r) { r.normalised = true; })},
      {"PV: product exponents normalised", pv([](SlowRule& r) { r.normalised = true; })},
      {"QK: half the depth", qk([](SlowRule& r) { r.group /= 2; })},
      {"PV: half the depth", pv([](SlowRule& r) { r.group /= 2; })},
      {"QK: twice the depth", qk([](SlowRule& r) { r.group *= 2; })},
      {"PV: twice the depth", pv([](SlowRule& r) { r.group *= 2; })},
      {"QK: steps from the last to the first", qk([](SlowRule& r) { r.descending = true; })},
      {"PV: steps from the last to the first", pv([](SlowRule& r) { r.descending = true; })},
      {"PV: C outside e_max", pv([](SlowRule& r) { r.c = CTerm::outside_e_max; })},
      {"PV: C added after", pv([](SlowRule& r) { r.c = CTerm::added_after; })},
  };
}

template <class Field, class Value>
Change set(Field Forward::*field, Value value) {
  return [field, value](Forward& kernel) { kernel.*field = value; };
}
template <class Value>
Change set(Value RowSum::*field, Value value) {
  return [field, value](Forward& kernel) { kernel.row_sum.*field = value; };
}
template <class Value>
Change set(Value Split::*field, Value value) {
  return [field, value](Forward& kernel) { kernel.split.*field = value; };
}
Change key_tile(double factor) {
  return [factor](Forward& kernel) {
    kernel.key_tile = std::max(32, static_cast<int>(factor * kernel.key_tile) / 32 * 32);
  };
}
Change flip(bool Forward::*field) {
  return [field](Forward& kernel) { kernel.*field = !(kernel.*field); };
}
Change flip(bool RowSum::*field) {
  return [field](Forward& kernel) { kernel.row_sum.*field = !(kernel.row_sum.*field); };
}

/// Changes that mean the same in every kernel.
std::vector<Mutation> common_mutations() {
  return {
      {"tiles of half the width", key_tile(0.5)},
      {"tiles of twice the width", key_tile(2)},
      {"tiles in the other order", flip(&Forward::keys_descending)},
      {"2^x correctly rounded", set(&Forward::power, PowerOfTwo::rounded)},
      {"row sum: contraction", flip(&RowSum::contracted)},
      {"row sum: exchange order", flip(&RowSum::distance_2_first)},
      {"row sum: descending", set(&RowSum::descending, true)},
      {"row sum: one lane", set(&RowSum::one_lane, true)},
      {"row sum of rounded P", set(&RowSum::of_rounded_p, true)},
      {"P cut", set(&Forward::round_p, RoundP::toward_zero)},
      {"missing keys not masked", set(&Forward::missing_keys_masked, false)},
      {"rescaled only when the maximum grew by 8", set(&Forward::rescale_threshold, 8.0f)},
      {"P scaled by 2", [](Forward& kernel) { kernel.offset += 1; }},
      {"c one ulp lower", [](Forward& kernel) { kernel.c = std::nextafter(kernel.c, 0.0f); }},
  };
}

template <class T>
std::vector<T> joined(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<Mutation> flash_attention_2_mutations() {
  return {
      {"exponent fused", set(&Forward::exponent, Exponent::fused)},
      {"exponent from the difference", set(&Forward::exponent, Exponent::difference_first)},
      {"factor from products", set(&Forward::rescale, Rescale::products_first)},
      {"factor fused", set(&Forward::rescale, Rescale::fused)},
      {"row sum: the tile first", set(&RowSum::terms, SumTerms::tile_totals)},
      {"O from zero, fused", set(&Forward::accumulate, Accumulate::fused)},
      {"1 / l by MUFU", set(&Forward::reciprocal, Reciprocal::mufu)},
      {"O / l", set(&Forward::reciprocal, Reciprocal::division)},
      {"lse not contracted", set(&Forward::lse_join, LseJoin::rounded)},
      {"lse contracted the other way", set(&Forward::lse_join, LseJoin::fused_log)},
      {"lse from the rounded maximum", set(&Forward::lse_maximum, LseMaximum::rounded_times_ln2)},
      {"log2 correctly rounded", set(&Forward::log, Log::rounded)},
      {"logf", set(&Forward::log, Log::logf)},
      {"2 parts", [](Forward& kernel) { kernel.split.parts = 2; }},
      {"not split", [](Forward& kernel) { kernel.split.parts = 1; }},
      {"combined without fma", set(&Split::fused, false)},
      {"combined with a correctly rounded exp", set(&Split::rounded_exp, true)},
      {"combined with a correctly rounded log", set(&Split::rounded_log, true)},
      {"lse of a row without keys in its part", [](Forward& kernel) { kernel.empty.lse = 0; }},
  };
}

bool is_fp8(const Call& call) { return call.q.format == &format::kE4M3; }
bool is_half(const Call& call) { return !is_fp8(call); }

/// FlashAttention-3's softmax, for either operand type.
std::vector<Mutation> flash_attention_3_mutations() {
  return {
      {"exponent in two roundings", set(&Forward::exponent, Exponent::two_roundings)},
      {"exponent from the difference", set(&Forward::exponent, Exponent::difference_first)},
      {"factor from products", set(&Forward::rescale, Rescale::products_first)},
      {"factor fused", set(&Forward::rescale, Rescale::fused)},
      {"row sum: the tile first", set(&RowSum::terms, SumTerms::tile_totals)},
      {"P flushed", set(&Forward::round_p, RoundP::nearest_flushed)},
      {"O from zero, fused", set(&Forward::accumulate, Accumulate::fused)},
      {"O from zero, rounded", set(&Forward::accumulate, Accumulate::rounded)},
      {"1 / l correctly rounded", set(&Forward::reciprocal, Reciprocal::rounded)},
      {"O / l", set(&Forward::reciprocal, Reciprocal::division)},
      {"lse not contracted", set(&Forward::lse_join, LseJoin::rounded)},
      {"lse contracted the other way", set(&Forward::lse_join, LseJoin::fused_log)},
      {"lse from the rounded maximum", set(&Forward::lse_maximum, LseMaximum::rounded_times_ln2)},
      {"log2 correctly rounded", set(&Forward::log, Log::rounded)},
  };
}

std::vector<Mutation> flash_attention_3_fp8_mutations() {
  return {
      {"QK: 23 bits kept", qk([](SlowRule& r) { r.mantissa_bits = 23; })},
      {"PV: 23 bits kept", pv([](SlowRule& r) { r.mantissa_bits = 23; })},
      {"PV: subnormal operands by their own exponent", pv([](SlowRule& r) { r.subnormals_floored = false; })},
      {"QK promoted every 128", qk([](SlowRule& r) { r.promote = 128; })},
      {"PV: C not cut", pv([](SlowRule& r) { r.c = CTerm::whole; })},
      {"PV: C rounded at the alignment", pv([](SlowRule& r) { r.c = CTerm::rounded; })},
      {"descales one by one", set(&Forward::score_descale, ScoreDescale::one_by_one)},
      {"descales of the score", set(&Forward::score_descale, ScoreDescale::of_the_score)},
      {"offset rounded", set(&Forward::offset_fused, false)},
      {"offset 0", set(&Forward::offset, 0.0f)},
      {"offset 7", set(&Forward::offset, 7.0f)},
      {"V's descale after 1 / l", set(&Forward::output_descale, OutputDescale::of_the_output)},
      {"V's descale by l", set(&Forward::output_descale, OutputDescale::of_the_quotient)},
      {"lse from the scale", set(&Forward::lse_maximum, LseMaximum::times_scale)},
      {"mask top-left", set(&Forward::causal_align, attention::CausalAlign::top_left)},
      {"lse of a row without keys", [](Forward& kernel) { kernel.empty.lse = -kernel.empty.lse; }},
  };
}

std::vector<Mutation> flash_attention_3_half_mutations() {
  return {
      {"PV: C not cut", pv([](SlowRule& r) { r.c = CTerm::whole; })},
      {"PV: C rounded at the alignment", pv([](SlowRule& r) { r.c = CTerm::rounded; })},
      {"the width without a mask where there is one",
       [](Forward& kernel) { kernel.key_tile = kernel.key_tile == 128 ? 192 : kernel.key_tile; }},
  };
}

std::vector<Mutation> cudnn_mutations() {
  return {
      {"PV: C not cut", pv([](SlowRule& r) { r.c = CTerm::whole; })},
      {"PV: C rounded at the alignment", pv([](SlowRule& r) { r.c = CTerm::rounded; })},
      {"exponent fused", set(&Forward::exponent, Exponent::fused)},
      {"exponent from the difference", set(&Forward::exponent, Exponent::difference_first)},
      {"scaled, then times log2 e",
       [](Forward& kernel) {
         kernel.score_factor = kernel.scale;
         kernel.c = 1.44269502f;
       }},
      {"factor from the difference", set(&Forward::rescale, Rescale::difference_first)},
      {"factor fused", set(&Forward::rescale, Rescale::fused)},
      {"row sum: element by element", set(&RowSum::terms, SumTerms::elements)},
      {"row sum by warps", set(&RowSum::terms, SumTerms::warp_totals)},
      {"P flushed", set(&Forward::round_p, RoundP::nearest_flushed)},
      {"O from zero, fused", set(&Forward::accumulate, Accumulate::fused)},
      {"1 / l correctly rounded", set(&Forward::reciprocal, Reciprocal::rounded)},
      {"O / l", set(&Forward::reciprocal, Reciprocal::division)},
      {"lse not contracted", set(&Forward::lse_join, LseJoin::rounded)},
      {"lse contracted the other way", set(&Forward::lse_join, LseJoin::fused_log)},
      {"lse from the scale", set(&Forward::lse_maximum, LseMaximum::times_scale)},
      {"lse from s ln 2", set(&Forward::lse_maximum, LseMaximum::times_scaled_ln2)},
      {"log2 correctly rounded", set(&Forward::log, Log::rounded)},
      {"logf", set(&Forward::log, Log::logf)},
      {"mask bottom-right", set(&Forward::causal_align, attention::CausalAlign::bottom_right)},
  };
}

std::vector<Mutation> efficient_mutations() {
  return {
      {"PV: C not cut", pv([](SlowRule& r) { r.c = CTerm::whole; })},
      {"PV: C rounded at the alignment", pv([](SlowRule& r) { r.c = CTerm::rounded; })},
      {"exponent fused", set(&Forward::exponent, Exponent::fused)},
      {"exponent from the difference", set(&Forward::exponent, Exponent::difference_first)},
      {"the scale in one constant",
       [](Forward& kernel) {
         kernel.c *= kernel.score_factor;
         kernel.score_factor = 1;
       }},
      {"factor from the difference", set(&Forward::rescale, Rescale::difference_first)},
      {"factor fused", set(&Forward::rescale, Rescale::fused)},
      {"row sum: element by element", set(&RowSum::terms, SumTerms::elements)},
      {"row sum: the tile's lanes", set(&RowSum::terms, SumTerms::tile_totals)},
      {"row sum: warps added first", set(&RowSum::warps_added_first, true)},
      {"P flushed", set(&Forward::round_p, RoundP::nearest_flushed)},
      {"O from zero, fused", set(&Forward::accumulate, Accumulate::fused)},
      {"1 / l by MUFU", set(&Forward::reciprocal, Reciprocal::mufu)},
      {"O / l", set(&Forward::reciprocal, Reciprocal::division)},
      {"lse by 1 / log2 e", set(&Forward::lse_maximum, LseMaximum::times_inverse_log2e)},
      {"lse from the rounded maximum", set(&Forward::lse_maximum, LseMaximum::rounded_times_ln2)},
      {"log by MUFU", set(&Forward::log, Log::approx)},
      {"log correctly rounded", set(&Forward::log, Log::logf_rounded)},
      {"mask bottom-right", set(&Forward::causal_align, attention::CausalAlign::bottom_right)},
  };
}

/// A kernel, its recordings, and the changes that they decide.
struct Suite {
  std::string name;
  Maker maker;
  std::vector<Trial> all;
  std::vector<Mutation> decided;
};

Suite flash_attention_2_suite() {
  return {"FlashAttention-2", flash_attention_2,
          trials_of("fa2_vectors.h5", "aten._scaled_dot_product_flash_attention"),
          joined(joined(instruction_mutations(), common_mutations()), flash_attention_2_mutations())};
}
Suite flash_attention_3_fp8_suite() {
  return {"FlashAttention-3, E4M3", flash_attention_3, trials_of("fa3_vectors.h5", "flash_attn_3.fwd", is_fp8),
          joined(joined(instruction_mutations(), common_mutations()),
                 joined(flash_attention_3_mutations(), flash_attention_3_fp8_mutations()))};
}
Suite flash_attention_3_half_suite() {
  return {"FlashAttention-3, 16 bits", flash_attention_3, trials_of("fa3_vectors.h5", "flash_attn_3.fwd", is_half),
          joined(joined(instruction_mutations(), common_mutations()),
                 joined(flash_attention_3_mutations(), flash_attention_3_half_mutations()))};
}
Suite cudnn_suite() {
  return {"cuDNN", cudnn_attention, trials_of("sdpa_vectors.h5", "aten._scaled_dot_product_cudnn_attention"),
          joined(joined(instruction_mutations(), common_mutations()), cudnn_mutations())};
}
Suite efficient_suite() {
  return {"memory-efficient", efficient_attention,
          trials_of("sdpa_vectors.h5", "aten._scaled_dot_product_efficient_attention"),
          joined(joined(instruction_mutations(), common_mutations()), efficient_mutations())};
}

std::vector<Suite> every_suite() {
  return {flash_attention_2_suite(), flash_attention_3_fp8_suite(), flash_attention_3_half_suite(), cudnn_suite(),
          efficient_suite()};
}

void check_decided(const Suite& suite) {
  REQUIRE_FALSE(suite.all.empty());
  CHECK(contradicted(suite.maker, suite.all, [](Forward&) {}).empty());
  for (const Mutation& mutation : suite.decided) {
    const std::string where = contradicted(suite.maker, suite.all, mutation.change);
    INFO(mutation.name << (where.empty() ? " contradicts nothing" : " contradicts " + where));
    CHECK_FALSE(where.empty());
  }
}

TEST_CASE("the slow rule gives the instruction's bits", "[mutation]") {
  for (const Suite& suite : every_suite()) {
    INFO(suite.name);
    CHECK(contradicted(suite.maker, {suite.all.begin(), suite.all.begin() + 2}, [](Forward& kernel) {
            qk([](SlowRule&) {})(kernel);
            pv([](SlowRule&) {})(kernel);
          }).empty());
  }
}

// One test case a kernel, so that they may run side by side.
TEST_CASE("FlashAttention-2's recordings decide its arithmetic", "[mutation]") {
  check_decided(flash_attention_2_suite());
}
TEST_CASE("FlashAttention-3's E4M3 recordings decide its arithmetic", "[mutation]") {
  check_decided(flash_attention_3_fp8_suite());
}
TEST_CASE("FlashAttention-3's 16-bit recordings decide its arithmetic", "[mutation]") {
  check_decided(flash_attention_3_half_suite());
}
TEST_CASE("cuDNN's recordings decide its arithmetic", "[mutation]") { check_decided(cudnn_suite()); }
TEST_CASE("the memory-efficient kernel's recordings decide its arithmetic", "[mutation]") {
  check_decided(efficient_suite());
}

TEST_CASE("what no recording of a float kernel decides", "[mutation]") {
  const std::vector<Undecided> open{
      {"2^x flushing subnormal results", set(&Forward::power, PowerOfTwo::mufu),
       "no P below 2^-126 shows in an output"},
      {"2^x keeping subnormal results", set(&Forward::power, PowerOfTwo::approx),
       "no P below 2^-126 shows in an output"},
      {"products with O flushed", set(&Forward::flush_products, true), "no recorded O is that small"},
      {"products with O not flushed", set(&Forward::flush_products, false), "no recorded O is that small"},
      {"query tiles of half the height", [](Forward& kernel) { kernel.query_tile /= 2; },
       "a tile of which a row sees nothing changes nothing"},
  };
  for (const Suite& kernel : every_suite()) {
    INFO(kernel.name);
    check_undecided(kernel.maker, kernel.all, open);
  }
}

TEST_CASE("what the recordings of single float kernels leave open", "[mutation]") {
  const Undecided scale_ln2{"lse from s ln 2", set(&Forward::lse_maximum, LseMaximum::times_scaled_ln2),
                            "RN(s ln 2) is the scale for head_dim 64 and 128"};
  const Undecided scale{"lse from the scale", set(&Forward::lse_maximum, LseMaximum::times_scale),
                        "RN(s ln 2) is the scale for head_dim 64 and 128"};
  const std::vector<Suite> kernels = every_suite();
  check_undecided(
      kernels[0].maker, kernels[0].all,
      {scale_ln2,
       {"PV: C not cut", pv([](SlowRule& r) { r.c = CTerm::whole; }), "25 bits hold nearly all of C"},
       {"PV: C rounded at the alignment", pv([](SlowRule& r) { r.c = CTerm::rounded; }), "the same"},
       {"P flushed", set(&Forward::round_p, RoundP::nearest_flushed), "standard normal scores give no such P"},
       {"mask top-left", set(&Forward::causal_align, attention::CausalAlign::top_left),
        "the recorded causal call is square; the library's sources say bottom-right"},
       {"fewer lanes in the combining kernel", set(&Split::lse_rows, 4), "more than 4 parts were not recorded"}});
  check_undecided(kernels[1].maker, kernels[1].all,
                  {{"1 / l of a row without keys", [](Forward& k) { k.empty.reciprocal = 1; }, "its O is 0"}});
  check_undecided(kernels[2].maker, kernels[2].all, {scale});
}

// Operand exponents show only where a subnormal operand makes a sum's largest term; the instructions' own vectors
// decide them.
TEST_CASE("the recordings leave the exponents of subnormal operands open", "[.][exhaustive]") {
  const Undecided in_qk{"QK: subnormal operands by their own exponent",
                        qk([](SlowRule& r) { r.subnormals_floored = false; }), "no such term is the largest"};
  const Undecided in_pv{"PV: subnormal operands by their own exponent",
                        pv([](SlowRule& r) { r.subnormals_floored = false; }), "no such term is the largest"};
  for (const Suite& kernel : every_suite()) {
    INFO(kernel.name);
    check_undecided(kernel.maker, kernel.all, {in_qk});
    if (!is_fp8(kernel.all[0].call)) check_undecided(kernel.maker, kernel.all, {in_pv});
  }
}

// All mismatches of every change over every recording, as a table: test_kernels_forward_mutation "[table]".
TEST_CASE("the table of mutations", "[.][table]") {
  for (const Suite& suite : every_suite()) {
    std::cout << "| " << suite.name << ": change | o | lse |\n|---|---:|---:|\n";
    for (const Mutation& mutation : suite.decided) {
      std::int64_t o = 0, lse = 0;
      for (const Trial& trial : suite.all) {
        Forward kernel = suite.maker(trial.call);
        mutation.change(kernel);
        const Returned returned = run_forward(kernel, trial.call);
        o += mismatches(returned, trial.recorded, "o");
        lse += mismatches(returned, trial.recorded, "lse");
      }
      std::cout << "| " << mutation.name << " | " << o << " | " << lse << " |\n";
      CHECK(o + lse > 0);
    }
  }
}

}  // namespace
}  // namespace qattn::kernels
