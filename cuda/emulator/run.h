// A planned head on the device: memory, kernels, and what comes back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "emulator/plan.h"

namespace qattn::emulator {

/// A stream, and memory that grows with the heads that it has run.
class Slot {
 public:
  Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot();

  void* stream();  ///< a cudaStream_t
  /// At least so many bytes; what was in them is lost. Throws Error(input) when there are not so many.
  std::byte* memory(std::size_t bytes);

 private:
  void* stream_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What the tiles leave of each row: the running maximum [queries], the row sum [queries], O [queries, channels of V].
struct DeviceRows {
  std::vector<float> max, sum, o;
};

/// How long the phases of a head took, in seconds: Q K^T, softmax, P V.
struct PhaseSeconds {
  double scores = 0, softmax = 0, values = 0;
};

/// Bytes of P that the rows of one launch may take on this device.
std::size_t tile_bytes_of_device();

/// Runs the plan in the slot; rows take at most `tile_bytes` of P at once. `times`, if given, is what kernels took.
DeviceRows run_plan(const Plan& plan, std::size_t tile_bytes, Slot& slot, PhaseSeconds* times = nullptr);

}  // namespace qattn::emulator
