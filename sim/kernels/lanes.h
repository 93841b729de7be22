// How the threads of a warp bring their partial results together.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace qattn::kernels {

/// Sum over the lanes of a warp, or over warps, by exchanges, the far ones first, at distances n/2, ..., 2, 1, or the
/// near ones, 1, 2, ..., n/2. `lanes` is overwritten; its size is a power of two.
template <class Add = std::plus<float>>
float butterfly(std::span<float> lanes, bool far_first = true, Add add = {}) {
  const std::size_t n = lanes.size();
  if (far_first) {
    for (std::size_t distance = n / 2; distance > 0; distance /= 2) {
      for (std::size_t i = 0; i < distance; ++i) lanes[i] = add(lanes[i], lanes[i + distance]);
    }
  } else {
    for (std::size_t distance = 1; distance < n; distance *= 2) {
      for (std::size_t i = 0; i + distance < n; i += 2 * distance) lanes[i] = add(lanes[i], lanes[i + distance]);
    }
  }
  return lanes[0];
}

}  // namespace qattn::kernels
