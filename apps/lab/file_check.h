// What the files of every kind share under `qattn check`: selection, rows, failures.
#pragma once

#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "lab/check.h"

namespace qattn::lab {

/// A row of `qattn check`; `first` is null until something differs.
Json check_row(std::string_view case_name, std::string_view kind, std::string_view name, std::string_view output,
               std::uint64_t elements, std::uint64_t mismatches, const Json& max_ulp, std::string_view evidence);

/// One file under check; collects into the result, which must outlive it as the options must.
class FileCheck {
 public:
  /// Throws Error(usage) when an expression of the options is none.
  FileCheck(const CheckOptions& options, CheckResult& result);
  virtual ~FileCheck() = default;
  FileCheck(const FileCheck&) = delete;
  FileCheck& operator=(const FileCheck&) = delete;

  /// The names of the cases that the options ask for.
  virtual std::vector<std::string> selected() const = 0;
  /// False when the options ask for nothing of the case.
  virtual bool run(const std::string& name) = 0;

 protected:
  const CheckOptions& options() const { return options_; }

  /// The names that the option --cases is found in.
  std::vector<std::string> matching(const std::vector<std::string>& names) const;
  /// Whether the option --kernels is found in the text.
  bool wants_kernel(const std::string& text) const { return std::regex_search(text, kernels_); }
  /// Adds a row; a failed one with the detail of its first difference.
  void finish(const std::string& file, Json row, const std::string& detail);
  /// A remark for people that fails nothing.
  void remark(std::string text) { result_.remarks.push_back(std::move(text)); }
  void skip(NotCompared skipped) { result_.skipped.push_back(std::move(skipped)); }
  void fail(NotCompared error) { result_.errors.push_back(std::move(error)); }

 private:
  const CheckOptions& options_;
  CheckResult& result_;
  std::regex cases_, kernels_;
};

/// Instruction, scalar and GEMM vectors, and digests of functions.
std::unique_ptr<FileCheck> check_vector_file(const std::string& file, const CheckOptions& options, CheckResult& result);
/// Kernel and backward vectors.
std::unique_ptr<FileCheck> check_kernel_file(const std::string& file, const CheckOptions& options, CheckResult& result);
/// Digests of instructions.
std::unique_ptr<FileCheck> check_digest_file(const std::string& file, const CheckOptions& options, CheckResult& result);

}  // namespace qattn::lab
