// parallel_for: every piece once, the first error by index, the default floating-point environment in each task.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <mutex>
#include <set>
#include <string>
#include <thread>
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

TEST_CASE("a parallel_for within another shares its threads and begins no other piece of it") {
  for (const int threads : {1, 2, 4}) {
    std::vector<std::atomic<int>> visits(6 * 50);
    std::atomic<int> in_flight = 0, most_in_flight = 0;
    thread_local int outer_pieces = 0;
    qattn::parallel_for(6, threads, [&](std::int64_t outer) {
      // Were a waiting thread to take another outer piece, that one would begin inside this one.
      if (++outer_pieces != 1) FAIL("an outer piece within an outer piece");
      most_in_flight = std::max<int>(most_in_flight, ++in_flight);
      qattn::parallel_for(50, 1, [&](std::int64_t inner) { ++visits[static_cast<std::size_t>(50 * outer + inner)]; });
      --in_flight;
      --outer_pieces;
    });
    for (const auto& count : visits) CHECK(count == 1);
    CHECK(most_in_flight <= threads);
  }
}

TEST_CASE("within a parallel_for of one thread all stays in that thread, in ascending order") {
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::int64_t> order;
  qattn::parallel_for(3, 1, [&](std::int64_t outer) {
    qattn::parallel_for(50, 1, [&](std::int64_t inner) {
      qattn::parallel_for(2, 0, [&](std::int64_t innermost) {
        REQUIRE(std::this_thread::get_id() == caller);
        order.push_back(100 * outer + 2 * inner + innermost);
      });
    });
  });
  CHECK(order.size() == 300);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("alone, a parallel_for of one thread stays in its caller's thread, in ascending order") {
  std::vector<std::int64_t> order;
  const auto caller = std::this_thread::get_id();
  bool same_thread = true;
  qattn::parallel_for(20, 1, [&](std::int64_t i) {
    order.push_back(i);
    same_thread = same_thread && std::this_thread::get_id() == caller;
  });
  CHECK(std::is_sorted(order.begin(), order.end()));
  CHECK(order.size() == 20);
  CHECK(same_thread);
}

TEST_CASE("one outer piece's inner loop spreads over the outer loop's threads") {
  std::set<std::thread::id> seen;
  std::mutex mutex;
  std::atomic<int> waiting = 0;
  qattn::parallel_for(1, 2, [&](std::int64_t) {
    qattn::parallel_for(2, 1, [&](std::int64_t) {
      // Each piece waits for the other, so that only two threads can end this.
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  });
  CHECK(seen.size() == 2);
}
