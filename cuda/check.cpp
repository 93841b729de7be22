// `qattn-gpu check`: the device and the emulator on the same random operands, live.
#include <fmt/format.h>

#include <chrono>

#include "base/parallel.h"
#include "commands.h"
#include "instructions.h"
#include "io/vectors.h"
#include "mma/digest.h"
#include "report.h"

namespace qattn::gpu {
namespace {

constexpr int kTilesPerRound = 32;
constexpr std::size_t kKeptMismatches = 64;

using Clock = std::chrono::steady_clock;

/// One output that differed, with everything that made it.
struct Mismatch {
  mma::OperandFamily family;
  std::vector<std::uint64_t> a, b;
  std::uint64_t c = 0, from_device = 0, from_model = 0;
};

struct Count {
  std::int64_t elements = 0;
  std::int64_t mismatches = 0;
  std::vector<Mismatch> kept;
};

/// The tiles of a round, each `columns` wide, with the emulator's results.
struct Round {
  OperandBatch batch;
  std::vector<std::uint64_t> expected;
};

/// Operands of one tile; wide instructions take B and C of several tiles side by side.
mma::TileOperands wide_tile(const mma::OperandRecipe& recipe, mma::OperandFamily family, std::uint64_t seed,
                            std::uint64_t tile, int columns) {
  const int parts = columns / mma::kTileColumns;
  const std::uint64_t first = tile * static_cast<std::uint64_t>(parts);
  mma::TileOperands result = mma::tile_operands(recipe, family, seed, first);
  for (int part = 1; part < parts; ++part) {
    const mma::TileOperands next = mma::tile_operands(recipe, family, seed, first + static_cast<std::uint64_t>(part));
    result.b.conservativeResize((part + 1) * mma::kTileColumns, Eigen::NoChange);
    result.b.bottomRows(mma::kTileColumns) = next.b;
    result.c.conservativeResize(Eigen::NoChange, (part + 1) * mma::kTileColumns);
    result.c.rightCols(mma::kTileColumns) = next.c;
  }
  return result;
}

Round make_round(const GpuInstruction& instruction, mma::OperandFamily family, std::uint64_t round,
                 const Options& options) {
  Round result;
  OperandBatch& batch = result.batch;
  batch.columns = std::max(instruction.kernel->n, mma::kTileColumns);
  batch.rows = mma::kTileRows;
  batch.tiles = kTilesPerRound * mma::kTileColumns / batch.columns;
  const mma::OperandRecipe recipe = mma::operand_recipe(instruction.model);
  std::vector<mma::TileOperands> operands(static_cast<std::size_t>(batch.tiles));
  std::vector<mma::CodeMatrix> outputs(operands.size());
  parallel_for(batch.tiles, options.threads, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint64_t tile = round * static_cast<std::uint64_t>(batch.tiles) + at;
    operands[at] = wide_tile(recipe, family, options.seed, tile, batch.columns);
    outputs[at] = mma::tile_result(instruction.model, operands[at]);
  });
  const auto append = [](std::vector<std::uint64_t>& target, const mma::CodeMatrix& source) {
    target.insert(target.end(), source.data(), source.data() + source.size());
  };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    append(batch.a, operands[i].a);
    append(batch.b, operands[i].b);
    append(batch.c, operands[i].c);
    append(result.expected, outputs[i]);
  }
  return result;
}

Mismatch describe(const GpuInstruction& instruction, mma::OperandFamily family, const Round& round, std::size_t index,
                  std::uint64_t from_device) {
  const auto k = static_cast<std::size_t>(instruction.kernel->k);
  const auto rows = static_cast<std::size_t>(round.batch.rows), columns = static_cast<std::size_t>(round.batch.columns);
  const std::size_t row = index / columns, line = row / rows * columns + index % columns;
  const auto slice = [&](const std::vector<std::uint64_t>& codes, std::size_t at) {
    const auto begin = codes.begin() + static_cast<std::ptrdiff_t>(at * k);
    return std::vector<std::uint64_t>(begin, begin + static_cast<std::ptrdiff_t>(k));
  };
  return {family,      slice(round.batch.a, row), slice(round.batch.b, line), round.batch.c[index],
          from_device, round.expected[index]};
}

void compare_round(const GpuInstruction& instruction, mma::OperandFamily family, std::uint64_t number,
                   const Options& options, Count& count) {
  const Round round = make_round(instruction, family, number, options);
  const std::vector<std::uint64_t> d = run_on_device(instruction, round.batch);
  for (std::size_t i = 0; i < d.size(); ++i) {
    ++count.elements;
    if (d[i] == round.expected[i]) continue;
    ++count.mismatches;
    if (count.kept.size() < kKeptMismatches) count.kept.push_back(describe(instruction, family, round, i, d[i]));
  }
}

/// Operands and results in hexadecimal, then the emulator's steps.
std::string mismatch_text(const GpuInstruction& instruction, const Mismatch& mismatch) {
  const int digits = instruction.model.d->bits / 4;
  mma::Trace trace;
  mma::dot(instruction.model, {mismatch.a, mismatch.b, mismatch.c}, &trace);
  return fmt::format("  {} operands, device 0x{:0{}X}, emulator 0x{:0{}X}\n  a {:X}\n  b {:X}\n  c {:X}\n{}",
                     mma::to_string(mismatch.family), mismatch.from_device, digits, mismatch.from_model, digits,
                     fmt::join(mismatch.a, " "), fmt::join(mismatch.b, " "), mismatch.c,
                     mma::to_text(instruction.model, trace));
}

/// The counts of one instruction, with its first mismatch in full.
void add_row(const GpuInstruction& instruction, const Count& count, Report& report) {
  const std::string first = count.kept.empty() ? "" : mismatch_text(instruction, count.kept.front());
  report.text("{:<48} {:>12} {:>12}\n{}", instruction.name, count.elements, count.mismatches, first);
  report.row({{"name", instruction.name},
              {"kind", "instruction"},
              {"elements", count.elements},
              {"mismatches", count.mismatches},
              {"evidence", mma::evidence_text(instruction.model)},
              {"first", first.empty() ? Json() : Json(first)}});
}

/// The mismatches as vectors of single dot products, with the device's results.
void write_mismatches(const std::string& path, const std::vector<GpuInstruction>& instructions,
                      const std::vector<Count>& counts) {
  io::VectorWriter writer(path, io::kInstructionSchema);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const MmaKernel& kernel = *instructions[i].kernel;
    std::vector<std::uint64_t> a, b, c, d;
    for (const Mismatch& mismatch : counts[i].kept) {
      a.insert(a.end(), mismatch.a.begin(), mismatch.a.end());
      b.insert(b.end(), mismatch.b.begin(), mismatch.b.end());
      c.push_back(mismatch.c);
      d.push_back(mismatch.from_device);
    }
    if (d.empty()) continue;
    const auto n = static_cast<std::int64_t>(d.size());
    const auto codes = [](const std::vector<std::uint64_t>& source, int bytes, std::vector<std::int64_t> shape) {
      return io::Codes{std::move(shape), static_cast<std::size_t>(bytes), pack_codes(source, bytes)};
    };
    io::InstructionCase vectors;
    vectors.name = instructions[i].name;
    vectors.instruction = instructions[i].name;
    vectors.gpu = device().description;
    vectors.a = codes(a, kernel.operand_bytes, {n, 1, kernel.k});
    vectors.b = codes(b, kernel.operand_bytes, {n, 1, kernel.k});
    vectors.c = codes(c, kernel.accumulator_bytes, {n, 1, 1});
    vectors.d = codes(d, kernel.result_bytes, {n, 1, 1});
    writer.add(vectors);
  }
  writer.commit();
}

int families_of(const GpuInstruction& instruction) { return instruction.is_integer() ? 1 : mma::kOperandFamilies; }

}  // namespace

bool check_instructions(const Options& options) {
  std::vector<GpuInstruction> instructions;
  for (GpuInstruction& instruction : instructions_of(device(), options.only)) {
    if (instruction.in_table) instructions.push_back(std::move(instruction));
  }
  std::vector<Count> counts(instructions.size());
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t round = 0;
  do {
    for (std::size_t i = 0; i < instructions.size() && (round == 0 || Clock::now() < end); ++i) {
      const auto families = static_cast<std::uint64_t>(families_of(instructions[i]));
      const auto family = static_cast<mma::OperandFamily>((round + i) % families);  // every family in every round
      compare_round(instructions[i], family, round / families, options, counts[i]);
    }
    ++round;
  } while (Clock::now() < end);

  std::int64_t total = 0, wrong = 0;
  Report report("check", options.json);
  report.text("{:<48} {:>12} {:>12}\n", "instruction", "elements", "mismatches");
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    add_row(instructions[i], counts[i], report);
    total += counts[i].elements;
    wrong += counts[i].mismatches;
  }
  report.text("{}: {} elements, {} mismatches\n", device().description, total, wrong);
  report.finish(device().description, {{"elements", total}, {"mismatches", wrong}, {"passed", wrong == 0}});
  if (!options.mismatch_file.empty() && wrong > 0) write_mismatches(options.mismatch_file, instructions, counts);
  return wrong == 0;
}

}  // namespace qattn::gpu
