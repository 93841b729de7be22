// The walk over panels, column blocks and steps that feeds the kernels.
#include "mma/tile.h"

#include <fmt/format.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cfenv>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"
#include "mma/fused_dot.h"
#include "mma/tile_kernels.h"
#include "mma/tile_operand.h"

namespace qattn::mma {
namespace {

using Eigen::Index;

/// Rows of A that share one pass over a column block: their accumulators stay in the L1 cache.
constexpr Index kPanelRows = 64;
constexpr Index kColumns = static_cast<Index>(kTileColumns);

class TowardZero {
 public:
  TowardZero() { std::fesetround(FE_TOWARDZERO); }
  ~TowardZero() { std::fesetround(FE_TONEAREST); }
  TowardZero(const TowardZero&) = delete;
  TowardZero& operator=(const TowardZero&) = delete;
};

}  // namespace

/// One multiply_accumulate call.
struct TileMultiplication {
  const Instruction& x;
  const OperandStorage& a;
  const OperandStorage& b;
  Index a_k0;  ///< where the slices begin
  Index b_k0;
  Index steps;
  PathUse use = {};

  TileMultiplication(const Instruction& instruction, const Operand& left, const Operand& right)
      : x(instruction),
        a(*left.storage_),
        b(*right.storage_),
        a_k0(left.k0_),
        b_k0(right.k0_),
        steps((left.k() + instruction.k - 1) / instruction.k) {}

  std::uint32_t plain_step(Index row, Index column, Index step, std::uint32_t c);
  void plain(CodeTile c);
  void fast(CodeTile c);
  void panel(CodeTile c, Index row0, Index rows, Index block);
  std::uint64_t special_columns(Index block) const;
  void repair(Index row0, Index rows, Index block, Index step);
  template <class T, class E>
  void fused_passes(Index row0, Index rows, Index block, Index step, const T* a_value, const E* a_exponent,
                    const T* b_value, const E* b_exponent);
  void integer_steps(Index row0, Index rows, Index block);
  void byte_steps(Index row0, Index rows, Index block);
  void scaled_pass(Index row0, Index rows, Index block, Index step);

  alignas(64) std::uint32_t tile[kPanelRows * kColumns];
  alignas(64) std::uint32_t saved[kPanelRows * kColumns];
  alignas(64) std::uint32_t partial[kPanelRows * kColumns];
  std::uint64_t plain_columns[kPanelRows];
};

std::uint32_t TileMultiplication::plain_step(Index row, Index column, Index step, std::uint32_t c) {
  const auto k = static_cast<std::size_t>(x.k);
  std::vector<std::uint64_t> buffer;
  buffer.reserve(4 * k);
  const auto widen = [&](const std::vector<std::uint32_t>& from, Index at, std::size_t n) {
    const std::size_t begin = buffer.size();
    buffer.insert(buffer.end(), from.begin() + at, from.begin() + at + static_cast<Index>(n));
    return std::span(std::as_const(buffer)).subspan(begin, n);
  };
  const std::size_t scales = x.block == 0 ? 0 : k / static_cast<std::size_t>(x.block);
  DotOperands operands;
  operands.c = c;
  operands.a = widen(a.codes, row * a.padded_k + a_k0 + step * x.k, k);
  operands.b = widen(b.codes, column * b.padded_k + b_k0 + step * x.k, k);
  if (scales > 0) {
    operands.scale_a = widen(a.scales, row * a.scales_per_row() + (a_k0 + step * x.k) / x.block, scales);
    operands.scale_b = widen(b.scales, column * b.scales_per_row() + (b_k0 + step * x.k) / x.block, scales);
  }
  return static_cast<std::uint32_t>(dot(x, operands));
}

void TileMultiplication::plain(CodeTile c) {
  for (Index i = 0; i < c.rows(); ++i) {
    for (Index j = 0; j < c.cols(); ++j) {
      for (Index step = 0; step < steps; ++step) c(i, j) = plain_step(i, j, step, c(i, j));
    }
  }
  use.plain += c.size() * steps;
}

void TileMultiplication::fast(CodeTile c) {
  for (Index block = 0; block < b.blocks(); ++block) {
    for (Index row0 = 0; row0 < c.rows(); row0 += kPanelRows) {
      panel(c, row0, std::min(kPanelRows, c.rows() - row0), block);
    }
  }
  use.fast += c.size() * steps - use.plain;
}

/// Columns of the block whose operands have NaN or Inf.
std::uint64_t TileMultiplication::special_columns(Index block) const {
  std::uint64_t columns = 0;
  for (Index j = 0; j < std::min(kColumns, b.rows - block * kColumns); ++j) {
    if (b.special[static_cast<std::size_t>(block * kColumns + j)] != 0) columns |= std::uint64_t{1} << j;
  }
  return columns;
}

void TileMultiplication::panel(CodeTile c, Index row0, Index rows, Index block) {
  const Index column0 = block * kColumns;
  const Index columns = std::min(kColumns, c.cols() - column0);
  for (Index i = 0; i < rows; ++i) {
    std::uint32_t* row = tile + i * kColumns;
    std::copy_n(&c(row0 + i, column0), columns, row);
    std::fill(row + columns, row + kColumns, 0);
  }
  if (a.layout == TileLayout::integer) {
    integer_steps(row0, rows, block);
  } else if (a.layout == TileLayout::bytes) {
    byte_steps(row0, rows, block);
  } else {
    const std::uint64_t special = special_columns(block);
    for (Index step = 0; step < steps; ++step) {
      for (Index i = 0; i < rows; ++i) {
        plain_columns[i] = a.special[static_cast<std::size_t>(row0 + i)] != 0 ? ~std::uint64_t{0} : special;
      }
      if (a.layout == TileLayout::scaled) {
        scaled_pass(row0, rows, block, step);
      } else if (a.layout == TileLayout::fused_f32) {
        fused_passes(row0, rows, block, step, a.value32.get(), a.exponent8.get(), b.value32.get(), b.exponent8.get());
      } else {
        fused_passes(row0, rows, block, step, a.value64.get(), a.exponent16.get(), b.value64.get(), b.exponent16.get());
      }
    }
  }
  for (Index i = 0; i < rows; ++i) std::copy_n(tile + i * kColumns, columns, &c(row0 + i, column0));
}

/// Computes by the plain engine what a step could not, from the accumulators that it saved.
void TileMultiplication::repair(Index row0, Index rows, Index block, Index step) {
  const Index columns = std::min(kColumns, b.rows - block * kColumns);
  for (Index i = 0; i < rows; ++i) {
    if (plain_columns[i] == 0) continue;
    for (Index j = 0; j < columns; ++j) {
      if ((plain_columns[i] >> j & 1) == 0) continue;
      tile[i * kColumns + j] = plain_step(row0 + i, block * kColumns + j, step, saved[i * kColumns + j]);
      ++use.plain;
    }
  }
}

template <class T, class E>
void TileMultiplication::fused_passes(Index row0, Index rows, Index block, Index step, const T* a_value,
                                      const E* a_exponent, const T* b_value, const E* b_exponent) {
  const bool interleaved = x.kind == Kind::interleaved_dot;
  const bool half = x.d == &format::kFP16;
  FusedPass<T, E> pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.depth = static_cast<std::size_t>(x.fusion.group);
  pass.a_stride = static_cast<std::size_t>(a.padded_k);
  pass.c = interleaved ? partial : tile;
  pass.type = half ? AccumulatorType::f16 : AccumulatorType::f32;
  pass.fraction_bits = x.fusion.fraction_bits;
  pass.exponent_floor = x.fusion.exponent_floor;
  pass.output_mask = ~((1u << (23 - std::min(x.fusion.mantissa_bits, 23))) - 1);
  pass.plain = plain_columns;
  // A repaired step starts again from its first pass, so a step of several passes is saved as a whole.
  const bool one_pass = !interleaved && x.k == x.fusion.group;
  pass.saved = one_pass ? saved : nullptr;
  if (!one_pass) std::copy_n(tile, rows * kColumns, saved);
  if (interleaved) std::fill_n(partial, rows * kColumns, 0);
  {
    const TowardZero rounding;
    for (Index k = step * x.k; k < (step + 1) * x.k; k += x.fusion.group) {
      const Index at_a = row0 * a.padded_k + a_k0 + k;
      const Index at_b = (block * b.padded_k + b_k0 + k) * kColumns;
      pass.a = a_value + at_a;
      pass.a_exponent = a_exponent + at_a;
      pass.a_offset = a.offset.get() + at_a;
      pass.b = b_value + 2 * at_b;
      pass.b_exponent = b_exponent + at_b;
      run(pass);
    }
  }
  if (interleaved) add_rounded(tile, partial, static_cast<std::size_t>(rows * kColumns), pass.type);
  repair(row0, rows, block, step);
}

void TileMultiplication::scaled_pass(Index row0, Index rows, Index block, Index step) {
  const Index groups = x.k / kScaledGroup;
  const Index a_groups = a.padded_k / kScaledGroup;
  const Index b_groups = b.padded_k / kScaledGroup;
  const Index a_group = row0 * a_groups + a_k0 / kScaledGroup + step * groups;
  const Index b_group = (block * b_groups + b_k0 / kScaledGroup + step * groups) * kColumns;
  ScaledPass pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.groups = static_cast<std::size_t>(groups);
  pass.a = a.value32.get() + row0 * a.padded_k + a_k0 + step * x.k;
  pass.a_stride = static_cast<std::size_t>(a.padded_k);
  pass.a_scale = a.scale_value.get() + a_group;
  pass.a_scale_exponent = a.scale_exponent.get() + a_group;
  pass.a_scale_stride = static_cast<std::size_t>(a_groups);
  pass.b = b.value32.get() + (block * b.padded_k + b_k0 + step * x.k) * kColumns;
  pass.b_scale = b.scale_value.get() + b_group;
  pass.b_scale_exponent = b.scale_exponent.get() + b_group;
  pass.c = tile;
  pass.fraction_bits = x.fusion.fraction_bits;
  pass.exponent_floor = x.fusion.exponent_floor;
  pass.plain = plain_columns;
  pass.saved = saved;
  {
    const TowardZero rounding;
    run(pass);
  }
  repair(row0, rows, block, step);
}

void TileMultiplication::integer_steps(Index row0, Index rows, Index block) {
  // Clamping happens after each instruction, wrapping may wait.
  const Index depth = x.saturate ? x.k : steps * x.k;
  IntegerPass pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.depth = static_cast<std::size_t>(depth);
  pass.a_stride = static_cast<std::size_t>(a.padded_k);
  pass.c = tile;
  pass.saturate = x.saturate;
  for (Index k = 0; k < steps * x.k; k += depth) {
    pass.a = a.words.get() + row0 * a.padded_k + a_k0 + k;
    pass.b = b.words.get() + (block * b.padded_k + b_k0 + k) * kColumns;
    run(pass);
  }
}

void TileMultiplication::byte_steps(Index row0, Index rows, Index block) {
  // Clamping happens after each instruction, wrapping may wait.
  const Index at_once = x.saturate ? 1 : steps;
  const Index a_steps = a.padded_k / x.k, b_steps = b.padded_k / x.k;
  alignas(64) std::int32_t row_start[kPanelRows];
  alignas(64) std::int32_t column_start[kColumns];
  BytePass pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.a_stride = static_cast<std::size_t>(a.padded_k);
  pass.row_start = row_start;
  pass.column_start = column_start;
  pass.c = tile;
  pass.saturate = x.saturate;
  for (Index first = 0; first < steps; first += at_once) {
    std::fill_n(row_start, rows, 0);
    std::fill_n(column_start, kColumns, 0);
    for (Index step = first; step < std::min(first + at_once, steps); ++step) {
      const std::int32_t* left = a.starts.data() + row0 * a_steps + a_k0 / x.k + step;
      for (Index i = 0; i < rows; ++i) row_start[i] += left[i * a_steps];
      const std::int32_t* right = b.starts.data() + (block * b_steps + b_k0 / x.k + step) * kColumns;
      for (Index j = 0; j < kColumns; ++j) column_start[j] += right[j];
    }
    pass.depth = static_cast<std::size_t>(std::min(at_once, steps - first) * x.k);
    pass.a = a.bytes.get() + row0 * a.padded_k + a_k0 + first * x.k;
    pass.b = reinterpret_cast<const std::int8_t*>(b.bytes.get()) +
             (block * (b.padded_k / 4) + (b_k0 + first * x.k) / 4) * 4 * kColumns;
    run(pass);
  }
}

PathUse multiply_accumulate(const Instruction& instruction, const Operand& a, const Operand& b, CodeTile c, Path path) {
  if (&a.instruction() != &instruction || &b.instruction() != &instruction) {
    throw Error(ErrorKind::usage, fmt::format("{}: operands were decoded for {} and {}", instruction.name,
                                              a.instruction().name, b.instruction().name));
  }
  if (a.k() != b.k() || c.rows() != a.rows() || c.cols() != b.rows()) {
    throw Error(ErrorKind::usage, fmt::format("{}: a is {} x {}, b {} x {}, c {} x {}", instruction.name, a.rows(),
                                              a.k(), b.rows(), b.k(), c.rows(), c.cols()));
  }
  const FpEnvironment environment;
  TileMultiplication multiplication(instruction, a, b);
  if (path == Path::fast && has_fast_path(instruction)) {
    multiplication.fast(c);
  } else {
    multiplication.plain(c);
  }
  return multiplication.use;
}

std::string_view active_target() {
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);
}

}  // namespace qattn::mma
