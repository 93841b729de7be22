// qattn-bench: how fast the house is on this machine. Google Benchmark's options choose and print
// (--benchmark_filter=REGEX, --benchmark_out=FILE --benchmark_out_format=json); peers.py beside this file runs it next
// to other programs and writes the table. QATTN_SIMD=AVX2 in the environment forces that SIMD target.
#include <benchmark/benchmark.h>

#include <exception>
#include <iostream>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/simd_target.h"
#include "groups.h"
#include "lab/provenance.h"
#include "mma/tile.h"

int main(int argc, char** argv) {
  try {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    std::optional<qattn::ForcedSimdTarget> forced;
    if (const auto target = qattn::requested_simd_target()) forced.emplace(*target);
    benchmark::AddCustomContext("qattn_commit", std::string(qattn::lab::git_commit()));
    benchmark::AddCustomContext("simd_target", std::string(qattn::mma::active_target()));
    qattn::bench::register_matrix_products();
    qattn::bench::register_casts();
    qattn::bench::register_attention();
    qattn::bench::register_memory();
    if (benchmark::RunSpecifiedBenchmarks() == 0) return 2;
    return 0;
  } catch (const qattn::Error& error) {
    std::cerr << "qattn-bench: " << error.what() << '\n';
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    std::cerr << "qattn-bench: " << error.what() << '\n';
    return 4;
  }
}
