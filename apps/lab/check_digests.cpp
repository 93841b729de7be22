// Digests of instructions against the models.
#include <fmt/format.h>

#include <algorithm>

#include "io/instruction_digests.h"
#include "lab/file_check.h"
#include "mma/digest.h"

namespace qattn::lab {
namespace {

/// Digests of instructions: an element is a block of 2^20 outputs.
class InstructionDigestFile : public FileCheck {
 public:
  InstructionDigestFile(const std::string& file, const CheckOptions& options, CheckResult& result)
      : FileCheck(options, result), file_(file), cases_(io::read_instruction_digests(file)) {}

  std::vector<std::string> selected() const override {
    std::vector<std::string> names;
    for (const io::InstructionDigestCase& recorded : cases_) names.push_back(recorded.name);
    return matching(names);
  }

  bool run(const std::string& name) override {
    const auto found = std::find_if(cases_.begin(), cases_.end(), [&](const auto& c) { return c.name == name; });
    const mma::InstructionDigest digest{found->instruction, static_cast<std::uint64_t>(found->seed),
                                        mma::parse_family_blocks(found->families), found->sums};
    std::int64_t done = 0;
    const auto total = static_cast<std::int64_t>(digest.sums.size());
    const std::vector<mma::DigestMismatch> wrong = mma::check_digest(digest, options().threads, [&] {
      if (options().progress) options().progress(++done, total);
    });
    Json row = check_row(name, "instruction", found->instruction, "digest", digest.sums.size(), wrong.size(), nullptr,
                         mma::evidence_text(mma::find_instruction(found->instruction)));
    std::string detail;
    if (!wrong.empty()) {
      row["first"] = {{"family", mma::to_string(wrong.front().family)}, {"block", wrong.front().block}};
      detail = fmt::format("block {} of the family '{}'", wrong.front().block, mma::to_string(wrong.front().family));
    }
    finish(file_, std::move(row), detail);
    return true;
  }

 private:
  std::string file_;
  std::vector<io::InstructionDigestCase> cases_;
};

}  // namespace

std::unique_ptr<FileCheck> check_digest_file(const std::string& file, const CheckOptions& options,
                                             CheckResult& result) {
  return std::make_unique<InstructionDigestFile>(file, options, result);
}

}  // namespace qattn::lab
