// Where a head stands in the device's memory: one block, parts behind each other.
#pragma once

#include <cstddef>
#include <vector>

#include "emulator/plan.h"

namespace qattn::emulator {

/// Query rows of one launch: all of the head's, or whole blocks of queries whose P takes at most `tile_bytes`, one
/// block at least.
std::size_t rows_of_launch(const Head& head, std::size_t tile_bytes);

/// Bytes of memory that the plan takes with so many rows a launch.
std::size_t memory_of(const Plan& plan, std::size_t rows);

/// An operand on its way to the device.
struct Upload {
  std::byte* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// Sets `head`'s pointers to parts of `memory`, each aligned to 256 bytes; null stays what the head does not have.
/// `memory` has memory_of(plan, rows) bytes and is not touched. Returns what is to be copied into it.
std::vector<Upload> place(const Plan& plan, std::size_t rows, std::byte* memory, Head& head);

}  // namespace qattn::emulator
