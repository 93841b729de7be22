// Conversions, scalar functions and quantizers.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <vector>

#include "format/encode.h"
#include "groups.h"
#include "inputs.h"
#include "quant/quantize.h"
#include "scalar/span.h"

namespace qattn::bench {
namespace {

/// One size that stays in the second-level cache, and one that does not.
constexpr std::int64_t kSizes[] = {std::int64_t{1} << 16, std::int64_t{1} << 22};

void encode(benchmark::State& state, const format::Format& format, std::int64_t n) {
  const MatrixF x = normal_matrix(1, n, 1);
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(n));
  for (auto _ : state) {
    format::encode_span(format, {x.data(), codes.size()}, format::Policy{}, codes);
    benchmark::DoNotOptimize(codes.data());
  }
  state.SetItemsProcessed(state.iterations() * n);
}

void decode(benchmark::State& state, const format::Format& format, std::int64_t n) {
  const MatrixCodes codes = normal_codes(format, 1, n, 1);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (auto _ : state) {
    format::decode_span(format, {codes.data(), x.size()}, x);
    benchmark::DoNotOptimize(x.data());
  }
  state.SetItemsProcessed(state.iterations() * n);
}

using SpanFunction = void (*)(std::span<const float>, std::span<float>);

void scalar_function(benchmark::State& state, SpanFunction function) {
  const MatrixF x = normal_matrix(1, kSizes[0], 1);
  std::vector<float> y(static_cast<std::size_t>(x.size()));
  for (auto _ : state) {
    function({x.data(), y.size()}, y);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetItemsProcessed(state.iterations() * x.size());
}

void quantizer(benchmark::State& state, const quant::QuantizerSpec& spec) {
  const MatrixF x = normal_matrix(2048, 64, 1);
  for (auto _ : state) benchmark::DoNotOptimize(quant::quantize(x, spec));
  state.SetItemsProcessed(state.iterations() * x.size());
}

void register_quantizer(const char* name, const format::Format& format, quant::Granularity granularity,
                        quant::Operand operand) {
  quant::QuantizerSpec spec;
  spec.format = &format;
  spec.groups = {granularity, operand, {"tiles", 128, 32, 64, 64}, std::nullopt};
  benchmark::RegisterBenchmark(fmt::format("quantize/{}", name).c_str(),
                               [spec](benchmark::State& state) { quantizer(state, spec); });
}

}  // namespace

void register_casts() {
  for (const format::Format* format :
       {&format::kE4M3, &format::kE5M2, &format::kFP16, &format::kBF16, &format::kInt8, &format::kE2M1}) {
    for (const std::int64_t n : kSizes) {
      benchmark::RegisterBenchmark(fmt::format("encode/{}/{}", format->name, n).c_str(),
                                   [format, n](benchmark::State& state) { encode(state, *format, n); });
    }
    benchmark::RegisterBenchmark(fmt::format("decode/{}/{}", format->name, kSizes[0]).c_str(),
                                 [format](benchmark::State& state) { decode(state, *format, kSizes[0]); });
  }
  benchmark::RegisterBenchmark("scalar/ex2_approx_ftz",
                               [](benchmark::State& s) { scalar_function(s, scalar::ex2_approx_ftz); });
  benchmark::RegisterBenchmark("scalar/rcp_approx_ftz",
                               [](benchmark::State& s) { scalar_function(s, scalar::rcp_approx_ftz); });
  register_quantizer("int8_per_thread", format::kInt8, quant::Granularity::per_thread, quant::Operand::q);
  register_quantizer("int8_per_token", format::kInt8, quant::Granularity::per_token, quant::Operand::k);
  register_quantizer("int4_per_thread", format::kInt4, quant::Granularity::per_thread, quant::Operand::q);
  register_quantizer("e4m3_per_channel", format::kE4M3, quant::Granularity::per_channel, quant::Operand::v);
  quant::QuantizerSpec nvfp4 = quant::micro_scaled("nvfp4", quant::Operand::k);
  benchmark::RegisterBenchmark("quantize/nvfp4", [nvfp4](benchmark::State& state) { quantizer(state, nvfp4); });
}

}  // namespace qattn::bench
