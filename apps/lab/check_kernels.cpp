// Kernel and backward vectors against the replays of published kernels.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "io/vectors.h"
#include "kernels/kernel.h"
#include "kernels/recorded.h"
#include "lab/file_check.h"
#include "lab/row_trace.h"
#include "lab/tensor_difference.h"
#include "metric/accuracy.h"

namespace qattn::lab {
namespace {

/// So many rows of failures are shown with the stages behind them; each costs another run.
constexpr int kTracedFailures = 3;

bool is_floating(const format::Format& format) { return format.specials != format::Specials::integer; }

/// cos_sim and rel_l2 of the computed tensor against the recorded one.
void add_similarity(Json& row, const Tensor& recorded, const Tensor& computed) {
  metric::Accuracy accuracy(*recorded.format);
  const std::int64_t size = recorded.elements();
  const MatrixD r = decode_matrix(recorded, 0, 1, size), o = decode_matrix(computed, 0, 1, size);
  for (std::int64_t i = 0; i < size; ++i) accuracy.add(o(0, i), r(0, i), {0, 0, 0, i});
  row["cos_sim"] = accuracy.cos_sim();
  row["rel_l2"] = accuracy.rel_l2();
}

class KernelFile : public FileCheck {
 public:
  KernelFile(const std::string& file, const CheckOptions& options, CheckResult& result)
      : FileCheck(options, result), reader_(file) {}

  std::vector<std::string> selected() const override { return matching(reader_.cases()); }

  bool run(const std::string& name) override {
    const io::RecordedCase recorded = reader_.recorded(name);
    if (recorded.kernels.empty()) {
      throw Error(ErrorKind::input, fmt::format("{}: {}: has no group under kernels/ to check", reader_.path(), name));
    }
    std::set<std::string> compared;
    bool wanted = false;
    for (const io::RecordedKernel& kernel : recorded.kernels) {
      // One kernel that cannot be replayed does not keep the others from being compared.
      bool known = false;
      try {
        const kernels::Kernel& replay = kernels::kernel_of(recorded, kernel);
        known = true;
        if (!wants_kernel(fmt::format("{} {}", kernel.name, replay.name))) continue;
        wanted = true;
        check(recorded, kernel, replay, compared);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        if (!known && !wants_kernel(kernel.name)) continue;
        fail({reader_.path(), fmt::format("{}/{}", name, kernel.name), error.what()});
      }
    }
    return wanted;
  }

 private:
  void check(const io::RecordedCase& recorded, const io::RecordedKernel& kernel, const kernels::Kernel& replay,
             std::set<std::string>& compared) {
    if (!kernel.has("o")) {
      throw Error(ErrorKind::input, fmt::format("{}: {}/kernels/{}: holds no 'o', which is what a kernel returns",
                                                reader_.path(), recorded.name, kernel.name));
    }
    kernels::Call call = kernels::call_of(recorded, kernel);
    call.threads = options().threads;
    if (!options().arch.empty()) call.arch = options().arch;
    kernels::Returned returned;
    try {
      returned = replay.run(call);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      if (options().arch.empty()) {
        throw Error(ErrorKind::input,
                    fmt::format("{}: {}/kernels/{}: {}", reader_.path(), recorded.name, kernel.name, error.what()));
      }
      return skip({reader_.path(), fmt::format("{}/{}", recorded.name, kernel.name),
                   fmt::format("{}: {} ({}) skipped: {}", reader_.path(), recorded.name, kernel.name, error.what()),
                   ErrorKind::usage});
    }
    for (const auto& [output, tensor] : kernel.tensors) {
      const auto computed = returned.tensors.find(output);
      if (computed == returned.tensors.end()) {
        remark(fmt::format("{}: {} ({}): {} is not replayed and was not checked", reader_.path(), recorded.name,
                           kernel.name, output));
        continue;
      }
      compare(recorded, kernel, replay, call, returned, output, tensor, computed->second);
    }
    // Intermediates stand once in a case, whichever kernel makes them.
    for (const auto& [output, computed] : returned.tensors) {
      if (kernel.has(output) || !recorded.has(output) || !compared.insert(output).second) continue;
      compare(recorded, kernel, replay, call, returned, output, recorded.tensor(output), computed);
    }
  }

  void compare(const io::RecordedCase& recorded, const io::RecordedKernel& kernel, const kernels::Kernel& replay,
               const kernels::Call& call, const kernels::Returned& returned, const std::string& output,
               const Tensor& tensor, const Tensor& computed) {
    if (tensor.format != computed.format || tensor.shape != computed.shape) {
      throw Error(ErrorKind::input,
                  fmt::format("{}: {}/kernels/{}/{}: is {} [{}]; {} returns {} [{}]", reader_.path(), recorded.name,
                              kernel.name, output, tensor.format->name, fmt::join(tensor.shape, ", "), replay.name,
                              computed.format->name, fmt::join(computed.shape, ", ")));
    }
    std::string evidence = returned.evidence;
    Counts counts;
    if (const auto free = returned.order_free.find(output); free != returned.order_free.end()) {
      const kernels::OrderFree& order_free = free->second;
      counts = [&order_free](std::int64_t i, std::uint64_t code, std::uint64_t) {
        return !order_free.reachable(i, code);
      };
      evidence += fmt::format("; {} of {} elements have one order of additions, the others are compared with {}",
                              order_free.fixed, tensor.elements(), order_free.orders);
    }
    const TensorDifference found = difference(tensor, computed, counts);
    const bool backward = reader_.schema() == io::kBackwardSchema;
    Json row = check_row(recorded.name, backward ? "backward" : "kernel", kernel.name, output, found.elements,
                         found.mismatches, ulp_json(found.max_ulp), evidence);
    row["kernel"] = replay.name;
    if (backward && is_floating(*tensor.format)) add_similarity(row, tensor, computed);
    std::string detail;
    if (found.first) {
      row["first"] = first_json(found);
      detail = first_text(found, *tensor.format) + trace_of(replay, call, output, found.first->index);
    }
    finish(reader_.path(), std::move(row), detail);
  }

  /// The stages of the row of a wrong o or lse.
  std::string trace_of(const kernels::Kernel& replay, const kernels::Call& call, const std::string& output,
                       const std::vector<std::int64_t>& index) {
    if ((output != "o" && output != "lse") || traced_ >= kTracedFailures) return "";
    ++traced_;
    const std::string stages = traced_row(replay, call, index.at(0), index.at(1), index.at(2));
    return stages.empty() ? "" : "\n" + stages;
  }

  io::VectorReader reader_;
  int traced_ = 0;
};

}  // namespace

std::unique_ptr<FileCheck> check_kernel_file(const std::string& file, const CheckOptions& options,
                                             CheckResult& result) {
  return std::make_unique<KernelFile>(file, options, result);
}

}  // namespace qattn::lab
