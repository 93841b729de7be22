// `qattn-gpu probe`: the device's parameters beside the table's.
#include <fmt/format.h>

#include "commands.h"
#include "instructions.h"
#include "mma/digest.h"
#include "probe.h"

namespace qattn::gpu {
namespace {

/// Experiment i becomes row i and column i of a 64 x 64 tile; the tile's other elements are not looked at.
DotBackend device_backend(const GpuInstruction& instruction) {
  return [&instruction](const std::vector<DotExperiment>& experiments) {
    constexpr std::size_t side = mma::kTileRows;
    const auto k = static_cast<std::size_t>(instruction.kernel->k);
    const std::size_t tiles = (experiments.size() + side - 1) / side;
    OperandBatch batch;
    batch.tiles = static_cast<int>(tiles);
    batch.rows = batch.columns = mma::kTileRows;
    batch.a.assign(tiles * side * k, 0);
    batch.b = batch.a;
    batch.c.assign(tiles * side * side, 0);
    const auto diagonal = [](std::size_t i) { return (i / side * side + i % side) * side + i % side; };
    for (std::size_t i = 0; i < experiments.size(); ++i) {
      std::copy(experiments[i].a.begin(), experiments[i].a.end(), batch.a.begin() + static_cast<std::ptrdiff_t>(i * k));
      std::copy(experiments[i].b.begin(), experiments[i].b.end(), batch.b.begin() + static_cast<std::ptrdiff_t>(i * k));
      batch.c[diagonal(i)] = experiments[i].c;
    }
    const std::vector<std::uint64_t> d = run_on_device(instruction, batch);
    std::vector<std::uint64_t> outputs;
    for (std::size_t i = 0; i < experiments.size(); ++i) outputs.push_back(d[diagonal(i)]);
    return outputs;
  };
}

void print_adder(const std::string& name, const Adder& adder) {
  const std::string fraction = adder.fraction_bits < 0 ? "-" : std::to_string(adder.fraction_bits);
  fmt::print("{:<44} {:>3} {:>3}  {:<11}  {:<3}  {:<11}  {:>4}  {:<15}  {:>7}  {}\n", name, adder.group_size(),
             fraction, adder.cut, adder.normalises_products ? "yes" : "no", adder.accumulator, adder.mantissa_bits,
             adder.rounding, adder.floor, groups_text(adder));
}

}  // namespace

bool probe_instructions(const Options& options) {
  fmt::print(
      "{}\nL: products summed at once; F: bits kept below the largest exponent; norm: products normalised first\n",
      device().description);
  fmt::print("{:<44} {:>3} {:>3}  {:<11}  {:<3}  {:<11}  {:>4}  {:<15}  {:>7}  {}\n", "instruction", "L", "F", "cut",
             "norm", "C", "bits", "rounding", "floor", "positions, in order");
  bool same = true;
  for (const GpuInstruction& instruction : instructions_of(device(), options.only)) {
    if (instruction.is_integer() || instruction.kernel->n > mma::kTileColumns) continue;
    const Adder measured = probe(instruction.model, device_backend(instruction));
    print_adder(instruction.name, measured);
    if (!instruction.in_table) {
      fmt::print("  the table has no such instruction\n");
      continue;
    }
    const Adder expected = probe(instruction.model, emulator(instruction.model));
    if (measured == expected) continue;
    same = false;
    print_adder("  differs from the table:", expected);
  }
  fmt::print("{}\n", same ? "every parameter is the table's" : "some parameters differ from the table's");
  return same;
}

}  // namespace qattn::gpu
