#include "emulator/run.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "device.h"
#include "emulator/kernels.h"
#include "emulator/layout.h"

namespace qattn::emulator {
namespace {

/// At most so many bytes of P at once, and at most this share of the device's memory.
constexpr std::size_t kMostTileBytes = std::size_t{2} << 30;
constexpr std::size_t kMemoryShare = 16;

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
      : plan_(plan),
        head_(plan.head),
        slot_(slot),
        stream_(static_cast<cudaStream_t>(slot.stream())),
        most_rows_(rows_of_launch(plan.head, tile_bytes)) {}

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

  /// Uploads the operands, and sets the head's pointers.
  void place() {
    std::byte* const memory = slot_.memory(memory_of(plan_, most_rows_));
    for (const Upload& upload : emulator::place(plan_, most_rows_, memory, head_)) {
      gpu::check_cuda(cudaMemcpyAsync(upload.to, upload.from, upload.bytes, cudaMemcpyHostToDevice, stream_),
                      "copying operands to the device");
    }
  }

  void download(const float* from, std::vector<float>& to) const {
    gpu::check_cuda(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
                    "copying outputs from the device");
  }

  const Plan& plan_;
  Head head_;
  Slot& slot_;
  cudaStream_t stream_;
  std::size_t most_rows_;
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
  memory_ = static_cast<std::byte*>(gpu::allocate_on_device(bytes));
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
