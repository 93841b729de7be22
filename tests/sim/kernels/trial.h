// What the tests of the replays share: recorded cases as calls, and the count of outputs that differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/vectors.h"
#include "kernels/recorded.h"

namespace qattn::kernels {

inline const std::string kVectors = std::string(QATTN_SOURCE_DIR) + "/data/vectors/";

/// One recorded kernel of one case.
struct Trial {
  std::string name;  ///< "fa3_vectors.h5 a_h2n256d64 flash_attention_3"
  std::string kernel;
  Call call;
  io::Tensors recorded;
};

/// The recordings in `file` of `kernel` (empty: of any) and `case_name` (empty: any).
inline std::vector<Trial> trials(const std::string& file, const std::string& kernel = "",
                                 const std::string& case_name = "") {
  std::vector<Trial> found;
  const io::VectorReader reader(kVectors + file);
  for (const std::string& name : reader.cases()) {
    if (!case_name.empty() && name != case_name) continue;
    const io::RecordedCase recorded = reader.recorded(name);
    for (const io::RecordedKernel& k : recorded.kernels) {
      const std::string of(kernel_of(recorded, k).name);
      if (!kernel.empty() && of != kernel) continue;
      found.push_back({file + " " + name + " " + k.name, of, call_of(recorded, k), k.tensors});
    }
  }
  return found;
}

/// Elements whose codes differ; all of them when there is no such tensor.
inline std::int64_t mismatches(const Returned& returned, const io::Tensors& recorded, const std::string& tensor) {
  const auto ours = returned.tensors.find(tensor), theirs = recorded.find(tensor);
  if (theirs == recorded.end()) return 0;
  if (ours == returned.tensors.end() || ours->second.shape != theirs->second.shape ||
      ours->second.format != theirs->second.format) {
    return theirs->second.elements();
  }
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < theirs->second.elements(); ++i) {
    if (ours->second.code(i) != theirs->second.code(i)) ++count;
  }
  return count;
}

}  // namespace qattn::kernels
