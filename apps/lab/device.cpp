#include "lab/device.h"

#include "attention/pipeline.h"

namespace qattn::lab {

std::string device_name(const Device* device) { return device == nullptr ? "cpu" : device->description(); }

attention::Output run_recipe(const Device* device, const attention::Problem& problem, const attention::Recipe& recipe,
                             const format::Format& input_format) {
  if (device != nullptr) return device->run(problem, recipe, input_format);
  return attention::run_recipe(problem, recipe, input_format);
}

}  // namespace qattn::lab
