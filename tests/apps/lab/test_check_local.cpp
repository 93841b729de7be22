// Limits of blocks, rows and channels: faults that hide behind a noisy recipe over a whole head are caught.
#include <cmath>
#include <functional>

#include "apps/checked_dump.h"
#include "attention/pipeline.h"

using namespace qattn;
using io::testing::contains;
using testing::check_named;
using testing::plain_heads;
using testing::PlainHead;
using testing::PlainOutput;
using testing::row_of;
using testing::verdict;

namespace {

const char* const kNoisy[] = {"sage2-8b", "sage2-4b", "fa3-fp8", "sage3-nvfp4"};

const std::vector<PlainHead>& heads() {
  static const std::vector<PlainHead> all = plain_heads(2, 320, 320, 64);
  return all;
}

attention::Problem causal_problem(std::size_t head) {
  attention::Problem problem = testing::problem_of(heads()[head]);
  problem.is_causal = true;
  return problem;
}

/// What a kernel of the recipe's arithmetic returns; head 1 is `change`d.
template <class Change>
lab::CheckResult changed(const std::string& name, const Change& change) {
  const attention::Recipe recipe = lab::with_overrides(lab::load_recipe(name), {{"o_format", "fp16"}});
  std::vector<PlainOutput> outputs;
  for (std::size_t h = 0; h < heads().size(); ++h) {
    outputs.push_back({attention::run_recipe(causal_problem(h), recipe, format::kFP16).o, {}});
  }
  change(outputs[1].o, recipe);
  return verdict(outputs, {{"is_causal", true}}, heads(), name);
}

}  // namespace

TEST_CASE("a recipe's own output is within every limit and at the recipe's own error in each part") {
  for (const char* name : kNoisy) {
    const lab::CheckResult result = changed(name, [](MatrixD&, const attention::Recipe&) {});
    CAPTURE(name, result.details);
    CHECK(result.passed);
    for (const char* part : {"worst_block", "worst_row", "worst_channel"}) {
      const double used = row_of(result, 1)[part]["of_limit"].get<double>();
      CAPTURE(part, used);
      CHECK(used > 0.1);
      CHECK(used < 0.5);
    }
  }
}

TEST_CASE("a few rows of zeros fail outright, whatever the recipe loses") {
  for (const char* name : kNoisy) {
    for (const std::int64_t count : {1, 16}) {
      CAPTURE(name, count);
      const lab::CheckResult result =
          changed(name, [&](MatrixD& o, const attention::Recipe&) { o.middleRows(200, count).setZero(); });
      check_named(result, 1, "unwritten rows",
                  count == 1 ? "looks like unwritten row 200: " : "looks like unwritten rows 200 to 215: ");
      CHECK(row_of(result, 0)["passed"] == true);
      const auto first = row_of(result, 1)["first"]["index"][2].get<std::int64_t>();
      CHECK((first >= 200 && first < 200 + count));
      CHECK(contains(row_of(result, 1)["reason"].get<std::string>(), "looks like unwritten row"));
    }
  }
}

TEST_CASE("keys that the last rows alone see and do not get are noticed in their block") {
  for (const char* name : kNoisy) {
    CAPTURE(name);
    const lab::CheckResult result = changed(name, [](MatrixD& o, const attention::Recipe& recipe) {
      attention::Problem shorter = causal_problem(1);
      shorter.k.bottomRows(64) = shorter.k.middleRows(192, 64).eval();
      shorter.v.bottomRows(64) = shorter.v.middleRows(192, 64).eval();
      o.bottomRows(64) = attention::run_recipe(shorter, recipe, format::kFP16).o.bottomRows(64);
    });
    CAPTURE(result.details);
    CHECK(row_of(result, 1)["passed"] == false);
    CHECK(row_of(result, 0)["passed"] == true);
    CHECK(row_of(result, 1)["worst_block"]["rows"] == lab::Json({256, 320}));
  }
}

TEST_CASE("mistakes that lose less than a noisy recipe does stand out of its errors and are named") {
  struct Mistake {
    const char* name;
    const char* detail;
    std::function<void(attention::Problem&)> change;
  };
  const Mistake mistakes[] = {
      {"stale tile", "keys 128 to 191 meet V of keys 64 to 127",
       [](attention::Problem& p) { p.v.middleRows(128, 64) = p.v.middleRows(64, 64).eval(); }},
      {"wrong mask", "one key too wide",
       [](attention::Problem& p) {
         p.is_causal = false;
         p.mask = MatrixD::Zero(320, 320);
         for (Eigen::Index i = 0; i < 320; ++i) {
           for (Eigen::Index j = i + 2; j < 320; ++j) (*p.mask)(i, j) = -testing::kInfinity;
         }
       }},
      {"one wrong scale group", "the scores of keys 64 to 127",
       [](attention::Problem& p) { p.k.middleRows(64, 64) *= 2; }},
  };
  for (const char* name : {"sage2-4b", "sage3-nvfp4"}) {
    for (const Mistake& mistake : mistakes) {
      CAPTURE(name, mistake.detail);
      const lab::CheckResult result = changed(name, [&](MatrixD& o, const attention::Recipe& recipe) {
        attention::Problem wrong = causal_problem(1);
        mistake.change(wrong);
        o = attention::run_recipe(wrong, recipe, format::kFP16).o;
      });
      check_named(result, 1, mistake.name, mistake.detail);
      CHECK(row_of(result, 0)["passed"] == true);
    }
  }
}

TEST_CASE("one row of another head and one scaled channel are noticed") {
  for (const char* name : kNoisy) {
    CAPTURE(name);
    const lab::CheckResult row =
        changed(name, [](MatrixD& o, const attention::Recipe&) { o.row(77) = o.row(300).eval(); });
    CAPTURE(row.details);
    CHECK(row_of(row, 1)["passed"] == false);
    CHECK(row_of(row, 1)["worst_row"]["rows"] == lab::Json({77, 78}));
    const lab::CheckResult channel = changed(name, [](MatrixD& o, const attention::Recipe&) { o.col(9) *= 4; });
    CAPTURE(channel.details);
    CHECK(row_of(channel, 1)["passed"] == false);
    CHECK(row_of(channel, 1)["worst_channel"]["channels"] == lab::Json({9, 10}));
  }
}

TEST_CASE("a small factor all over a head, a key tile, a channel or a tile of P is told from the recipe's errors") {
  struct Mistake {
    const char* recipe;
    const char* name;
    const char* detail;
    std::function<void(MatrixD&)> change;
  };
  // The part of o that some keys give, for some rows: a tenth of it is added once more.
  const auto keys_once_more = [](std::int64_t first_row, std::int64_t rows) {
    return [=](MatrixD& o) {
      const PlainHead& head = heads()[1];
      PlainHead part = head;
      part.v.topRows(128).setZero();
      part.v.bottomRows(128).setZero();
      const MatrixD given = testing::plain_attention(part, testing::causal(0)).o;
      o.middleRows(first_row, rows) += 0.1 * given.middleRows(first_row, rows);
    };
  };
  const auto whole = [](double factor) { return [factor](MatrixD& o) { o *= factor; }; };
  const Mistake mistakes[] = {
      {"sage2-8b", "constant factor", "o is about 1.01 times", whole(1.01)},
      {"sage2-8b", "constant factor", "o is about 0.99 times", whole(0.99)},
      {"sage3-nvfp4", "constant factor", "o is about 1.1 times", whole(1.1)},
      {"sage2-8b", "one wrong scale group", "V of keys 128 to 191 is about 1.1 times", keys_once_more(0, 320)},
      {"sage2-8b", "one wrong scale group", "P V of rows 256 to 319 with keys 128 to 191 counts about 1.1 times",
       keys_once_more(256, 64)},
      {"sage2-8b", "one wrong scale group", "channel 9 of o is about 1.1 times", [](MatrixD& o) { o.col(9) *= 1.1; }},
  };
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.recipe, mistake.detail);
    const lab::CheckResult result =
        changed(mistake.recipe, [&](MatrixD& o, const attention::Recipe&) { mistake.change(o); });
    check_named(result, 1, mistake.name, mistake.detail);
    CHECK(row_of(result, 0)["passed"] == true);
  }
}

TEST_CASE("one element that is off, and a row that holds its neighbour's, stand out of the noisiest recipe") {
  const lab::CheckResult element =
      changed("sage3-nvfp4", [](MatrixD& o, const attention::Recipe&) { o(250, 20) += 1; });
  check_named(element, 1, "stray element", "element (row 250, channel 20)");
  // Two queries that are alike: what belongs to one is within the limits of the other.
  std::vector<PlainHead> alike = heads();
  for (Eigen::Index c = 0; c < 64; ++c) {
    const double x = 0.8 * alike[1].q(200, c) + 0.2 * alike[1].q(201, c);
    alike[1].q(201, c) = format::decode(format::kFP16, format::encode(format::kFP16, x, {}));
  }
  const attention::Recipe recipe = lab::with_overrides(lab::load_recipe("sage3-nvfp4"), {{"o_format", "fp16"}});
  std::vector<PlainOutput> outputs;
  for (const PlainHead& head : alike) {
    outputs.push_back({attention::run_recipe(testing::problem_of(head), recipe, format::kFP16).o, {}});
  }
  CHECK(row_of(verdict(outputs, {}, alike, "sage3-nvfp4"), 1)["passed"] == true);
  outputs[1].o.row(200) = outputs[1].o.row(201).eval();
  check_named(verdict(outputs, {}, alike, "sage3-nvfp4"), 1, "repeated row", "row 200 holds exactly what row 201 does");
}

TEST_CASE("honest kernels pass where rows, keys or values repeat, and where a part has few elements") {
  struct Input {
    const char* name;
    std::int64_t queries, keys;
    std::function<void(PlainHead&)> change;
  };
  const auto repeat = [](MatrixD& values, std::int64_t length) {
    for (Eigen::Index r = 0; r < values.rows(); ++r) values.row(r) = values.row(r / length * length).eval();
  };
  const Input inputs[] = {
      {"equal queries", 256, 256, [&](PlainHead& h) { repeat(h.q, 256); }},
      {"equal keys", 256, 256, [&](PlainHead& h) { repeat(h.k, 256); }},
      {"four keys", 256, 256, [&](PlainHead& h) { repeat(h.k, 64); }},
      {"four tokens", 256, 256,
       [&](PlainHead& h) {
         for (MatrixD* values : {&h.q, &h.k, &h.v}) repeat(*values, 64);
       }},
      {"small queries", 256, 256, [](PlainHead& h) { h.q *= 0x1p-7; }},
      {"large queries", 256, 256, [](PlainHead& h) { h.q *= 8; }},
      {"padding", 256, 256,
       [](PlainHead& h) {
         for (MatrixD* values : {&h.q, &h.k, &h.v}) values->bottomRows(106).rowwise() = values->row(149).eval();
       }},
      {"outliers", 256, 384,
       [](PlainHead& h) {
         h.k.col(3).array() += 8;
         h.k.col(17).array() += 8;
         h.q.col(5) *= 6;
         h.v.col(9) *= 10;
       }},
      {"decoding", 1, 512, [](PlainHead&) {}},
      {"one key", 1, 1, [](PlainHead&) {}},
  };
  const std::vector<lab::Override> kernels[] = {{{"v_range", "240"}, {"p_scale", "240"}},
                                                {{"smooth_v", "true"}},
                                                {{"tile_order", "descending"}, {"v_range", "2.25"}},
                                                {{"row_sum", "rounded"}, {"k_granularity", "per_token"}}};
  for (const Input& input : inputs) {
    std::vector<PlainHead> some = plain_heads(2, input.queries, input.keys, 64);
    for (PlainHead& head : some) input.change(head);
    for (const std::vector<lab::Override>& kernel : kernels) {
      lab::Override first = kernel.front();
      CAPTURE(input.name, first.first, first.second);
      const attention::Recipe recipe = lab::with_overrides(lab::load_recipe("sage2-8b"), kernel);
      std::vector<PlainOutput> outputs;
      for (const PlainHead& head : some) {
        outputs.push_back({attention::run_recipe(testing::problem_of(head), recipe, format::kFP16).o, {}});
      }
      const lab::CheckResult result = verdict(outputs, {}, some, "sage2-8b");
      CAPTURE(result.details);
      CHECK(result.passed);
    }
  }
}

TEST_CASE("an honest kernel of other tiles passes under FP4 on a language model's heads") {
  const std::vector<PlainHead> real = testing::real_heads("smollm2_1.h5", "layer_00", 3, 512);
  const attention::Recipe kernel = lab::with_overrides(
      lab::load_recipe("sage3-nvfp4"),
      {{"k_block", "64"}, {"k_warp", "64"}, {"q_block", "64"}, {"row_sum", "rounded"}, {"o_format", "fp16"}});
  std::vector<PlainOutput> outputs;
  for (const PlainHead& head : real) {
    attention::Problem problem = testing::problem_of(head);
    problem.is_causal = true;
    outputs.push_back({attention::run_recipe(problem, kernel, format::kFP16).o, {}});
  }
  const lab::CheckResult result =
      verdict(outputs, {{"is_causal", true}, {"sm_scale", real[0].sm_scale}}, real, "sage3-nvfp4");
  CAPTURE(result.details);
  CHECK(result.passed);
}
