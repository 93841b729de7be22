// Which check a file gets, and what all of them share.
#include "lab/check.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "lab/file_check.h"
#include "lab/runner.h"
#include "scalar/digest.h"

namespace qattn::lab {

Json check_row(std::string_view case_name, std::string_view kind, std::string_view name, std::string_view output,
               std::uint64_t elements, std::uint64_t mismatches, const Json& max_ulp, std::string_view evidence) {
  return {{"case", case_name},  {"kind", kind},         {"name", name},
          {"output", output},   {"elements", elements}, {"mismatches", mismatches},
          {"max_ulp", max_ulp}, {"evidence", evidence}, {"first", nullptr}};
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
  }
  row["file"] = file;
  result_.rows.push_back(std::move(row));
}

CheckResult check_vectors(const CheckOptions& options) {
  if (options.first_block < 0 || options.last_block > scalar::kDigestBlocks ||
      options.first_block >= options.last_block) {
    throw Error(ErrorKind::usage, "check: --blocks A:B needs 0 <= A < B <= 256");
  }
  CheckResult result;
  std::vector<std::unique_ptr<FileCheck>> checks;
  std::int64_t total = 0;
  for (const std::string& file : options.files) {
    checks.push_back(check_of(file, options, result));
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
}

std::vector<Column> check_columns() {
  return {{"case", "case"},       {"kind", "kind"},         {"name", "name"},
          {"output", "output"},   {"elements", "elements"}, {"mismatches", "mismatches"},
          {"max_ulp", "max ulp"}, {"evidence", "evidence"}};
}

std::vector<std::string> check_keys() {
  return {"case",    "kind",     "name",  "output",  "elements", "mismatches",
          "max_ulp", "evidence", "first", "cos_sim", "rel_l2",   "file"};
}

}  // namespace qattn::lab
