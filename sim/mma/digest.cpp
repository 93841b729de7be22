// The CPU's side of instruction digests.
#include "mma/digest.h"

#include <array>
#include <charconv>
#include <mutex>

#include "base/error.h"
#include "base/parallel.h"

namespace qattn::mma {
namespace {

constexpr std::array<std::string_view, kOperandFamilies> kFamilyNames{"uniform", "special",    "normal", "attention",
                                                                      "wide",    "cancelling", "tiny",   "large"};

CodeFormat code_format(const format::Format& format) {
  CodeFormat f;
  f.bits = format.bits;
  f.exponent_bits = format.exponent_bits;
  f.mantissa_bits = format.mantissa_bits;
  f.bias = format.bias;
  f.unused_bits = format.bits == 19 ? 13 : 0;
  f.has_sign = format.has_sign;
  f.is_integer = format.specials == format::Specials::integer;
  f.has_infinity = format.specials == format::Specials::ieee;
  return f;
}

/// The tile through the plain engine, which alone knows 64-bit codes and a C that is not of D's format.
CodeMatrix plain_result(const Instruction& instruction, const TileOperands& operands) {
  return execute(instruction, operands.a, operands.b, operands.c);
}

}  // namespace

std::string_view to_string(OperandFamily family) { return kFamilyNames[static_cast<std::size_t>(family)]; }

OperandFamily find_operand_family(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kFamilyNames.size(); ++i) {
    if (kFamilyNames[i] == name) return static_cast<OperandFamily>(i);
    known.append(known.empty() ? "" : ", ").append(kFamilyNames[i]);
  }
  throw Error(ErrorKind::usage, "unknown operand family '" + std::string(name) + "'; known are " + known);
}

OperandRecipe operand_recipe(const Instruction& instruction) {
  return {code_format(*instruction.a), code_format(*instruction.b), code_format(*instruction.c), instruction.k};
}

TileOperands tile_operands(const OperandRecipe& recipe, OperandFamily family, std::uint64_t seed, std::uint64_t tile) {
  TileOperands operands;
  const auto fill = [&](CodeMatrix& codes, int side, int rows) {
    const std::uint64_t key = operand_key(seed, family, tile, side);
    codes.resize(rows, recipe.k);
    for (int i = 0; i < rows; ++i) {
      for (int k = 0; k < recipe.k; ++k) codes(i, k) = operand_code(recipe, family, tile, side, key, i, k);
    }
  };
  fill(operands.a, 0, kTileRows);
  fill(operands.b, 1, kTileColumns);
  const std::uint64_t key = operand_key(seed, family, tile, 2);
  operands.c.resize(kTileRows, kTileColumns);
  for (int i = 0; i < kTileRows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) {
      operands.c(i, j) = accumulator_code(recipe, family, tile, key, i, j, operands.a(i, 0), operands.b(j, 0));
    }
  }
  return operands;
}

CodeMatrix tile_result(const Instruction& instruction, const TileOperands& operands, Path path) {
  if (instruction.c != instruction.d || instruction.d->bits > 32) return plain_result(instruction, operands);
  const MatrixCodes a = operands.a.cast<std::uint32_t>(), b = operands.b.cast<std::uint32_t>();
  MatrixCodes c = operands.c.cast<std::uint32_t>();
  multiply_accumulate(instruction, Operand(instruction, Side::a, a), Operand(instruction, Side::b, b), c, path);
  return c.cast<std::uint64_t>();
}

std::uint64_t digest_block(const Instruction& instruction, OperandFamily family, std::uint64_t seed,
                           std::uint64_t block, Path path) {
  const OperandRecipe recipe = operand_recipe(instruction);
  std::uint64_t sum = 0;
  for (std::uint64_t tile = block * kTilesPerBlock; tile < (block + 1) * kTilesPerBlock; ++tile) {
    const CodeMatrix d = tile_result(instruction, tile_operands(recipe, family, seed, tile), path);
    for (int i = 0; i < kTileOutputs; ++i) {
      sum += digest_term(tile * kTileOutputs + static_cast<std::uint64_t>(i), d.data()[i]);
    }
  }
  return sum;
}

std::string to_text(const std::vector<FamilyBlocks>& plan) {
  std::string text;
  for (const FamilyBlocks& part : plan) {
    text.append(text.empty() ? "" : " ").append(to_string(part.family)) += ':' + std::to_string(part.blocks);
  }
  return text;
}

std::vector<FamilyBlocks> parse_family_blocks(std::string_view text) {
  std::vector<FamilyBlocks> plan;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::size_t colon = part.find(':');
    int blocks = 0;
    if (colon != std::string_view::npos) std::from_chars(part.data() + colon + 1, part.data() + part.size(), blocks);
    if (blocks <= 0) {
      throw Error(ErrorKind::input, "families '" + std::string(text) + "': '" + std::string(part) +
                                        "' is no 'family:blocks' such as 'uniform:24'");
    }
    plan.push_back({find_operand_family(part.substr(0, colon)), blocks});
  }
  return plan;
}

std::vector<DigestMismatch> check_digest(const InstructionDigest& recorded, int threads,
                                         const std::function<void()>& progress) {
  const Instruction& instruction = find_instruction(recorded.instruction);
  std::vector<DigestMismatch> blocks;
  for (const FamilyBlocks& part : recorded.plan) {
    for (int block = 0; block < part.blocks; ++block) blocks.push_back({part.family, block});
  }
  if (blocks.empty() || blocks.size() != recorded.sums.size()) {
    throw Error(ErrorKind::input, recorded.instruction + ": " + std::to_string(recorded.sums.size()) +
                                      " digests for the " + std::to_string(blocks.size()) + " blocks of '" +
                                      to_text(recorded.plan) + "'");
  }
  std::vector<char> differs(blocks.size());
  std::mutex mutex;
  parallel_for(static_cast<std::int64_t>(blocks.size()), threads, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const DigestMismatch& block = blocks[at];
    differs[at] = digest_block(instruction, block.family, recorded.seed, static_cast<std::uint64_t>(block.block)) !=
                  recorded.sums[at];
    const std::lock_guard lock(mutex);
    if (progress) progress();
  });
  std::vector<DigestMismatch> mismatches;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (differs[i] != 0) mismatches.push_back(blocks[i]);
  }
  return mismatches;
}

}  // namespace qattn::mma
