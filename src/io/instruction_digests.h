// Digests of what an instruction returned for counter-based operands (file formats, section 8): one group an
// instruction, attributes `instruction`, `gpu`, `seed`, `families`, and `digest` uint64 [blocks].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qattn::io {

inline constexpr std::string_view kInstructionDigestSchema = "qattn-mma-digests/1";

struct InstructionDigestCase {
  std::string name;         ///< the group's path
  std::string instruction;  ///< "sm90.wgmma.m64n64k32.f32.e4m3.e4m3"
  std::string gpu;
  std::int64_t seed = 0;
  std::string families;             ///< "uniform:24 special:4 ...": how many blocks of which operands, in order
  std::vector<std::uint64_t> sums;  ///< one a block
};

/// Every case, sorted by name. Throws Error(input) that names file, group and reason.
std::vector<InstructionDigestCase> read_instruction_digests(const std::string& path);

/// Writes a whole file; it appears complete or not at all.
void write_instruction_digests(const std::string& path, const std::vector<InstructionDigestCase>& cases);

}  // namespace qattn::io
