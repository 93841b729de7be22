#include "head_run.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "attention/finish.h"
#include "attention/operands.h"
#include "attention/scores.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "device.h"
#include "prepare.h"
#include "tile_choices.h"

namespace qattn::gpu {
namespace {

template <class T>
DeviceBuffer upload(const std::vector<T>& values) {
  return values.empty() ? DeviceBuffer() : DeviceBuffer(std::as_bytes(std::span(values)));
}

DeviceBuffer upload_codes(const attention::Stored& stored) {
  const std::span<const std::uint32_t> codes(stored.codes.data(), static_cast<std::size_t>(stored.codes.size()));
  if (stored.format->bits > 8) return upload(std::vector<std::uint16_t>(codes.begin(), codes.end()));
  return upload(std::vector<std::uint8_t>(codes.begin(), codes.end()));
}

std::vector<float> mask_addends(const attention::Problem& problem) {
  std::vector<float> addends;
  if (!problem.mask) return addends;
  for (Eigen::Index i = 0; i < problem.mask->size(); ++i) {
    addends.push_back(static_cast<float>(attention::mask_addend(problem.mask->data()[i])));
  }
  return addends;
}

/// A head's operands in device memory as long as this lives.
class HeadOperands {
 public:
  virtual ~HeadOperands() = default;
  virtual DeviceOperands view() const = 0;  ///< all but the mask and what its scale makes of the scores
  virtual double score_scale() const = 0;
  virtual std::vector<double> lse_shift() const = 0;
  virtual std::optional<attention::Operands> prepared() const = 0;
};

class OperandsOfCpu : public HeadOperands {
 public:
  OperandsOfCpu(const attention::Problem& problem, attention::Operands operands)
      : operands_(std::move(operands)),
        q_(upload_codes(operands_.q)),
        k_(upload_codes(operands_.k)),
        v_(upload_codes(operands_.v)),
        q_scale_(upload(operands_.q.row_scale)),
        k_scale_(upload(operands_.k.row_scale)),
        v_scale_(upload(operands_.v.column_scale)),
        v_block_scale_(upload(operands_.v.row_scale)),
        v_mean_(upload(operands_.v_mean)),
        correction_(upload(std::vector<float>(operands_.correction.data(),
                                              operands_.correction.data() + operands_.correction.size()))) {
    view_.queries = static_cast<int>(problem.q.rows());
    view_.keys = static_cast<int>(problem.k.rows());
    view_.head_dim = static_cast<int>(problem.q.cols());
    view_.value_dim = static_cast<int>(problem.v.cols());
    view_.q = q_.data();
    view_.k = k_.data();
    view_.v = v_.data();
    view_.q_scale = q_scale_.data<float>();
    view_.k_scale = k_scale_.data<float>();
    view_.v_scale = v_scale_.data<float>();
    view_.v_block_scale = v_block_scale_.data<float>();
    view_.v_mean = v_mean_.data<float>();
    view_.correction = correction_.data<float>();
  }

  DeviceOperands view() const override { return view_; }
  double score_scale() const override { return operands_.score_scale; }
  std::vector<double> lse_shift() const override { return operands_.lse_shift; }
  std::optional<attention::Operands> prepared() const override { return std::nullopt; }

 private:
  attention::Operands operands_;
  DeviceBuffer q_, k_, v_, q_scale_, k_scale_, v_scale_, v_block_scale_, v_mean_, correction_;
  DeviceOperands view_;
};

class OperandsOfGpu : public HeadOperands {
 public:
  OperandsOfGpu(const attention::Problem& problem, const attention::Recipe& recipe)
      : preparation_(input_of(problem), recipe) {
    preparation_.run();
  }

  DeviceOperands view() const override { return preparation_.operands(); }
  double score_scale() const override { return preparation_.score_scale(); }
  std::vector<double> lse_shift() const override { return preparation_.lse_shift(); }
  std::optional<attention::Operands> prepared() const override { return preparation_.download(); }

 private:
  Preparation preparation_;
};

std::unique_ptr<HeadOperands> operands_of(const attention::Problem& problem, const attention::Recipe& recipe,
                                          PreparedBy by) {
  if (by == PreparedBy::gpu) return std::make_unique<OperandsOfGpu>(problem, recipe);
  return std::make_unique<OperandsOfCpu>(problem, attention::prepare_operands(problem, recipe));
}

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "creating an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() const { check_cuda(cudaEventRecord(event_), "recording an event"); }
  double milliseconds_since(const Event& start) const {
    float elapsed = 0;
    check_cuda(cudaEventElapsedTime(&elapsed, start.event_, event_), "reading an event's time");
    return static_cast<double>(elapsed);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

void check_shared_memory(const HardwareRecipe& hardware, const HeadTask& task) {
  int most = 0;
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
             "asking for the size of shared memory");
  const int needed = hardware.kernel->shared_bytes(task);
  if (needed <= most) return;
  throw Error(ErrorKind::usage,
              fmt::format("recipe '{}': k_block = {} with head_dim {}: the kernel's tiles take {} bytes of shared "
                          "memory, and the GPU has {}",
                          hardware.recipe.name, task.choices.k_block, task.operands.head_dim, needed, most));
}

std::vector<float> download(const DeviceBuffer& buffer, std::size_t count) {
  std::vector<float> values(count);
  buffer.read(std::as_writable_bytes(std::span(values)));
  return values;
}

/// O's values as they are, and the LSE of each row from its maximum and sum.
attention::Output output_of(const HeadTask& task, const HeadOperands& operands, const DeviceBuffer& o,
                            const DeviceBuffer& row_max, const DeviceBuffer& row_sum) {
  const auto queries = static_cast<std::size_t>(task.operands.queries);
  const std::vector<float> values = download(o, queries * static_cast<std::size_t>(task.operands.value_dim));
  const std::vector<float> max = download(row_max, queries), sum = download(row_sum, queries);
  const std::vector<double> shift = operands.lse_shift();
  attention::Output output;
  output.o = Eigen::Map<const MatrixF>(values.data(), task.operands.queries, task.operands.value_dim).cast<double>();
  for (std::size_t i = 0; i < queries; ++i) {
    const float total = task.choices.sum_rounded ? sum[i] / task.choices.p_scale : sum[i];
    output.lse.push_back(attention::row_lse(static_cast<double>(max[i]), static_cast<double>(total),
                                            shift.empty() ? 0.0 : operands.score_scale() * shift[i]));
  }
  return output;
}

}  // namespace

HeadRun run_head(const attention::Problem& problem, const HardwareRecipe& hardware, const format::Format& input_format,
                 PreparedBy by, bool keep_operands) {
  const FpEnvironment environment;
  attention::check_shapes(problem);
  const attention::Recipe& recipe = hardware.recipe;
  static std::mutex gpu;  // heads take turns, so that each is timed alone
  const std::lock_guard lock(gpu);
  const std::unique_ptr<HeadOperands> operands = operands_of(problem, recipe, by);
  const DeviceBuffer mask = upload(mask_addends(problem));
  HeadTask task;
  task.operands = operands->view();
  task.operands.mask = mask.data<float>();
  task.operands.logit_scale = static_cast<float>(attention::logit_scale(operands->score_scale()));
  task.choices = tile_choices(recipe, problem, recipe.o_format == nullptr ? input_format : *recipe.o_format);
  check_shared_memory(hardware, task);
  const auto queries = static_cast<std::size_t>(problem.q.rows()),
             channels = static_cast<std::size_t>(problem.v.cols());
  const DeviceBuffer o(queries * channels * sizeof(float)), row_max(queries * sizeof(float)),
      row_sum(queries * sizeof(float));
  task.output = {o.data<float>(), row_max.data<float>(), row_sum.data<float>()};
  check_cuda(hardware.kernel->load(task), "loading an attention kernel");
  const Event start, end;
  start.record();
  check_cuda(hardware.kernel->launch(task), "starting an attention kernel");
  end.record();
  synchronize("running an attention kernel");
  HeadRun run{output_of(task, *operands, o, row_max, row_sum), end.milliseconds_since(start), std::nullopt};
  if (keep_operands) run.operands = operands->prepared();
  return run;
}

}  // namespace qattn::gpu
