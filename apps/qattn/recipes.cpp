// qattn recipes: the recipes that are known, one of them in full, and the keys that a recipe has.
#include <fmt/format.h>

#include <memory>

#include "attention/bound.h"
#include "command.h"
#include "lab/provenance.h"
#include "lab/recipe_file.h"
#include "options.h"
#include "quant/quantize.h"

namespace qattn::cli {
namespace {

struct Options {
  std::vector<std::string> names;
  bool keys = false;
  OutputOptions output;
};

lab::Json row_of(const attention::Recipe& recipe) {
  lab::Json row = lab::Json::object();
  for (const auto& [key, value] : attention::resolved(recipe)) row[key] = value;
  // What "auto" stands for in this recipe; a V without scales has no range.
  row["p_scale"] = fmt::format("{}", attention::resolved_p_scale(recipe));
  if (recipe.v.scaled() && recipe.v.range == 0.0F) {
    row["v_range"] = fmt::format("{}", quant::quantization_range(*recipe.v.format));
  }
  row["evidence"] = attention::accumulator_evidence(recipe);
  row["bound"] = attention::bound_text(recipe);
  return row;
}

/// One recipe in full: a key a line.
lab::Table key_table(const lab::Json& row) {
  lab::Table table{"", {{"key", "key"}, {"value", "value"}}, {}};
  for (const auto& [key, value] : row.items()) table.rows.push_back({{"key", key}, {"value", value}});
  return table;
}

lab::Report list_recipes(const std::vector<std::string>& names) {
  lab::Report report;
  std::vector<attention::Recipe> recipes;
  if (names.empty()) recipes = lab::load_all_recipes();
  for (const std::string& name : names) recipes.push_back(lab::load_recipe(name));
  for (const attention::Recipe& recipe : recipes) report.rows.push_back(row_of(recipe));
  report.columns = {
      {"name", "name"}, {"description", "description"}, {"source", "source"}, {"evidence", "accumulators"}};
  if (!report.rows.empty()) {
    for (const auto& [key, value] : report.rows.front().items()) report.csv_keys.push_back(key);
  }
  if (names.empty()) return report;
  report.row_table = lab::RowTable::none;
  for (const lab::Json& row : report.rows) report.tables.push_back(key_table(row));
  return report;
}

lab::Report list_keys() {
  lab::Report report;
  const attention::Recipe defaults;
  report.columns = {{"name", "key"}, {"default", "default"}, {"values", "values"}, {"help", "meaning"}};
  for (const attention::RecipeKey& key : attention::recipe_keys()) {
    report.rows.push_back({{"name", key.name},
                           {"default", key.get != nullptr ? lab::Json(key.get(defaults)) : lab::Json()},
                           {"values", key.values},
                           {"help", key.help}});
  }
  return report;
}

int recipes(const Options& options) {
  lab::Report report = options.keys ? list_keys() : list_recipes(options.names);
  report.context = lab::tool_context();
  emit(report, options.output);
  return 0;
}

}  // namespace

void add_recipes(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("recipes", "the recipes that are known, with their parameters");
  CLI::Option* names = command->add_option("name", options->names, "these in full: names, or .toml files");
  names->type_name("NAME");
  command->add_flag("--keys", options->keys, "the keys that a recipe has, for .toml files and --set")->excludes(names);
  add_output_options(*command, options->output);
  command->callback([options, &action] { action = [options] { return recipes(*options); }; });
}

}  // namespace qattn::cli
