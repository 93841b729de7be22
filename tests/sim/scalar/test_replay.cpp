// Replays of vectors: what they count, and how far apart codes are.
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "inputs.h"
#include "scalar/replay.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;

TEST_CASE("a replay counts what differs, finds the first and the farthest") {
  const Function& function = find("ex2.approx.ftz.f32");
  std::vector<std::uint32_t> x(10000), y(x.size());
  std::iota(x.begin(), x.end(), 0x3F000000);
  function.span(x, y);
  CHECK(replay(function, x, y).mismatches == 0);
  CHECK(replay(function, x, y).elements == x.size());
  CHECK(!replay(function, x, y).first);
  y[5000] += 3;
  y[7000] -= 1;
  const Replay result = replay(function, x, y);
  CHECK(result.mismatches == 2);
  CHECK(result.max_ulp == 3.0);
  REQUIRE(result.first);
  CHECK(result.first->index == 5000);
  CHECK(result.first->x == x[5000]);
  CHECK(result.first->recorded == y[5000]);
  CHECK(result.first->computed == y[5000] - 3);
  CHECK_THROWS_AS(replay(function, x, std::span(y).first(3)), Error);
}

TEST_CASE("codes are as far apart as numbers lie between them") {
  using format::kE4M3, format::kFP32, format::kInt8;
  CHECK(code_distance(kFP32, 0x3F800000, 0x3F800005) == 5);
  CHECK(code_distance(kFP32, 0, 0x80000000) == 0);
  CHECK(code_distance(kFP32, 1, 0x80000001) == 2);
  CHECK(code_distance(kFP32, 0x7F7FFFFF, 0x7F800000) == 1);
  CHECK(std::isinf(code_distance(kFP32, 0x7FFFFFFF, 0x3F800000)));
  CHECK(code_distance(kFP32, 0x7FFFFFFF, 0xFFC00000) == 0);
  CHECK(code_distance(kE4M3, 0x7E, 0xFE) == 252);
  CHECK(code_distance(kInt8, 0xFF, 0x01) == 2);
  CHECK(code_distance(kInt8, 0x80, 0x7F) == 255);
}
