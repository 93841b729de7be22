#include "base/simd_target.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

namespace qattn {

std::vector<std::int64_t> simd_targets() { return hwy::SupportedAndGeneratedTargets(); }

std::string_view simd_target_name(std::int64_t target) { return hwy::TargetName(target); }

ForcedSimdTarget::ForcedSimdTarget(std::int64_t target) {
  // Better targets have lower bits. Rooms that were not compiled for this one take the next.
  hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & -target);
  hwy::GetChosenTarget().DeInit();
}

ForcedSimdTarget::~ForcedSimdTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace qattn
