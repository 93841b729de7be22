// The instructions that this program can run, and how to run them on operands of the host's.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "device.h"
#include "kernels.h"
#include "mma/fused_dot.h"
#include "mma/instruction.h"
#include "probe.h"

namespace qattn::gpu {

struct GpuInstruction {
  std::string name;  ///< "sm90.wgmma.m64n8k32.f32.e4m3.e4m3"
  const MmaKernel* kernel;
  /// The table's entry. For an instruction that the table lacks: shapes and formats only.
  mma::Instruction model;
  bool in_table;

  bool is_integer() const { return model.d->specials == format::Specials::integer; }
};

/// What the device has and `only` finds in the name, in the order of the kernels. Throws Error(usage) when that is
/// nothing.
std::vector<GpuInstruction> instructions_of(const Device& device, const std::regex& only);

/// Operands of a batch: a [tiles, rows, K], b [tiles, columns, K], c [tiles, rows, columns].
struct OperandBatch {
  int tiles = 0, rows = 0, columns = 0;
  std::vector<std::uint64_t> a, b, c;
};

/// D of the batch, [tiles, rows, columns], from the device.
std::vector<std::uint64_t> run_on_device(const GpuInstruction& instruction, const OperandBatch& batch);

/// The device as the probe's backend: experiment i becomes row i and column i of a 64 x 64 tile, whose other elements
/// are not looked at. Keeps a reference to `instruction`.
DotBackend device_backend(const GpuInstruction& instruction);

/// Codes in `bytes` bytes each, as kernels and files keep them; and back.
std::vector<std::byte> pack_codes(const std::vector<std::uint64_t>& codes, int bytes);
std::vector<std::uint64_t> unpack_codes(const std::vector<std::byte>& packed, int bytes);

}  // namespace qattn::gpu
