// Every SIMD form gives the bits of its plain form, on every target that this machine can run.
#include "scalar/span.h"

#include <hwy/targets.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "scalar/mufu.h"
#include "support/catch.h"

using namespace qattn::scalar;

TEST_CASE("ex2 and rcp over spans equal the plain forms on runs from every binade, on every SIMD target") {
  constexpr std::uint32_t run = 1 << 12;
  std::vector<float> x(run), ex2(run), rcp(run);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);
    INFO(hwy::TargetName(target));
    std::uint64_t differing = 0;
    for (std::uint64_t start = 0; start < std::uint64_t{1} << 32; start += run * 97) {
      const auto first = static_cast<std::uint32_t>(start);
      for (std::uint32_t i = 0; i < run; ++i) x[i] = std::bit_cast<float>(first + i);
      ex2_approx_ftz(x, ex2);
      rcp_approx_ftz(x, rcp);
      for (std::uint32_t i = 0; i < run; ++i) {
        differing += std::bit_cast<std::uint32_t>(ex2[i]) != mufu_ex2(first + i);
        differing += std::bit_cast<std::uint32_t>(rcp[i]) != mufu_rcp(first + i);
      }
    }
    CHECK(differing == 0);
  }
  hwy::GetChosenTarget().DeInit();
}
