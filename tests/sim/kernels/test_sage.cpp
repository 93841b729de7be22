// SageAttention's kernels against what an H200 returned.
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/sage.h"
#include "support/catch.h"
#include "trial.h"

namespace qattn::kernels {
namespace {

const std::vector<std::string> kFiles{"kernel_vectors_1.h5", "kernel_vectors_2.h5", "kernel_vectors_3.h5"};

TEST_CASE("SageAttention's recorded kernels come out bit for bit: o, lse and quantized operands") {
  std::map<std::string, std::int64_t> elements;
  for (const std::string& file : kFiles) {
    const io::VectorReader reader(kVectors + file);
    for (const std::string& name : reader.cases()) {
      const io::RecordedCase input = reader.recorded(name);
      for (const Trial& trial : trials(file, "", name)) {
        INFO(trial.name);
        const Returned returned = find_kernel(trial.kernel).run(trial.call);
        CHECK(returned.evidence == "measured here (H200)");
        for (const auto& [tensor, ours] : returned.tensors) {
          const io::Tensors& recorded = trial.recorded.contains(tensor) ? trial.recorded : input.tensors;
          const auto theirs = recorded.find(tensor);
          if (theirs == recorded.end()) continue;  // quantized operands of the FP16 kernels have no name in the files
          INFO(tensor);
          CHECK(mismatches(returned, recorded, tensor) == 0);
          elements[tensor.substr(tensor.find_last_of('/') + 1)] += theirs->second.elements();
        }
      }
    }
  }
  // Every kernel's o and lse, and each quantized operand once for every kernel that uses it.
  CHECK(elements["o"] == 4905984);
  CHECK(elements["lse"] == 46536);
  CHECK(elements["k_mean"] == 9216);
  CHECK(elements["q_int8"] == 3549696);
  CHECK(elements["q_scale"] == 7328);
  CHECK(elements["k_int8"] == 2127360);
  CHECK(elements["k_scale"] == 990);
  CHECK(elements["v_fp8"] == 1802240);
  CHECK(elements["v_scale"] == 5632);
  CHECK(elements["vm"] == 1024);
}

}  // namespace
}  // namespace qattn::kernels
