// check_dump: right outputs pass, limits are worth something, bit mode, and what is refused.
#include <cmath>
#include <set>

#include "apps/checked_dump.h"
#include "attention/pipeline.h"
#include "base/error.h"
#include "lab/relative_limit.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using testing::causal;
using testing::check;
using testing::kInfinity;
using testing::plain_attention;
using testing::plain_heads;
using testing::PlainHead;
using testing::PlainOutput;
using testing::recorded_dump;
using testing::relative_to;
using testing::right_outputs;
using testing::row_of;
using testing::three_heads;
using testing::vectors;
using testing::verdict;

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
  CHECK(full.rows[6]["mismatches"].is_null());
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
    attention::Problem problem = testing::problem_of(head);
    problem.is_causal = true;
    problem.causal_align = attention::CausalAlign::bottom_right;
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

TEST_CASE("a limit that zeros or permuted outputs would pass fails the check, though the output is right") {
  const ScratchFolder folder;
  testing::write_kernel_dump(folder / "dump.h5", three_heads(), right_outputs(three_heads()));
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  options.factor = 1e6;
  const lab::CheckResult result = check(folder / "dump.h5", options);
  CHECK_FALSE(result.passed);
  REQUIRE_FALSE(result.details.empty());
  CHECK(contains(result.details[0], "an output of zeros would pass"));
  CHECK_FALSE(contains(result.details[0], "mistake"));
  CHECK(result.rows[0]["diagnosis"].is_null());

  const MatrixD reference = testing::random_matrix(1, 20, 8);
  const lab::RelativeLimit tight{0.1, 0.1}, wide{10, 10};
  CHECK(lab::guard(reference, tight, tight, format::kFP16).empty());
  CHECK_FALSE(lab::guard(reference, wide, wide, format::kFP16).empty());
  CHECK(lab::rows_in_reverse_pass(reference, wide, wide, format::kFP16));
  CHECK_FALSE(lab::rows_in_reverse_pass(reference, tight, tight, format::kFP16));
  CHECK_FALSE(lab::rows_in_reverse_pass(MatrixD::Constant(20, 8, 1.0), wide, wide, format::kFP16));
  // An output that hardly varies passes permuted under any sensible limit; under one that is ten times as wide, too.
  const MatrixD flat = MatrixD::Constant(20, 8, 1.0) + 0.01 * reference;
  const lab::RelativeLimit usual{0.05, 0.2}, ten{0.5, 2}, fine{0.001, 0.004};
  CHECK(lab::guard(flat, usual, usual, format::kFP16).empty());
  CHECK(lab::guard(flat, ten, fine, format::kFP16) == "an output with its channels in reverse");
  CHECK(lab::rows_in_reverse_pass(flat, ten, fine, format::kFP16));
  CHECK_FALSE(lab::rows_in_reverse_pass(flat, usual, usual, format::kFP16));
}

TEST_CASE("a right output whose V hardly varies passes, with a fine recipe and with a noisy one") {
  std::vector<PlainHead> heads = plain_heads(2, 150, 150, 32);
  for (PlainHead& head : heads) {
    for (Eigen::Index i = 0; i < head.v.size(); ++i)
      head.v.data()[i] = 1 + std::ldexp(std::round(8 * head.v.data()[i]), -10);
  }
  for (const char* recipe : {"fa2-fp16", "sage2-8b"}) {
    CAPTURE(recipe);
    const lab::CheckResult result = verdict(right_outputs(heads), {}, heads, recipe);
    CAPTURE(result.details);
    CHECK(row_of(result, 0)["passed"] == true);
    CHECK(result.rows.back()["passed"] == true);
  }
}

TEST_CASE("an --ulp so large that zeros, doubled or permuted outputs would pass fails a right output") {
  const ScratchFolder folder;
  const PlainHead& head = three_heads()[0];
  const attention::Problem problem = testing::problem_of(head);
  const PlainOutput own{attention::run_recipe(problem, lab::load_recipe("fa2-fp16"), format::kFP16).o, {}};
  testing::write_kernel_dump(folder / "own.h5", {head}, {own});
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  for (const std::uint64_t ulp : {std::uint64_t{3}, std::uint64_t{500}}) {
    options.ulp = ulp;
    CHECK(check(folder / "own.h5", options).passed);
  }
  for (const auto& [ulp, passing] : {std::pair<std::uint64_t, const char*>(1100, "an output twice as large"),
                                     {40000, "an output of zeros"},
                                     {std::numeric_limits<std::uint64_t>::max() - 1, "an output of zeros"}}) {
    CAPTURE(ulp);
    options.ulp = ulp;
    const lab::CheckResult result = check(folder / "own.h5", options);
    CHECK_FALSE(result.passed);
    REQUIRE(result.details.size() == 1);
    CHECK(contains(result.details[0], passing));
  }
  const MatrixD target = testing::random_matrix(2, 40, 16);
  CHECK(lab::ulp_guard(target, 4, format::kFP16).empty());
  CHECK_FALSE(lab::rows_in_reverse_pass(target, std::uint64_t{4}, format::kFP16));
  CHECK(lab::rows_in_reverse_pass(target, std::uint64_t{60000}, format::kFP16));
  // In bit mode the replay is the target.
  const std::string path = recorded_dump(folder, "sdpa_vectors.h5", "s6", "efficient");
  lab::DumpCheckOptions bits;
  bits.kernel = "aten._scaled_dot_product_efficient_attention";
  bits.ulp = 1;
  CHECK(check(path, bits).passed);
  bits.ulp = 40000;
  const lab::CheckResult wide = check(path, bits);
  CHECK_FALSE(wide.passed);
  CHECK(contains(wide.details.at(0), "--ulp 40000 is worth nothing: an output of zeros would pass"));
}

TEST_CASE("in ulp mode each element is compared with the recipe's output") {
  const ScratchFolder folder;
  const PlainHead& head = three_heads()[0];
  attention::Recipe recipe = lab::load_recipe("fa2-fp16");
  const attention::Problem problem = testing::problem_of(head);
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
  const lab::CheckResult without = check(folder / "tiny.h5", relative_to("exact"));
  CHECK(without.rows.empty());
  CHECK(without.status() == 3);
  CHECK(contains(io::testing::message_of([&] { lab::require_comparison(without); }), "holds no 'o'"));
  lab::DumpCheckOptions options;
  options.kernel = "no_such_kernel";
  testing::write_kernel_dump(folder / "dump.h5", three_heads(), right_outputs(three_heads()));
  CHECK(contains(io::testing::message_of([&] { check(folder / "dump.h5", options); }, ErrorKind::usage),
                 "no_such_kernel"));
  for (const double limit : {std::nan(""), kInfinity, -1.0}) {
    lab::DumpCheckOptions wrong = relative_to("exact");
    wrong.factor = limit;
    CHECK_FALSE(io::testing::message_of([&] { check(folder / "dump.h5", wrong); }, ErrorKind::usage).empty());
    wrong.factor = 2;
    wrong.lse_tolerance = limit;
    CHECK_FALSE(io::testing::message_of([&] { check(folder / "dump.h5", wrong); }, ErrorKind::usage).empty());
  }
  for (const char* text : {"", "10", "no-mean", "e,base", "e,2"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(lab::parse_lse_convention(text), Error);
  }
}

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
  // Inputs that are quantized already are taken as they are, so the lse is the kernel's own.
  for (const char* name : {"a_h2n256d64", "b_h2n256d128", "g_h2q100k1000d64c", "x_h1n700d256"}) {
    passes("fa3_vectors.h5", name, "flash_attention_3", relative_to("fa3-fp8"));
  }
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

TEST_CASE("one call without o, or one that the kernel cannot take, does not keep the others from being checked") {
  const ScratchFolder folder;
  const auto write = [&](const std::string& path, const io::Attributes& second) {
    const std::vector<PlainOutput> outputs = right_outputs(three_heads());
    const auto tensors = [&](MatrixD PlainHead::*field) {
      std::vector<MatrixD> all;
      for (const PlainHead& head : three_heads()) all.push_back(head.*field);
      return testing::tensor_of(all, format::kFP16);
    };
    io::DumpWriter writer(path, {});
    for (const char* call : {"a", "b", "c"}) {
      writer.begin_call(call, call[0] == 'b' ? second : io::Attributes{});
      writer.write(call, "q", tensors(&PlainHead::q));
      writer.write(call, "k", tensors(&PlainHead::k));
      writer.write(call, "v", tensors(&PlainHead::v));
      if (call[0] == 'b' && second.empty()) continue;
      std::vector<MatrixD> o;
      for (const PlainOutput& output : outputs) o.push_back(output.o);
      writer.write(call, "o", testing::tensor_of(o, call[0] == 'b' ? format::kFP32 : format::kFP16));
    }
    writer.commit();
  };
  write(folder / "some.h5", {});
  const lab::CheckResult some = check(folder / "some.h5", relative_to("fa2-fp16"));
  CHECK(some.passed);
  CHECK(some.status() == 3);
  CHECK(some.rows.size() == 8);
  REQUIRE(some.errors.size() == 1);
  CHECK(some.errors[0].name == "b");
  CHECK(some.errors[0].file == folder / "some.h5");
  // In bit mode an o of another type is such a call, and the message says what it looks like.
  write(folder / "wide.h5", {{"sm_scale", 0.25}});
  lab::DumpCheckOptions bits;
  bits.kernel = "aten._scaled_dot_product_efficient_attention";
  const lab::CheckResult wide = check(folder / "wide.h5", bits);
  REQUIRE(wide.errors.size() == 1);
  CHECK(contains(wide.errors[0].reason, "is float32"));
  CHECK(wide.rows.size() == 6);
}

TEST_CASE("an o of 16 bits that was stored as float32 fails with a hint, in every mode") {
  const ScratchFolder folder;
  const io::RecordedCase recorded = io::VectorReader(vectors("sdpa_vectors.h5")).recorded("s6");
  const Tensor& o = recorded.kernels[1].tensors.at("o");
  Tensor wide = make_tensor(format::kFP32, o.shape);
  for (std::int64_t i = 0; i < o.elements(); ++i) {
    wide.set_code(i, format::encode(format::kFP32, format::decode(*o.format, o.code(i)), {}));
  }
  io::DumpWriter writer(folder / "wide.h5", recorded.attributes);
  writer.begin_call("s6");
  for (const char* input : {"q", "k", "v"}) writer.write("s6", input, recorded.tensor(input));
  writer.write("s6", "o", wide);
  writer.commit();
  const std::string hint = "every value of it is one of float16";
  lab::DumpCheckOptions bits;
  bits.kernel = "aten._scaled_dot_product_efficient_attention";
  CHECK(contains(check(folder / "wide.h5", bits).errors.at(0).reason, hint));
  lab::DumpCheckOptions ulp = relative_to("fa2-fp16");
  ulp.ulp = 1;
  CHECK(contains(check(folder / "wide.h5", ulp).details.at(0), hint));
}

TEST_CASE("NaN against a number has no distance in units in the last place, and the sentence stands in the row") {
  const ScratchFolder folder;
  std::vector<PlainOutput> outputs = right_outputs(three_heads());
  outputs[1].o(3, 4) = std::nan("");
  testing::write_kernel_dump(folder / "nan.h5", three_heads(), outputs);
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  options.ulp = 2;
  const lab::CheckResult result = check(folder / "nan.h5", options);
  const lab::Json& row = row_of(result, 1);
  CHECK(row["max_ulp"].is_null());
  CHECK(row["passed"] == false);
  CHECK(contains(row["reason"].get<std::string>(), "NaN among them"));
  const lab::CheckResult relative = check(folder / "nan.h5", relative_to("fa2-fp16"));
  CHECK(row_of(relative, 0)["reason"].is_null());
  CHECK(contains(row_of(relative, 1)["reason"].get<std::string>(), "o has 1 NaN and 0 Inf"));
}
