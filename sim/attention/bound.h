// Can a partial sum overflow its accumulator? Proved from the largest codes that a recipe's operands can have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attention/recipe.h"

namespace qattn::attention {

/// The largest partial sum of a product whose accumulator is narrow: FP16, or 32-bit integers.
struct SumBound {
  enum class Verdict : std::uint8_t {
    cannot_overflow,  ///< no operands can
    overflows,        ///< the instruction itself returns Inf (or an integer wraps) for the largest codes
    not_decided,      ///< the bound is too large, but the largest codes do not overflow
  };
  std::string_view product;  ///< "Q K^T" or "P V"
  double left = 0.0;         ///< largest code magnitude of Q, or P
  double right = 0.0;        ///< of K, or V
  std::int64_t terms = 0;    ///< products that are added before the sum leaves the accumulator
  double largest = 0.0;      ///< at most this, roundings up included; Inf where a rounding reaches it
  double limit = 0.0;        ///< the accumulator's largest number
  Verdict verdict = Verdict::not_decided;
};

/// P V: a partial sum lives for a tile, for `promotion` steps, or for all `keys` keys when promotion is never. Weights
/// are at most 2^rescale_threshold, rounded as P is stored. SageAttention2++ (arXiv 2505.21136) asks this of its (P, V)
/// ranges. nullopt where the accumulator is f32 or exact.
std::optional<SumBound> pv_bound(const Recipe& recipe, std::int64_t keys);

/// Q K^T over `head_dim` channels.
std::optional<SumBound> qk_bound(const Recipe& recipe, std::int64_t head_dim);

/// With promotion = never, the largest number of keys for which pv_bound() proves that nothing overflows.
std::int64_t provable_keys(const Recipe& recipe);

/// "P V: FP16 sums of 64 products of at most 448 x 2.25: at most 64512, below 65504: cannot overflow". Empty where
/// there is nothing to prove.
std::string describe(const std::optional<SumBound>& bound);

/// The bounds of both products for head_dim 128 and, where sums live for all keys, 65,536 keys, in one line; empty
/// where both accumulators are f32 or exact.
std::string bound_text(const Recipe& recipe);

}  // namespace qattn::attention
