// Recorded vectors against the models: what `qattn check` reports.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/report.h"

namespace qattn::lab {

/// What is checked of the files, and how.
struct CheckOptions {
  std::vector<std::string> files;
  std::string cases;    ///< a regular expression searched for in "case name"; empty: all
  std::string kernels;  ///< kernel vectors: a regular expression searched for in "group kernel"; empty: all
  std::string arch;     ///< kernel vectors: whose tensor core computes; empty: the one that the recording names
  /// Digests: only blocks [first, last) of the 256; a block holds 2^24 inputs.
  int first_block = 0;
  int last_block = 256;
  int threads = 0;
  /// Called after each case, and after each block of a digest.
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
  /// Asked before each case; true ends the check with Interrupted.
  std::function<bool()> cancelled = nullptr;
};

struct CheckResult {
  /// case, kind, name, output, elements, mismatches, max_ulp, evidence, first (null, or what came out differently).
  std::vector<Json> rows;
  std::vector<std::string> details;  ///< for each failed case its first difference in full
  std::vector<std::string> remarks;  ///< what else a reader should know, e.g. what was skipped and why
  bool passed = true;
};

/// Replays every case of the files: instruction, scalar and GEMM vectors, and digests. Throws Error(input) for a file
/// of another schema or a damaged one, Error(usage) for a bad expression or when no case matches.
CheckResult check_vectors(const CheckOptions& options);

/// The columns of the rows in readable forms.
std::vector<Column> check_columns();
/// All keys of the rows, for CSV.
std::vector<std::string> check_keys();

}  // namespace qattn::lab
