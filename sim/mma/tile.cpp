// Decoding of operands, and the walk over panels, column blocks and steps that feeds the kernels.
#include "mma/tile.h"

#include <fmt/format.h>
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"
#include "mma/fused_dot.h"
#include "mma/tile_kernels.h"
#include "mma/unpacked.h"

namespace qattn::mma {
namespace {

using Eigen::Index;

/// The form in which a kernel wants its operands.
enum class Layout : std::uint8_t { plain_only, fused_f32, fused_f64, integer, scaled };

/// Rows of A that share one pass over a column block: their accumulators stay in the L1 cache.
constexpr Index kPanelRows = 64;
constexpr Index kColumns = static_cast<Index>(kTileColumns);
constexpr int kScaledGroup = 16;

/// Bits that the sum of `group` products (each below 4) and C (below 2) needs above e_max.
int headroom(int group) { return 2 + std::bit_width(static_cast<unsigned>(group)); }

bool has_fused_output(const Instruction& x) {
  if (x.c != x.d) return false;
  if (x.d == &format::kFP32) return x.fusion.rounding == Rounding::toward_zero;
  return x.d == &format::kFP16 && x.fusion.rounding == Rounding::nearest_even && x.fusion.mantissa_bits == 10;
}

Layout layout_of(const Instruction& x) {
  switch (x.kind) {
    case Kind::integer_dot:
      return Layout::integer;
    case Kind::scaled_group_dot:
      return has_fused_output(x) && x.fusion.fraction_bits <= 35 ? Layout::scaled : Layout::plain_only;
    case Kind::fused_dot:
    case Kind::interleaved_dot:
      break;
    default:
      return Layout::plain_only;
  }
  const int bits = x.fusion.fraction_bits + headroom(x.fusion.group);
  const bool whole_groups = x.k % x.fusion.group == 0 && (x.scale == nullptr || x.block == x.fusion.group);
  if (!has_fused_output(x) || !whole_groups || bits > 52) return Layout::plain_only;
  if (x.kind == Kind::interleaved_dot && (x.k % 4 != 0 || x.fusion.group != x.k / 2)) return Layout::plain_only;
  const bool narrow = x.a->bits <= 8 && x.b->bits <= 8 && x.scale == nullptr;
  return narrow && bits <= 23 && x.kind == Kind::fused_dot ? Layout::fused_f32 : Layout::fused_f64;
}

/// Where the products of position k stand within its instruction, so that each pass reads a contiguous range.
Index stored_position(const Instruction& x, Index k) {
  if (x.kind != Kind::interleaved_dot) return k;
  const Index within = k % x.k;
  const Index half = within % 4 / 2;
  return k - within + half * (x.k / 2) + within / 4 * 2 + within % 2;
}

/// What the kernels read of one element. Every format of a tile fits a float.
struct Element {
  float magnitude = 0;
  std::int16_t exponent = kZeroMark<std::int16_t>;
  bool negative = false;
  bool special = false;

  float value() const { return negative ? -magnitude : magnitude; }
};

Element decode(const format::Format& format, std::uint64_t code, bool through_fp16) {
  if (format.specials == format::Specials::integer) {
    const std::int64_t value = unpack_integer(format, code);
    return {static_cast<float>(std::abs(value)), 0, value < 0, false};
  }
  const Unpacked x = through_fp16 ? as_fp16(unpack(format, code)) : unpack(format, code);
  Element element;
  element.special = x.kind != Unpacked::Class::finite;
  if (element.special || x.significand == 0) return element;
  element.magnitude = std::ldexp(static_cast<float>(x.significand), x.exponent - x.fraction_bits);
  element.exponent = static_cast<std::int16_t>(x.exponent);
  element.negative = x.negative;
  return element;
}

/// decode() by table, for formats of at most 8 bits.
class TableDecoder {
 public:
  TableDecoder(const format::Format& format, bool through_fp16) {
    for (std::uint32_t code = 0; code < 256; ++code) table_[code] = decode(format, code, through_fp16);
  }
  Element operator()(std::uint32_t code) const { return table_[code & 0xFF]; }

 private:
  std::array<Element, 256> table_;
};

/// decode() by arithmetic, for f16, bf16 and tf32: widened to f32 bits; for f16 an exact product rebases the exponent.
template <int kBits, bool kHalf>
struct WideDecoder {
  Element operator()(std::uint32_t code) const {
    const std::uint32_t magnitude = kBits == 16 ? code & 0x7FFFu : code & 0x7FFFE000u;
    const std::uint32_t wide = kHalf ? magnitude << 13 : kBits == 16 ? magnitude << 16 : magnitude;
    const auto field = static_cast<int>(wide >> 23);
    const bool special = field == (kHalf ? 31 : 255);
    const bool empty = special || wide == 0;
    const float value = std::bit_cast<float>(wide) * (kHalf ? 0x1p112f : 1.0f);
    return {special ? 0.0f : value,
            empty ? kZeroMark<std::int16_t> : static_cast<std::int16_t>(std::max(field, 1) - (kHalf ? 15 : 127)),
            (code >> (kBits - 1) & 1) != 0 && !empty, special};
  }
};

/// Calls `use` with the decoder of the format. `through_fp16`: FP8 that is converted to FP16 first.
template <class Use>
void with_decoder(const format::Format& format, bool through_fp16, const Use& use) {
  if (format.bits <= 8) {
    use(TableDecoder(format, through_fp16));
  } else if (format.bits == 19) {
    use(WideDecoder<32, false>());
  } else if (format.exponent_bits == 5) {
    use(WideDecoder<16, true>());
  } else {
    use(WideDecoder<16, false>());
  }
}

template <class T>
using Buffer = hwy::AlignedFreeUniquePtr<T[]>;

template <class T>
Buffer<T> make_buffer(Index n, T fill) {
  auto buffer = hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<Index>(n, 1)));
  if (buffer == nullptr) throw std::bad_alloc();
  std::fill_n(buffer.get(), n, fill);
  return buffer;
}

class TowardZero {
 public:
  TowardZero() { std::fesetround(FE_TOWARDZERO); }
  ~TowardZero() { std::fesetround(FE_TONEAREST); }
  TowardZero(const TowardZero&) = delete;
  TowardZero& operator=(const TowardZero&) = delete;
};

}  // namespace

/// The decoded form. Side a: [rows][k]; side b: [blocks of 64 rows][k][64], with the negative parts beside the positive
/// ones where the kernel wants them apart.
struct OperandStorage {
  const Instruction* instruction;
  Side side;
  Layout layout;
  Index rows;
  Index k;                            ///< as given
  Index padded_k;                     ///< whole instructions
  std::vector<std::uint32_t> codes;   ///< [rows][padded_k], for the plain path
  std::vector<std::uint32_t> scales;  ///< [rows][padded_k / block]
  std::vector<char> special;          ///< per row: NaN or Inf among its codes or scales
  Buffer<float> value32;
  Buffer<double> value64;
  Buffer<std::int8_t> exponent8;
  Buffer<std::int16_t> exponent16;
  Buffer<std::uint8_t> offset;  ///< side a: kTileColumns where negative
  Buffer<double> scale_value;   ///< Layout::scaled
  Buffer<std::int16_t> scale_exponent;

  const format::Format& element_format() const { return side == Side::a ? *instruction->a : *instruction->b; }
  Index blocks() const { return (rows + kColumns - 1) / kColumns; }
  Index scales_per_row() const { return instruction->block == 0 ? 0 : padded_k / instruction->block; }

  /// Index of (row, k) in a buffer that holds `depth` positions a row.
  Index place(Index row, Index position, Index depth) const {
    if (side == Side::a) return row * depth + position;
    return (row / kColumns * depth + position) * kColumns + row % kColumns;
  }
  Index padded_rows() const { return side == Side::a ? rows : blocks() * kColumns; }

  void allocate();
  template <class Write>
  void for_each_element(const Write& write);
  template <class T, class E>
  void decode_fused(T* __restrict values, E* __restrict exponents);
  void decode_signed();
  void apply_scales();
  void decode_elements();
  void decode_scales();
};

void OperandStorage::allocate() {
  const Index elements = padded_rows() * padded_k;
  const bool fused = layout == Layout::fused_f32 || layout == Layout::fused_f64;
  const Index values = fused && side == Side::b ? 2 * elements : elements;
  special.assign(static_cast<std::size_t>(rows), 0);
  if (layout == Layout::fused_f64) {
    value64 = make_buffer<double>(values, 0);
    exponent16 = make_buffer<std::int16_t>(elements, kZeroMark<std::int16_t>);
  } else if (layout != Layout::plain_only) {
    value32 = make_buffer<float>(values, 0);
    if (fused) exponent8 = make_buffer<std::int8_t>(elements, kZeroMark<std::int8_t>);
  }
  if (fused && side == Side::a) offset = make_buffer<std::uint8_t>(elements, 0);
  if (layout == Layout::scaled) {
    const Index groups = padded_rows() * (padded_k / kScaledGroup);
    scale_value = make_buffer<double>(groups, 0);
    scale_exponent = make_buffer<std::int16_t>(groups, kZeroMark<std::int16_t>);
  }
}

/// Decodes every element and calls write(its index in the buffers, element). B is walked in bands of K, so that the
/// part of the transposed buffers in hand stays in the L1 cache.
template <class Write>
void OperandStorage::for_each_element(const Write& write) {
  const Index band = side == Side::a ? std::max<Index>(k, 1) : 16;
  const Index stride = side == Side::a ? 1 : kColumns;
  std::vector<Index> positions(static_cast<std::size_t>(k));
  for (Index i = 0; i < k; ++i) positions[static_cast<std::size_t>(i)] = stored_position(*instruction, i) * stride;
  with_decoder(element_format(), instruction->kind == Kind::interleaved_dot, [&](const auto& decoder) {
    for (Index row0 = 0; row0 < rows; row0 += kColumns) {
      for (Index k_band = 0; k_band < k; k_band += band) {
        for (Index row = row0; row < std::min(row0 + kColumns, rows); ++row) {
          const std::uint32_t* from = codes.data() + row * padded_k;
          const Index base = place(row, 0, padded_k);
          const Index end = std::min(k_band + band, k);
          bool any_special = false;
          for (Index i = k_band; i < end; ++i) {
            const Element x = decoder(from[i]);
            any_special |= x.special;
            write(static_cast<std::size_t>(base + positions[static_cast<std::size_t>(i)]), x);
          }
          special[static_cast<std::size_t>(row)] |= static_cast<char>(any_special);
        }
      }
    }
  });
}

/// Layouts fused_f32 and fused_f64. Side b keeps [k][2][64]: the magnitude stands in the half of its sign.
template <class T, class E>
void OperandStorage::decode_fused(T* __restrict values, E* __restrict exponents) {
  const auto exponent_of = [](const Element& x) {
    return x.magnitude == 0 ? kZeroMark<E> : static_cast<E>(x.exponent);
  };
  if (side == Side::a) {
    std::uint8_t* const __restrict offsets = offset.get();
    for_each_element([=](std::size_t to, const Element& x) {
      values[to] = static_cast<T>(x.magnitude);
      exponents[to] = exponent_of(x);
      offsets[to] = x.negative ? kTileColumns : 0;
    });
  } else {
    for_each_element([=](std::size_t to, const Element& x) {
      values[2 * to - to % kTileColumns + (x.negative ? kTileColumns : 0)] = static_cast<T>(x.magnitude);
      exponents[to] = exponent_of(x);
    });
  }
}

/// Layouts integer and scaled.
void OperandStorage::decode_signed() {
  float* const __restrict values = value32.get();
  for_each_element([=](std::size_t to, const Element& x) { values[to] = x.value(); });
}

/// Multiplies the decoded elements of a block-scaled operand by their blocks' powers of two.
void OperandStorage::apply_scales() {
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < k; ++i) {
      const auto block = static_cast<std::size_t>(row * scales_per_row() + i / instruction->block);
      const int exponent = unpack(*instruction->scale, scales[block]).exponent;
      const auto to = static_cast<std::size_t>(place(row, i, padded_k));
      const std::size_t first = side == Side::a ? to : 2 * to - to % kTileColumns;
      for (const std::size_t at : {first, side == Side::a ? first : first + kTileColumns}) {
        if (value64[at] != 0) {
          value64[at] = std::ldexp(value64[at], exponent);
          exponent16[to] = static_cast<std::int16_t>(exponent16[to] + exponent);
          break;
        }
      }
    }
  }
}

void OperandStorage::decode_elements() {
  if (layout == Layout::fused_f32) {
    decode_fused(value32.get(), exponent8.get());
  } else if (layout == Layout::fused_f64) {
    decode_fused(value64.get(), exponent16.get());
    if (instruction->scale != nullptr) apply_scales();
  } else {
    decode_signed();
  }
}

void OperandStorage::decode_scales() {
  const Index groups = padded_k / kScaledGroup;
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < scales_per_row(); ++i) {
      const Unpacked x = unpack(*instruction->scale, scales[static_cast<std::size_t>(row * scales_per_row() + i)]);
      special[static_cast<std::size_t>(row)] |= x.kind == Unpacked::Class::nan;
      if (layout != Layout::scaled || x.significand == 0) continue;
      for (Index g = i * instruction->block / kScaledGroup; g < (i + 1) * instruction->block / kScaledGroup; ++g) {
        const auto at = static_cast<std::size_t>(place(row, g, groups));
        scale_value[at] = std::ldexp(static_cast<double>(x.significand), x.exponent - x.fraction_bits);
        scale_exponent[at] = static_cast<std::int16_t>(x.exponent);
      }
    }
  }
}

Operand::Operand(const Instruction& instruction, Side side, const std::uint32_t* codes, Index rows, Index k,
                 Index stride, const std::uint32_t* scales, Index scale_stride)
    : k0_(0), k1_(k) {
  if (instruction.a->bits > 32 || instruction.d->bits > 32) {
    throw Error(ErrorKind::usage, instruction.name + ": its codes are wider than a tile's 32 bits");
  }
  if ((instruction.scale != nullptr) != (scales != nullptr)) {
    throw Error(ErrorKind::usage,
                instruction.name + (scales == nullptr ? ": needs block scales" : ": takes no block scales"));
  }
  const FpEnvironment environment;
  auto storage = std::make_shared<OperandStorage>();
  storage->instruction = &instruction;
  storage->side = side;
  storage->layout = layout_of(instruction);
  storage->rows = rows;
  storage->k = k;
  storage->padded_k = (k + instruction.k - 1) / instruction.k * instruction.k;
  storage->codes.assign(static_cast<std::size_t>(rows * storage->padded_k), 0);
  for (Index row = 0; row < rows; ++row) {
    std::copy_n(codes + row * stride, k, storage->codes.data() + row * storage->padded_k);
  }
  if (scales != nullptr) {
    const Index given = (k + instruction.block - 1) / instruction.block;
    storage->scales.assign(static_cast<std::size_t>(rows * storage->scales_per_row()), 0);
    for (Index row = 0; row < rows; ++row) {
      std::copy_n(scales + row * scale_stride, given, storage->scales.data() + row * storage->scales_per_row());
    }
  }
  storage->allocate();
  if (scales != nullptr) storage->decode_scales();
  if (storage->layout != Layout::plain_only) storage->decode_elements();
  storage_ = std::move(storage);
}

Operand::Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes)
    : Operand(instruction, side, codes.data(), codes.rows(), codes.cols(), codes.outerStride()) {}

Operand::Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes,
                 const MatrixView<std::uint32_t>& scales)
    : Operand(instruction, side, codes.data(), codes.rows(), codes.cols(), codes.outerStride(), scales.data(),
              scales.outerStride()) {
  const Index blocks = instruction.block == 0 ? 0 : (codes.cols() + instruction.block - 1) / instruction.block;
  if (scales.rows() == codes.rows() && scales.cols() == blocks) return;
  throw Error(ErrorKind::usage, fmt::format("{}: scales are {} x {}, should be {} x {}", instruction.name,
                                            scales.rows(), scales.cols(), codes.rows(), blocks));
}

Index Operand::rows() const { return storage_->rows; }
const Instruction& Operand::instruction() const { return *storage_->instruction; }

Operand Operand::slice(Index k0, Index k1) const {
  const Index step = storage_->instruction->k;
  if (k0 < 0 || k1 < k0 || k0_ + k1 > k1_ || k0 % step != 0 || (k1 % step != 0 && k1 != k())) {
    throw Error(ErrorKind::usage,
                fmt::format("slice [{}, {}) of {} codes: bounds must be multiples of {}", k0, k1, k(), step));
  }
  Operand part = *this;
  part.k0_ = k0_ + k0;
  part.k1_ = k0_ + k1;
  return part;
}

/// One multiply_accumulate call.
struct TileMultiplication {
  const Instruction& x;
  const OperandStorage& a;
  const OperandStorage& b;
  Index k0;
  Index steps;
  PathUse use = {};

  TileMultiplication(const Instruction& instruction, const Operand& left, const Operand& right)
      : x(instruction),
        a(*left.storage_),
        b(*right.storage_),
        k0(left.k0_),
        steps((left.k() + instruction.k - 1) / instruction.k),
        b_k0(right.k0_) {}

  Index b_k0;

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
  operands.a = widen(a.codes, row * a.padded_k + k0 + step * x.k, k);
  operands.b = widen(b.codes, column * b.padded_k + b_k0 + step * x.k, k);
  if (scales > 0) {
    operands.scale_a = widen(a.scales, row * a.scales_per_row() + (k0 + step * x.k) / x.block, scales);
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
  if (a.layout == Layout::integer) {
    integer_steps(row0, rows, block);
  } else {
    const std::uint64_t special = special_columns(block);
    for (Index step = 0; step < steps; ++step) {
      for (Index i = 0; i < rows; ++i) {
        plain_columns[i] = a.special[static_cast<std::size_t>(row0 + i)] != 0 ? ~std::uint64_t{0} : special;
      }
      if (a.layout == Layout::scaled) {
        scaled_pass(row0, rows, block, step);
      } else if (a.layout == Layout::fused_f32) {
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
      const Index at_a = row0 * a.padded_k + k0 + k;
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
  const Index a_group = row0 * a_groups + k0 / kScaledGroup + step * groups;
  const Index b_group = (block * b_groups + b_k0 / kScaledGroup + step * groups) * kColumns;
  ScaledPass pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.groups = static_cast<std::size_t>(groups);
  pass.a = a.value32.get() + row0 * a.padded_k + k0 + step * x.k;
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
  // 256 products of u8 stay below 2^24. Clamping happens after each instruction, wrapping may wait.
  const Index depth = x.saturate ? x.k : std::max<Index>(x.k, 256 / x.k * x.k);
  IntegerPass pass{};
  pass.rows = static_cast<std::size_t>(rows);
  pass.a_stride = static_cast<std::size_t>(a.padded_k);
  pass.c = tile;
  pass.saturate = x.saturate;
  for (Index k = 0; k < steps * x.k; k += depth) {
    pass.depth = static_cast<std::size_t>(std::min(depth, steps * x.k - k));
    pass.a = a.value32.get() + row0 * a.padded_k + k0 + k;
    pass.b = b.value32.get() + (block * b.padded_k + b_k0 + k) * kColumns;
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

bool has_fast_path(const Instruction& instruction) { return layout_of(instruction) != Layout::plain_only; }

std::string_view active_target() {
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);
}

}  // namespace qattn::mma
