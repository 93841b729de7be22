// `qattn-gpu check --digests FILE`: the emulator computes what a recording holds digests of. Needs no GPU.
#include <fmt/format.h>

#include "base/error.h"
#include "commands.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "mma/digest.h"
#include "scalar/digest.h"
#include "scalar/function.h"

namespace qattn::gpu {
namespace {

void print_header() { fmt::print("{:<48} {:>12} {:>7} {:>9}\n", "name", "elements", "blocks", "differing"); }

bool print_row(const std::string& name, std::uint64_t elements, std::size_t blocks, std::size_t differing,
               const std::string& first) {
  fmt::print("{:<48} {:>12} {:>7} {:>9}{}\n", name, elements, blocks, differing, first);
  std::fflush(stdout);
  return differing == 0;
}

bool check_instruction(const io::InstructionDigestCase& recorded, const Options& options) {
  mma::InstructionDigest digest;
  digest.instruction = recorded.instruction;
  digest.seed = static_cast<std::uint64_t>(recorded.seed);
  digest.plan = mma::parse_family_blocks(recorded.families);
  digest.sums = recorded.sums;
  const std::vector<mma::DigestMismatch> differing = mma::check_digest(digest, options.threads);
  std::string first;
  if (!differing.empty()) {
    first = fmt::format("  first: {} block {}", mma::to_string(differing.front().family), differing.front().block);
  }
  constexpr std::uint64_t per_block = mma::kTilesPerBlock * mma::kTileOutputs;
  return print_row(recorded.instruction, digest.sums.size() * per_block, digest.sums.size(), differing.size(), first);
}

bool check_function(const io::DigestCase& recorded, const Options& options) {
  const scalar::Function& function = scalar::find(recorded.function, scalar::build_from_options(recorded.build));
  const std::vector<int> differing =
      scalar::differing_blocks(recorded.digest, scalar::digest(function, options.threads));
  const std::string first = differing.empty() ? "" : fmt::format("  first: block 0x{:02X}", differing.front());
  return print_row(recorded.name, scalar::kDigestBlocks * scalar::kDigestBlockInputs, recorded.digest.size(),
                   differing.size(), first);
}

}  // namespace

bool check_digest_file(const std::string& path, const Options& options) {
  bool same = true;
  int checked = 0;
  if (io::schema(path) == io::kInstructionDigestSchema) {
    print_header();
    for (const io::InstructionDigestCase& recorded : io::read_instruction_digests(path)) {
      if (!std::regex_search(recorded.instruction, options.only)) continue;
      same &= check_instruction(recorded, options);
      ++checked;
    }
  } else {
    const io::VectorReader reader(path);
    print_header();
    for (const std::string& name : reader.cases()) {
      if (!std::regex_search(name, options.only)) continue;
      same &= check_function(reader.digest(name), options);
      ++checked;
    }
  }
  if (checked == 0) throw Error(ErrorKind::usage, path + ": no case matches --only");
  fmt::print("{}: {} cases, {}\n", path, checked, same ? "all equal" : "some differ");
  return same;
}

}  // namespace qattn::gpu
