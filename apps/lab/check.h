// Recorded vectors against the models: what `qattn check` reports.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
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

/// Something that was not compared, and why.
struct NotCompared {
  std::string file, name;  ///< the case or call; empty where the whole file cannot be read
  std::string reason;      ///< names the file itself
  ErrorKind kind = ErrorKind::input;
};

struct CheckResult {
  /// case, kind, name, output, elements, mismatches, max_ulp (null for NaN against a number), evidence, first (null, or
  /// what came out differently), reason (null, or why the row failed, for people).
  std::vector<Json> rows;
  std::vector<std::string> details;  ///< for each failed case its first difference in full
  std::vector<std::string> remarks;  ///< what else a reader should know
  std::vector<NotCompared> skipped;  ///< what the options leave out, e.g. kernels that an architecture does not have
  std::vector<NotCompared> errors;   ///< what should have been compared and could not be; the others were
  bool passed = true;                ///< of what was compared

  /// The status that a program ends with: 1 when something failed, else 3 when something could not be compared, else 0.
  int status() const { return !passed ? 1 : !errors.empty() ? static_cast<int>(ErrorKind::input) : 0; }
};

/// Replays every case of the files: instruction, scalar, GEMM, kernel and backward vectors, and digests. A file of
/// another schema, a damaged one or a case that cannot be replayed is among the errors and does not keep the others
/// from being compared. Throws Error(usage) for a bad expression, or when no case or no kernel matches.
CheckResult check_vectors(const CheckOptions& options);

/// Throws when nothing was compared: the first error, or Error(usage) with what was skipped.
void require_comparison(const CheckResult& result);

/// `max_ulp` for a row: null for the largest number, which stands for NaN against a number.
Json ulp_json(std::uint64_t max_ulp);

/// The columns of the rows in readable forms.
std::vector<Column> check_columns();
/// All keys of the rows, for CSV.
std::vector<std::string> check_keys();

}  // namespace qattn::lab
