// A verdict on what a kernel returned: the `o` and `lse` of a dump against a recipe or against a kernel's replay.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/recipe.h"
#include "io/attributes.h"
#include "lab/check.h"
#include "lab/dump_set.h"
#include "lab/lse_convention.h"

namespace qattn::lab {

/// What the outputs are compared with, and what passes. Either `recipe` or `kernel` is set.
struct DumpCheckOptions {
  /// Relative mode: o may be `factor` times as far from float64 attention as the recipe's own output, head by head and
  /// over the call, and a little more in blocks of rows, rows and channels (local_limit.h). Where only a part or one
  /// element is beyond, or a mistake seems to hide, related recipes say what is plausible (relatives.h). The recipe's
  /// output is rounded to the format of the dump's o unless `o_format` was set.
  std::optional<attention::Recipe> recipe;
  bool keep_o_format = false;  ///< the user has set o_format, so it stays
  double factor = 2;
  /// Bit mode: o and lse must be the replay's codes.
  std::string kernel;
  io::Attributes arguments;         ///< keyword arguments of the kernel, over the call's attributes
  std::optional<std::string> arch;  ///< whose tensor core computes; unset: the call's attribute, else the kernel's own
  /// Either mode: each element of o may be so many units in the last place from the replay's or the recipe's output.
  std::optional<std::uint64_t> ulp;
  double lse_tolerance = 1e-4;                ///< absolute; relative mode
  std::optional<LseConvention> lse_demanded;  ///< unset: any convention that all heads of a call follow
  bool explain = false;
  int threads = 0;
  std::function<void(std::int64_t done, std::int64_t total)> progress = nullptr;
  std::function<bool()> cancelled = nullptr;
};

/// One row for each (call, batch, head) and output, then one for the call's o: the keys of check_row() with kind
/// "dump", then batch, head, passed, and in relative mode rel_l1, max_abs (of o against float64), recipe_rel_l1,
/// recipe_max_abs (the recipe's own), limit_rel_l1, limit_max_abs, worst_block, worst_row, worst_channel (part_json());
/// lse: convention, lse_error, lse_against; diagnosis (null, or in a few words what the wrong output looks like),
/// reason (null, or the whole sentence). `mismatches` counts the elements beyond the limit; of a head that fails as a
/// whole at least one; it is null in the row over a call. A call without o, or one that the kernel cannot take, is
/// among the errors. Throws Error(usage) for a kernel that is unknown, and where no number is a limit.
CheckResult check_dump(const DumpSet& dumps, const DumpCheckOptions& options);

/// The columns of those rows in readable forms, and all keys in CSV.
std::vector<Column> dump_check_columns();
std::vector<std::string> dump_check_keys();

}  // namespace qattn::lab
