// Digests of 10^8 outputs of an instruction: operands come from counters (mma/operand_families.h), and a sum over each
// block of outputs is kept, so that what a GPU returned can be checked on a CPU from a few hundred bytes
// (schema "qattn-mma-digests/1", file formats, section 8).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mma/fused_dot.h"
#include "mma/operand_families.h"
#include "mma/tile.h"

namespace qattn::mma {

/// "uniform", "special", ...
std::string_view to_string(OperandFamily family);
/// Throws Error(usage) that lists the names.
OperandFamily find_operand_family(std::string_view name);

OperandRecipe operand_recipe(const Instruction& instruction);

/// The operands of one tile: a [64, K], b [64, K] (B transposed), c [64, 64].
struct TileOperands {
  CodeMatrix a, b, c;
};
TileOperands tile_operands(const OperandRecipe& recipe, OperandFamily family, std::uint64_t seed, std::uint64_t tile);

/// D of one tile, [64, 64], by the emulator.
CodeMatrix tile_result(const Instruction& instruction, const TileOperands& operands, Path path = Path::fast);

/// What output number `index` of a family (tile * 4096 + row * 64 + column) adds to its block's sum modulo 2^64; `code`
/// is zero-extended.
constexpr std::uint64_t digest_term(std::uint64_t index, std::uint64_t code) { return mix64(mix64(index) ^ code); }

/// Tiles 256 block ... 256 block + 255 of a family.
std::uint64_t digest_block(const Instruction& instruction, OperandFamily family, std::uint64_t seed,
                           std::uint64_t block, Path path = Path::fast);

/// How many blocks of a family a digest covers, from block 0 on.
struct FamilyBlocks {
  OperandFamily family;
  int blocks;
  friend bool operator==(const FamilyBlocks&, const FamilyBlocks&) = default;
};
/// "uniform:24 special:4", as files keep it; and back. Throws Error(input) for anything else.
std::string to_text(const std::vector<FamilyBlocks>& plan);
std::vector<FamilyBlocks> parse_family_blocks(std::string_view text);

/// What a recording of one instruction holds.
struct InstructionDigest {
  std::string instruction;
  std::uint64_t seed = 0;
  std::vector<FamilyBlocks> plan;
  std::vector<std::uint64_t> sums;  ///< one a block, in the plan's order
};

/// A block whose sum differs.
struct DigestMismatch {
  OperandFamily family;
  int block;
};

/// Computes every block on `threads` threads (0: one for each core) and returns those that differ. `progress` is called
/// after each block, one call at a time. Throws Error(usage) for an unknown instruction, Error(input) when the sums do
/// not match the plan.
std::vector<DigestMismatch> check_digest(const InstructionDigest& recorded, int threads = 0,
                                         const std::function<void()>& progress = {});

}  // namespace qattn::mma
