#include "lab/row_trace.h"

#include <fmt/format.h>

#include <algorithm>

namespace qattn::lab {
namespace {

constexpr std::size_t kShownStages = 24, kShownValues = 8;

std::string stage_line(const kernels::Stage& stage) {
  std::string line = fmt::format("  {} [{}]:", stage.name, stage.values.size());
  for (std::size_t i = 0; i < std::min(kShownValues, stage.values.size()); ++i) {
    line += fmt::format(" {:.9g}", stage.values[i]);
  }
  return line + (stage.values.size() > kShownValues ? " ..." : "");
}

}  // namespace

std::string traced_row(const kernels::Kernel& kernel, const kernels::Call& call, std::int64_t batch, std::int64_t head,
                       std::int64_t row) {
  kernels::RowTrace trace{batch, head, row, {}};
  kernels::Call traced = call;
  traced.trace = &trace;
  kernel.run(traced);
  if (trace.stages.empty()) return "";
  std::string text = fmt::format("  stages of batch {}, head {}, row {} in the replay:", batch, head, row);
  for (std::size_t i = 0; i < std::min(kShownStages, trace.stages.size()); ++i) {
    text += "\n" + stage_line(trace.stages[i]);
  }
  if (trace.stages.size() > kShownStages) text += fmt::format("\n  ... {} more", trace.stages.size() - kShownStages);
  return text;
}

}  // namespace qattn::lab
