#include "attention/device_group_map.h"

#include <utility>

namespace qattn::gpu {

DeviceGroupMap::DeviceGroupMap(quant::GroupMap map) : map_(std::move(map)) {
  std::vector<std::int32_t> bases;
  for (std::int64_t row = 0; row < map_.rows(); ++row) bases.push_back(map_.row_base(row));
  row_base_ = upload(std::span<const std::int32_t>(bases));
  column_offset_ = upload(map_.column_offsets());
}

DeviceGroups DeviceGroupMap::view() const {
  return {row_base_.data<std::int32_t>(), column_offset_.data<std::int32_t>(), map_.groups(), map_.column_groups()};
}

}  // namespace qattn::gpu
