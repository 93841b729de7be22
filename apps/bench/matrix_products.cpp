// Fused dot products, instruction family by instruction family.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string_view>

#include "base/simd_target.h"
#include "groups.h"
#include "inputs.h"
#include "mma/tile.h"

namespace qattn::bench {
namespace {

constexpr std::string_view kInstructions[] = {
    "sm90.wgmma.m64nNk32.f32.e4m3.e4m3", "sm90.wgmma.m64nNk32.f16.e4m3.e4m3", "sm89.mma.m16n8k32.f32.e4m3.e4m3",
    "sm90.mma.m16n8k32.f32.e4m3.e4m3",   "sm90.wgmma.m64nNk16.f32.f16.f16",   "sm90.wgmma.m64nNk16.f32.bf16.bf16",
    "sm80.mma.m16n8k16.f32.f16.f16",     "sm80.mma.m16n8k16.f16.f16.f16",     "sm90.wgmma.m64nNk32.s32.s8.s8",
    "sm80.mma.m16n8k64.s32.s4.s4",
};

struct Sizes {
  Eigen::Index rows, columns, depth;
};

/// How A's signs are: as they come, or none negative, as in attention's P.
enum class Signs : std::uint8_t { both, positive };

/// A tile with a long chain, operands decoded once.
void run(benchmark::State& state, const mma::Instruction& x, Sizes sizes, mma::Path path, std::int64_t target,
         Signs signs) {
  const ForcedSimdTarget forced(target);
  MatrixCodes left = normal_codes(*x.a, sizes.rows, sizes.depth, 1);
  if (signs == Signs::positive) {
    const auto mask = static_cast<std::uint32_t>(format::magnitude_mask(*x.a));
    left = left.unaryExpr([mask](std::uint32_t code) { return code & mask; });
  }
  const mma::Operand a(x, mma::Side::a, left);
  const mma::Operand b(x, mma::Side::b, normal_codes(*x.b, sizes.columns, sizes.depth, 2));
  MatrixCodes c = MatrixCodes::Zero(sizes.rows, sizes.columns);
  mma::PathUse use;
  for (auto _ : state) {
    c.setZero();
    use = mma::multiply_accumulate(x, a, b, c, path);
    benchmark::DoNotOptimize(c.data());
  }
  state.counters["plain_steps"] = static_cast<double>(use.plain);
  state.SetItemsProcessed(state.iterations() * sizes.rows * sizes.columns * sizes.depth);
}

}  // namespace

void register_matrix_products() {
  for (const std::string_view name : kInstructions) {
    const mma::Instruction* x = mma::find_instruction_or_null(name);
    if (x == nullptr) continue;
    for (const std::int64_t target : simd_targets()) {
      benchmark::RegisterBenchmark(fmt::format("mma/{}/{}", name, simd_target_name(target)).c_str(),
                                   [x, target](benchmark::State& state) {
                                     run(state, *x, {128, 128, 512}, mma::Path::fast, target, Signs::both);
                                   });
    }
    const std::int64_t best = simd_targets().front();
    benchmark::RegisterBenchmark(fmt::format("mma/{}/plain", name).c_str(), [x, best](benchmark::State& state) {
      run(state, *x, {16, 16, 128}, mma::Path::plain, best, Signs::both);
    });
    if (x->kind == mma::Kind::integer_dot) continue;
    benchmark::RegisterBenchmark(fmt::format("mma/{}/nonnegative", name).c_str(), [x, best](benchmark::State& state) {
      run(state, *x, {128, 64, 128}, mma::Path::fast, best, Signs::positive);
    });
  }
}

}  // namespace qattn::bench
