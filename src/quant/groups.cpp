#include "quant/groups.h"

#include <array>
#include <limits>

#include "base/error.h"

namespace qattn::quant {
namespace {

struct NamedGranularity {
  Granularity granularity;
  std::string_view name;
};

constexpr std::array kNames{
    NamedGranularity{Granularity::per_tensor, "per_tensor"}, NamedGranularity{Granularity::per_channel, "per_channel"},
    NamedGranularity{Granularity::per_token, "per_token"},   NamedGranularity{Granularity::per_block, "per_block"},
    NamedGranularity{Granularity::per_warp, "per_warp"},     NamedGranularity{Granularity::per_thread, "per_thread"},
    NamedGranularity{Granularity::block_1x16, "1x16"},       NamedGranularity{Granularity::block_1x32, "1x32"}};

constexpr std::array kTilings{kSm80Tiling, kSm89Tiling, kSm90Tiling};

// A partition of one axis: the part that each position belongs to, and the number of parts.
struct Partition {
  std::vector<std::int32_t> part;
  std::int64_t parts = 0;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class PartOf>
Partition partition(std::int64_t length, std::int64_t parts, PartOf part_of) {
  Partition result{std::vector<std::int32_t>(static_cast<std::size_t>(length)), parts};
  for (std::int64_t n = 0; n < length; ++n)
    result.part[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(part_of(n));
  return result;
}

Partition whole(std::int64_t length) {
  return partition(length, 1, [](std::int64_t) { return 0; });
}

Partition runs(std::int64_t length, std::int64_t run) {
  return partition(length, ceil_div(length, run), [run](std::int64_t n) { return n / run; });
}

// Threads of a warp that differ in g hold different rows of Q; in t, different rows of K (columns of S).
Partition thread_rows(Operand operand, const Tiling& tiling, std::int64_t length) {
  if (operand == Operand::q)
    return partition(length, ceil_div(length, tiling.q_warp) * 8,
                     [&](std::int64_t n) { return n / tiling.q_warp * 8 + n % 8; });
  return partition(length, ceil_div(length, tiling.k_warp) * 4,
                   [&](std::int64_t n) { return n / tiling.k_warp * 4 + n % 8 / 2; });
}

void check_warp(const GroupSpec& spec) {
  if (spec.operand != Operand::q && spec.operand != Operand::k)
    throw Error(ErrorKind::usage, std::string("granularity ") + std::string(name(spec.granularity)) +
                                      " is defined for q and k, not for " + std::string(name(spec.operand)) +
                                      "; choose per_channel, per_token, per_block or per_tensor");
}

void check_tiling(const Tiling& t) {
  const bool positive = t.q_block > 0 && t.q_warp > 0 && t.k_block > 0 && t.k_warp > 0;
  if (!positive || t.q_block % t.q_warp != 0 || t.k_block % t.k_warp != 0 || t.q_warp % 16 != 0 || t.k_warp % 8 != 0)
    throw Error(ErrorKind::usage, "tiling " + std::string(t.name) + ": blocks of " + std::to_string(t.q_block) + " x " +
                                      std::to_string(t.k_block) + " are not whole warps of " +
                                      std::to_string(t.q_warp) + " queries (a multiple of 16) and " +
                                      std::to_string(t.k_warp) + " keys (a multiple of 8)");
}

Partition row_partition(const GroupSpec& spec, std::int64_t rows) {
  const Tiling& tiling = spec.tiling;
  const bool queries = spec.operand == Operand::q || spec.operand == Operand::p;
  switch (spec.granularity) {
    case Granularity::per_tensor:
    case Granularity::per_channel:
      return whole(rows);
    case Granularity::per_token:
      return runs(rows, 1);
    case Granularity::per_block:
      return runs(rows, queries ? tiling.q_block : tiling.k_block);
    case Granularity::per_warp:
      return runs(rows, queries ? tiling.q_warp : tiling.k_warp);
    case Granularity::per_thread:
      return thread_rows(spec.operand, tiling, rows);
    case Granularity::block_1x16:
    case Granularity::block_1x32:
      break;
  }
  const int run = spec.granularity == Granularity::block_1x16 ? 16 : 32;
  return runs(rows, spec.micro_axis.value_or(contraction_axis(spec.operand)) == Axis::rows ? run : 1);
}

Partition column_partition(const GroupSpec& spec, std::int64_t columns) {
  switch (spec.granularity) {
    case Granularity::per_channel:
      return runs(columns, 1);
    case Granularity::per_block:
      return spec.operand == Operand::p ? runs(columns, spec.tiling.k_block) : whole(columns);
    case Granularity::block_1x16:
    case Granularity::block_1x32: {
      const int run = spec.granularity == Granularity::block_1x16 ? 16 : 32;
      return runs(columns, spec.micro_axis.value_or(contraction_axis(spec.operand)) == Axis::columns ? run : 1);
    }
    default:
      return whole(columns);
  }
}

std::vector<std::int64_t> positions_of(const std::vector<std::int32_t>& table, std::int64_t value) {
  std::vector<std::int64_t> positions;
  for (std::size_t n = 0; n < table.size(); ++n)
    if (table[n] == value) positions.push_back(static_cast<std::int64_t>(n));
  return positions;
}

// "{0,8,16..24}": a run of three or more becomes first..last.
std::string compact(const std::vector<std::int64_t>& values) {
  std::string text = "{";
  for (std::size_t i = 0; i < values.size();) {
    std::size_t last = i;
    while (last + 1 < values.size() && values[last + 1] == values[last] + 1) ++last;
    if (last < i + 2) last = i;
    if (i > 0) text += ',';
    text += std::to_string(values[i]);
    if (last > i) text += ".." + std::to_string(values[last]);
    i = last + 1;
  }
  return text + "}";
}

}  // namespace

const Tiling& find_tiling(std::string_view wanted) {
  std::string known;
  for (const Tiling& tiling : kTilings) {
    if (tiling.name == wanted) return tiling;
    known += " " + std::string(tiling.name);
  }
  throw Error(ErrorKind::usage, "unknown tiling '" + std::string(wanted) + "'; known:" + known);
}

std::string_view name(Granularity granularity) { return kNames[static_cast<std::size_t>(granularity)].name; }

Granularity find_granularity(std::string_view wanted) {
  std::string known;
  for (const NamedGranularity& entry : kNames) {
    if (entry.name == wanted) return entry.granularity;
    known += " " + std::string(entry.name);
  }
  throw Error(ErrorKind::usage, "unknown granularity '" + std::string(wanted) + "'; known:" + known);
}

std::span<const Granularity> granularities() {
  static constexpr auto kAll = [] {
    std::array<Granularity, kNames.size()> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = kNames[i].granularity;
    return all;
  }();
  return kAll;
}

std::string_view name(Operand operand) {
  static constexpr std::array<std::string_view, 4> kOperands{"q", "k", "v", "p"};
  return kOperands[static_cast<std::size_t>(operand)];
}

Axis contraction_axis(Operand operand) { return operand == Operand::v ? Axis::rows : Axis::columns; }

GroupMap::GroupMap(const GroupSpec& spec, std::int64_t rows, std::int64_t columns) {
  if (spec.granularity == Granularity::per_warp || spec.granularity == Granularity::per_thread) check_warp(spec);
  check_tiling(spec.tiling);
  Partition row_parts = row_partition(spec, rows);
  Partition column_parts = column_partition(spec, columns);
  row_groups_ = row_parts.parts;
  column_groups_ = column_parts.parts;
  if (groups() > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorKind::input, "a matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                      " has too many scale groups; quantize it in parts");
  row_base_ = std::move(row_parts.part);
  for (std::int32_t& base : row_base_) base *= static_cast<std::int32_t>(column_groups_);
  column_offset_ = std::move(column_parts.part);
}

std::vector<std::int64_t> GroupMap::member_rows(std::int64_t group) const {
  return positions_of(row_base_, group / column_groups_ * column_groups_);
}

std::vector<std::int64_t> GroupMap::member_columns(std::int64_t group) const {
  return positions_of(column_offset_, group % column_groups_);
}

std::string describe_group(const GroupMap& map, std::int64_t group) {
  const std::vector<std::int64_t> rows = map.member_rows(group);
  if (rows.empty()) return "empty";
  std::string text = "rows " + compact(rows);
  if (map.column_groups() > 1) text += ", columns " + compact(map.member_columns(group));
  return text;
}

}  // namespace qattn::quant
