// `qattn-gpu record`: what the device's matrix instructions return for operands of every family.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "commands.h"
#include "instructions.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "mma/digest.h"
#include "report.h"
#include "tiles.h"

namespace qattn::gpu {
namespace {

/// Families that make a difference for the instruction; integers know no exponents.
std::vector<mma::OperandFamily> families_of(const GpuInstruction& instruction) {
  if (instruction.is_integer()) return {mma::OperandFamily::uniform, mma::OperandFamily::attention};
  std::vector<mma::OperandFamily> all;
  for (int i = 0; i < mma::kOperandFamilies; ++i) all.push_back(static_cast<mma::OperandFamily>(i));
  return all;
}

std::string case_name(const GpuInstruction& instruction) {
  std::string name = instruction.name.substr(instruction.name.find('.') + 1);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

io::Codes to_codes(const std::vector<std::uint64_t>& codes, int bytes, std::vector<std::int64_t> shape) {
  return {std::move(shape), static_cast<std::size_t>(bytes), pack_codes(codes, bytes)};
}

/// The top left rows x columns of each tile's operands, one product a tile.
OperandBatch cropped_tiles(const GpuInstruction& instruction, const Options& options) {
  OperandBatch batch;
  batch.rows = instruction.kernel->m;
  batch.columns = instruction.kernel->n;
  const mma::OperandRecipe recipe = mma::operand_recipe(instruction.model);
  const auto append = [](std::vector<std::uint64_t>& target, const mma::CodeMatrix& source, int rows, int columns) {
    for (int i = 0; i < rows; ++i) {
      const std::uint64_t* row = source.data() + i * source.cols();
      target.insert(target.end(), row, row + columns);
    }
  };
  for (const mma::OperandFamily family : families_of(instruction)) {
    for (int product = 0; product < options.products; ++product, ++batch.tiles) {
      // Fewer than eight products still meet every kind of accumulator, in one family or the other.
      const int tile = options.products >= 8 ? product : 2 * product + static_cast<int>(family) % 2;
      const mma::TileOperands operands =
          mma::tile_operands(recipe, family, options.seed, static_cast<std::uint64_t>(tile));
      append(batch.a, operands.a, batch.rows, recipe.k);
      append(batch.b, operands.b, batch.columns, recipe.k);
      append(batch.c, operands.c, batch.rows, batch.columns);
    }
  }
  return batch;
}

io::InstructionCase record_case(const GpuInstruction& instruction, const Options& options) {
  const OperandBatch batch = cropped_tiles(instruction, options);
  const std::vector<std::uint64_t> d = run_on_device(instruction, batch);
  const MmaKernel& kernel = *instruction.kernel;
  const std::int64_t n = batch.tiles, m = kernel.m, columns = kernel.n, k = kernel.k;
  io::InstructionCase result;
  result.name = case_name(instruction);
  result.instruction = instruction.name;
  result.gpu = device().description;
  std::string families;
  for (const mma::OperandFamily family : families_of(instruction)) {
    families += fmt::format("{}{}:{}", families.empty() ? "" : " ", mma::to_string(family), options.products);
  }
  result.attributes["input"] = families;
  result.attributes["seed"] = static_cast<std::int64_t>(options.seed);
  result.a = to_codes(batch.a, kernel.operand_bytes, {n, m, k});
  result.b = to_codes(batch.b, kernel.operand_bytes, {n, columns, k});
  result.c = to_codes(batch.c, kernel.accumulator_bytes, {n, m, columns});
  result.d = to_codes(d, kernel.result_bytes, {n, m, columns});
  return result;
}

/// The experiments that decide the instruction's parameters, one output element each.
io::InstructionCase record_decisive(const GpuInstruction& instruction) {
  const DotBackend run = device_backend(instruction);
  const std::vector<DotExperiment> experiments = decisive_experiments(instruction.model, probe(instruction.model, run));
  std::vector<std::uint64_t> a, b, c;
  for (const DotExperiment& x : experiments) {
    a.insert(a.end(), x.a.begin(), x.a.end());
    b.insert(b.end(), x.b.begin(), x.b.end());
    c.push_back(x.c);
  }
  const MmaKernel& kernel = *instruction.kernel;
  const auto n = static_cast<std::int64_t>(experiments.size());
  io::InstructionCase result;
  result.name = "decisive_" + case_name(instruction);
  result.instruction = instruction.name;
  result.gpu = device().description;
  result.attributes["input"] = std::string("pairs that cancel and a small term: decides the adder's parameters");
  result.a = to_codes(a, kernel.operand_bytes, {n, 1, kernel.k});
  result.b = to_codes(b, kernel.operand_bytes, {n, 1, kernel.k});
  result.c = to_codes(c, kernel.accumulator_bytes, {n, 1, 1});
  result.d = to_codes(run(experiments), kernel.result_bytes, {n, 1, 1});
  return result;
}

/// How `total` blocks are dealt out: what is frequent in attention the most; what the emulator cannot do fast, little.
std::vector<mma::FamilyBlocks> digest_plan(const GpuInstruction& instruction, int total) {
  using mma::OperandFamily;
  if (instruction.is_integer()) return {{OperandFamily::uniform, total}};
  constexpr std::array shares{std::pair{OperandFamily::normal, 24}, std::pair{OperandFamily::attention, 24},
                              std::pair{OperandFamily::wide, 24},   std::pair{OperandFamily::cancelling, 16},
                              std::pair{OperandFamily::tiny, 4},    std::pair{OperandFamily::large, 4},
                              std::pair{OperandFamily::special, 4}};
  std::vector<mma::FamilyBlocks> plan{{OperandFamily::uniform, total}};
  for (const auto& [family, share] : shares) {
    const int blocks = std::max(total * share / 128, 1);
    plan.push_back({family, blocks});
    plan.front().blocks -= blocks;
  }
  if (plan.front().blocks < 1) throw Error(ErrorKind::usage, "--blocks: at least 16 are needed to hold every family");
  return plan;
}

/// One block of 256 tiles on the device, operands and digest included.
class BlockDigester {
 public:
  explicit BlockDigester(const GpuInstruction& instruction)
      : instruction_(instruction),
        recipe_(mma::operand_recipe(instruction.model)),
        a_(operand_bytes()),
        b_(operand_bytes()),
        c_(output_bytes(instruction.kernel->accumulator_bytes)),
        d_(output_bytes(instruction.kernel->result_bytes)),
        sum_(sizeof(std::uint64_t)) {}

  std::uint64_t digest(mma::OperandFamily family, std::uint64_t seed, int block) {
    const MmaKernel& kernel = *instruction_.kernel;
    const auto first_tile = static_cast<std::uint64_t>(block) * mma::kTilesPerBlock;
    const TileRange range{recipe_, family, seed, first_tile, mma::kTilesPerBlock};
    sum_.fill_with_zeros();
    check_cuda(generate_tiles(range, kernel.operand_bytes, kernel.accumulator_bytes, a_.data(), b_.data(), c_.data()),
               "making operands");
    const MmaBatch batch{a_.data(), b_.data(), c_.data(), d_.data(), range.tiles, mma::kTileRows, mma::kTileColumns};
    check_cuda(kernel.launch(batch), "starting " + instruction_.name);
    check_cuda(digest_tiles(d_.data(), kernel.result_bytes, first_tile, range.tiles, sum_.data<unsigned long long>()),
               "digesting results");
    std::array<std::byte, sizeof(std::uint64_t)> bytes;
    sum_.read(bytes);
    std::uint64_t sum = 0;
    std::memcpy(&sum, bytes.data(), bytes.size());
    return sum;
  }

 private:
  std::size_t operand_bytes() const {
    return static_cast<std::size_t>(mma::kTilesPerBlock * mma::kTileRows * recipe_.k *
                                    instruction_.kernel->operand_bytes);
  }
  static std::size_t output_bytes(int bytes) {
    return static_cast<std::size_t>(mma::kTilesPerBlock * mma::kTileOutputs * bytes);
  }

  const GpuInstruction& instruction_;
  mma::OperandRecipe recipe_;
  DeviceBuffer a_, b_, c_, d_, sum_;
};

io::InstructionDigestCase digest_case(const GpuInstruction& instruction, const Options& options) {
  io::InstructionDigestCase result;
  result.name = case_name(instruction);
  result.instruction = instruction.name;
  result.gpu = device().description;
  result.seed = static_cast<std::int64_t>(options.seed);
  const int blocks = instruction.is_integer() ? std::max(options.blocks / 16, 1) : options.blocks;
  const std::vector<mma::FamilyBlocks> plan = digest_plan(instruction, blocks);
  result.families = mma::to_text(plan);
  BlockDigester digester(instruction);
  for (const mma::FamilyBlocks& part : plan) {
    for (int block = 0; block < part.blocks; ++block) {
      result.sums.push_back(digester.digest(part.family, options.seed, block));
    }
  }
  return result;
}

/// What was written where.
void report_file(const std::string& path, std::size_t instructions, std::int64_t outputs, bool json) {
  Report report("record", json);
  report.text("{}: {} instructions, {} outputs\n", path, instructions, outputs);
  report.row({{"file", path}, {"instructions", instructions}, {"outputs", outputs}});
  report.finish(device().description, {{"instructions", instructions}, {"outputs", outputs}});
}

}  // namespace

void record_instructions(const std::string& path, const Options& options) {
  const std::vector<GpuInstruction> instructions = instructions_of(device(), options.only);
  io::VectorWriter writer(path, io::kInstructionSchema);
  std::int64_t outputs = 0;
  std::size_t recorded = 0;
  const auto add = [&](const io::InstructionCase& vectors) {
    writer.add(vectors);
    outputs += vectors.d.size();
  };
  for (const GpuInstruction& instruction : instructions) {
    if (instruction.kernel->n > 8) continue;  // wgmma at its smallest width
    add(record_case(instruction, options));
    const bool is_probed = !instruction.is_integer() && instruction.model.c == instruction.model.d;
    if (is_probed) add(record_decisive(instruction));
    ++recorded;
  }
  writer.commit();
  report_file(path, recorded, outputs, options.json);
}

void record_instruction_digests(const std::string& path, const Options& options) {
  std::vector<io::InstructionDigestCase> cases;
  std::size_t blocks = 0;
  for (const GpuInstruction& instruction : instructions_of(device(), options.only)) {
    const bool is_wgmma = instruction.kernel->m == 64;
    if (is_wgmma && instruction.kernel->n != mma::kTileColumns) continue;
    cases.push_back(digest_case(instruction, options));
    blocks += cases.back().sums.size();
  }
  io::write_instruction_digests(path, cases);
  const std::size_t outputs = blocks * mma::kTilesPerBlock * mma::kTileOutputs;
  report_file(path, cases.size(), static_cast<std::int64_t>(outputs), options.json);
}

void list_instructions(const Options& options) {
  Report report("list", options.json);
  for (const GpuInstruction& instruction : instructions_of(device(), options.only)) {
    const std::string evidence =
        instruction.in_table ? mma::evidence_text(instruction.model) : std::string("not in the table");
    report.text("{}  {}\n", instruction.name, evidence);
    report.row({{"name", instruction.name}, {"evidence", evidence}});
  }
  report.finish(device().description, Json::object());
}

}  // namespace qattn::gpu
