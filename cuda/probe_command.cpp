// `qattn-gpu probe`: the device's parameters beside the table's.
#include <fmt/format.h>

#include "commands.h"
#include "instructions.h"
#include "mma/digest.h"
#include "probe.h"
#include "report.h"

namespace qattn::gpu {
namespace {

Json to_json(const Adder& adder) {
  return {{"group", adder.group_size()},
          {"groups", groups_text(adder)},
          {"fraction_bits", adder.fraction_bits < 0 ? Json() : Json(adder.fraction_bits)},
          {"cut", adder.cut},
          {"normalises_products", adder.normalises_products},
          {"accumulator", adder.accumulator},
          {"mantissa_bits", adder.mantissa_bits},
          {"rounding", adder.rounding},
          {"exponent_floor", adder.floor}};
}

void print_adder(const std::string& name, const Adder& adder, Report& report) {
  const std::string fraction = adder.fraction_bits < 0 ? "-" : std::to_string(adder.fraction_bits);
  report.text("{:<44} {:>3} {:>3}  {:<11}  {:<3}  {:<11}  {:>4}  {:<15}  {:>7}  {}\n", name, adder.group_size(),
              fraction, adder.cut, adder.normalises_products ? "yes" : "no", adder.accumulator, adder.mantissa_bits,
              adder.rounding, adder.floor, groups_text(adder));
}

}  // namespace

bool probe_instructions(const Options& options) {
  Report report("probe", options.json);
  report.text(
      "{}\nL: products summed at once; F: bits kept below the largest exponent; norm: products normalised first\n",
      device().description);
  report.text("{:<44} {:>3} {:>3}  {:<11}  {:<3}  {:<11}  {:>4}  {:<15}  {:>7}  {}\n", "instruction", "L", "F", "cut",
              "norm", "C", "bits", "rounding", "floor", "positions, in order");
  bool same = true;
  for (const GpuInstruction& instruction : instructions_of(device(), options.only)) {
    if (instruction.is_integer() || instruction.kernel->n > mma::kTileColumns) continue;
    if (instruction.model.c != instruction.model.d) continue;  // the probe compares C with D
    const Adder measured = probe(instruction.model, device_backend(instruction));
    print_adder(instruction.name, measured, report);
    Json row{{"name", instruction.name}, {"measured", to_json(measured)}, {"table", nullptr}, {"evidence", nullptr}};
    if (!instruction.in_table) {
      report.text("  the table has no such instruction\n");
      report.row(row);
      continue;
    }
    const Adder expected = probe(instruction.model, emulator(instruction.model));
    row["table"] = to_json(expected);
    row["evidence"] = mma::evidence_text(instruction.model);
    report.row(row);
    if (measured == expected) continue;
    same = false;
    print_adder("  differs from the table:", expected, report);
  }
  report.text("{}\n", same ? "every parameter is the table's" : "some parameters differ from the table's");
  report.finish(device().description, {{"passed", same}});
  return same;
}

}  // namespace qattn::gpu
