#include "emulator/run.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "device.h"
#include "emulator/kernels.h"

namespace qattn::emulator {
namespace {

/// At most so many bytes of P at once, and at most this share of the device's memory.
constexpr std::size_t kMostTileBytes = std::size_t{2} << 30;
constexpr std::size_t kMemoryShare = 16;

/// Parts of one block of memory, measured first and placed then.
class Arena {
 public:
  /// Where a part of `bytes` will begin.
  std::size_t add(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    return std::exchange(size_, size_ + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

/// Times between marks on a stream.
class Marks {
 public:
  explicit Marks(cudaStream_t stream) : stream_(stream) {}
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  ~Marks() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void add() {
    cudaEvent_t event = nullptr;
    gpu::check_cuda(cudaEventCreate(&event), "creating an event");
    events_.push_back(event);
    gpu::check_cuda(cudaEventRecord(event, stream_), "recording an event");
  }
  /// Seconds from mark `i` to the next; the stream has ended its work.
  double after(std::size_t i) const {
    float milliseconds = 0;
    gpu::check_cuda(cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1]), "reading events");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  std::size_t size() const { return events_.size(); }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

/// A head on a slot's memory.
class Run {
 public:
  Run(const Plan& plan, std::size_t tile_bytes, Slot& slot)
      : plan_(plan), head_(plan.head), slot_(slot), stream_(static_cast<cudaStream_t>(slot.stream())) {
    const auto keys = static_cast<std::size_t>(head_.keys), block = static_cast<std::size_t>(head_.q_block);
    const auto queries = static_cast<std::size_t>(head_.queries);
    const std::size_t blocks = std::max<std::size_t>(tile_bytes / (keys * sizeof(float)) / block, 1);
    most_rows_ = std::min(blocks * block, queries);
  }

  DeviceRows operator()(PhaseSeconds* times) {
    place();
    Marks marks(stream_);
    const auto mark = [&] {
      if (times != nullptr) marks.add();
    };
    for (std::size_t first = 0; first < queries(); first += most_rows_) {
      head_.first_row = static_cast<int>(first);
      head_.rows = static_cast<int>(std::min(most_rows_, queries() - first));
      mark();
      run_scores(head_, stream_);
      mark();
      run_softmax(head_, stream_);
      mark();
      run_values(head_, stream_);
      mark();
      gpu::check_cuda(cudaGetLastError(), "starting the emulator's kernels");
    }
    DeviceRows rows{std::vector<float>(queries()), std::vector<float>(queries()), std::vector<float>(o_size())};
    download(head_.row_max, rows.max);
    download(head_.row_sum, rows.sum);
    download(head_.o, rows.o);
    gpu::check_cuda(cudaStreamSynchronize(stream_), "running the emulator's kernels");
    for (std::size_t i = 0; i < marks.size(); i += 4) {
      times->scores += marks.after(i);
      times->softmax += marks.after(i + 1);
      times->values += marks.after(i + 2);
    }
    return rows;
  }

 private:
  std::size_t queries() const { return static_cast<std::size_t>(head_.queries); }
  std::size_t o_size() const { return queries() * static_cast<std::size_t>(head_.value_channels); }

  /// Something of the head on the device: an operand that is uploaded, or room; nothing where it has no bytes.
  struct Part {
    std::size_t bytes = 0;
    const void* source = nullptr;
  };
  template <class T>
  static Part upload(const std::vector<T>& values) {
    return {values.size() * sizeof(T), values.data()};
  }

  /// use(the head's pointer, its part) for each of them.
  template <class Use>
  void for_parts(const Use& use) {
    const HostOperands& host = plan_.operands;
    use(head_.qk.left, upload(host.q));
    use(head_.qk.right, upload(host.k));
    use(head_.pv.right, upload(host.v));
    use(head_.q_scale, upload(host.q_scale));
    use(head_.k_scale, upload(host.k_scale));
    use(head_.v_scale, upload(host.v_scale));
    use(head_.correction, upload(host.correction));
    use(head_.mask, upload(host.mask));
    const auto floats = [](std::size_t count) { return Part{count * sizeof(float)}; };
    const std::size_t of_tiles = static_cast<std::size_t>(head_.tiles()) * most_rows_;
    for (float** pointer : {&head_.tile_max, &head_.subtracted, &head_.rescale, &head_.tile_sum}) {
      use(*pointer, floats(of_tiles));
    }
    const ScaledP& scaled = head_.scaled_p;
    const bool factors = head_.scales_p && (scaled.block == 0 || scaled.outer != OuterScale::none);
    use(head_.row_factor, floats(factors ? of_tiles : 0));
    use(head_.tile_largest, floats(head_.scales_p ? of_tiles : 0));
    use(head_.p_tiles, floats(most_rows_ * static_cast<std::size_t>(head_.keys)));
    use(head_.row_max, floats(queries()));
    use(head_.row_sum, floats(queries()));
    use(head_.o, floats(o_size()));
  }

  /// Uploads the operands, and sets the head's pointers.
  void place() {
    Arena sizes, places;
    for_parts([&](auto&, const Part& part) { static_cast<void>(sizes.add(part.bytes)); });
    std::byte* const memory = slot_.memory(sizes.size());
    for_parts([&](auto& pointer, const Part& part) {
      void* const to = memory + places.add(part.bytes);
      if (part.bytes == 0) return;
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(to);
      if (part.source == nullptr) return;
      gpu::check_cuda(cudaMemcpyAsync(to, part.source, part.bytes, cudaMemcpyHostToDevice, stream_),
                      "copying operands to the device");
    });
  }

  void download(const float* from, std::vector<float>& to) const {
    gpu::check_cuda(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
                    "copying outputs from the device");
  }

  const Plan& plan_;
  Head head_;
  Slot& slot_;
  cudaStream_t stream_;
  std::size_t most_rows_ = 0;
};

}  // namespace

Slot::~Slot() {
  cudaFree(memory_);
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

void* Slot::stream() {
  if (stream_ == nullptr) {
    cudaStream_t stream = nullptr;
    gpu::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    stream_ = stream;
  }
  return stream_;
}

std::byte* Slot::memory(std::size_t bytes) {
  if (bytes <= bytes_) return memory_;
  cudaFree(std::exchange(memory_, nullptr));
  bytes_ = 0;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorKind::input,
                fmt::format("CUDA device: a head needs {} bytes of its memory, which it has not free", bytes));
  }
  gpu::check_cuda(status, "allocating memory for a head");
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return memory_;
}

std::size_t tile_bytes_of_device() {
  std::size_t free = 0, total = 0;
  gpu::check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  return std::min(kMostTileBytes, total / kMemoryShare);
}

DeviceRows run_plan(const Plan& plan, std::size_t tile_bytes, Slot& slot, PhaseSeconds* times) {
  return Run(plan, tile_bytes, slot)(times);
}

}  // namespace qattn::emulator
