// Which elements of a matrix share one quantization scale: the granularities of the papers and of micro-scaled formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qattn::quant {

/// How finely scales are given. Rows are tokens, columns are channels (of P: queries and keys).
enum class Granularity : std::uint8_t {
  per_tensor,   ///< one scale
  per_channel,  ///< one a column
  per_token,    ///< one a row
  per_block,    ///< one a FlashAttention tile
  per_warp,     ///< one for the rows that a warp works on
  per_thread,   ///< one for the rows of a warp that a thread holds in an m16n8 fragment (SageAttention2, section 3.2)
  block_1x16,   ///< one for 16 consecutive elements along the contraction axis (NVFP4)
  block_1x32,   ///< one for 32 (MXFP8, MXFP6, MXFP4)
};

/// The matrix's part in attention; it decides tile sizes, the per-thread pattern and the contraction axis.
enum class Operand : std::uint8_t { q, k, v, p };

enum class Axis : std::uint8_t { rows, columns };

/// Tile sizes in tokens. A warp of the kernel owns `q_warp` of its block's queries and `k_warp` of its keys.
struct Tiling {
  std::string_view name;
  int q_block, q_warp;
  int k_block, k_warp;
};

/// SageAttention2's tiles (repository thu-ml/SageAttention d1a57a5). The sm80 kernel with FP16 + FP32 accumulation
/// and head_dim 128 has q_warp = 16 instead.
inline constexpr Tiling kSm80Tiling{"sm80", 128, 32, 64, 64};
inline constexpr Tiling kSm89Tiling{"sm89", 128, 32, 64, 64};
inline constexpr Tiling kSm90Tiling{"sm90", 64, 16, 128, 128};

/// The tiling with this name. Throws Error(usage) that lists the names.
const Tiling& find_tiling(std::string_view name);

/// "per_tensor", ..., "per_thread", "1x16", "1x32".
std::string_view name(Granularity granularity);
/// The granularity with this name. Throws Error(usage) that lists the names.
Granularity find_granularity(std::string_view name);
std::span<const Granularity> granularities();

/// "q", "k", "v", "p".
std::string_view name(Operand operand);

/// The axis that the operand's matrix product sums over: channels (columns) for Q and K, tokens (rows) for V, keys
/// (columns) for P.
Axis contraction_axis(Operand operand);

struct GroupSpec {
  Granularity granularity = Granularity::per_tensor;
  Operand operand = Operand::q;
  Tiling tiling = kSm89Tiling;
  /// Where 1x16 and 1x32 blocks lie; unset: along contraction_axis(operand).
  std::optional<Axis> micro_axis = std::nullopt;
};

/// The map from (row, column) to scale index. Every granularity is a product of a partition of the rows and one of the
/// columns, so two small tables hold it: index = row_base(row) + column_offset(column).
class GroupMap {
 public:
  GroupMap() = default;

  /// Groups of a `rows` x `columns` matrix:
  /// per_block: row / block; for P (row / q_block, column / k_block). per_warp: row / warp.
  /// per_thread: Q (row / q_warp) * 8 + row % 8, K (row / k_warp) * 4 + row % 8 / 2 (the accumulator of an m16n8
  /// instruction: lane 4g + t holds rows g, g + 8 and columns 2t, 2t + 1).
  /// A last tile may be ragged; then some per_thread groups of its warp may be empty.
  /// Throws Error(usage) for per_warp and per_thread of V or P, for which no kernel defines them, and for a tiling
  /// whose warps do not fill the block or are no multiple of 8 (K) or 16 (Q) rows.
  GroupMap(const GroupSpec& spec, std::int64_t rows, std::int64_t columns);

  std::int64_t rows() const { return static_cast<std::int64_t>(row_base_.size()); }
  std::int64_t columns() const { return static_cast<std::int64_t>(column_offset_.size()); }
  std::int64_t groups() const { return row_groups_ * column_groups_; }
  /// 1 when all elements of a row share a scale.
  std::int64_t column_groups() const { return column_groups_; }

  std::int64_t index(std::int64_t row, std::int64_t column) const {
    return std::int64_t{row_base_[static_cast<std::size_t>(row)]} + column_offset_[static_cast<std::size_t>(column)];
  }
  std::int32_t row_base(std::int64_t row) const { return row_base_[static_cast<std::size_t>(row)]; }
  std::span<const std::int32_t> column_offsets() const { return column_offset_; }

  /// The rows and the columns whose product is the group, ascending; no rows for an empty group.
  std::vector<std::int64_t> member_rows(std::int64_t group) const;
  std::vector<std::int64_t> member_columns(std::int64_t group) const;

 private:
  std::vector<std::int32_t> row_base_;
  std::vector<std::int32_t> column_offset_;
  std::int64_t row_groups_ = 0;
  std::int64_t column_groups_ = 0;
};

/// The group's members in one line, e.g. "rows {0,8,16,24}", "rows {0..127}", "rows {3}, columns {16..31}"; "empty"
/// when no element lies in it.
std::string describe_group(const GroupMap& map, std::int64_t group);

}  // namespace qattn::quant
