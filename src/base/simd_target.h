// Which SIMD target the house's kernels run on. No result depends on it: this is for provenance, tests and benchmarks.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace qattn {

/// Highway's bits of the targets that were compiled and that this machine has, the best first.
std::vector<std::int64_t> simd_targets();

/// Highway's name: "AVX3" (AVX-512), "AVX2", "SSE4", ...
std::string_view simd_target_name(std::int64_t target);

/// The one of simd_targets() that the environment variable QATTN_SIMD names, for programs to force; none when it is
/// unset or empty. Throws Error(usage) for any other name.
std::optional<std::int64_t> requested_simd_target();

/// While alive, every kernel of the process runs on `target`, one of simd_targets(); they may be nested. Not while
/// other threads compute.
class ForcedSimdTarget {
 public:
  explicit ForcedSimdTarget(std::int64_t target);
  ~ForcedSimdTarget();
  ForcedSimdTarget(const ForcedSimdTarget&) = delete;
  ForcedSimdTarget& operator=(const ForcedSimdTarget&) = delete;

 private:
  std::int64_t before_;
};

}  // namespace qattn
