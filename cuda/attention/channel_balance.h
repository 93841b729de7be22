// SmoothQuant's balance between the channels of Q and K on the device, alpha = 1/2.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/device_group_map.h"

namespace qattn::gpu {

class ChannelBalance {
 public:
  ChannelBalance(std::int64_t q_rows, std::int64_t k_rows, std::int64_t channels);

  /// Finds the factors, divides Q by them and multiplies K; starts kernels on the default stream.
  void apply(const DeviceMatrix& q, const DeviceMatrix& k);

  /// One factor a channel; waits for the kernels.
  std::vector<float> factors() const;

 private:
  DeviceGroupMap q_channels_, k_channels_;
  DeviceBuffer q_amax_, k_amax_, factors_;
};

}  // namespace qattn::gpu
