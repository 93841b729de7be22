// The float kernels' forward replays against what an H200 returned.
#include <map>
#include <string>
#include <vector>

#include "kernels/forward.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

TEST_CASE("every recorded output of the float kernels comes out bit for bit from q, k and v") {
  const std::string file = GENERATE("fa2_vectors.h5", "fa3_vectors.h5", "sdpa_vectors.h5");
  std::map<std::string, std::int64_t> outputs;
  for (Trial& trial : trials(file)) {
    trial.call.d_o.reset();
    const Returned returned = find_kernel(trial.kernel).run(trial.call);
    INFO(trial.name << ": " << returned.evidence);
    CHECK(mismatches(returned, trial.recorded, "o") == 0);
    CHECK(mismatches(returned, trial.recorded, "lse") == 0);
    CHECK_FALSE(returned.predicted);
    outputs[trial.kernel] += trial.recorded.at("o").elements() + trial.recorded.at("lse").elements();
  }
  for (const auto& [kernel, count] : outputs) CHECK(count > 100000);
}

}  // namespace
}  // namespace qattn::kernels
