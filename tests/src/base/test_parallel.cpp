// parallel_for: every piece once, the first error by index, the default floating-point environment in each task.
#include <atomic>
#include <cfenv>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "support/catch.h"

TEST_CASE("parallel_for runs every piece exactly once for any number of threads") {
  for (const int threads : {0, 1, 2, 5}) {
    std::vector<std::atomic<int>> visits(1000);
    qattn::parallel_for(1000, threads, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
    for (const auto& count : visits) CHECK(count == 1);
    qattn::parallel_for(0, threads, [&](std::int64_t) { FAIL("called for an empty range"); });
  }
}

TEST_CASE("parallel_for rethrows the error of the lowest index after the others have run") {
  for (const int threads : {1, 2, 4}) {
    std::atomic<int> ran = 0;
    try {
      qattn::parallel_for(100, threads, [&](std::int64_t i) {
        ++ran;
        if (i % 7 == 3) throw qattn::Error(qattn::ErrorKind::input, "piece " + std::to_string(i));
      });
      FAIL("no error");
    } catch (const qattn::Error& error) {
      CHECK(std::string(error.what()) == "piece 3");
    }
    CHECK(ran == 100);
  }
}

TEST_CASE("parallel_for's tasks round to nearest whatever the caller has set") {
  std::fesetround(FE_UPWARD);
  std::atomic<bool> nearest = true;
  qattn::parallel_for(16, 2, [&](std::int64_t) {
    volatile double one = 1.0;
    volatile double half_ulp = 0x1p-53;
    if (one + half_ulp != 1.0) nearest = false;
  });
  const int after = std::fegetround();
  std::fesetround(FE_TONEAREST);
  CHECK(nearest);
  CHECK(after == FE_UPWARD);
}
