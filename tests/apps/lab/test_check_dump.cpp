// check_dump: right outputs pass, each deliberately broken one fails and is named.
#include <algorithm>
#include <set>

#include "apps/kernel_dump.h"
#include "attention/pipeline.h"
#include "base/error.h"
#include "io/vectors.h"
#include "lab/check_dump.h"
#include "lab/recipe_file.h"
#include "lab/relative_limit.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using testing::causal;
using testing::plain_attention;
using testing::plain_heads;
using testing::PlainHead;
using testing::PlainOutput;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

lab::DumpCheckOptions relative_to(const std::string& recipe) {
  lab::DumpCheckOptions options;
  options.recipe = lab::load_recipe(recipe);
  return options;
}

lab::CheckResult check(const std::string& path, const lab::DumpCheckOptions& options) {
  return lab::check_dump(lab::DumpSet({{path}, "", std::nullopt}), options);
}

std::vector<PlainOutput> right_outputs(const std::vector<PlainHead>& heads,
                                       const testing::ScoreChange& mask = nullptr) {
  std::vector<PlainOutput> outputs;
  for (const PlainHead& head : heads) outputs.push_back(plain_attention(head, mask));
  return outputs;
}

/// Three heads of 200 tokens: ragged in every tile size, and small enough to be quick.
const std::vector<PlainHead>& three_heads() {
  static const std::vector<PlainHead> heads = plain_heads(3, 200, 200, 32);
  return heads;
}

/// The verdict on `outputs` for three_heads() under fa2-fp16.
lab::CheckResult verdict(const std::vector<PlainOutput>& outputs, const io::Attributes& attributes = {},
                         const std::vector<PlainHead>& heads = three_heads()) {
  const ScratchFolder folder;
  testing::write_kernel_dump(folder / "dump.h5", heads, outputs, attributes);
  return check(folder / "dump.h5", relative_to("fa2-fp16"));
}

const lab::Json& row_of(const lab::CheckResult& result, std::int64_t head, std::string_view output = "o") {
  const auto found = std::find_if(result.rows.begin(), result.rows.end(),
                                  [&](const lab::Json& row) { return row["head"] == head && row["output"] == output; });
  REQUIRE(found != result.rows.end());
  return *found;
}

/// The head fails, is named, and the sentence says `detail`.
void check_named(const lab::CheckResult& result, std::int64_t head, const std::string& name,
                 const std::string& detail) {
  CAPTURE(name, detail, result.details);
  CHECK_FALSE(result.passed);
  const lab::Json& row = row_of(result, head);
  CHECK(row["passed"] == false);
  CHECK(row["mismatches"].get<std::uint64_t>() > 0);
  CHECK(row["diagnosis"] == name);
  CHECK(std::any_of(result.details.begin(), result.details.end(), [&](const std::string& text) {
    return contains(text, "head " + std::to_string(head) + ": o:") && contains(text, detail);
  }));
}

testing::ScoreChange hide(std::int64_t first, std::int64_t last) {
  return [=](std::int64_t, std::int64_t j, double score) { return j >= first && j < last ? -kInfinity : score; };
}

}  // namespace

TEST_CASE("right outputs pass: full and causal, base e and base 2, all heads and the call") {
  std::vector<PlainOutput> outputs = right_outputs(three_heads());
  const lab::CheckResult full = verdict(outputs);
  CAPTURE(full.details);
  CHECK(full.passed);
  REQUIRE(full.rows.size() == 7);
  CHECK(full.rows[0]["kind"] == "dump");
  CHECK(full.rows[0]["rel_l1"].get<double>() < 4e-4);
  CHECK(full.rows[1]["convention"] == "base e");
  CHECK(full.rows[6]["head"].is_null());
  for (PlainOutput& output : outputs) {
    for (double& x : output.lse) x *= std::log2(std::exp(1.0));
  }
  const lab::CheckResult base2 = verdict(outputs);
  CHECK(base2.passed);
  CHECK(base2.rows[1]["convention"] == "base 2");
  CHECK(verdict(right_outputs(three_heads(), causal(0)), {{"is_causal", true}}).passed);
}

TEST_CASE("a recipe's own output passes, and a call over grouped heads with rows that see no key does") {
  const ScratchFolder folder;
  const std::vector<PlainHead> heads = plain_heads(2, 150, 90, 32);
  const attention::Recipe recipe = lab::load_recipe("sage2-8b");
  std::vector<PlainOutput> outputs;
  for (const PlainHead& head : heads) {
    attention::Problem problem{head.q, head.k, head.v, head.sm_scale, true, attention::CausalAlign::bottom_right, {}};
    const attention::Output output = attention::run_recipe(problem, recipe, format::kFP16);
    outputs.push_back({output.o, output.lse});
  }
  REQUIRE(outputs[0].lse[0] == -kInfinity);
  testing::write_kernel_dump(folder / "own.h5", heads, outputs,
                             {{"is_causal", true}, {"causal_align", std::string("bottom_right")}});
  const lab::CheckResult result = check(folder / "own.h5", relative_to("sage2-8b"));
  CAPTURE(result.details);
  CHECK(result.passed);
}

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
  check_named(changed([](auto& o) { o[2].o = o[1].o; }), 2, "another head's output", "head 1");
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
  check_named(verdict(right_outputs(heads, causal(1)), is_causal), 0, "wrong mask", "one key too wide");
  check_named(verdict(right_outputs(heads, causal(0))), 0, "wrong mask", "where none belongs");
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

TEST_CASE("lse conventions are told apart, one head in another fails, and a demanded one is enforced") {
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  std::vector<std::vector<double>> shift;
  for (const PlainHead& head : three_heads()) {
    const Eigen::RowVectorXd mean = head.k.colwise().mean();
    shift.emplace_back();
    for (Eigen::Index i = 0; i < head.q.rows(); ++i) shift.back().push_back(head.sm_scale * head.q.row(i).dot(mean));
  }
  const double log2e = std::log2(std::exp(1.0));
  const auto converted = [&](bool base2, bool no_mean, double p_scale) {
    std::vector<PlainOutput> outputs = right;
    for (std::size_t h = 0; h < 3; ++h) {
      for (std::size_t i = 0; i < 200; ++i) {
        double& x = outputs[h].lse[i];
        x = (x - (no_mean ? shift[h][i] : 0) + std::log(p_scale)) * (base2 ? log2e : 1);
      }
    }
    return outputs;
  };
  const auto convention = [&](const std::vector<PlainOutput>& outputs) {
    const lab::CheckResult result = verdict(outputs);
    CAPTURE(result.details);
    CHECK(result.passed);
    return row_of(result, 2, "lse")["convention"].get<std::string>();
  };
  CHECK(convention(converted(false, true, 1)) == "base e without the K-mean shift");
  CHECK(convention(converted(true, true, 1)) == "base 2 without the K-mean shift");
  CHECK(convention(converted(false, false, 448)) == "base e with log of the P scale 448");
  CHECK(convention(converted(true, true, 127)) == "base 2 without the K-mean shift, with log2 of the P scale 127");

  std::vector<PlainOutput> mixed = right;
  mixed[1].lse = converted(true, false, 1)[1].lse;
  const lab::CheckResult one_head = verdict(mixed);
  CHECK_FALSE(one_head.passed);
  CHECK(row_of(one_head, 0, "lse")["passed"] == true);
  CHECK(row_of(one_head, 1, "lse")["passed"] == false);
  CHECK(row_of(one_head, 1, "lse")["diagnosis"] == "LSE in base 2");

  const ScratchFolder folder;
  testing::write_kernel_dump(folder / "base2.h5", three_heads(), converted(true, false, 1));
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  options.lse_demanded = lab::parse_lse_convention("e");
  const lab::CheckResult demanded = check(folder / "base2.h5", options);
  CHECK_FALSE(demanded.passed);
  CHECK(row_of(demanded, 0, "lse")["diagnosis"] == "LSE in base 2");
  options.lse_demanded = lab::parse_lse_convention("2");
  CHECK(check(folder / "base2.h5", options).passed);

  std::vector<PlainOutput> off = right;
  off[0].lse[7] += 3e-4;
  const lab::CheckResult wrong = verdict(off);
  CHECK(row_of(wrong, 0, "lse")["mismatches"] == 1);
  CHECK(row_of(wrong, 0, "lse")["first"]["index"] == lab::Json({0, 0, 7}));
}

TEST_CASE("a limit that zeros or permuted outputs would pass fails the check, though the output is right") {
  const ScratchFolder folder;
  testing::write_kernel_dump(folder / "dump.h5", three_heads(), right_outputs(three_heads()));
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  options.factor = 1e6;
  const lab::CheckResult result = check(folder / "dump.h5", options);
  CHECK_FALSE(result.passed);
  REQUIRE_FALSE(result.details.empty());
  CHECK(contains(result.details[0], "an output of zeros would pass"));

  const MatrixD reference = testing::random_matrix(1, 20, 8);
  const lab::RelativeLimit tight{0.1, 0.1}, wide{10, 10};
  CHECK(lab::guard(reference, tight, format::kFP16).empty());
  CHECK_FALSE(lab::guard(reference, wide, format::kFP16).empty());
  CHECK(lab::rows_in_reverse_pass(reference, wide, format::kFP16));
  CHECK_FALSE(lab::rows_in_reverse_pass(reference, tight, format::kFP16));
  CHECK_FALSE(lab::rows_in_reverse_pass(MatrixD::Constant(20, 8, 1.0), wide, format::kFP16));
}

TEST_CASE("in ulp mode each element is compared with the recipe's output") {
  const ScratchFolder folder;
  const PlainHead& head = three_heads()[0];
  attention::Recipe recipe = lab::load_recipe("fa2-fp16");
  const attention::Problem problem{head.q, head.k, head.v, head.sm_scale, false, {}, {}};
  PlainOutput own{attention::run_recipe(problem, recipe, format::kFP16).o, {}};
  testing::write_kernel_dump(folder / "own.h5", {head}, {own});
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  options.ulp = 0;
  CHECK(check(folder / "own.h5", options).passed);
  own.o(3, 5) *= 1.01;
  testing::write_kernel_dump(folder / "off.h5", {head}, {own});
  const lab::CheckResult off = check(folder / "off.h5", options);
  CHECK_FALSE(off.passed);
  CHECK(off.rows[0]["mismatches"] == 1);
  CHECK(off.rows[0]["first"]["index"] == lab::Json({0, 0, 3, 5}));
}

TEST_CASE("a call without o, an unknown kernel and a bad convention are refused") {
  const ScratchFolder folder;
  testing::write_tiny_dump(folder / "tiny.h5", {"c"});
  CHECK(contains(io::testing::message_of([&] { check(folder / "tiny.h5", relative_to("exact")); }), "holds no 'o'"));
  lab::DumpCheckOptions options;
  options.kernel = "no_such_kernel";
  testing::write_kernel_dump(folder / "dump.h5", three_heads(), right_outputs(three_heads()));
  CHECK(contains(io::testing::message_of([&] { check(folder / "dump.h5", options); }, ErrorKind::usage),
                 "no_such_kernel"));
  for (const char* text : {"", "10", "no-mean", "e,base", "e,2"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(lab::parse_lse_convention(text), Error);
  }
}

namespace {

std::string vectors(const std::string& name) { return std::string(QATTN_SOURCE_DIR) + "/data/vectors/" + name; }

/// What a kernel returned on a GPU, as a dump.
std::string recorded_dump(const ScratchFolder& folder, const std::string& file, const std::string& name,
                          const std::string& kernel) {
  const io::RecordedCase recorded = io::VectorReader(vectors(file)).recorded(name);
  const auto found = std::find_if(recorded.kernels.begin(), recorded.kernels.end(),
                                  [&](const io::RecordedKernel& each) { return each.name == kernel; });
  REQUIRE(found != recorded.kernels.end());
  io::Attributes attributes = io::override_attributes(recorded.attributes, found->attributes);
  attributes.erase("layout");
  const std::string path = folder / (name + kernel + ".h5");
  io::DumpWriter writer(path, attributes);
  writer.begin_call(name);
  for (const char* input : {"q", "k", "v"}) writer.write(name, input, recorded.tensor(input));
  for (const char* output : {"o", "lse"}) writer.write(name, output, found->tensors.at(output));
  writer.commit();
  return path;
}

}  // namespace

TEST_CASE("what kernels returned on an H200 passes against the recipe of their arithmetic") {
  const ScratchFolder folder;
  const auto passes = [&](const std::string& file, const std::string& name, const std::string& kernel,
                          lab::DumpCheckOptions options) {
    CAPTURE(name, kernel);
    const lab::CheckResult result = check(recorded_dump(folder, file, name, kernel), options);
    CAPTURE(result.details);
    CHECK(result.passed);
  };
  lab::DumpCheckOptions fp16 = relative_to("fa2-fp16"), bf16 = fp16;
  bf16.recipe = lab::with_overrides(*bf16.recipe, {{"qk_format", "bf16"}, {"pv_format", "bf16"}});
  passes("fa2_vectors.h5", "fa2_0", "flash_attention_2", fp16);
  passes("fa2_vectors.h5", "fa2_1", "flash_attention_2", bf16);
  passes("sdpa_vectors.h5", "s0", "cudnn", fp16);
  passes("sdpa_vectors.h5", "s0", "efficient", fp16);
  passes("sdpa_vectors.h5", "s1", "cudnn", bf16);
  passes("fa3_vectors.h5", "fp16_h2n333d64", "flash_attention_3", fp16);
  // An INT8 kernel's lse is off float64 by more than 1e-4, as its recipe's is.
  lab::DumpCheckOptions sage = relative_to("sage2-8b");
  const std::string path = recorded_dump(folder, "kernel_vectors_1.h5", "c0", "sm90_fp8_per_thread");
  const lab::CheckResult strict = check(path, sage);
  CHECK(row_of(strict, 0)["passed"] == true);
  CHECK(row_of(strict, 1)["passed"] == true);
  CHECK(row_of(strict, 0, "lse")["passed"] == false);
  CHECK(contains(strict.details.front(), "--lse-tolerance"));
  sage.lse_tolerance = 0.005;
  CHECK(check(path, sage).passed);
}

TEST_CASE("what other attention functions returned, which nothing replays, passes in relative mode") {
  const lab::CheckResult result = check(vectors("pytorch_cpu_attention.h5"), relative_to("fa2-fp16"));
  CAPTURE(result.details);
  CHECK(result.passed);
  std::set<std::string> calls;
  for (const lab::Json& row : result.rows) calls.insert(row["case"].get<std::string>());
  CHECK(calls == std::set<std::string>{"flex_attention", "sdpa_flash_for_cpu", "sdpa_math"});
}

TEST_CASE("in bit mode the recorded output is the replay's, and one changed code is found with its row's stages") {
  const ScratchFolder folder;
  lab::DumpCheckOptions options;
  options.kernel = "aten._scaled_dot_product_efficient_attention";
  const std::string path = recorded_dump(folder, "sdpa_vectors.h5", "s6", "efficient");
  const lab::CheckResult exact = check(path, options);
  CAPTURE(exact.details);
  CHECK(exact.passed);
  CHECK(exact.rows[0]["mismatches"] == 0);
  const io::RecordedCase recorded = io::VectorReader(vectors("sdpa_vectors.h5")).recorded("s6");
  Tensor o = recorded.kernels[1].tensors.at("o");
  const std::int64_t index = (1 * 256 + 40) * 128 + 7;
  o.set_code(index, o.code(index) ^ 2);
  io::DumpWriter writer(folder / "changed.h5", recorded.attributes);
  writer.begin_call("s6");
  for (const char* input : {"q", "k", "v"}) writer.write("s6", input, recorded.tensor(input));
  writer.write("s6", "o", o);
  writer.commit();
  const lab::CheckResult changed = check(folder / "changed.h5", options);
  CHECK_FALSE(changed.passed);
  const lab::Json& row = row_of(changed, 1);
  CHECK(row["mismatches"] == 1);
  CHECK(row["max_ulp"] == 2);
  CHECK(row["first"]["index"] == lab::Json({0, 1, 40, 7}));
  CHECK(row_of(changed, 0)["passed"] == true);
  REQUIRE(changed.details.size() == 1);
  CHECK(contains(changed.details[0], "stages of batch 0, head 1, row 40"));
  options.ulp = 2;
  CHECK(check(folder / "changed.h5", options).passed);
}

TEST_CASE("what a recorded kernel does differently from the recipe is recognised") {
  const ScratchFolder folder;
  lab::DumpCheckOptions options = relative_to("sage2-8b");
  options.explain = true;
  const auto explained = [&](const std::string& kernel, const lab::Override& change) {
    lab::DumpCheckOptions changed = options;
    if (!change.first.empty()) changed.recipe = lab::with_overrides(*options.recipe, {change});
    const lab::CheckResult result = check(recorded_dump(folder, "kernel_vectors_1.h5", "c0", kernel), changed);
    return result.remarks.empty() ? std::string() : result.remarks.front();
  };
  CHECK(contains(explained("sm90_fp8_per_warp", {}), "looks like per-warp scales"));
  CHECK(contains(explained("sm90_fp8_per_thread", {"smoothing", "none"}), "looks like smoothing of K alone"));
}
