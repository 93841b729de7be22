// Counting bits on the CPU and on the GPU: std::countl_zero compiles for the device and gives 0 there.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace qattn::emulator::detail {

QATTN_HOST_DEVICE inline int leading_zeros(std::uint64_t x) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(x));
#else
  return std::countl_zero(x);
#endif
}

QATTN_HOST_DEVICE inline int leading_zeros(std::uint32_t x) {
#ifdef __CUDA_ARCH__
  return __clz(static_cast<int>(x));
#else
  return std::countl_zero(x);
#endif
}

}  // namespace qattn::emulator::detail
