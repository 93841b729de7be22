// The provenance block of every output.
#include "lab/provenance.h"

#include <hwy/targets.h>

#include <filesystem>

#include "io/sha256.h"
#include "lab/build_info.h"
#include "lab/exceptions.h"

namespace qattn::lab {
namespace {

Json one_recipe(const attention::Recipe& recipe) {
  Json keys = Json::object();
  for (const auto& [key, value] : attention::resolved(recipe)) keys[key] = value;
  keys["evidence"] = Exceptions(recipe).evidence();
  return keys;
}

}  // namespace

std::string_view tool_version() { return kVersion; }
std::string_view git_commit() { return kGitCommit; }

std::string_view compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

Json tool_context() {
  const std::int64_t best = hwy::SupportedTargets() & -hwy::SupportedTargets();
  return {{"tool", "qattn"},        {"version", tool_version()}, {"commit", git_commit()},
          {"compiler", compiler()}, {"build_type", kBuildType},  {"simd", hwy::TargetName(best)}};
}

Json input_context(const std::vector<std::string>& files) {
  Json inputs = Json::array();
  for (const std::string& file : files) {
    inputs.push_back({{"file", file}, {"bytes", std::filesystem::file_size(file)}, {"sha256", io::sha256_file(file)}});
  }
  return inputs;
}

Json recipe_context(std::span<const Trial> trials) {
  Json recipes = Json::object();
  for (const Trial& trial : trials) {
    recipes[trial.recipe.name] = one_recipe(trial.recipe);
    if (trial.reference) recipes[trial.reference->name] = one_recipe(*trial.reference);
  }
  return recipes;
}

std::string options_hash(const Json& options) { return io::sha256(to_json(options)); }

}  // namespace qattn::lab
