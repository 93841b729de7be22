// qattn-bench: how fast the house is on this machine. Google Benchmark's options choose and print
// (--benchmark_filter=REGEX, --benchmark_out=FILE --benchmark_out_format=json); peers.py beside this file runs it next
// to other programs and writes the table.
#include <benchmark/benchmark.h>

#include <exception>
#include <iostream>
#include <string>

#include "groups.h"
#include "lab/provenance.h"
#include "mma/tile.h"

int main(int argc, char** argv) {
  try {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::AddCustomContext("qattn_commit", std::string(qattn::lab::git_commit()));
    benchmark::AddCustomContext("simd_target", std::string(qattn::mma::active_target()));
    qattn::bench::register_matrix_products();
    qattn::bench::register_casts();
    qattn::bench::register_attention();
    qattn::bench::register_memory();
    if (benchmark::RunSpecifiedBenchmarks() == 0) return 2;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "qattn-bench: " << error.what() << '\n';
    return 4;
  }
}
