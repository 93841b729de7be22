// The decoded form of a tile's operand, shared by the walk in tile.cpp and the decoding in tile_operand.cpp.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "mma/tile.h"
#include "mma/tile_kernels.h"

namespace qattn::mma {

/// The form in which a kernel wants its operands.
enum class TileLayout : std::uint8_t {
  plain_only,
  fused_f32,
  fused_f64,
  integer,  ///< 16-bit lanes
  bytes,    ///< as bytes, for the integer dot product of the SIMD target that is in use
  scaled
};

TileLayout tile_layout(const Instruction& instruction);

/// Products that a scaled group holds (MXFP4, NVFP4).
inline constexpr int kScaledGroup = 16;

/// Side a: [rows][k]; side b: [blocks of 64 rows][k][64], where the kernel wants it with the magnitudes of positive and
/// of negative elements apart, [k][2][64]. Padding decodes as zero.
struct OperandStorage {
  template <class T>
  using Buffer = hwy::AlignedFreeUniquePtr<T[]>;

  const Instruction* instruction;
  Side side;
  TileLayout layout;
  Eigen::Index rows;
  Eigen::Index k;                     ///< as given
  Eigen::Index padded_k;              ///< whole instructions
  std::vector<std::uint32_t> codes;   ///< [rows][padded_k], for the plain path
  std::vector<std::uint32_t> scales;  ///< [rows][padded_k / block]
  std::vector<char> special;          ///< per row: NaN or Inf among its codes or scales
  Buffer<float> value32;
  Buffer<double> value64;
  Buffer<std::int8_t> exponent8;
  Buffer<std::int16_t> exponent16;
  Buffer<std::uint8_t> offset;  ///< side a: kTileColumns where negative
  Buffer<std::int16_t> words;   ///< layout integer: [rows][k], or [blocks][k / 2][64][2]
  Buffer<std::uint8_t> bytes;   ///< layout bytes: [rows][k], or s8 [blocks][k / 4][64][4]
  std::vector<std::int32_t>
      starts;  ///< what the bytes' offset takes off, by instruction: [rows][steps] or [blocks][steps][64]
  Buffer<double> scale_value;  ///< scaled: one a group, [rows][groups] or [blocks][groups][64]
  Buffer<std::int16_t> scale_exponent;

  /// Fills everything above from codes and scales, which must be set.
  void decode();

  Eigen::Index blocks() const;
  Eigen::Index scales_per_row() const { return instruction->block == 0 ? 0 : padded_k / instruction->block; }

 private:
  /// Index of (row, k) in a buffer that holds `depth` positions a row.
  Eigen::Index place(Eigen::Index row, Eigen::Index position, Eigen::Index depth) const;
  Eigen::Index padded_rows() const;
  const format::Format& element_format() const { return side == Side::a ? *instruction->a : *instruction->b; }
  std::vector<std::uint32_t> stored_order() const;
  template <class Body>
  void for_columns(const std::uint32_t* from, const Body& body) const;
  template <class T, class E>
  void decode_fused(T* values, E* exponents);
  void decode_values();
  void decode_words();
  void decode_bytes();
  void apply_scales();
  void decode_group_scales();
};

}  // namespace qattn::mma
