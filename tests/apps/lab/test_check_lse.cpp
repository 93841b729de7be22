// check_dump: the conventions of an lse, and what wrong ones are called.
#include <algorithm>
#include <cmath>

#include "apps/checked_dump.h"
#include "attention/pipeline.h"

using namespace qattn;
using io::testing::contains;
using io::testing::ScratchFolder;
using testing::check;
using testing::PlainHead;
using testing::PlainOutput;
using testing::relative_to;
using testing::right_outputs;
using testing::row_of;
using testing::three_heads;
using testing::verdict;

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

TEST_CASE("a wrong lse is named, and its o stays right") {
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  const auto named = [&](const std::string& name, const std::string& detail, const auto& change) {
    CAPTURE(name);
    std::vector<PlainOutput> outputs = right;
    change(outputs);
    const lab::CheckResult result = verdict(outputs);
    CAPTURE(result.details);
    CHECK_FALSE(result.passed);
    CHECK(row_of(result, 1)["passed"] == true);
    const lab::Json& row = row_of(result, 1, "lse");
    CHECK(row["passed"] == false);
    CHECK(row["diagnosis"] == name);
    CHECK(contains(row["reason"].get<std::string>(), detail));
  };
  const auto each = [](const auto& change) {
    return [change](std::vector<PlainOutput>& outputs) {
      for (PlainOutput& output : outputs) {
        for (double& x : output.lse) x = change(x);
      }
    };
  };
  named("LSE all zeros", "zero everywhere", each([](double) { return 0.0; }));
  named("unwritten LSE rows", "zero in rows 64 to 127",
        [](auto& o) { std::fill(o[1].lse.begin() + 64, o[1].lse.begin() + 128, 0.0); });
  named("NaN in lse", "NaN in row 17", [](auto& o) { o[1].lse[17] = std::nan(""); });
  named("Inf in lse", "row 17, which see keys", [](auto& o) { o[1].lse[17] = testing::kInfinity; });
  named("LSE negated", "minus what it should be", each([](double x) { return -x; }));
  named("LSE in base 10", "base 10", each([](double x) { return x / std::log(10.0); }));
  named("constant added to LSE", "+1 from what", each([](double x) { return x + 1; }));
  named("constant factor of LSE", "1.5 times", each([](double x) { return 1.5 * x; }));
  named("LSE of two heads swapped", "that of head 2", [](auto& o) { std::swap(o[1].lse, o[2].lse); });
  named("LSE of another head", "that of head 0", [](auto& o) { o[1].lse = o[0].lse; });
  named("permuted LSE rows", "reverse order", [](auto& o) { std::reverse(o[1].lse.begin(), o[1].lse.end()); });
  named("transposed LSE layout", "written as [tokens, heads]", [&](auto& o) {
    for (std::size_t flat = 0; flat < 600; ++flat) o[flat / 200].lse[flat % 200] = right[flat % 3].lse[flat / 3];
  });
  const auto maximum = [](std::size_t head, std::size_t row) {
    const PlainHead& h = three_heads()[head];
    return (h.sm_scale * h.q.row(static_cast<Eigen::Index>(row)) * h.k.transpose()).maxCoeff();
  };
  const auto with_maximum = [&](const auto& change) {
    return [&, change](std::vector<PlainOutput>& o) {
      for (std::size_t h = 0; h < 3; ++h) {
        for (std::size_t i = 0; i < 200; ++i) o[h].lse[i] = change(o[h].lse[i], maximum(h, i));
      }
    };
  };
  named("LSE without the sum", "the row maximum", with_maximum([](double, double max) { return max; }));
  named("LSE without the maximum", "not added back", with_maximum([](double x, double max) { return x - max; }));
  named("row sum in place of LSE", "its logarithm was not taken",
        with_maximum([](double x, double max) { return std::exp(x - max); }));
  named("rounded LSE", "one of bfloat16",
        each([](double x) { return format::decode(format::kBF16, format::encode(format::kBF16, x, {})); }));
}

TEST_CASE("an lse with the errors of its recipe is not named after a mistake that changes less") {
  std::vector<PlainOutput> outputs = right_outputs(three_heads());
  // More than the tolerance in one row, less than what INT8 scores lose; no mask is there to be forgotten.
  outputs[1].lse[17] += 3e-4;
  const lab::CheckResult result = verdict(outputs);
  const lab::Json& row = row_of(result, 1, "lse");
  CHECK(row["passed"] == false);
  CHECK(row["diagnosis"].is_null());
}

TEST_CASE("a tolerance under which a wrong lse would pass fails the check, though the lse is right") {
  const io::testing::ScratchFolder folder;
  const std::vector<PlainOutput> right = right_outputs(three_heads());
  testing::write_kernel_dump(folder / "dump.h5", three_heads(), right);
  lab::DumpCheckOptions options = relative_to("fa2-fp16");
  const auto reason = [&](double tolerance) {
    options.lse_tolerance = tolerance;
    const lab::CheckResult result = check(folder / "dump.h5", options);
    CHECK(row_of(result, 1)["passed"] == true);
    const lab::Json& row = row_of(result, 1, "lse");
    CHECK(row["passed"] == row["reason"].is_null());
    return row["reason"].is_null() ? std::string() : row["reason"].template get<std::string>();
  };
  for (const double tolerance : {0.0005, 0.005}) CHECK(reason(tolerance).empty());
  CHECK(contains(reason(0.3), "the tolerance 0.3 is worth nothing: an lse in "));
  options.lse_demanded = lab::parse_lse_convention("e");
  CHECK(reason(0.3).empty());
  CHECK(contains(reason(1.5), "an lse that is larger by one would pass"));
  CHECK(contains(reason(100), "an lse of zeros would pass"));
}

TEST_CASE("an lse that the tolerance refuses says whether its recipe is as far off, and what tolerance would do") {
  const io::testing::ScratchFolder folder;
  const std::vector<PlainHead> heads = testing::plain_heads(2, 200, 200, 32);
  std::vector<PlainOutput> outputs = right_outputs(heads);
  const auto reason = [&](const std::string& recipe, double error, double tolerance = 1e-4) {
    std::vector<PlainOutput> off = outputs;
    for (PlainOutput& output : off) {
      for (std::size_t i = 0; i < output.lse.size(); i += 3) output.lse[i] += i % 2 == 0 ? error : -error;
    }
    testing::write_kernel_dump(folder / "off.h5", heads, off);
    lab::DumpCheckOptions options = relative_to(recipe);
    options.lse_tolerance = tolerance;
    const lab::Json row = row_of(check(folder / "off.h5", options), 1, "lse");
    return row["reason"].is_null() ? std::string() : row["reason"].get<std::string>();
  };
  // INT4 loses a few hundredths here, FP4 more; FP16 next to nothing.
  for (const char* recipe : {"sage2-4b", "sage3-nvfp4"}) {
    CAPTURE(recipe);
    const std::string text = reason(recipe, 0.0612);
    CAPTURE(text);
    CHECK(contains(text, "an error of that size: it may come from the recipe's arithmetic"));
    CHECK(contains(text, "--lse-tolerance 0.062 would let all heads of the call with a right o pass"));
    CHECK(reason(recipe, 0.0612, 0.062).empty());
  }
  const std::string fine = reason("fa2-fp16", 0.00213);
  CAPTURE(fine);
  CHECK(contains(fine, "the recipe's arithmetic does not explain it; --lse-tolerance 0.0022 would let"));
  CHECK(reason("fa2-fp16", 0.00213, 0.0022).empty());
  CHECK(contains(reason("fa2-fp16", 1.7), "no --lse-tolerance that would let it pass is worth anything"));
}

TEST_CASE("an lse off by a constant or a factor is named under recipes that smooth K, with its mean and without") {
  const std::vector<PlainHead>& heads = three_heads();
  for (const char* name : {"sage2-8b", "sage2-4b", "sage3-nvfp4"}) {
    const attention::Recipe recipe = lab::with_overrides(lab::load_recipe(name), {{"o_format", "fp16"}});
    std::vector<PlainOutput> right;
    for (const PlainHead& head : heads) {
      const attention::Output own = attention::run_recipe(testing::problem_of(head), recipe, format::kFP16);
      right.push_back({own.o, own.lse});
    }
    for (const bool without_mean : {false, true}) {
      const auto named = [&](const std::string& diagnosis, const std::string& detail, const auto& change) {
        CAPTURE(name, without_mean, detail);
        std::vector<PlainOutput> outputs = right;
        for (std::size_t h = 0; h < heads.size(); ++h) {
          const Eigen::RowVectorXd mean = heads[h].k.colwise().mean();
          for (std::size_t i = 0; i < outputs[h].lse.size(); ++i) {
            const double shift = heads[h].sm_scale * heads[h].q.row(static_cast<Eigen::Index>(i)).dot(mean);
            outputs[h].lse[i] = change(outputs[h].lse[i] - (without_mean ? shift : 0));
          }
        }
        const lab::Json row = row_of(verdict(outputs, {}, heads, name), 1, "lse");
        CHECK(row["passed"] == false);
        CHECK(row["diagnosis"] == diagnosis);
        CHECK(contains(row["reason"].get<std::string>(), detail));
        CHECK(contains(row["reason"].get<std::string>(), without_mean ? "without the K-mean shift" : "in base e"));
      };
      named("constant added to LSE", "lse is +1 from", [](double x) { return x + 1; });
      named("constant added to LSE", "lse is -5 from", [](double x) { return x - 5; });
      named("constant factor of LSE", "ln 2 is in it", [](double x) { return x * std::log(2.0); });
    }
  }
}
