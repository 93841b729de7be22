// A head as the device runs it, made on the CPU: every choice of a recipe as numbers, and its operands as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/operands.h"
#include "attention/problem.h"
#include "attention/recipe.h"
#include "emulator/head.h"
#include "mma/instruction.h"

namespace qattn::emulator {

/// Whether the engines of fused_engine.h do the instruction.
bool has_engine(const mma::Instruction& instruction);

/// The instruction's numbers; throws Error(internal) where has_engine() is false.
FusedEngine make_engine(const mma::Instruction& instruction);

/// Throws Error(usage), which names the recipe and the key, unless the device does all that the recipe asks for.
void check_supported(const attention::Recipe& recipe);

/// Throws Error(usage) for a head of more queries, keys or channels than kMostColumns.
void check_size(std::int64_t queries, std::int64_t keys, std::int64_t channels);

/// What is uploaded; the names are those of Head.
struct HostOperands {
  std::vector<std::byte> q, k, v;
  std::vector<float> q_scale, k_scale, v_scale, correction, mask;
};

struct Plan {
  Head head;  ///< pointers are still null
  HostOperands operands;
};

/// The recipe must be supported; `operands` are what prepare_operands() made of the problem. Throws as check_size().
Plan make_plan(const attention::Problem& problem, const attention::Recipe& recipe, const attention::Operands& operands);

}  // namespace qattn::emulator
