// try_apart: a copy of the process that crashes or never ends leaves this one as it was.
#include "io/trial.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "support/catch.h"

namespace qattn::io {
namespace {

TEST_CASE("what a copy of the process does stays there, and its end is told") {
  int changed = 0;
  CHECK(try_apart([&] { changed = 1; }, 10) == TrialEnd::finished);
  CHECK(try_apart([&] { throw std::runtime_error("no crash"); }, 10) == TrialEnd::finished);
  CHECK(try_apart([] { std::raise(SIGSEGV); }, 10) == TrialEnd::crashed);
  CHECK(try_apart([] { std::abort(); }, 10) == TrialEnd::crashed);
  CHECK(try_apart([] { std::raise(SIGINT); }, 10) == TrialEnd::finished);
  CHECK(changed == 0);
}

TEST_CASE("a copy of the process that computes without end is stopped") {
  std::atomic<std::uint64_t> steps = 0;
  const auto without_end = [&] {
    while (true) ++steps;
  };
  CHECK(try_apart(without_end, 1) == TrialEnd::hung);
}

}  // namespace
}  // namespace qattn::io
