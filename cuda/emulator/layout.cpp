#include "emulator/layout.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace qattn::emulator {
namespace {

/// Parts of one block of memory.
class Arena {
 public:
  /// Where a part of `bytes` begins.
  std::size_t add(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    return std::exchange(size_, size_ + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

/// Something of the head on the device: an operand that is uploaded, or room; nothing where it has no bytes.
struct Part {
  std::size_t bytes = 0;
  const void* source = nullptr;
};

template <class T>
Part upload(const std::vector<T>& values) {
  return {values.size() * sizeof(T), values.data()};
}

Part floats(std::size_t count) { return {count * sizeof(float), nullptr}; }

/// use(the head's pointer, its part) for each of them.
template <class Use>
void for_parts(const HostOperands& host, std::size_t rows, Head& head, const Use& use) {
  use(head.qk.left, upload(host.q));
  use(head.qk.right, upload(host.k));
  use(head.pv.right, upload(host.v));
  use(head.q_scale, upload(host.q_scale));
  use(head.k_scale, upload(host.k_scale));
  use(head.v_scale, upload(host.v_scale));
  use(head.correction, upload(host.correction));
  use(head.mask, upload(host.mask));
  const std::size_t of_tiles = static_cast<std::size_t>(head.tiles()) * rows;
  for (float** pointer : {&head.tile_max, &head.subtracted, &head.rescale, &head.tile_sum}) {
    use(*pointer, floats(of_tiles));
  }
  const bool factors = head.scales_p && (head.scaled_p.block == 0 || head.scaled_p.outer != OuterScale::none);
  use(head.row_factor, floats(factors ? of_tiles : 0));
  use(head.tile_largest, floats(head.scales_p ? of_tiles : 0));
  use(head.p_tiles, floats(rows * static_cast<std::size_t>(head.keys)));
  const auto queries = static_cast<std::size_t>(head.queries);
  use(head.row_max, floats(queries));
  use(head.row_sum, floats(queries));
  use(head.o, floats(queries * static_cast<std::size_t>(head.value_channels)));
}

}  // namespace

std::size_t rows_of_launch(const Head& head, std::size_t tile_bytes) {
  const auto keys = static_cast<std::size_t>(head.keys), block = static_cast<std::size_t>(head.q_block);
  const std::size_t blocks = std::max<std::size_t>(tile_bytes / (keys * sizeof(float)) / block, 1);
  return std::min(blocks * block, static_cast<std::size_t>(head.queries));
}

std::size_t memory_of(const Plan& plan, std::size_t rows) {
  Arena arena;
  Head head = plan.head;
  for_parts(plan.operands, rows, head, [&](auto&, const Part& part) { static_cast<void>(arena.add(part.bytes)); });
  return arena.size();
}

std::vector<Upload> place(const Plan& plan, std::size_t rows, std::byte* memory, Head& head) {
  Arena arena;
  std::vector<Upload> uploads;
  for_parts(plan.operands, rows, head, [&](auto& pointer, const Part& part) {
    if (part.bytes == 0) return;
    std::byte* const to = memory + arena.add(part.bytes);
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(static_cast<void*>(to));
    if (part.source != nullptr) uploads.push_back({to, part.source, part.bytes});
  });
  return uploads;
}

}  // namespace qattn::emulator
