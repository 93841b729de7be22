// `qattn-gpu probe`: the device's parameters beside the table's.
#include <fmt/format.h>

#include "commands.h"
#include "instructions.h"
#include "mma/digest.h"
#include "probe.h"

namespace qattn::gpu {
namespace {

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
    if (instruction.model.c != instruction.model.d) continue;  // the probe compares C with D
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
