// Which of a recipe's choices a card makes for it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attention/recipe.h"
#include "attention_kernels.h"

namespace qattn::gpu {

/// What decides which instructions and kernels a card has.
struct Card {
  std::string architecture;  ///< as instruction names begin: "sm90"
  int capability = 0;        ///< 10 major + minor
};

/// A recipe as our kernels compute it on a card.
struct HardwareRecipe {
  attention::Recipe recipe;  ///< " key=value" behind its name for each change
  std::vector<std::pair<std::string, std::string>> changes;
  const AttentionKernel* kernel = nullptr;
};

/// What hardware_recipe() asks of softmax and operands whatever the card: throws Error(usage) that names the recipe and
/// the key when no kernel of ours computes it.
void check_for_kernels(const attention::Recipe& recipe);

/// Sets what the card fixes: exp2 = mufu where the recipe says exact, and accumulators of another GPU (or, of integer
/// products, exact and f32 ones, which are as exact) become the card's instruction of the same kind: wgmma and tcgen05
/// are wgmma on sm90, mma elsewhere. Throws Error(usage) that names the recipe and the key when no kernel of ours
/// computes what the recipe says, or none on this card.
HardwareRecipe hardware_recipe(const attention::Recipe& recipe, const Card& card);

}  // namespace qattn::gpu
