// The relative limits where a fault is local: blocks of rows, single rows, channels, and rows that were never written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/checked_head.h"
#include "lab/report.h"

namespace qattn::lab {

/// Rows of a block. A ragged last block of a sequence joins the one before it.
inline constexpr std::int64_t kLimitBlock = 64;
/// By how much more than --factor the recipe's own error in a part may be exceeded: a part's error scatters, the more
/// the smaller it is.
inline constexpr double kBlockSlack = 1.5, kChannelSlack = 2, kRowSlack = 3;

/// A part that is as far off as zeros are is wrong, unless the recipe itself is about as far off: limits end at this
/// share of the reference, or at this slack if that is wider (the second one: over the recipe and its relatives).
inline constexpr double kUsefulLimit = 0.9, kLeastSlack = 1.25, kRelatedSlack = 1.5;

/// Rows, or channels, [first, last) of a head.
struct PartError {
  std::int64_t first = 0, last = 0;
  double error = 0;      ///< sum |o - reference|
  double own = 0;        ///< sum |recipe's output - reference|
  double plausible = 0;  ///< what stands in for `own` in the limit: at least that
  double size = 0;       ///< sum |reference|
  double limit = 0;      ///< on `error`

  bool within() const { return error <= limit; }
  double of_limit() const;  ///< error / limit; 0 for 0 / 0
};

/// The parts of one kind that come nearest to their limit, or exceed it most.
struct LocalErrors {
  PartError block, row, channel;
  std::vector<std::int64_t> beyond_blocks;  ///< first rows of the blocks beyond their limit, ascending
  std::vector<std::int64_t> beyond_rows, beyond_channels;
  std::vector<std::int64_t> unwritten;  ///< rows that are zero where neither the reference nor the recipe is

  bool within() const {
    return unwritten.empty() && beyond_blocks.empty() && beyond_rows.empty() && beyond_channels.empty();
  }
};

/// Errors of a head, parts of packed calls each on their own, channels over the whole head. With b the slack of the
/// part, a part's limit is b * factor * (the recipe's error there) + half a unit in the last place of the output's
/// format (4 units of float32 where it is that or wider) on every element. A single row's share of its block's error,
/// and the channels' mean, stand in for a recipe's error that happens to be smaller there. With head.related, the
/// largest error among the recipe and its relatives counts, and for a row that of any row of its block. Nothing is said
/// (no part exceeds anything) where an output, the recipe's or the reference is not finite.
LocalErrors local_errors(const CheckedHead& head, double factor);

/// {"rows" | "channels": [first, last), rel_l1, recipe_rel_l1, limit_rel_l1, of_limit}; the errors are null where the
/// reference is zero.
Json part_json(const PartError& part, std::string_view axis);

/// What of the parts exceeds its limit, as a sentence: "rows 64 to 127 are off float64 by ..."; empty when nothing
/// does.
std::string local_text(const LocalErrors& errors, std::string_view recipe, double factor);

}  // namespace qattn::lab
