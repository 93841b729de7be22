// Whole attention: one head under each family of recipes, the float64 reference, and heads spread over threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <vector>

#include "attention/pipeline.h"
#include "attention/reference.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "groups.h"
#include "inputs.h"
#include "kernels/kernel.h"
#include "lab/recipe_file.h"

namespace qattn::bench {
namespace {

constexpr std::string_view kRecipes[] = {"sage2-8b", "sage2-4b", "sage1-B", "fp8-tensor", "int8-token", "fa2-fp16"};

/// One of each family of published kernels.
constexpr std::string_view kKernels[] = {"sageattn_qk_int8_pv_fp8_cuda_sm90", "sageattn_qk_int8_pv_fp8_cuda",
                                         "sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp16_triton",
                                         "aten._scaled_dot_product_flash_attention"};

/// Twice N^2 d: Q K^T and P V.
std::int64_t multiply_adds(std::int64_t tokens, std::int64_t head_dim) { return 2 * tokens * tokens * head_dim; }

void recipe_head(benchmark::State& state, std::string_view name) {
  const attention::Recipe recipe = lab::load_recipe(name);
  const attention::Problem problem = normal_problem(state.range(0), state.range(1));
  mma::PathUse steps;
  for (auto _ : state) steps = attention::run_recipe(problem, recipe, format::kFP16).steps;
  state.counters["plain_steps"] = static_cast<double>(steps.plain);
  state.SetItemsProcessed(state.iterations() * multiply_adds(state.range(0), state.range(1)));
}

Tensor as_tensor(const MatrixD& x) {
  Tensor tensor = make_tensor(format::kFP16, {1, 1, x.rows(), x.cols()});
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    tensor.set_code(i, format::encode(format::kFP16, x.data()[i], format::Policy{}));
  }
  return tensor;
}

void kernel_head(benchmark::State& state, const kernels::Kernel& kernel) {
  const attention::Problem problem = normal_problem(state.range(0), state.range(1));
  kernels::Call call;
  call.q = as_tensor(problem.q);
  call.k = as_tensor(problem.k);
  call.v = as_tensor(problem.v);
  call.sm_scale = problem.sm_scale;
  call.threads = 1;
  for (auto _ : state) benchmark::DoNotOptimize(kernel.run(call));
  state.SetItemsProcessed(state.iterations() * multiply_adds(state.range(0), state.range(1)));
}

void reference_head(benchmark::State& state) {
  const attention::Problem problem = normal_problem(state.range(0), state.range(1));
  for (auto _ : state) benchmark::DoNotOptimize(attention::reference_attention(problem));
  state.SetItemsProcessed(state.iterations() * multiply_adds(state.range(0), state.range(1)));
}

/// `heads` heads of one problem, as a layer has them, one in flight on each thread.
void heads_on_threads(benchmark::State& state, std::string_view name) {
  const std::int64_t heads = state.range(0);
  const attention::Recipe recipe = lab::load_recipe(name);
  const attention::Problem problem = normal_problem(state.range(1), state.range(2));
  for (auto _ : state) {
    parallel_for(heads, static_cast<int>(state.range(3)), [&](std::int64_t) {
      benchmark::DoNotOptimize(attention::run_recipe(problem, recipe, format::kFP16));
    });
  }
  state.SetItemsProcessed(state.iterations() * heads * multiply_adds(state.range(1), state.range(2)));
}

/// 1, 2, 4, ... and all cores.
std::vector<std::int64_t> thread_counts() {
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::int64_t> counts;
  for (std::int64_t threads = 1; threads < cores; threads *= 2) counts.push_back(threads);
  counts.push_back(cores);
  return counts;
}

}  // namespace

void register_attention() {
  for (const std::string_view name : kRecipes) {
    auto* head = benchmark::RegisterBenchmark(fmt::format("attention/{}", name).c_str(),
                                              [name](benchmark::State& state) { recipe_head(state, name); });
    head->Unit(benchmark::kMillisecond);
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t tokens : {1024, 4096, 17776, 32768}) head->Args({tokens, head_dim});
    }
  }
  for (const std::string_view name : kKernels) {
    const kernels::Kernel& kernel = kernels::find_kernel(name);
    benchmark::RegisterBenchmark(fmt::format("kernel/{}", name).c_str(),
                                 [&kernel](benchmark::State& state) { kernel_head(state, kernel); })
        ->Unit(benchmark::kMillisecond)
        ->Args({1024, 64})
        ->Args({4096, 64})
        ->Args({4096, 128});
  }
  benchmark::RegisterBenchmark("reference", reference_head)
      ->Unit(benchmark::kMillisecond)
      ->Args({1024, 64})
      ->Args({4096, 64})
      ->Args({4096, 128});
  auto* spread = benchmark::RegisterBenchmark("threads/sage2-8b",
                                              [](benchmark::State& state) { heads_on_threads(state, "sage2-8b"); });
  spread->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const std::int64_t threads : thread_counts()) spread->Args({32, 1024, 64, threads});
  // One layer of a video model: a minute of one core, so once.
  auto* layer = benchmark::RegisterBenchmark("layer/sage2-8b",
                                             [](benchmark::State& state) { heads_on_threads(state, "sage2-8b"); });
  layer->Unit(benchmark::kSecond)->UseRealTime()->Iterations(1)->Repetitions(1);
  for (const std::int64_t threads : thread_counts()) layer->Args({30, 17776, 64, threads});
}

}  // namespace qattn::bench
