// From TOML to a recipe.
#include "lab/recipe_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "lab/data_folder.h"
#include "lab/toml_file.h"

namespace qattn::lab {
namespace {

constexpr int kDeepestInheritance = 8;

attention::Recipe load(std::string_view name, int depth);

/// attention::set(); an alias must lead to a recipe, which only this floor can find.
void set_key(attention::Recipe& recipe, std::string_view key, const std::string& value) {
  attention::set(recipe, key, value);
  if (key != "alias_of" || value.empty()) return;
  try {
    data_file("recipes", value, "recipe");
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("recipe key 'alias_of': {}", e.what()));
  }
}

attention::Recipe base_of(const toml::table& table, const std::string& file, int depth) {
  const toml::node* extends = table.get("extends");
  if (extends == nullptr) return {};
  const std::string where = place(file, *extends);
  if (depth >= kDeepestInheritance)
    throw Error(ErrorKind::usage, where + ": 'extends' leads in a circle or is too deep");
  try {
    return load(require_string(table, "extends", file), depth + 1);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", where, e.what()));
  }
}

attention::Recipe load(std::string_view name, int depth) {
  const std::string file = data_file("recipes", name, "recipe");
  const toml::table table = parse_toml(file);
  attention::Recipe recipe = base_of(table, file, depth);
  recipe.name = std::filesystem::path(file).stem().string();
  recipe.description.clear();
  recipe.source.clear();
  for (const auto& [key, node] : in_file_order(table)) {
    const std::string where = place(file, *node);
    if (key == "extends") continue;
    const std::string value = scalar_text(*node, fmt::format("{}: '{}'", where, key));
    try {
      set_key(recipe, key, value);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", where, e.what()));
    }
  }
  for (const char* key : {"description", "source"}) require_string(table, key, file);
  return recipe;
}

}  // namespace

attention::Recipe load_recipe(std::string_view name) {
  attention::Recipe recipe = load(name, 0);
  try {
    attention::validate(recipe);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", data_file("recipes", name, "recipe"), e.what()));
  }
  return recipe;
}

std::vector<attention::Recipe> load_all_recipes() {
  std::vector<attention::Recipe> recipes;
  for (const std::string& name : data_entries("recipes")) recipes.push_back(load_recipe(name));
  return recipes;
}

Override parse_override(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw Error(ErrorKind::usage, fmt::format("'{}' is to be KEY=VALUE, e.g. pv_format=exact", text));
  }
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

attention::Recipe with_overrides(attention::Recipe recipe, const std::vector<Override>& overrides) {
  for (const auto& [key, value] : overrides) {
    set_key(recipe, key, value);
    recipe.name += fmt::format(" {}={}", key, value);
  }
  return recipe;
}

}  // namespace qattn::lab
