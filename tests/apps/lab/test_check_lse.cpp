// check_dump: the conventions of an lse, and what wrong ones are called.
#include <cmath>

#include "apps/checked_dump.h"

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
