// Peak memory of one head, measured in a process of its own.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string_view>

#include "attention/pipeline.h"
#include "groups.h"
#include "inputs.h"
#include "lab/recipe_file.h"

namespace qattn::bench {
namespace {

/// The largest resident set, in MB, of a child process that runs `body`; negative when it failed.
double peak_megabytes(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child < 0) return -1.0;
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) != child || status != 0) return -1.0;
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

void head_memory(benchmark::State& state, std::string_view name) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t head_dim = state.range(1);
  const attention::Recipe recipe = lab::load_recipe(name);
  double beyond = 0.0;
  for (auto _ : state) {
    const double input = peak_megabytes([&] { benchmark::DoNotOptimize(normal_problem(tokens, head_dim)); });
    const double whole = peak_megabytes([&] {
      const attention::Problem problem = normal_problem(tokens, head_dim);
      benchmark::DoNotOptimize(attention::run_recipe(problem, recipe, format::kFP16));
    });
    beyond = whole - input;
    if (input < 0 || whole < 0) state.SkipWithError("a child process failed");
  }
  state.counters["MB_beyond_input"] = beyond;
}

}  // namespace

void register_memory() {
  for (const std::string_view name : {"sage2-8b", "fa2-fp16"}) {
    auto* memory = benchmark::RegisterBenchmark(fmt::format("memory/{}", name).c_str(),
                                                [name](benchmark::State& state) { head_memory(state, name); });
    memory->Iterations(1)->Repetitions(1)->Unit(benchmark::kMillisecond);
    for (const std::int64_t tokens : {1024, 4096, 16384, 32768}) memory->Args({tokens, 64});
  }
}

}  // namespace qattn::bench
