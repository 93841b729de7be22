// The floating-point environment that every computation of the house runs in, whatever the caller has set.
#pragma once

#include <cstdint>

namespace qattn {

/// While alive: round to nearest-even, subnormals kept (no flush-to-zero, no denormals-are-zero), no traps; the
/// caller's environment comes back at the end. Every public entry point that does floating-point arithmetic holds
/// one, and so does every worker thread's task. Costs a few nanoseconds.
class FpEnvironment {
 public:
  FpEnvironment();
  ~FpEnvironment();
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace qattn
