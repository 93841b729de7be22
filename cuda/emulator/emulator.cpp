// The emulator on a CUDA device: operands come from the CPU's own preparation, the tiles run on the device, and the
// rows are finished by the CPU's own last step.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>

#include "attention/finish.h"
#include "attention/operands.h"
#include "attention/pipeline.h"
#include "base/fp_environment.h"
#include "device.h"
#include "emulator/plan.h"
#include "emulator/run.h"
#include "lab/device.h"

namespace qattn::emulator {
namespace {

/// Heads on the device at once: enough to fill it, few enough for its memory.
constexpr std::size_t kSlots = 4;

/// The slots, handed to one thread each.
class Slots {
 public:
  class Lease {
   public:
    explicit Lease(Slots& slots) : slots_(slots), index_(slots.take()) {}
    ~Lease() { slots_.give_back(index_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Slot& slot() { return slots_.slots_[index_]; }

   private:
    Slots& slots_;
    std::size_t index_;
  };

 private:
  std::size_t take() {
    std::unique_lock lock(mutex_);
    const auto free = [&] { return std::find(taken_.begin(), taken_.end(), false); };
    changed_.wait(lock, [&] { return free() != taken_.end(); });
    const auto index = static_cast<std::size_t>(free() - taken_.begin());
    taken_[index] = true;
    return index;
  }
  void give_back(std::size_t index) {
    const std::lock_guard lock(mutex_);
    taken_[index] = false;
    changed_.notify_one();
  }

  std::array<Slot, kSlots> slots_;
  std::array<bool, kSlots> taken_{};
  std::mutex mutex_;
  std::condition_variable changed_;
};

class CudaDevice final : public lab::Device {
 public:
  CudaDevice() : description_(gpu::device().description), tile_bytes_(tile_bytes_of_device()) {}

  std::string description() const override { return description_; }
  void check(const attention::Recipe& recipe) const override { check_supported(recipe); }

  attention::Output run(const attention::Problem& problem, const attention::Recipe& recipe,
                        const format::Format& input_format) const override {
    const FpEnvironment environment;
    attention::check_runnable(problem, recipe);
    check_supported(recipe);
    const attention::Operands operands = attention::prepare_operands(problem, recipe);
    const Plan plan = make_plan(problem, recipe, operands);
    const DeviceRows rows = run_in_slot(plan);
    const std::int64_t queries = problem.q.rows(), channels = problem.v.cols();
    attention::Output output{MatrixD::Zero(queries, channels), std::vector<double>(static_cast<std::size_t>(queries))};
    const format::Format& o_format = recipe.o_format == nullptr ? input_format : *recipe.o_format;
    const attention::Finish<float> finish(recipe, operands, o_format, channels);
    for (std::int64_t i = 0; i < queries; ++i) {
      const auto row = static_cast<std::size_t>(i);
      finish.row(i, rows.max[row], rows.sum[row], rows.o.data() + i * channels, output);
    }
    return output;
  }

 private:
  DeviceRows run_in_slot(const Plan& plan) const {
    Slots::Lease lease(slots_);
    return run_plan(plan, tile_bytes_, lease.slot());
  }

  std::string description_;
  std::size_t tile_bytes_;
  mutable Slots slots_;
};

}  // namespace
}  // namespace qattn::emulator

namespace qattn::lab {

std::unique_ptr<Device> open_cuda_device() { return std::make_unique<emulator::CudaDevice>(); }

}  // namespace qattn::lab
