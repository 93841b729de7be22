// Recipes as files: data/recipes/<name>.toml, one loader for all of them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/recipe.h"

namespace qattn::lab {

/// The recipe `name` of data/recipes, or the one in the file `name` when it ends in .toml. A file has `description`
/// and `source`, optionally `extends = "other recipe"`, and any keys of recipe_keys(), which are applied in the order
/// of the file. Throws Error(usage) "file:line: reason" for a bad or double key, and for keys that do not fit together.
attention::Recipe load_recipe(std::string_view name);

/// Every recipe of data/recipes, by name.
std::vector<attention::Recipe> load_all_recipes();

/// A key of a recipe and the value it gets.
using Override = std::pair<std::string, std::string>;

/// "KEY=VALUE" taken apart. Throws Error(usage) when there is no '='.
Override parse_override(std::string_view text);

/// Sets the keys in order and appends " key=value" to the recipe's name for each, so that every row says what was run.
attention::Recipe with_overrides(attention::Recipe recipe, const std::vector<Override>& overrides);

}  // namespace qattn::lab
