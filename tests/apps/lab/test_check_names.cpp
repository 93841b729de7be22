// check_dump: each deliberately broken output fails and is named.
#include <cmath>
#include <functional>

#include "apps/checked_dump.h"
#include "attention/pipeline.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using testing::causal;
using testing::check;
using testing::check_named;
using testing::hide;
using testing::plain_attention;
using testing::plain_heads;
using testing::PlainHead;
using testing::PlainOutput;
using testing::real_heads;
using testing::relative_to;
using testing::right_outputs;
using testing::row_of;
using testing::three_heads;
using testing::verdict;

TEST_CASE("outputs that are wrong as a whole are named") {
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  const auto changed = [&](const std::function<void(std::vector<PlainOutput>&)>& change) {
    std::vector<PlainOutput> outputs = right;
    change(outputs);
    return verdict(outputs);
  };
  check_named(changed([](auto& o) {
                for (auto& head : o) head.o.setZero();
              }),
              1, "all zeros", "zero everywhere");
  check_named(changed([](auto& o) { std::swap(o[0], o[1]); }), 0, "two heads swapped", "head 1");
  check_named(changed([](auto& o) { o[2].o = o[1].o; }), 2, "another head's output", "head 1 should return, a copy");
  check_named(changed([](auto& o) { o[1].o = MatrixD(o[1].o.rowwise().reverse()); }), 1, "reversed channels",
              "reverse");
  check_named(changed([](auto& o) { o[1].o = MatrixD(o[1].o.colwise().reverse()); }), 1, "permuted rows", "199 - r");
  check_named(changed([](auto& o) { o[1].o = three_heads()[1].v; }), 1, "o = V", "copy of V");
  check_named(changed([](auto& o) { o[1].o *= 448; }), 1, "constant factor", "448 is not divided out");
  check_named(changed([](auto& o) { o[1].o = plain_attention(three_heads()[1], nullptr, false).o; }), 1, "missing 1/l",
              "not divided by the row sum");
  check_named(changed([](auto& o) { o[1].o.col(5) *= 1.5; }), 1, "one wrong scale group", "channel 5");
  check_named(changed([](auto& o) {
                const Eigen::RowVectorXd mean = three_heads()[1].v.colwise().mean();
                o[1].o.rowwise() -= mean;
              }),
              1, "constant row added", "V's mean");
}

TEST_CASE("wrong layouts and a permuted batch are named") {
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  std::vector<PlainOutput> outputs = right;
  for (std::int64_t flat = 0; flat < 3 * 200; ++flat) {
    outputs[static_cast<std::size_t>(flat / 200)].o.row(flat % 200) =
        right[static_cast<std::size_t>(flat % 3)].o.row(flat / 3);
  }
  check_named(verdict(outputs), 1, "transposed layout", "written as NHD and is read as HND");

  for (std::int64_t n = 0; n < 200; ++n) {
    PlainHead token{MatrixD(3, 32), MatrixD(3, 32), MatrixD(3, 32), three_heads()[0].sm_scale};
    for (std::int64_t h = 0; h < 3; ++h) {
      const PlainHead& head = three_heads()[static_cast<std::size_t>(h)];
      token.q.row(h) = head.q.row(n);
      token.k.row(h) = head.k.row(n);
      token.v.row(h) = head.v.row(n);
    }
    const MatrixD o = plain_attention(token).o;
    for (std::int64_t h = 0; h < 3; ++h) outputs[static_cast<std::size_t>(h)].o.row(n) = o.row(h);
  }
  check_named(verdict(outputs), 1, "transposed layout", "attends over the heads");

  const ScratchFolder folder;
  const std::vector<PlainHead> heads = plain_heads(4, 80, 80, 16);
  std::vector<PlainOutput> batches = right_outputs(heads);
  std::swap(batches[0], batches[2]);
  std::swap(batches[1], batches[3]);
  testing::write_kernel_dump(folder / "batch.h5", heads, batches, {}, 2);
  const lab::CheckResult result = check(folder / "batch.h5", relative_to("fa2-fp16"));
  check_named(result, 1, "permuted batch", "batch 1");
}

TEST_CASE("wrong masks are named") {
  const std::vector<PlainHead>& heads = three_heads();
  const io::Attributes is_causal = {{"is_causal", true}};
  check_named(verdict(right_outputs(heads), is_causal), 0, "wrong mask", "no causal mask");
  check_named(verdict(right_outputs(heads, causal(-1)), is_causal), 0, "wrong mask", "one key too narrow");
  std::vector<PlainOutput> strict = right_outputs(heads, causal(-1));
  for (std::size_t h = 0; h < heads.size(); ++h) strict[h].o.row(0) = heads[h].v.row(0);
  check_named(verdict(strict, is_causal), 0, "wrong mask", "unless it is the only one");
  check_named(verdict(right_outputs(heads, causal(1)), is_causal), 0, "wrong mask", "one key too wide");
  check_named(verdict(right_outputs(heads, causal(0))), 0, "wrong mask", "where none belongs");
  const auto sees = [](auto&& visible) {
    return
        [visible](std::int64_t i, std::int64_t j, double score) { return visible(i, j) ? score : -testing::kInfinity; };
  };
  check_named(verdict(right_outputs(heads, sees([](auto i, auto j) { return j >= i; })), is_causal), 1, "wrong mask",
              "transposed");
  check_named(verdict(right_outputs(heads, sees([](auto i, auto j) { return j > i; })), is_causal), 1, "wrong mask",
              "inverted");
  check_named(verdict(right_outputs(heads, sees([](auto i, auto j) { return j <= i && j > i - 37; })), is_causal), 1,
              "wrong mask", "its own key and the 36 before it");
  check_named(verdict(right_outputs(heads, sees([](auto i, auto j) { return std::abs(i - j) < 50; }))), 1, "wrong mask",
              "its own key and the 49 on either side");
  const std::vector<PlainHead> longer = plain_heads(2, 90, 150, 32);
  check_named(verdict(right_outputs(longer, causal(0)),
                      {{"is_causal", true}, {"causal_align", std::string("bottom_right")}}, longer),
              0, "wrong mask", "top-left causal mask used as bottom-right");
  check_named(verdict(right_outputs(longer, causal(60)), is_causal, longer), 0, "wrong mask",
              "bottom-right causal mask used as top-left");
  // 200 keys leave 56 zeros in the last tile of 64: score 0, V 0.
  std::vector<PlainHead> padded = heads;
  for (PlainHead& head : padded) {
    head.k.conservativeResize(256, 32);
    head.v.conservativeResize(256, 32);
    head.k.bottomRows(56).setZero();
    head.v.bottomRows(56).setZero();
  }
  check_named(verdict(right_outputs(padded)), 0, "wrong mask", "56 keys of zeros");
}

TEST_CASE("tiles and scale groups that go wrong in one head are named and located") {
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  const auto with_head = [&](const PlainOutput& output) {
    std::vector<PlainOutput> outputs = right;
    outputs[1] = output;
    return verdict(outputs);
  };
  const PlainHead& head = three_heads()[1];
  check_named(with_head(plain_attention(head, hide(192, 200))), 1, "a dropped last tile", "keys 192 to 199");
  check_named(with_head(plain_attention(head, hide(64, 128))), 1, "a dropped tile", "keys 64 to 127");
  check_named(with_head(plain_attention(head, hide(199, 200))), 1, "a missed key", "the last key, 199");
  check_named(with_head(plain_attention(head, hide(0, 1))), 1, "a missed key", "the first key, 0");
  PlainHead longer = head;
  for (MatrixD* values : {&longer.k, &longer.v}) {
    values->conservativeResize(201, 32);
    values->bottomRows(1).setZero();
  }
  check_named(with_head(plain_attention(longer)), 1, "wrong mask", "one key of zeros behind the last");
  PlainHead skipped = head;
  skipped.v.middleRows(64, 64).setZero();
  check_named(with_head(plain_attention(skipped)), 1, "a skipped tile of P V", "keys 64 to 127 count in the row sum");
  skipped = head;
  skipped.v.bottomRows(8).setZero();
  check_named(with_head(plain_attention(skipped)), 1, "a skipped tile of P V", "keys 192 to 199 count");
  const auto thread_keys = [](std::int64_t, std::int64_t j, double score) {
    return j >= 64 && j < 128 && j % 8 / 2 == 1 ? 1.5 * score : score;
  };
  check_named(with_head(plain_attention(head, thread_keys)), 1, "one wrong scale group", "K's scale there is wrong");
  for (const double factor : {0.93, 1.03, 1.1, 1.2}) {
    CAPTURE(factor);
    const auto slightly = [factor](std::int64_t, std::int64_t j, double score) {
      return j >= 64 && j < 128 ? factor * score : score;
    };
    check_named(with_head(plain_attention(head, slightly)), 1, "one wrong scale group", "scores of keys 64 to 127");
  }
  const auto thread_rows = [](std::int64_t i, std::int64_t, double score) {
    return i >= 32 && i < 64 && i % 8 == 3 ? 2 * score : score;
  };
  check_named(with_head(plain_attention(head, thread_rows)), 1, "one wrong scale group",
              "rows 35, 43, ... 59 (every 8th)");
  PlainHead stale = head;
  stale.v.middleRows(128, 64) = head.v.middleRows(64, 64);
  check_named(with_head(plain_attention(stale)), 1, "stale tile", "keys 128 to 191 meet V of keys 64 to 127");
  stale.k.middleRows(128, 64) = head.k.middleRows(64, 64);
  check_named(with_head(plain_attention(stale)), 1, "stale tile", "meet K and V of keys 64 to 127");
  PlainOutput rows = right[1];
  rows.o.middleRows(64, 64) = right[1].o.topRows(64);
  check_named(with_head(rows), 1, "stale tile", "rows 64 to 127 holds what the row -64 away should");
  rows.o.middleRows(64, 64).setZero();
  check_named(with_head(rows), 1, "unwritten rows", "rows 64 to 127");
  const auto times = [](std::int64_t first, std::int64_t last, double factor, bool keys) {
    return [=](std::int64_t i, std::int64_t j, double score) {
      const std::int64_t at = keys ? j : i;
      return at >= first && at < last ? score * factor : score;
    };
  };
  check_named(with_head(plain_attention(head, times(64, 128, 2, true))), 1, "one wrong scale group",
              "the scores of keys 64 to 127 are 2 times");
  check_named(with_head(plain_attention(head, times(128, 200, 0.5, false))), 1, "one wrong scale group",
              "the scores of rows 128 to 199 are 0.5 times");
  PlainHead scaled = head;
  scaled.v.middleRows(64, 64) *= 3;
  check_named(with_head(plain_attention(scaled)), 1, "one wrong scale group", "V of keys 64 to 127 is 3 times");
  check_named(with_head(plain_attention(head, times(0, 200, std::sqrt(32.0), true))), 1, "wrong softmax scale",
              "sqrt(head_dim) is missing");
}

TEST_CASE("an error that nothing known explains is located, and NaN is counted") {
  std::vector<PlainOutput> outputs = right_outputs(three_heads());
  for (Eigen::Index c = 0; c < 32; ++c) outputs[2].o(17, c) += 0.1 * std::sin(static_cast<double>(3 * c + 1));
  const lab::CheckResult noisy = verdict(outputs);
  CHECK(row_of(noisy, 2)["diagnosis"].is_null());
  CHECK(row_of(noisy, 0)["passed"] == true);
  REQUIRE_FALSE(noisy.details.empty());
  CHECK(contains(noisy.details[0], "row 17 off"));
  outputs[2].o(17, 4) = std::nan("");
  const lab::CheckResult bad = verdict(outputs);
  CHECK(row_of(bad, 2)["nan_count"] == 1);
  CHECK(contains(bad.details[0], "1 NaN and 0 Inf, the first in row 17, channel 4"));
}

namespace {

/// Two heads of a language model: neighbouring rows are alike, scores are large.
const std::vector<PlainHead>& model_heads() {
  static const std::vector<PlainHead> all = real_heads("smollm2_1.h5", "layer_06", 2, 320);
  return all;
}

struct Mistake {
  const char* name;
  const char* detail;
  std::function<void(PlainOutput&, const PlainHead&)> change;  ///< of what a right kernel returns for head 1
};

/// Every mistake in head 1 of outputs that are the recipe's own is named, and the outputs without one pass.
void named_under(const std::string& name, const std::vector<Mistake>& mistakes) {
  const attention::Recipe recipe = lab::with_overrides(lab::load_recipe(name), {{"o_format", "fp16"}});
  const io::Attributes attributes = {{"is_causal", true}, {"sm_scale", model_heads()[0].sm_scale}};
  std::vector<PlainOutput> right;
  for (const PlainHead& head : model_heads()) {
    attention::Problem problem = testing::problem_of(head);
    problem.is_causal = true;
    const attention::Output own = attention::run_recipe(problem, recipe, format::kFP16);
    right.push_back({own.o, own.lse});
  }
  CHECK(verdict(right, attributes, model_heads(), name).passed);
  for (const Mistake& mistake : mistakes) {
    CAPTURE(name, mistake.name, mistake.detail);
    std::vector<PlainOutput> outputs = right;
    mistake.change(outputs[1], model_heads()[1]);
    check_named(verdict(outputs, attributes, model_heads(), name), 1, mistake.name, mistake.detail);
  }
}

/// o times the row sum that the kernel itself has, whose logarithm is lse less its maximum.
void undivided(PlainOutput& output, const PlainHead& head) {
  for (Eigen::Index i = 0; i < output.o.rows(); ++i) {
    double max = -testing::kInfinity;
    for (Eigen::Index j = 0; j <= i; ++j) max = std::max(max, head.sm_scale * head.q.row(i).dot(head.k.row(j)));
    output.o.row(i) *= std::exp(output.lse[static_cast<std::size_t>(i)] - max);
  }
}

void roll(PlainOutput& output, std::int64_t by) {
  const MatrixD o = output.o;
  for (Eigen::Index i = 0; i < o.rows(); ++i) output.o.row((i + by + o.rows()) % o.rows()) = o.row(i);
}

}  // namespace

TEST_CASE("mistakes keep their names under recipes that lose much") {
  for (const char* recipe : {"sage2-8b", "sage2-4b", "sage3-nvfp4", "fa3-fp8"}) {
    named_under(recipe,
                {{"missing 1/l", "not divided by the row sum", undivided},
                 {"negated output", "minus what it should be", [](PlainOutput& o, const PlainHead&) { o.o *= -1; }},
                 {"permuted rows", "row -1 away", [](PlainOutput& o, const PlainHead&) { roll(o, 1); }},
                 {"permuted rows", "row +1 away", [](PlainOutput& o, const PlainHead&) { roll(o, -1); }},
                 {"one wrong scale group", "the scores of keys 64 to 79", [&](PlainOutput& o, const PlainHead& head) {
                    PlainHead wrong = head;
                    wrong.k.middleRows(64, 16) *= 2;
                    attention::Problem problem = testing::problem_of(wrong);
                    problem.is_causal = true;
                    o.o = attention::run_recipe(problem, lab::load_recipe(recipe), format::kFP16).o;
                  }}});
  }
}

TEST_CASE("a top-left mask used as bottom-right keeps its name where all rows see much the same keys") {
  std::vector<PlainHead> heads = real_heads("kwt1_qkv.h5", "layer_0[01]", 1, 99);
  for (PlainHead& head : heads) head.q = MatrixD(head.q.bottomRows(35));
  for (const char* name : {"sage2-8b", "sage3-nvfp4"}) {
    const attention::Recipe recipe = lab::with_overrides(lab::load_recipe(name), {{"o_format", "fp16"}});
    std::vector<PlainOutput> outputs;
    for (const PlainHead& head : heads) {
      attention::Problem problem = testing::problem_of(head);
      problem.is_causal = true;
      outputs.push_back({attention::run_recipe(problem, recipe, format::kFP16).o, {}});
    }
    const io::Attributes attributes = {
        {"is_causal", true}, {"causal_align", std::string("bottom_right")}, {"sm_scale", heads[0].sm_scale}};
    CAPTURE(name);
    check_named(verdict(outputs, attributes, heads, name), 1, "wrong mask",
                "top-left causal mask used as bottom-right");
  }
}
