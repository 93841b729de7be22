// `qattn-gpu emulate`: the emulator on the device beside the CPU's, the same bits, and how fast each is.
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <future>
#include <vector>

#include "attention/operands.h"
#include "attention/pipeline.h"
#include "base/random.h"
#include "commands.h"
#include "device.h"
#include "emulator/plan.h"
#include "emulator/run.h"
#include "lab/device.h"
#include "lab/recipe_file.h"
#include "report.h"

namespace qattn::gpu {
namespace {

constexpr double kGiga = 1e9;
constexpr std::size_t kStreams = 4;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Values of a bell shape with 11 significant bits, as FP16 holds them.
MatrixD drawn(const EmulateOptions& options, std::uint64_t stream) {
  MatrixD x(options.tokens, options.head_dim);
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    double sum = 0;
    for (std::uint64_t part = 0; part < 4; ++part) {
      sum += random_unit(options.seed, stream, static_cast<std::uint64_t>(i) * 4 + part) - 0.5;
    }
    x.data()[i] = std::nearbyint(sum * 1024) / 512;
  }
  return x;
}

attention::Problem draw(const EmulateOptions& options) {
  attention::Problem problem;
  problem.q = drawn(options, 0);
  problem.k = drawn(options, 1);
  problem.v = drawn(options, 2);
  problem.sm_scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
  problem.is_causal = options.causal;
  return problem;
}

std::int64_t differing(const attention::Output& x, const attention::Output& y) {
  std::int64_t count = 0;
  for (Eigen::Index i = 0; i < x.o.size(); ++i) {
    count += std::bit_cast<std::uint64_t>(x.o.data()[i]) != std::bit_cast<std::uint64_t>(y.o.data()[i]) ? 1 : 0;
  }
  for (std::size_t i = 0; i < x.lse.size(); ++i) {
    count += std::bit_cast<std::uint64_t>(x.lse[i]) != std::bit_cast<std::uint64_t>(y.lse[i]) ? 1 : 0;
  }
  return count;
}

/// Seconds for `heads` heads with the plan, on several streams; operands are uploaded for each.
double seconds_of_heads(const emulator::Plan& plan, int heads) {
  const std::size_t bytes = emulator::tile_bytes_of_device();
  std::vector<emulator::Slot> slots(std::min(kStreams, static_cast<std::size_t>(heads)));
  for (emulator::Slot& slot : slots) static_cast<void>(emulator::run_plan(plan, bytes, slot));
  const Stopwatch time;
  std::atomic<int> next = 0;
  std::vector<std::future<void>> streams;  // a future waits for its thread where get() is not reached
  for (emulator::Slot& slot : slots) {
    streams.push_back(std::async(std::launch::async, [&plan, &next, &slot, bytes, heads] {
      while (next++ < heads) static_cast<void>(emulator::run_plan(plan, bytes, slot));
    }));
  }
  for (std::future<void>& stream : streams) stream.get();
  return time.seconds();
}

/// What was found of one head.
struct Findings {
  emulator::PhaseSeconds phases;
  double head_seconds = 0;   ///< on the device, with the CPU's preparation
  double heads_seconds = 0;  ///< of all heads, prepared
  double cpu_seconds = 0;
  std::int64_t numbers = 0, differing = 0;
};

Findings find(const EmulateOptions& options, const lab::Device& device, const attention::Recipe& recipe) {
  const attention::Problem problem = draw(options);
  const attention::Operands operands = attention::prepare_operands(problem, recipe);
  const emulator::Plan plan = emulator::make_plan(problem, recipe, operands);
  Findings findings;
  emulator::Slot slot;
  for (int i = 0; i < 2; ++i) {  // the second run finds memory and kernels
    findings.phases = {};
    static_cast<void>(emulator::run_plan(plan, emulator::tile_bytes_of_device(), slot, &findings.phases));
  }
  const Stopwatch device_time;
  const attention::Output on_device = device.run(problem, recipe, format::kFP16);
  findings.head_seconds = device_time.seconds();
  findings.heads_seconds = seconds_of_heads(plan, options.heads);
  findings.numbers = on_device.o.size() + static_cast<std::int64_t>(on_device.lse.size());
  if (!options.compare) return findings;
  const Stopwatch cpu_time;
  const attention::Output on_cpu = attention::run_recipe(problem, recipe, format::kFP16);
  findings.cpu_seconds = cpu_time.seconds();
  findings.differing = differing(on_device, on_cpu);
  return findings;
}

void tell(const EmulateOptions& options, const attention::Recipe& recipe, const Findings& f, Report& report) {
  const double pairs = static_cast<double>(options.tokens) * static_cast<double>(options.tokens);
  const double products = pairs * static_cast<double>(options.head_dim) * (options.causal ? 0.5 : 1.0) / kGiga;
  report.text("{}: {}\n", recipe.name, attention::accumulator_evidence(recipe));
  report.text(
      "one head of {} x {}: Q K {:.4f} s ({:.0f} G multiply-adds/s), softmax {:.4f} s, P V {:.4f} s ({:.0f} G)\n",
      options.tokens, options.head_dim, f.phases.scores, products / f.phases.scores, f.phases.softmax, f.phases.values,
      products / f.phases.values);
  report.text("with preparation and copies {:.3f} s; {} heads, prepared, {:.3f} s\n", f.head_seconds, options.heads,
              f.heads_seconds);
  if (options.compare) report.text("CPU {:.3f} s; {} of {} numbers differ\n", f.cpu_seconds, f.differing, f.numbers);
  report.row({{"recipe", recipe.name},
              {"tokens", options.tokens},
              {"head_dim", options.head_dim},
              {"causal", options.causal},
              {"scores_seconds", f.phases.scores},
              {"softmax_seconds", f.phases.softmax},
              {"values_seconds", f.phases.values},
              {"head_seconds", f.head_seconds},
              {"heads", options.heads},
              {"heads_seconds", f.heads_seconds},
              {"cpu_seconds", options.compare ? Json(f.cpu_seconds) : Json()},
              {"differing", options.compare ? Json(f.differing) : Json()}});
}

}  // namespace

bool emulate(const EmulateOptions& options) {
  const attention::Recipe recipe = lab::load_recipe(options.recipe);
  emulator::check_supported(recipe);
  const auto device = lab::open_cuda_device();
  const Findings findings = find(options, *device, recipe);
  Report report("emulate", options.json);
  report.text("{}\n", device->description());
  tell(options, recipe, findings, report);
  report.finish(device->description(), {{"passed", findings.differing == 0}});
  return findings.differing == 0;
}

}  // namespace qattn::gpu
