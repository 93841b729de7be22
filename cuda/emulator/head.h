// One head on the device, as kernels take it: sizes, choices and pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/encoding.h"
#include "emulator/fused_engine.h"
#include "emulator/scales.h"
#include "format/format.h"

namespace qattn::emulator {

/// How a product is summed; also what its operands are on the device.
enum class Sum : std::uint8_t {
  f64,      ///< a chain of rounded products and sums; Q, K, V doubles, P floats
  f32,      ///< the same of floats
  integer,  ///< exact; floats that hold integers
  fused,    ///< FusedEngine; packed elements
  grouped,  ///< FusedEngine's numbers of a scaled group dot; packed values with their scales
};

/// A product of operands on the device: left [rows, depth], right [depth, columns], both row-major. `depth` of a fused
/// Q K is padded to its instruction's.
struct Product {
  Sum sum = Sum::f64;
  FusedEngine engine = {};
  const void* left = nullptr;  ///< of Q K; P is made on the device
  const void* right = nullptr;
  int depth = 0;
};

/// Queries, keys or channels of a head at most: a grid has 65,535 blocks of 64 columns side by side.
inline constexpr std::int64_t kMostColumns = std::int64_t{65535} * 64;

/// Keys of a tile whose row sums are narrower than f32, at most.
inline constexpr int kMostNarrowKeys = 64;

enum class Exponential : std::uint8_t { exact, mufu, fa4 };

/// How P is stored: as it is, the value of its code for sums that take no codes, or what Sum::fused or Sum::grouped
/// takes.
enum class StoredP : std::uint8_t { exact, decoded, element, group };

/// What shares the second level of P's scales.
enum class OuterScale : std::uint8_t { none, row, tile };

/// Scales of P that follow from its values (quant/quantize.h); a scale of zero becomes 1.
struct ScaledP {
  int block = 0;  ///< keys that share a scale: 16, 32, or 0 for a row of the tile
  ScaleRule rule = ScaleRule::amax;
  float range = 1;
  ScaleFormat format = ScaleFormat::fp32;
  bool unrounded_divisor = false;
  bool multiplies = false;  ///< by the rounded reciprocal
  OuterScale outer = OuterScale::none;
  float outer_span = 1;
};

/// In place of an element of the additive mask: the key is hidden. A NaN that no conversion makes.
inline constexpr std::uint32_t kHiddenKey = 0x7FC0DEAD;

/// Everything is f32 but what its comment says; a pointer may be null where the recipe has no such thing. The rows of
/// one launch are [first_row, first_row + rows), first_row a multiple of q_block.
struct Head {
  int queries = 0, keys = 0, value_channels = 0;
  int q_block = 0, k_block = 0;
  int first_row = 0, rows = 0;
  bool is_causal = false, descending = false, max_before_mask = false, normalized = false, rounded_sums = false;
  int causal_offset = 0;  ///< query i sees keys up to i + causal_offset
  Product qk;
  Product pv;
  int promotion = -1;               ///< steps; only fused sums have any
  bool promotes_every_tile = true;  ///< else steps say when, or never

  float logit_scale = 1, rescale_threshold = 0, p_scale = 1;
  Exponential exponential = Exponential::exact;
  StoredP stored_p = StoredP::exact;
  bool rounds_scores = false;
  Encoding scores;  ///< where rounds_scores
  bool narrow_sums = false;
  Encoding sums;  ///< where narrow_sums
  Encoding p;     ///< of codes
  bool scales_p = false;
  ScaledP scaled_p;  ///< where scales_p
  format::Format p_format = format::kFP16;

  const float* q_scale = nullptr;     ///< [queries]
  const float* k_scale = nullptr;     ///< [keys]
  const float* correction = nullptr;  ///< [q blocks, keys]
  const float* mask = nullptr;        ///< [queries, keys], times log2(e), or kHiddenKey
  const float* v_scale = nullptr;     ///< [keys]: of V's blocks

  void* p_tiles = nullptr;  ///< [rows, keys]: scores, then weights, then P (4 bytes each)
  /// [tiles, rows] each: the tile's largest logit; what its exponents subtract; what its tile rescales with; its sum.
  float* tile_max = nullptr;
  float* subtracted = nullptr;
  float* rescale = nullptr;
  float* tile_sum = nullptr;
  float* row_factor = nullptr;    ///< [tiles, rows]: of scaled P's partial sums
  float* tile_largest = nullptr;  ///< [tiles, q blocks of the rows]: the largest p of scaled P's tile
  float* row_max = nullptr;       ///< [queries]
  float* row_sum = nullptr;       ///< [queries]
  float* o = nullptr;             ///< [queries, value_channels]

  QATTN_HOST_DEVICE int tiles() const { return (keys + k_block - 1) / k_block; }
  QATTN_HOST_DEVICE int visible_keys(int row) const {
    if (!is_causal) return keys;
    const int end = row + 1 + causal_offset;
    return end < 0 ? 0 : (end > keys ? keys : end);
  }
  /// Tiles that the block of queries of `row` visits.
  QATTN_HOST_DEVICE int visited_tiles(int row) const {
    const int end = row - row % q_block + q_block;
    return (visible_keys((end < queries ? end : queries) - 1) + k_block - 1) / k_block;
  }
  /// The i-th tile in the order of the kernel.
  QATTN_HOST_DEVICE int tile_at(int i, int visited) const { return descending ? visited - 1 - i : i; }
};

}  // namespace qattn::emulator
