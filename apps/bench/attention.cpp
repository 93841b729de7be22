// Whole attention: one head under each family of recipes, the float64 reference, and heads spread over threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string_view>

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
  for (auto _ : state) benchmark::DoNotOptimize(attention::run_recipe(problem, recipe, format::kFP16));
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

void heads_on_threads(benchmark::State& state, std::string_view name) {
  constexpr std::int64_t kTokens = 1024;
  constexpr std::int64_t kHeadDim = 64;
  const attention::Recipe recipe = lab::load_recipe(name);
  const attention::Problem problem = normal_problem(kTokens, kHeadDim);
  for (auto _ : state) {
    parallel_for(state.range(0), static_cast<int>(state.range(1)), [&](std::int64_t) {
      benchmark::DoNotOptimize(attention::run_recipe(problem, recipe, format::kFP16));
    });
  }
  state.SetItemsProcessed(state.iterations() * state.range(0) * multiply_adds(kTokens, kHeadDim));
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
  for (const std::int64_t threads : {1, 2, 4, 8}) spread->Args({8, threads});
}

}  // namespace qattn::bench
