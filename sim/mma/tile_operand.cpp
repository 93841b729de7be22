// Decoding of operands.
#include "mma/tile_operand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fp_environment.h"
#include "mma/unpacked.h"

namespace qattn::mma {
namespace {

using Eigen::Index;

constexpr Index kColumns = static_cast<Index>(kTileColumns);

/// Bits that the sum of `group` products (each below 4) and C (below 2) needs above e_max.
int headroom(int group) { return 2 + std::bit_width(static_cast<unsigned>(group)); }

bool has_fused_output(const Instruction& x) {
  if (x.c != x.d) return false;
  if (x.d == &format::kFP32) return x.fusion.rounding == Rounding::toward_zero;
  return x.d == &format::kFP16 && x.fusion.rounding == Rounding::nearest_even && x.fusion.mantissa_bits == 10;
}

}  // namespace

TileLayout tile_layout(const Instruction& x) {
  switch (x.kind) {
    case Kind::integer_dot:
      if (has_byte_dot() && x.k % 4 == 0) return TileLayout::bytes;
      return x.k % 2 == 0 ? TileLayout::integer : TileLayout::plain_only;
    case Kind::scaled_group_dot:
      return has_fused_output(x) && x.fusion.fraction_bits <= 35 ? TileLayout::scaled : TileLayout::plain_only;
    case Kind::fused_dot:
    case Kind::interleaved_dot:
      break;
    default:
      return TileLayout::plain_only;
  }
  const int bits = x.fusion.fraction_bits + headroom(x.fusion.group);
  const bool whole_groups = x.k % x.fusion.group == 0 && (x.scale == nullptr || x.block == x.fusion.group);
  if (!has_fused_output(x) || !whole_groups || bits > 52) return TileLayout::plain_only;
  if (x.kind == Kind::interleaved_dot && (x.k % 4 != 0 || x.fusion.group != x.k / 2)) return TileLayout::plain_only;
  const bool narrow = x.a->bits <= 8 && x.b->bits <= 8 && x.scale == nullptr;
  return narrow && bits <= 23 && x.kind == Kind::fused_dot ? TileLayout::fused_f32 : TileLayout::fused_f64;
}

namespace {

/// Where the products of position k stand within its instruction, so that each pass reads a contiguous range.
Index stored_position(const Instruction& x, Index k) {
  if (x.kind != Kind::interleaved_dot) return k;
  const Index within = k % x.k;
  const Index half = within % 4 / 2;
  return k - within + half * (x.k / 2) + within / 4 * 2 + within % 2;
}

/// The value of a code of at most 8 bits, 0 for NaN and Inf; every such format fits a float.
struct Value {
  float value = 0;
  bool special = false;
};

Value decode_value(const format::Format& format, std::uint64_t code) {
  if (format.specials == format::Specials::integer) return {static_cast<float>(unpack_integer(format, code)), false};
  const Unpacked x = unpack(format, code);
  if (x.kind != Unpacked::Class::finite) return {0, true};
  return {format::decode_float(format, code), false};
}

/// decode_value() by table; each table is made once.
using ValueTable = std::array<Value, 256>;

const ValueTable& value_table(const format::Format& format) {
  static std::mutex mutex;
  static std::map<std::string_view, std::unique_ptr<ValueTable>> tables;
  const std::lock_guard lock(mutex);
  std::unique_ptr<ValueTable>& table = tables[format.name];
  if (table == nullptr) {
    table = std::make_unique<ValueTable>();
    for (std::uint32_t code = 0; code < 256; ++code) (*table)[code] = decode_value(format, code);
  }
  return *table;
}

template <class T>
OperandStorage::Buffer<T> make_buffer(Index n) {
  auto buffer = hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<Index>(n, 1)));
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}

}  // namespace

Index OperandStorage::blocks() const { return (rows + kColumns - 1) / kColumns; }

Index OperandStorage::padded_rows() const { return side == Side::a ? rows : blocks() * kColumns; }

Index OperandStorage::place(Index row, Index position, Index depth) const {
  if (side == Side::a) return row * depth + position;
  return (row / kColumns * depth + position) * kColumns + row % kColumns;
}

/// The codes in the order in which the passes read them, when that is not the given one.
std::vector<std::uint32_t> OperandStorage::stored_order() const {
  std::vector<std::uint32_t> ordered(codes.size());
  for (Index i = 0; i < padded_k; ++i) {
    const Index to = stored_position(*instruction, i);
    for (Index row = 0; row < rows; ++row) {
      ordered[static_cast<std::size_t>(row * padded_k + to)] = codes[static_cast<std::size_t>(row * padded_k + i)];
    }
  }
  return ordered;
}

/// Calls `body(block, position, codes)` with the kTileColumns codes of one position, gathered from as many rows.
template <class Body>
void OperandStorage::for_columns(const std::uint32_t* from, const Body& body) const {
  std::array<std::uint32_t, kTileColumns> column;
  for (Index block = 0; block < blocks(); ++block) {
    const Index columns = std::min(kColumns, rows - block * kColumns);
    column.fill(0);
    for (Index i = 0; i < padded_k; ++i) {
      const std::uint32_t* source = from + block * kColumns * padded_k + i;
      for (Index j = 0; j < columns; ++j) column[static_cast<std::size_t>(j)] = source[j * padded_k];
      body(block, i, column.data());
    }
  }
}

template <class T, class E>
void OperandStorage::decode_fused(T* values, E* exponents) {
  const bool interleaved = instruction->kind == Kind::interleaved_dot;
  const ElementDecoder decoder(element_format(), interleaved);
  const std::vector<std::uint32_t> ordered = interleaved ? stored_order() : std::vector<std::uint32_t>();
  const std::uint32_t* from = interleaved ? ordered.data() : codes.data();
  if (side == Side::a) {
    for (Index row = 0; row < rows; ++row) {
      const Index at = row * padded_k;
      special[static_cast<std::size_t>(row)] = decode_left(decoder, from + at, static_cast<std::size_t>(padded_k),
                                                           values + at, exponents + at, offset.get() + at);
    }
    return;
  }
  for_columns(from, [&](Index block, Index position, const std::uint32_t* column) {
    const Index to = (block * padded_k + position) * kColumns;
    const std::uint64_t bad = decode_right(decoder, column, values + 2 * to, exponents + to);
    for (Index j = 0; bad != 0 && j < std::min(kColumns, rows - block * kColumns); ++j) {
      special[static_cast<std::size_t>(block * kColumns + j)] |= static_cast<char>(bad >> j & 1);
    }
  });
}

void OperandStorage::decode_values() {
  const ValueTable& table = value_table(element_format());
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < padded_k; ++i) {
      special[static_cast<std::size_t>(row)] |=
          table[codes[static_cast<std::size_t>(row * padded_k + i)] & 0xFF].special;
    }
  }
  if (side == Side::a) {
    for (std::size_t i = 0; i < codes.size(); ++i) value32[i] = table[codes[i] & 0xFF].value;
    return;
  }
  for_columns(codes.data(), [&](Index block, Index position, const std::uint32_t* column) {
    float* to = value32.get() + (block * padded_k + position) * kColumns;
    for (Index j = 0; j < kColumns; ++j) to[j] = table[column[j] & 0xFF].value;
  });
}

void OperandStorage::decode_words() {
  const ValueTable& table = value_table(element_format());
  const auto word = [&](std::uint32_t code) { return static_cast<std::int16_t>(table[code & 0xFF].value); };
  if (side == Side::a) {
    for (std::size_t i = 0; i < codes.size(); ++i) words[i] = word(codes[i]);
    return;
  }
  for_columns(codes.data(), [&](Index block, Index position, const std::uint32_t* column) {
    std::int16_t* to = words.get() + (block * (padded_k / 2) + position / 2) * 2 * kColumns + position % 2;
    for (Index j = 0; j < kColumns; ++j) to[2 * j] = word(column[j]);
  });
}

/// a b = (a' - p)(b' + q), so the sum of a' b' is corrected by -p times the sum of b in every column, and by q times
/// the sum of a' in every row; p and q are 128 or 0.
void OperandStorage::decode_bytes() {
  const ValueTable& table = value_table(element_format());
  const int p = instruction->a->has_sign ? 128 : 0, q = instruction->b->has_sign ? 0 : 128;
  std::array<std::uint8_t, 256> stored;
  std::array<std::int32_t, 256> correction;
  for (std::size_t code = 0; code < 256; ++code) {
    const int value = static_cast<int>(table[code].value);
    stored[code] = static_cast<std::uint8_t>(side == Side::a ? value + p : value - q);
    correction[code] = side == Side::a ? q * (value + p) : -p * value;
  }
  const Index steps = padded_k / instruction->k;
  starts.assign(static_cast<std::size_t>(padded_rows() * steps), 0);
  if (side == Side::a) {
    for (Index i = 0; i < rows * padded_k; ++i) {
      const std::size_t code = codes[static_cast<std::size_t>(i)] & 0xFF;
      bytes[static_cast<std::size_t>(i)] = stored[code];
    }
    if (q == 0) return;
    for (Index i = 0; i < rows * padded_k; ++i) {
      starts[static_cast<std::size_t>(i / instruction->k)] += correction[codes[static_cast<std::size_t>(i)] & 0xFF];
    }
    return;
  }
  for_columns(codes.data(), [&](Index block, Index position, const std::uint32_t* column) {
    std::uint8_t* to = bytes.get() + (block * (padded_k / 4) + position / 4) * 4 * kColumns + position % 4;
    std::int32_t* start = starts.data() + (block * steps + position / instruction->k) * kColumns;
    for (Index j = 0; j < kColumns; ++j) {
      const std::size_t code = column[j] & 0xFF;
      to[4 * j] = stored[code];
      start[j] += correction[code];
    }
  });
}

void OperandStorage::decode() {
  special.assign(static_cast<std::size_t>(rows), 0);
  const Index elements = padded_rows() * padded_k;
  const bool fused = layout == TileLayout::fused_f32 || layout == TileLayout::fused_f64;
  const Index values = fused && side == Side::b ? 2 * elements : elements;
  if (layout == TileLayout::plain_only) return;
  if (layout == TileLayout::bytes) {
    bytes = make_buffer<std::uint8_t>(elements);
    return decode_bytes();
  }
  if (layout == TileLayout::integer) {
    words = make_buffer<std::int16_t>(elements);
    return decode_words();
  }
  if (layout == TileLayout::fused_f64) {
    value64 = make_buffer<double>(values);
    exponent16 = make_buffer<std::int16_t>(elements);
  } else {
    value32 = make_buffer<float>(values);
    if (fused) exponent8 = make_buffer<std::int8_t>(elements);
  }
  if (fused && side == Side::a) offset = make_buffer<std::uint8_t>(elements);
  if (layout == TileLayout::fused_f32) {
    decode_fused(value32.get(), exponent8.get());
  } else if (layout == TileLayout::fused_f64) {
    decode_fused(value64.get(), exponent16.get());
  } else {
    decode_values();
  }
  if (layout == TileLayout::scaled) decode_group_scales();
  if (fused && instruction->scale != nullptr) apply_scales();
}

/// Multiplies the elements of a block-scaled operand by their blocks' powers of two.
void OperandStorage::apply_scales() {
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < k; ++i) {
      const auto block = static_cast<std::size_t>(row * scales_per_row() + i / instruction->block);
      const Unpacked scale = unpack(*instruction->scale, scales[block]);
      if (scale.kind == Unpacked::Class::nan) special[static_cast<std::size_t>(row)] = 1;
      const Index to = place(row, i, padded_k);
      if (exponent16[static_cast<std::size_t>(to)] == kZeroMark<std::int16_t>) continue;
      exponent16[static_cast<std::size_t>(to)] += static_cast<std::int16_t>(scale.exponent);
      const Index positive = side == Side::a ? to : 2 * to - to % kColumns;
      for (const Index at : {positive, side == Side::a ? positive : positive + kColumns}) {
        double& value = value64[static_cast<std::size_t>(at)];
        if (side == Side::a || value != 0) value = std::ldexp(value, scale.exponent);
        if (side == Side::a) break;
      }
    }
  }
}

/// Scales of Layout::scaled, one for each group of products; a zero scale has the mark that keeps it out of e_max.
void OperandStorage::decode_group_scales() {
  const Index groups = padded_k / kScaledGroup;
  const Index n = padded_rows() * groups;
  scale_value = make_buffer<double>(n);
  scale_exponent = make_buffer<std::int16_t>(n);
  std::fill_n(scale_value.get(), n, 0.0);
  std::fill_n(scale_exponent.get(), n, kZeroMark<std::int16_t>);
  for (Index row = 0; row < rows; ++row) {
    for (Index g = 0; g < groups; ++g) {
      const Index block = row * scales_per_row() + g * kScaledGroup / instruction->block;
      const Unpacked x = unpack(*instruction->scale, scales[static_cast<std::size_t>(block)]);
      special[static_cast<std::size_t>(row)] |= x.kind == Unpacked::Class::nan;
      if (x.significand == 0) continue;
      const auto at = static_cast<std::size_t>(place(row, g, groups));
      scale_value[at] = std::ldexp(static_cast<double>(x.significand), x.exponent - x.fraction_bits);
      scale_exponent[at] = static_cast<std::int16_t>(x.exponent);
    }
  }
}

namespace {

Index scale_columns(const Instruction& x, Index k) { return x.block == 0 ? 0 : (k + x.block - 1) / x.block; }

/// The scales' codes once their shape is known to fit.
const std::uint32_t* checked_scales(const Instruction& x, const MatrixView<std::uint32_t>& codes,
                                    const MatrixView<std::uint32_t>& scales) {
  const Index columns = scale_columns(x, codes.cols());
  if (scales.rows() == codes.rows() && scales.cols() == columns) return scales.data();
  throw Error(ErrorKind::usage, fmt::format("{}: scales are {} x {}, should be {} x {}", x.name, scales.rows(),
                                            scales.cols(), codes.rows(), columns));
}

void copy_rows(const std::uint32_t* from, Index stride, Index rows, Index columns, std::vector<std::uint32_t>& to,
               Index to_stride) {
  to.assign(static_cast<std::size_t>(rows * to_stride), 0);
  for (Index row = 0; row < rows; ++row) std::copy_n(from + row * stride, columns, to.data() + row * to_stride);
}

}  // namespace

Operand::Operand(const Instruction& instruction, Side side, const std::uint32_t* codes, Index rows, Index k,
                 Index stride, const std::uint32_t* scales, Index scale_stride)
    : k0_(0), k1_(k) {
  if (instruction.a->bits > 32 || instruction.d->bits > 32) {
    throw Error(ErrorKind::usage, instruction.name + ": its codes are wider than a tile's 32 bits");
  }
  if ((instruction.scale != nullptr) != (scales != nullptr)) {
    const char* what = scales == nullptr ? ": needs block scales" : ": takes no block scales";
    throw Error(ErrorKind::usage, instruction.name + what);
  }
  const FpEnvironment environment;
  auto storage = std::make_shared<OperandStorage>();
  storage->instruction = &instruction;
  storage->side = side;
  storage->layout = tile_layout(instruction);
  storage->rows = rows;
  storage->k = k;
  storage->padded_k = (k + instruction.k - 1) / instruction.k * instruction.k;
  copy_rows(codes, stride, rows, k, storage->codes, storage->padded_k);
  if (scales != nullptr) {
    copy_rows(scales, scale_stride, rows, scale_columns(instruction, k), storage->scales, storage->scales_per_row());
  }
  storage->decode();
  storage_ = std::move(storage);
}

Operand::Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes)
    : Operand(instruction, side, codes.data(), codes.rows(), codes.cols(), codes.outerStride()) {}

Operand::Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes,
                 const MatrixView<std::uint32_t>& scales)
    : Operand(instruction, side, codes.data(), codes.rows(), codes.cols(), codes.outerStride(),
              checked_scales(instruction, codes, scales), scales.outerStride()) {}

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

bool has_fast_path(const Instruction& instruction) { return tile_layout(instruction) != TileLayout::plain_only; }

}  // namespace qattn::mma
