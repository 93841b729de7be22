// Instruction, scalar and GEMM vectors, and digests of functions, against the models.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>

#include "base/error.h"
#include "base/parallel.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "lab/file_check.h"
#include "lab/runner.h"
#include "mma/replay.h"
#include "scalar/digest.h"
#include "scalar/replay.h"

namespace qattn::lab {
namespace {

/// The codes of a dataset as the scalar functions take them.
std::vector<std::uint32_t> words(const io::Codes& codes) {
  std::vector<std::uint32_t> values(static_cast<std::size_t>(codes.size()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint32_t>(codes[static_cast<std::int64_t>(i)]);
  return values;
}

/// Vectors of instructions, functions and matrix products, and digests of functions.
class VectorFile : public FileCheck {
 public:
  VectorFile(const std::string& file, const CheckOptions& options, CheckResult& result)
      : FileCheck(options, result), reader_(file) {}

  std::vector<std::string> selected() const override { return matching(reader_.cases()); }

  bool run(const std::string& name) override {
    const std::string& schema = reader_.schema();
    if (schema == io::kInstructionSchema) {
      add(replay_instruction(name), "instruction");
    } else if (schema == io::kGemmSchema) {
      for (const mma::ReplayResult& replayed : mma::replay_gemm(reader_.recorded(name))) add(replayed, "gemm");
    } else if (schema == io::kScalarSchema) {
      check_scalar(reader_.scalar(name));
    } else if (schema == io::kDigestSchema) {
      check_digest(reader_.digest(name));
    } else {
      throw Error(ErrorKind::input,
                  fmt::format("{}: schema '{}' has no model here; `qattn check` replays {}, {}, {}, {} and {}",
                              reader_.path(), schema, io::kInstructionSchema, io::kScalarSchema, io::kGemmSchema,
                              io::kDigestSchema, io::kInstructionDigestSchema));
    }
    return true;
  }

 private:
  /// The replay knows the case; its errors get the file here.
  mma::ReplayResult replay_instruction(const std::string& name) const {
    const io::InstructionCase vectors = reader_.instruction(name);
    try {
      return mma::replay(vectors);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", reader_.path(), e.what()));
    }
  }

  void add(const mma::ReplayResult& replayed, std::string_view kind) {
    Json row = check_row(replayed.case_name, kind, replayed.name, replayed.output,
                         static_cast<std::uint64_t>(replayed.elements), static_cast<std::uint64_t>(replayed.mismatches),
                         ulp_json(replayed.max_ulp), replayed.evidence);
    std::string detail;
    if (replayed.first) {
      row["first"] = {{"index", replayed.first->index},
                      {"recorded", fmt::format("0x{:X}", replayed.first->expected)},
                      {"computed", fmt::format("0x{:X}", replayed.first->computed)},
                      {"operands", replayed.first->detail}};
      detail = fmt::format("element [{}]: recorded 0x{:X}, computed 0x{:X}; {}", fmt::join(replayed.first->index, ", "),
                           replayed.first->expected, replayed.first->computed, replayed.first->detail);
    }
    finish(reader_.path(), std::move(row), detail);
  }

  const scalar::Function& function(const std::string& case_name, const std::string& name,
                                   std::string_view build) const {
    const scalar::Function* found = scalar::find_or_null(name, scalar::build_from_options(build));
    if (found == nullptr) {
      throw Error(ErrorKind::input, fmt::format("{}: {}: unknown function '{}'; `qattn scalar --list` names them",
                                                reader_.path(), case_name, name));
    }
    return *found;
  }

  void check_scalar(const io::ScalarCase& vectors) {
    const auto build = io::find_text(vectors.attributes, "build", vectors.name).value_or("");
    const scalar::Function& f = function(vectors.name, vectors.function, build);
    const std::string where = fmt::format("{}: {}", reader_.path(), vectors.name);
    io::check_width(vectors.x, *f.input, where + "/x");
    io::check_width(vectors.y, *f.output, where + "/y");
    const scalar::Replay replayed = scalar::replay(f, words(vectors.x), words(vectors.y));
    Json row = check_row(vectors.name, "scalar", vectors.function, "y", replayed.elements, replayed.mismatches,
                         replayed.max_ulp, scalar::to_string(f.evidence));
    std::string detail;
    if (replayed.first) {
      row["first"] = {{"index", replayed.first->index},
                      {"x", fmt::format("0x{:X}", replayed.first->x)},
                      {"recorded", fmt::format("0x{:X}", replayed.first->recorded)},
                      {"computed", fmt::format("0x{:X}", replayed.first->computed)}};
      detail = fmt::format("x 0x{:X}: recorded 0x{:X}, computed 0x{:X}; `qattn scalar {} 0x{:X}` explains it",
                           replayed.first->x, replayed.first->recorded, replayed.first->computed, vectors.function,
                           replayed.first->x);
    }
    finish(reader_.path(), std::move(row), detail);
  }

  void check_digest(const io::DigestCase& recorded) {
    const scalar::Function& f = function(recorded.name, recorded.function, recorded.build);
    const int count = options().last_block - options().first_block;
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(count));
    std::atomic<int> done = 0;
    parallel_for(count, options().threads, [&](std::int64_t i) {
      if (options().cancelled && options().cancelled()) throw Interrupted();
      sums[static_cast<std::size_t>(i)] = scalar::digest_block(f, options().first_block + static_cast<int>(i));
      if (options().progress) options().progress(++done, count);
    });
    std::vector<int> differing;
    for (int i = 0; i < count; ++i) {
      const int block = options().first_block + i;
      if (sums[static_cast<std::size_t>(i)] != recorded.digest[static_cast<std::size_t>(block)])
        differing.push_back(block);
    }
    Json row = check_row(recorded.name, "scalar", recorded.function, "digest", static_cast<std::uint64_t>(count),
                         differing.size(), nullptr, scalar::to_string(f.evidence));
    std::string detail;
    if (!differing.empty()) {
      row["first"] = {{"blocks", differing}};
      detail = fmt::format("blocks {} differ; block b holds the inputs b * 2^24 to (b + 1) * 2^24 - 1",
                           fmt::join(differing, ", "));
    }
    finish(reader_.path(), std::move(row), detail);
  }

  io::VectorReader reader_;
};

}  // namespace

std::unique_ptr<FileCheck> check_vector_file(const std::string& file, const CheckOptions& options,
                                             CheckResult& result) {
  return std::make_unique<VectorFile>(file, options, result);
}

}  // namespace qattn::lab
