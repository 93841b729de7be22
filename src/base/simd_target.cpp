#include "base/simd_target.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace qattn {

std::vector<std::int64_t> simd_targets() { return hwy::SupportedAndGeneratedTargets(); }

std::string_view simd_target_name(std::int64_t target) { return hwy::TargetName(target); }

std::optional<std::int64_t> requested_simd_target() {
  const char* name = std::getenv("QATTN_SIMD");
  if (name == nullptr || *name == '\0') return std::nullopt;
  std::string known;
  for (const std::int64_t target : simd_targets()) {
    if (simd_target_name(target) == name) return target;
    known += " " + std::string(simd_target_name(target));
  }
  throw Error(ErrorKind::usage,
              "QATTN_SIMD=" + std::string(name) + " is no SIMD target of this machine; it has" + known);
}

ForcedSimdTarget::ForcedSimdTarget(std::int64_t target) : before_(hwy::SupportedTargets()) {
  // Better targets have lower bits. Rooms that were not compiled for this one take the next.
  hwy::SetSupportedTargetsForTest(before_ & -target);
  hwy::GetChosenTarget().DeInit();
}

ForcedSimdTarget::~ForcedSimdTarget() {
  hwy::SetSupportedTargetsForTest(before_);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace qattn
