// From TOML to trials.
#include "lab/sweep_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>

#include "base/error.h"
#include "lab/data_folder.h"
#include "lab/recipe_file.h"
#include "lab/toml_file.h"

namespace qattn::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostTrials = 1'000'000;

/// One step of an axis: keys and their values.
using Step = std::vector<Override>;

/// What varies: one step after the other. `where` is the place in the file.
struct GridAxis {
  std::vector<Step> steps;
  std::string where;
};

class Loader {
 public:
  explicit Loader(const std::string& file) : table_(parse_toml(file)) { config_.file = file; }

  SweepConfig load();

 private:
  [[noreturn]] void fail(const toml::node& node, const std::string& reason) const {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", place(config_.file, node), reason));
  }
  /// Runs `action`; what it throws gets the node's place in front.
  template <class Action>
  auto at(const toml::node& node, const Action& action) const {
    try {
      return action();
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", place(config_.file, node), e.what()));
    }
  }

  void allow(const toml::table& table, std::string_view name, const std::vector<std::string_view>& keys) const;
  std::string text(const toml::node& node, std::string_view key) const;
  std::vector<std::string> texts(const toml::node& node, std::string_view key) const;
  std::regex regex(const toml::node& node, std::string_view key) const;
  std::string beside(const std::string& path) const;
  std::string existing(const std::string& path) const;

  void read_dump();
  void read_output();
  void read_backward();
  void read_grid(const toml::table& grid);
  std::vector<attention::Recipe> bases(const toml::table& grid) const;
  std::vector<GridAxis> axes(const toml::table& grid) const;
  GridAxis zip(const toml::table& table) const;
  void add(const toml::table& grid, const attention::Recipe& base, const std::vector<GridAxis>& axes,
           const std::vector<std::size_t>& steps);
  void keep(const toml::table& grid, attention::Recipe recipe);

  toml::table table_;
  SweepConfig config_;
  std::map<std::string, std::string> known_;  ///< recipe_key() of each trial by name
};

void Loader::allow(const toml::table& table, std::string_view name, const std::vector<std::string_view>& keys) const {
  for (const auto& [key, node] : in_file_order(table)) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    fail(*node, fmt::format("unknown key '{}'; {} takes {}", key, name, fmt::join(keys, ", ")));
  }
}

std::string Loader::text(const toml::node& node, std::string_view key) const {
  if (!node.is_string()) fail(node, fmt::format("'{}' is to be a string", key));
  return node.as_string()->get();
}

std::vector<std::string> Loader::texts(const toml::node& node, std::string_view key) const {
  if (!node.is_array()) return {text(node, key)};
  if (node.as_array()->empty()) fail(node, fmt::format("'{}' is an empty list", key));
  std::vector<std::string> all;
  for (const toml::node& element : *node.as_array()) all.push_back(text(element, key));
  return all;
}

std::regex Loader::regex(const toml::node& node, std::string_view key) const {
  try {
    return std::regex(text(node, key), std::regex::ECMAScript);
  } catch (const std::regex_error& e) {
    fail(node, fmt::format("'{}' is no regular expression: {}", key, e.what()));
  }
}

std::string Loader::beside(const std::string& path) const {
  return (fs::path(config_.file).parent_path() / path).string();
}

std::string Loader::existing(const std::string& path) const {
  const std::string near = beside(path);
  return fs::exists(near) ? near : path;
}

void Loader::read_dump() {
  const toml::node* node = table_.get("dump");
  if (node == nullptr) fail(table_, "the table [dump] is missing; it names the dumps: files = [\"dump.h5\"]");
  if (!node->is_table()) fail(*node, "'dump' is to be a table: [dump]");
  const toml::table& dump = *node->as_table();
  allow(dump, "[dump]", {"files", "calls", "heads"});
  const toml::node* files = dump.get("files");
  if (files == nullptr) fail(dump, "[dump] has no 'files': a file or a list of files and folders");
  for (const std::string& path : texts(*files, "files")) config_.selection.inputs.push_back(existing(path));
  if (const toml::node* calls = dump.get("calls")) {
    regex(*calls, "calls");
    config_.selection.calls = text(*calls, "calls");
  }
  if (const toml::node* heads = dump.get("heads")) {
    config_.selection.heads = at(*heads, [&] { return parse_heads(text(*heads, "heads")); });
  }
}

void Loader::read_output() {
  if (const toml::node* threads = table_.get("threads")) {
    if (!threads->is_integer() || threads->as_integer()->get() < 0 || threads->as_integer()->get() > 4096) {
      fail(*threads, "'threads' is to be a number from 0 (one for each core) to 4096");
    }
    config_.threads = static_cast<int>(threads->as_integer()->get());
  }
  config_.output = fs::path(config_.file).replace_extension(".h5").string();
  if (const toml::node* output = table_.get("output")) {
    config_.output = beside(text(*output, "output"));
    if (!is_results_name(config_.output)) fail(*output, "'output' is to end in .h5 or .hdf5");
  }
}

void Loader::read_backward() {
  if (const toml::node* backward = table_.get("backward")) {
    if (!backward->is_boolean()) fail(*backward, "'backward' is to be true or false");
    config_.backward = backward->as_boolean()->get();
  }
  if (const toml::node* seed = table_.get("upstream_seed")) {
    if (!seed->is_integer() || seed->as_integer()->get() < 0)
      fail(*seed, "'upstream_seed' is to be a number from 0 on");
    config_.seed = static_cast<std::uint64_t>(seed->as_integer()->get());
  }
}

std::vector<attention::Recipe> Loader::bases(const toml::table& grid) const {
  std::vector<attention::Recipe> recipes;
  const toml::node* base = grid.get("base");
  const toml::node* pattern = grid.get("recipes");
  if (base == nullptr && pattern == nullptr) {
    fail(grid, "a [[grid]] needs 'base' (names of recipes) or 'recipes' (a regular expression over their names)");
  }
  if (base != nullptr) {
    for (const std::string& name : texts(*base, "base")) {
      const std::string file = name.ends_with(".toml") ? existing(name) : name;
      recipes.push_back(at(*base, [&] { return load_recipe(file); }));
    }
  }
  if (pattern == nullptr) return recipes;
  const std::regex expression = regex(*pattern, "recipes");
  const std::vector<std::string> names = data_entries("recipes");
  for (const std::string& name : names) {
    if (std::regex_search(name, expression)) recipes.push_back(at(*pattern, [&] { return load_recipe(name); }));
  }
  if (recipes.empty()) {
    fail(*pattern,
         fmt::format("no recipe's name has '{}'; there are {}", text(*pattern, "recipes"), fmt::join(names, ", ")));
  }
  return recipes;
}

/// The values under a recipe's key: those of the list, or the one that stands there.
std::vector<std::string> values_of(const toml::node& node, const std::string& where) {
  if (!node.is_array()) return {scalar_text(node, where)};
  std::vector<std::string> values;
  for (const toml::node& element : *node.as_array()) values.push_back(scalar_text(element, where));
  if (values.empty()) throw Error(ErrorKind::usage, where + ": the list is empty");
  return values;
}

GridAxis Loader::zip(const toml::table& table) const {
  GridAxis axis{{}, place(config_.file, table)};
  for (const auto& [key, node] : in_file_order(table)) {
    const std::string where = fmt::format("{}: '{}'", place(config_.file, *node), key);
    if (!node->is_array()) fail(*node, fmt::format("'{}' is to be a list: the lists of a zip advance together", key));
    const std::vector<std::string> values = values_of(*node, where);
    if (axis.steps.empty()) axis.steps.resize(values.size());
    if (axis.steps.size() != values.size()) {
      fail(*node, fmt::format("'{}' has {} values, the lists before it in this zip {}", key, values.size(),
                              axis.steps.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) axis.steps[i].emplace_back(key, values[i]);
  }
  if (axis.steps.empty()) fail(table, "an empty zip");
  return axis;
}

std::vector<GridAxis> Loader::axes(const toml::table& grid) const {
  std::vector<GridAxis> axes;
  for (const auto& [key, node] : in_file_order(grid)) {
    if (key == "base" || key == "recipes" || key == "skip_invalid") continue;
    if (key != "zip") {
      GridAxis axis{{}, place(config_.file, *node)};
      for (const std::string& value : values_of(*node, fmt::format("{}: '{}'", axis.where, key))) {
        axis.steps.push_back({{key, value}});
      }
      axes.push_back(std::move(axis));
    } else if (node->is_table()) {
      axes.push_back(zip(*node->as_table()));
    } else if (node->is_array_of_tables()) {
      for (const toml::node& element : *node->as_array()) axes.push_back(zip(*element.as_table()));
    } else {
      fail(*node, "'zip' is to be a table of lists: [grid.zip], or [[grid.zip]] for several");
    }
  }
  return axes;
}

void Loader::keep(const toml::table& grid, attention::Recipe recipe) {
  const std::string key = recipe_key(recipe);
  const auto [entry, is_new] = known_.emplace(recipe.name, key);
  if (!is_new && entry->second != key) {
    fail(grid, fmt::format("two recipes with different keys are called '{}'; rename one's file", recipe.name));
  }
  if (is_new) config_.trials.push_back({std::move(recipe)});
  if (config_.trials.size() > kMostTrials) fail(grid, fmt::format("the grid has more than {} recipes", kMostTrials));
}

void Loader::add(const toml::table& grid, const attention::Recipe& base, const std::vector<GridAxis>& all,
                 const std::vector<std::size_t>& steps) {
  attention::Recipe recipe = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    try {
      recipe = with_overrides(std::move(recipe), all[i].steps[steps[i]]);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", all[i].where, e.what()));
    }
  }
  try {
    attention::validate(recipe);
  } catch (const Error& e) {
    const std::string reason = fmt::format("{}: {}", place(config_.file, grid), e.what());
    const toml::node* skip = grid.get("skip_invalid");
    if (skip == nullptr || !skip->as_boolean()->get()) {
      throw Error(e.kind(), reason + " (skip_invalid = true leaves such combinations out)");
    }
    config_.left_out.push_back(reason);
    return;
  }
  keep(grid, std::move(recipe));
}

void Loader::read_grid(const toml::table& grid) {
  if (const toml::node* skip = grid.get("skip_invalid"); skip != nullptr && !skip->is_boolean()) {
    fail(*skip, "'skip_invalid' is to be true or false");
  }
  const std::vector<GridAxis> all = axes(grid);
  for (const attention::Recipe& base : bases(grid)) {
    std::vector<std::size_t> steps(all.size(), 0);
    for (bool more = true; more;) {
      add(grid, base, all, steps);
      // Count up, the last axis fastest.
      more = false;
      for (std::size_t i = all.size(); i-- > 0 && !more;) {
        more = ++steps[i] < all[i].steps.size();
        if (!more) steps[i] = 0;
      }
    }
  }
}

SweepConfig Loader::load() {
  allow(table_, "a sweep", {"output", "threads", "backward", "upstream_seed", "dump", "grid"});
  read_output();
  read_backward();
  read_dump();
  const toml::node* grids = table_.get("grid");
  if (grids == nullptr) fail(table_, "there is no [[grid]], so nothing to measure");
  if (!grids->is_array_of_tables()) fail(*grids, "'grid' is to be a list of tables: [[grid]]");
  for (const toml::node& grid : *grids->as_array()) read_grid(*grid.as_table());
  if (config_.trials.empty()) fail(*grids, "the grid is empty: no combination fits together");
  return std::move(config_);
}

}  // namespace

SweepConfig load_sweep(const std::string& file) { return Loader(file).load(); }

bool is_results_name(std::string_view path) { return path.ends_with(".h5") || path.ends_with(".hdf5"); }

}  // namespace qattn::lab
