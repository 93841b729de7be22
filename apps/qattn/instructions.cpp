// qattn instructions: the table of matrix instructions, with the evidence for each.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "command.h"
#include "lab/provenance.h"
#include "mma/instruction.h"
#include "options.h"

namespace qattn::cli {
namespace {

struct Options {
  std::string family;
  OutputOptions output;
};

bool is_fused(mma::Kind kind) {
  return kind == mma::Kind::fused_dot || kind == mma::Kind::scaled_group_dot || kind == mma::Kind::interleaved_dot;
}

lab::Json row_of(const mma::Instruction& instruction) {
  const bool fused = is_fused(instruction.kind);
  const auto when = [&](int value) { return fused ? lab::Json(value) : lab::Json(); };
  const bool nearest = instruction.fusion.rounding == mma::Rounding::nearest_even;
  return {{"name", instruction.name},
          {"kind", mma::kind_name(instruction.kind)},
          {"k", instruction.k},
          {"group", when(instruction.fusion.group)},
          {"fraction_bits", when(instruction.fusion.fraction_bits)},
          {"exponent_floor", when(instruction.fusion.exponent_floor)},
          {"output_mantissa_bits", when(instruction.fusion.mantissa_bits)},
          {"rounding", fused ? lab::Json(nearest ? "nearest even" : "toward zero") : lab::Json()},
          {"block", instruction.block != 0 ? lab::Json(instruction.block) : lab::Json()},
          {"evidence", mma::evidence_text(instruction)}};
}

int instructions(const Options& options) {
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {{"name", "name"},
                    {"kind", "kind"},
                    {"group", "L"},
                    {"fraction_bits", "F"},
                    {"exponent_floor", "floor"},
                    {"output_mantissa_bits", "kept"},
                    {"rounding", "rounding"},
                    {"evidence", "evidence"}};
  report.csv_keys = {"name",     "kind",  "k",       "group", "fraction_bits", "exponent_floor", "output_mantissa_bits",
                     "rounding", "block", "evidence"};
  for (const mma::Instruction& instruction : mma::instructions()) {
    if (instruction.name.find(options.family) != std::string::npos) report.rows.push_back(row_of(instruction));
  }
  if (report.rows.empty()) {
    throw Error(ErrorKind::usage, fmt::format("instructions: no name contains '{}'", options.family));
  }
  report.notes.push_back(
      "L: products summed at once; F: fraction bits kept below the largest exponent; floor: the "
      "largest exponent is never below it; kept: mantissa bits of the output");
  emit(report, options.output);
  return 0;
}

}  // namespace

void add_instructions(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("instructions", "the matrix instructions that are known, with the evidence");
  command->add_option("part", options->family, "only names that contain this, e.g. sm90.wgmma")->type_name("TEXT");
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return instructions(*options); }; });
}

}  // namespace qattn::cli
