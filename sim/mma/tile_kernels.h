// The SIMD kernels behind tile.h, dispatched at run time. All run with rounding toward zero.
//
// The floating-point unit does the cutting: an accumulator that starts at 2^(e_max + p - F), p = 23 or 52 stored
// mantissa bits of the type, keeps the spacing 2^(e_max - F) while the sum of the positive (or negative) terms stays
// below its start, so that adding an exact product with rounding toward zero cuts it at the wanted bit. Positive and
// negative terms go to an accumulator each; their difference is the exact sum of the cut terms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/span_kernels.h"

namespace qattn::mma {

/// Columns of B that stand side by side; the accumulators of a panel are rows x kTileColumns.
inline constexpr std::size_t kTileColumns = 64;

/// Exponent marks of zero operands: a sum with one of them is below every real exponent. The wider mark ends in the
/// narrower one's bits, so that narrowing an exponent narrows the mark.
template <class E>
inline constexpr E kZeroMark = sizeof(E) == 1 ? E{-50} : static_cast<E>(-8242);

/// No product of two operands with narrow exponents is below it (E5M2: 2^-28), and every sum with a zero mark is.
inline constexpr std::int32_t kLowestNarrowProduct = -32;

/// A step whose largest exponent is above this takes the plain path: f32 could overflow. NaN and Inf are above it too.
inline constexpr std::int32_t kLargestFastExponent = 116;

enum class AccumulatorType : std::uint8_t { f32, f16 };

/// One pass of fused dot products: `rows` rows of A by one block of kTileColumns columns of B, `depth` products each.
/// T is the arithmetic (float, double), E the exponents' integer.
template <class T, class E>
struct FusedPass {
  std::size_t rows;
  std::size_t depth;
  const T* a;                    ///< magnitudes [rows][a_stride]
  const E* a_exponent;           ///< [rows][a_stride]
  const std::uint8_t* a_offset;  ///< [rows][a_stride]: kTileColumns where A is negative, else 0
  std::size_t a_stride;
  const T* b;           ///< [depth][2][kTileColumns]: positive part, negative part
  const E* b_exponent;  ///< [depth][kTileColumns]
  std::uint32_t* c;     ///< [rows][kTileColumns]
  AccumulatorType type;
  int fraction_bits;
  int exponent_floor;
  std::uint32_t output_mask;  ///< mantissa bits that an f32 result keeps
  /// Per row one bit a column. In: columns that need the plain path anyhow. Out: those that do. Such rows of c
  /// are saved before they are overwritten.
  std::uint64_t* plain;
  std::uint32_t* saved;  ///< [rows][kTileColumns]
};

/// Integer dot products of 16-bit lanes, two products an instruction lane. Sums are modulo 2^32.
struct IntegerPass {
  std::size_t rows;
  std::size_t depth;      ///< even
  const std::int16_t* a;  ///< [rows][a_stride], values of at most 9 bits
  std::size_t a_stride;
  const std::int16_t* b;  ///< [depth / 2][kTileColumns][2]
  std::uint32_t* c;
  bool saturate;
};

/// Integer dot products by the CPU's own instruction, which multiplies u8 by s8. Signed A is stored with 128 added,
/// unsigned B with 128 taken off; what that changes depends on a row or a column alone and comes in as `row_start` and
/// `column_start`. Sums are modulo 2^32.
struct BytePass {
  std::size_t rows;
  std::size_t depth;      ///< a multiple of 4
  const std::uint8_t* a;  ///< [rows][a_stride]
  std::size_t a_stride;
  const std::int8_t* b;              ///< [depth / 4][kTileColumns][4]
  const std::int32_t* row_start;     ///< [rows]
  const std::int32_t* column_start;  ///< [kTileColumns], aligned
  std::uint32_t* c;
  bool saturate;
};

/// One pass of groups of 16 exact products with scales (MXFP4, NVFP4).
struct ScaledPass {
  std::size_t rows;
  std::size_t groups;
  const float* a;  ///< [rows][a_stride]
  std::size_t a_stride;
  const double* a_scale;  ///< [rows][a_scale_stride], one a group
  const std::int16_t* a_scale_exponent;
  std::size_t a_scale_stride;
  const float* b;         ///< [groups * 16][kTileColumns]
  const double* b_scale;  ///< [groups][kTileColumns]
  const std::int16_t* b_scale_exponent;
  std::uint32_t* c;
  int fraction_bits;
  int exponent_floor;
  std::uint64_t* plain;  ///< as in FusedPass
  std::uint32_t* saved;
};

/// Decoding of floating-point operands: magnitudes as exact floats and exponents as the fused pass wants them. A zero,
/// and a NaN or Inf, has magnitude 0 and the exponent kZeroMark.
struct ElementDecoder {
  bool is_wide;                  ///< bf16, tf32: the codes are the top bits of a float
  int wide_shift;                ///< what makes a float of a wide code
  format::NarrowDecoder narrow;  ///< all others
  std::int32_t lowest_exponent;  ///< of subnormal numbers

  /// `through_fp16`: FP8 that is converted to FP16 first, and has that format's subnormals.
  ElementDecoder(const format::Format& format, bool through_fp16);
};

/// n elements of a row of A: magnitudes, exponents and offsets (kTileColumns where negative). Returns whether one of
/// them was NaN or Inf. Nothing needs to be aligned.
bool decode_left(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, float* magnitudes,
                 std::int8_t* exponents, std::uint8_t* offsets);
bool decode_left(const ElementDecoder& decoder, const std::uint32_t* codes, std::size_t n, double* magnitudes,
                 std::int16_t* exponents, std::uint8_t* offsets);

/// kTileColumns elements of B: the magnitudes of the positive ones, then those of the negative ones, and exponents; all
/// aligned. Bit j of the result: column j is NaN or Inf.
std::uint64_t decode_right(const ElementDecoder& decoder, const std::uint32_t* codes, float* parts,
                           std::int8_t* exponents);
std::uint64_t decode_right(const ElementDecoder& decoder, const std::uint32_t* codes, double* parts,
                           std::int16_t* exponents);

/// The caller has set rounding toward zero.
void run(const FusedPass<float, std::int8_t>& pass);
void run(const FusedPass<double, std::int16_t>& pass);
void run(const IntegerPass& pass);
void run(const ScaledPass& pass);
void run(const BytePass& pass);  ///< any rounding; fast where has_byte_dot()

/// Whether the SIMD target in use has the integer dot product.
bool has_byte_dot();

/// c += t for n f32 (or f16) codes, rounded to nearest even; the caller has set that rounding. NaN is all ones.
void add_rounded(std::uint32_t* c, const std::uint32_t* t, std::size_t n, AccumulatorType type);

}  // namespace qattn::mma
