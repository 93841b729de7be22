// Where a recipe runs when not on the CPU.
#pragma once

#include <memory>
#include <string>

#include "attention/problem.h"
#include "attention/recipe.h"
#include "attention/reference.h"
#include "format/format.h"

namespace qattn::lab {

/// A device with the emulator on it: the bits of attention::run_recipe(), for the recipes that check() lets pass. Its
/// functions may be called from any thread.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// For provenance: "NVIDIA H200 (sm_90a), driver 580.159.03, CUDA 13.0".
  virtual std::string description() const = 0;
  /// Throws Error(usage), naming the key, where the recipe asks for what the device does not do.
  virtual void check(const attention::Recipe& recipe) const = 0;
  /// One head. Throws as attention::run_recipe() and check() do; Error(input) when the device's memory does not do.
  virtual attention::Output run(const attention::Problem& problem, const attention::Recipe& recipe,
                                const format::Format& input_format) const = 0;
};

/// The device's description, or "cpu".
std::string device_name(const Device* device);

/// On `device`, or on the CPU where that is nullptr.
attention::Output run_recipe(const Device* device, const attention::Problem& problem, const attention::Recipe& recipe,
                             const format::Format& input_format);

/// The first CUDA device; Error(input) where there is none. Programs that are built without CUDA have no such function.
std::unique_ptr<Device> open_cuda_device();

}  // namespace qattn::lab
