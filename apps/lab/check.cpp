// Which check a file gets, and what all of them share.
#include "lab/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "lab/file_check.h"
#include "lab/runner.h"
#include "mma/instruction.h"
#include "scalar/digest.h"

namespace qattn::lab {

Json check_row(std::string_view case_name, std::string_view kind, std::string_view name, std::string_view output,
               std::uint64_t elements, std::uint64_t mismatches, const Json& max_ulp, std::string_view evidence) {
  return {{"case", case_name},  {"kind", kind},         {"name", name},
          {"output", output},   {"elements", elements}, {"mismatches", mismatches},
          {"max_ulp", max_ulp}, {"evidence", evidence}, {"first", nullptr},
          {"reason", nullptr}};
}

Json ulp_json(std::uint64_t max_ulp) {
  return max_ulp == std::numeric_limits<std::uint64_t>::max() ? Json(nullptr) : Json(max_ulp);
}

namespace {

std::regex compile(std::string_view option, const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw Error(ErrorKind::usage,
                fmt::format("check: {} '{}' is no regular expression: {}", option, pattern, error.what()));
  }
}

/// The architectures that instructions are named for.
void require_architecture(const std::string& arch) {
  if (arch.empty()) return;
  std::set<std::string> known;
  for (const mma::Instruction& instruction : mma::instructions()) {
    const std::string name(instruction.name.substr(0, instruction.name.find('.')));
    if (name.rfind("sm", 0) == 0) known.insert(name);
  }
  if (known.count(arch) == 0) {
    throw Error(ErrorKind::usage,
                fmt::format("check: --arch '{}' is none of {}", arch, fmt::join(known.begin(), known.end(), ", ")));
  }
}

std::unique_ptr<FileCheck> check_of(const std::string& file, const CheckOptions& options, CheckResult& result) {
  const std::string schema = io::schema(file);
  if (schema == io::kInstructionDigestSchema) return check_digest_file(file, options, result);
  if (schema == io::kKernelSchema || schema == io::kBackwardSchema) return check_kernel_file(file, options, result);
  if (!options.arch.empty()) {
    result.remarks.push_back(
        fmt::format("{}: --arch concerns kernels; schema '{}' is checked as recorded", file, schema));
  }
  return check_vector_file(file, options, result);
}

}  // namespace

FileCheck::FileCheck(const CheckOptions& options, CheckResult& result)
    : options_(options),
      result_(result),
      cases_(compile("--cases", options.cases)),
      kernels_(compile("--kernels", options.kernels)) {}

std::vector<std::string> FileCheck::matching(const std::vector<std::string>& names) const {
  std::vector<std::string> wanted;
  for (const std::string& name : names) {
    if (std::regex_search(name, cases_)) wanted.push_back(name);
  }
  return wanted;
}

void FileCheck::finish(const std::string& file, Json row, const std::string& detail) {
  if (row["mismatches"] != 0) {
    result_.passed = false;
    result_.details.push_back(fmt::format("{}: {} ({}): {}: {} of {} differ; the first: {}", file,
                                          row["case"].get<std::string>(), row["name"].get<std::string>(),
                                          row["output"].get<std::string>(), row["mismatches"].get<std::uint64_t>(),
                                          row["elements"].get<std::uint64_t>(), detail));
    row["reason"] = result_.details.back();
  }
  row["file"] = file;
  result_.rows.push_back(std::move(row));
}

CheckResult check_vectors(const CheckOptions& options) {
  if (options.first_block < 0 || options.last_block > scalar::kDigestBlocks ||
      options.first_block >= options.last_block) {
    throw Error(ErrorKind::usage, "check: --blocks A:B needs 0 <= A < B <= 256");
  }
  require_architecture(options.arch);
  CheckResult result;
  std::vector<std::pair<std::string, std::unique_ptr<FileCheck>>> checks;
  std::int64_t total = 0;
  for (const std::string& file : options.files) {
    try {
      checks.emplace_back(file, check_of(file, options, result));
      total += static_cast<std::int64_t>(checks.back().second->selected().size());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::input) throw;
      result.errors.push_back({file, "", error.what()});
    }
  }
  if (total == 0 && result.errors.empty()) {
    throw Error(ErrorKind::usage, fmt::format("check: no case matches '{}'", options.cases));
  }
  std::int64_t done = 0;
  bool wanted = false;
  for (const auto& [file, check] : checks) {
    for (const std::string& name : check->selected()) {
      if (options.cancelled && options.cancelled()) throw Interrupted();
      try {
        wanted = check->run(name) || wanted;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        result.errors.push_back({file, name, error.what()});
      }
      if (options.progress) options.progress(++done, total);
    }
  }
  if (!wanted && result.errors.empty()) {
    throw Error(ErrorKind::usage, fmt::format("check: no kernel matches '{}' in its group or name", options.kernels));
  }
  return result;
}

void require_comparison(const CheckResult& result) {
  for (const Json& row : result.rows) {
    if (row["elements"].get<std::uint64_t>() > 0) return;
  }
  if (!result.errors.empty()) throw Error(result.errors.front().kind, result.errors.front().reason);
  if (!result.skipped.empty()) {
    throw Error(ErrorKind::usage, fmt::format("check: nothing was compared, all {} were skipped; the first: {}",
                                              result.skipped.size(), result.skipped.front().reason));
  }
  throw Error(ErrorKind::input, "check: nothing was compared: the recorded outputs have no elements");
}

std::vector<Column> check_columns() {
  return {{"case", "case"},       {"kind", "kind"},         {"name", "name"},
          {"output", "output"},   {"elements", "elements"}, {"mismatches", "mismatches"},
          {"max_ulp", "max ulp"}, {"evidence", "evidence"}};
}

std::vector<std::string> check_keys() {
  return {"case",     "kind",  "name",    "output", "elements", "mismatches", "max_ulp",
          "evidence", "first", "cos_sim", "rel_l2", "reason",   "file"};
}

}  // namespace qattn::lab
