// Recipes as trials, and rows as text, for tests that compare whole runs.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "lab/measurement.h"
#include "lab/recipe_file.h"
#include "lab/report.h"

namespace qattn::testing {

inline std::vector<lab::Trial> trials_of(std::initializer_list<const char*> names) {
  std::vector<lab::Trial> trials;
  for (const char* name : names) trials.push_back({lab::load_recipe(name)});
  return trials;
}

/// One line a row.
inline std::string text_of(const std::vector<lab::Json>& rows) {
  std::string text;
  for (const lab::Json& row : rows) text += lab::to_json(row) + "\n";
  return text;
}

}  // namespace qattn::testing
