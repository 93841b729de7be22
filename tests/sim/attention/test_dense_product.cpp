// The SIMD products against their plain twins, bit for bit, on every target that this machine has.
#include <hwy/targets.h>

#include <cstring>

#include "attention/dense_product.h"
#include "base/error.h"
#include "heads.h"
#include "support/catch.h"

using namespace qattn;
using attention::testing::normal_matrix;

namespace {

template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), sizeof(T) * static_cast<std::size_t>(a.size())) == 0;
}

template <class T>
void compare(std::int64_t rows, std::int64_t depth, std::int64_t columns) {
  // FP32-wide values, so that a fused or reordered sum would show.
  const Matrix<T> a = (normal_matrix(1, rows, depth) * 1.0009765625e-3).template cast<T>().array() / T(3);
  const Matrix<T> b = normal_matrix(2, depth, columns).template cast<T>().array() / T(7);
  const Matrix<T> start = normal_matrix(3, rows, columns).template cast<T>();
  Matrix<T> fast = start;
  Matrix<T> plain = start;
  attention::accumulate_product(a, b, fast);
  attention::accumulate_product_plain(a, b, plain);
  CHECK(same_bits<T>(fast, plain));
  CHECK(!same_bits<T>(fast, start));
}

}  // namespace

TEST_CASE("products give the plain form's bits on every SIMD target and shape") {
  std::vector<std::int64_t> targets{0};
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) targets.push_back(target);
  REQUIRE(targets.size() > 1);
  for (const std::int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    for (const auto& [rows, depth, columns] :
         {std::tuple{1, 1, 1}, {3, 5, 7}, {4, 64, 64}, {17, 33, 129}, {128, 64, 128}, {5, 2, 31}}) {
      compare<float>(rows, depth, columns);
      compare<double>(rows, depth, columns);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("products stop at the column limit and refuse shapes that disagree") {
  const MatrixD a = normal_matrix(1, 4, 6);
  const MatrixD b = normal_matrix(2, 6, 40);
  MatrixD c = MatrixD::Constant(4, 40, 7.0);
  attention::accumulate_product(a, b, c, 33);
  CHECK((c.rightCols(7).array() == 7.0).all());
  CHECK((c.leftCols(33).array() != 7.0).all());
  MatrixD wrong(5, 40);
  CHECK_THROWS_AS(attention::accumulate_product(a, b, wrong), Error);
  CHECK_THROWS_AS(attention::accumulate_product(b, a, c), Error);
}
