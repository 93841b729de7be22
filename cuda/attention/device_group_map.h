// Scale groups (quant::GroupMap) with their tables on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/quantize.h"
#include "device.h"
#include "quant/groups.h"

namespace qattn::gpu {

/// Uninitialized memory for `count` items.
template <class T>
DeviceBuffer allocate(std::int64_t count) {
  return DeviceBuffer(static_cast<std::size_t>(count) * sizeof(T));
}

template <class T>
DeviceBuffer upload(std::span<const T> items) {
  return DeviceBuffer(std::as_bytes(items));
}

/// The first items; waits for the kernels before.
template <class T>
std::vector<T> download(const DeviceBuffer& buffer, std::int64_t count) {
  std::vector<T> items(static_cast<std::size_t>(count));
  buffer.read(std::as_writable_bytes(std::span(items)));
  return items;
}

class DeviceGroupMap {
 public:
  explicit DeviceGroupMap(quant::GroupMap map);

  const quant::GroupMap& map() const { return map_; }
  DeviceGroups view() const;

 private:
  quant::GroupMap map_;
  DeviceBuffer row_base_, column_offset_;
};

}  // namespace qattn::gpu
