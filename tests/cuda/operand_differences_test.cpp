// What two preparations of a head differ in is seen, whatever it is.
#include "attention/operand_differences.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/operands.h"
#include "support/catch.h"

namespace qattn::gpu {
namespace {

attention::Operands small_operands() {
  attention::Problem problem;
  problem.q = MatrixD::Constant(3, 4, 0.5);
  problem.k = MatrixD::Constant(5, 4, -0.25);
  problem.v = MatrixD::Constant(5, 4, 2.0);
  problem.k(2, 1) = 7.0;
  attention::Recipe recipe;
  attention::set(recipe, "smoothing", "qk");
  attention::set(recipe, "smooth_v", "true");
  attention::set(recipe, "balance", "smoothquant");
  attention::set(recipe, "qk_format", "int8");
  attention::set(recipe, "granularity", "per_token");
  attention::set(recipe, "v_format", "e4m3");
  attention::set(recipe, "v_granularity", "per_channel");
  return attention::prepare_operands(problem, recipe);
}

}  // namespace

TEST_CASE("equal operands do not differ, and NaN equals NaN") {
  attention::Operands a = small_operands();
  OperandDifferences same = compare_operands(a, a);
  CHECK(same.elements > 3 * 4 + 2 * 5 * 4);
  CHECK(same.differing == 0);
  CHECK(same.first.empty());
  attention::Operands b = a;
  a.q.row_scale[1] = std::numeric_limits<float>::quiet_NaN();
  b.q.row_scale[1] = -std::numeric_limits<float>::quiet_NaN();
  CHECK(compare_operands(a, b).differing == 0);
}

TEST_CASE("a change anywhere in the operands is one difference, named") {
  struct Change {
    std::string what;
    std::function<void(attention::Operands&)> make;
  };
  const std::vector<Change> changes = {
      {"q code 5", [](attention::Operands& o) { o.q.codes(1, 1) ^= 1u; }},
      {"k code 9", [](attention::Operands& o) { o.k.codes(2, 1) ^= 1u; }},
      {"v code 0", [](attention::Operands& o) { o.v.codes(0, 0) ^= 1u; }},
      {"q scale of row 2", [](attention::Operands& o) { o.q.row_scale[2] = -o.q.row_scale[2]; }},
      {"k scale of row 4", [](attention::Operands& o) { o.k.row_scale[4] += 1.0f; }},
      {"v scale of column 3", [](attention::Operands& o) { o.v.column_scale[3] += 1.0f; }},
      {"scale factor 0", [](attention::Operands& o) { o.score_scale += 1.0; }},
      {"balance 3", [](attention::Operands& o) { o.balance[3] *= 2.0f; }},
      {"k mean 1", [](attention::Operands& o) { o.k_mean(0, 1) += 1.0f; }},
      {"q mean 2", [](attention::Operands& o) { o.q_means(0, 2) += 1.0f; }},
      {"v mean 0", [](attention::Operands& o) { o.v_mean[0] += 1.0f; }},
      {"correction 4", [](attention::Operands& o) { o.correction(0, 4) += 1.0f; }},
      {"lse shift 1", [](attention::Operands& o) { o.lse_shift[1] += 1.0; }},
  };
  const attention::Operands expected = small_operands();
  for (const Change& change : changes) {
    attention::Operands found = expected;
    change.make(found);
    const OperandDifferences differences = compare_operands(expected, found);
    INFO(change.what);
    CHECK(differences.differing == 1);
    CHECK(differences.first.rfind(change.what + ":", 0) == 0);
  }
}

TEST_CASE("a part that is missing differs in all its elements") {
  const attention::Operands expected = small_operands();
  attention::Operands found = expected;
  found.lse_shift.clear();
  CHECK(compare_operands(expected, found).differing == 3);
  CHECK(compare_operands(found, expected).differing == 3);
}

}  // namespace qattn::gpu
