#include "lab/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <regex>

#include "base/error.h"
#include "base/parallel.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "lab/runner.h"
#include "mma/digest.h"
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

Json row_of(std::string_view case_name, std::string_view kind, std::string_view name, std::string_view output,
            std::uint64_t elements, std::uint64_t mismatches, const Json& max_ulp, std::string_view evidence) {
  return {{"case", case_name},  {"kind", kind},         {"name", name},
          {"output", output},   {"elements", elements}, {"mismatches", mismatches},
          {"max_ulp", max_ulp}, {"evidence", evidence}, {"first", nullptr}};
}

/// One file under check; collects into the result.
class FileCheck {
 public:
  FileCheck(const CheckOptions& options, CheckResult& result) : options_(options), result_(result) {}
  virtual ~FileCheck() = default;

  /// The names of the cases that the options ask for.
  virtual std::vector<std::string> selected() const = 0;
  virtual void run(const std::string& name) = 0;

 protected:
  const CheckOptions& options() const { return options_; }

  /// Adds a row; a failed one with the detail of its first difference.
  void finish(const std::string& file, Json row, const std::string& detail) {
    if (row["mismatches"] != 0) {
      result_.passed = false;
      result_.details.push_back(fmt::format("{}: {} ({}): {} of {} differ; the first: {}", file,
                                            row["case"].get<std::string>(), row["name"].get<std::string>(),
                                            row["mismatches"].get<std::uint64_t>(),
                                            row["elements"].get<std::uint64_t>(), detail));
    }
    result_.rows.push_back(std::move(row));
  }

 private:
  const CheckOptions& options_;
  CheckResult& result_;
};

/// Digests of instructions: an element is a block of 2^20 outputs.
class InstructionDigestFile : public FileCheck {
 public:
  InstructionDigestFile(const std::string& file, const CheckOptions& options, CheckResult& result)
      : FileCheck(options, result), file_(file), filter_(options.cases), cases_(io::read_instruction_digests(file)) {}

  std::vector<std::string> selected() const override {
    std::vector<std::string> names;
    for (const io::InstructionDigestCase& recorded : cases_) {
      if (std::regex_search(recorded.name, filter_)) names.push_back(recorded.name);
    }
    return names;
  }

  void run(const std::string& name) override {
    const auto found = std::find_if(cases_.begin(), cases_.end(), [&](const auto& c) { return c.name == name; });
    const mma::InstructionDigest digest{found->instruction, static_cast<std::uint64_t>(found->seed),
                                        mma::parse_family_blocks(found->families), found->sums};
    std::int64_t done = 0;
    const auto total = static_cast<std::int64_t>(digest.sums.size());
    const std::vector<mma::DigestMismatch> wrong = mma::check_digest(digest, options().threads, [&] {
      if (options().progress) options().progress(++done, total);
    });
    Json row = row_of(name, "instruction", found->instruction, "digest", digest.sums.size(), wrong.size(), nullptr,
                      mma::evidence_text(mma::find_instruction(found->instruction)));
    std::string detail;
    if (!wrong.empty()) {
      row["first"] = {{"family", mma::to_string(wrong.front().family)}, {"block", wrong.front().block}};
      detail = fmt::format("block {} of the family '{}'", wrong.front().block, mma::to_string(wrong.front().family));
    }
    finish(file_, std::move(row), detail);
  }

 private:
  std::string file_;
  std::regex filter_;
  std::vector<io::InstructionDigestCase> cases_;
};

/// Vectors of instructions, functions and matrix products, and digests of functions.
class VectorFile : public FileCheck {
 public:
  VectorFile(const std::string& file, const CheckOptions& options, CheckResult& result)
      : FileCheck(options, result), reader_(file), filter_(options.cases) {}

  std::vector<std::string> selected() const override {
    std::vector<std::string> names;
    for (const std::string& name : reader_.cases()) {
      if (std::regex_search(name, filter_)) names.push_back(name);
    }
    return names;
  }

  void run(const std::string& name) override {
    const std::string& schema = reader_.schema();
    if (schema == io::kInstructionSchema) {
      add(mma::replay(reader_.instruction(name)), "instruction");
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
  }

 private:
  void add(const mma::ReplayResult& replayed, std::string_view kind) {
    Json row =
        row_of(replayed.case_name, kind, replayed.name, replayed.output, static_cast<std::uint64_t>(replayed.elements),
               static_cast<std::uint64_t>(replayed.mismatches), replayed.max_ulp, replayed.evidence);
    std::string detail;
    if (replayed.first) {
      row["first"] = {{"index", replayed.first->index},
                      {"recorded", fmt::format("0x{:X}", replayed.first->expected)},
                      {"computed", fmt::format("0x{:X}", replayed.first->computed)}};
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
    const scalar::Replay replayed = scalar::replay(f, words(vectors.x), words(vectors.y));
    Json row = row_of(vectors.name, "scalar", vectors.function, "y", replayed.elements, replayed.mismatches,
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
    Json row = row_of(recorded.name, "scalar", recorded.function, "digest", static_cast<std::uint64_t>(count),
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
  std::regex filter_;
};

}  // namespace

CheckResult check_vectors(const CheckOptions& options) try {
  if (options.first_block < 0 || options.last_block > scalar::kDigestBlocks ||
      options.first_block >= options.last_block) {
    throw Error(ErrorKind::usage, "check: --blocks A:B needs 0 <= A < B <= 256");
  }
  CheckResult result;
  std::vector<std::unique_ptr<FileCheck>> checks;
  std::int64_t total = 0;
  for (const std::string& file : options.files) {
    if (io::schema(file) == io::kInstructionDigestSchema) {
      checks.push_back(std::make_unique<InstructionDigestFile>(file, options, result));
    } else {
      checks.push_back(std::make_unique<VectorFile>(file, options, result));
    }
    total += static_cast<std::int64_t>(checks.back()->selected().size());
  }
  if (total == 0) throw Error(ErrorKind::usage, fmt::format("check: no case matches '{}'", options.cases));
  std::int64_t done = 0;
  for (const auto& check : checks) {
    for (const std::string& name : check->selected()) {
      if (options.cancelled && options.cancelled()) throw Interrupted();
      check->run(name);
      if (options.progress) options.progress(++done, total);
    }
  }
  return result;
} catch (const std::regex_error& error) {
  throw Error(ErrorKind::usage,
              fmt::format("check: --cases '{}' is no regular expression: {}", options.cases, error.what()));
}

std::vector<Column> check_columns() {
  return {{"case", "case"},       {"kind", "kind"},         {"name", "name"},
          {"output", "output"},   {"elements", "elements"}, {"mismatches", "mismatches"},
          {"max_ulp", "max ulp"}, {"evidence", "evidence"}};
}

}  // namespace qattn::lab
