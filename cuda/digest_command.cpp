// `qattn-gpu check --digests FILE`: the emulator computes what a recording holds digests of. Needs no GPU.
#include <fmt/format.h>

#include "base/error.h"
#include "commands.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "mma/digest.h"
#include "report.h"
#include "scalar/digest.h"
#include "scalar/function.h"

namespace qattn::gpu {
namespace {

struct Checked {
  std::string name, evidence;
  std::uint64_t elements;
  std::size_t blocks, differing;
  std::string first;  ///< the first block that differs
};

bool add_row(const Checked& c, Report& report) {
  report.text("{:<48} {:>12} {:>7} {:>9}{}\n", c.name, c.elements, c.blocks, c.differing,
              c.first.empty() ? "" : "  first: " + c.first);
  report.row({{"name", c.name},
              {"kind", "digest"},
              {"elements", c.elements},
              {"blocks", c.blocks},
              {"mismatches", c.differing},
              {"evidence", c.evidence},
              {"first", c.first.empty() ? Json() : Json(c.first)}});
  return c.differing == 0;
}

Checked check_instruction(const io::InstructionDigestCase& recorded, const Options& options) {
  mma::InstructionDigest digest;
  digest.instruction = recorded.instruction;
  digest.seed = static_cast<std::uint64_t>(recorded.seed);
  digest.plan = mma::parse_family_blocks(recorded.families);
  digest.sums = recorded.sums;
  const std::vector<mma::DigestMismatch> differing = mma::check_digest(digest, options.threads);
  std::string first;
  if (!differing.empty()) {
    first = fmt::format("{} block {}", mma::to_string(differing.front().family), differing.front().block);
  }
  constexpr std::uint64_t per_block = mma::kTilesPerBlock * mma::kTileOutputs;
  return {recorded.instruction,
          mma::evidence_text(mma::find_instruction(recorded.instruction)),
          digest.sums.size() * per_block,
          digest.sums.size(),
          differing.size(),
          first};
}

Checked check_function(const io::DigestCase& recorded, const Options& options) {
  const scalar::Function& function = scalar::find(recorded.function, scalar::build_from_options(recorded.build));
  const std::vector<int> differing =
      scalar::differing_blocks(recorded.digest, scalar::digest(function, options.threads));
  const std::string first = differing.empty() ? "" : fmt::format("block 0x{:02X}", differing.front());
  return {recorded.name,
          std::string(scalar::to_string(function.evidence)),
          scalar::kDigestBlocks * scalar::kDigestBlockInputs,
          recorded.digest.size(),
          differing.size(),
          first};
}

}  // namespace

bool check_digest_file(const std::string& path, const Options& options) {
  Report report("check", options.json);
  bool same = true;
  int checked = 0;
  const auto takes = [&](const std::string& name) {
    if (!std::regex_search(name, options.only)) return false;
    if (checked++ == 0) report.text("{:<48} {:>12} {:>7} {:>9}\n", "name", "elements", "blocks", "differing");
    return true;
  };
  if (io::schema(path) == io::kInstructionDigestSchema) {
    for (const io::InstructionDigestCase& recorded : io::read_instruction_digests(path)) {
      if (takes(recorded.instruction)) same &= add_row(check_instruction(recorded, options), report);
    }
  } else {
    const io::VectorReader reader(path);
    for (const std::string& name : reader.cases()) {
      if (takes(name)) same &= add_row(check_function(reader.digest(name), options), report);
    }
  }
  if (checked == 0) throw Error(ErrorKind::usage, path + ": no case matches --only");
  report.text("{}: {} cases, {}\n", path, checked, same ? "all equal" : "some differ");
  report.finish(path, {{"cases", checked}, {"passed", same}});
  return same;
}

}  // namespace qattn::gpu
