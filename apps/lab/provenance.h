// Where a result comes from: what two files need to be told apart or merged safely.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/recipe.h"
#include "lab/report.h"
#include "lab/runner.h"

namespace qattn::lab {

std::string_view tool_version();
/// The commit that was built, "-dirty" behind it when tracked files differed; "unknown" outside git.
std::string_view git_commit();
std::string_view compiler();

/// Tool, version, commit, compiler, build type, SIMD target: the part of a context that every command has.
Json tool_context();

/// The inputs' paths, sizes and SHA-256.
Json input_context(const std::vector<std::string>& files);

/// Each recipe by name: every resolved key, and what its accumulators rest on.
Json recipe_context(std::span<const Trial> trials);

/// SHA-256 of a JSON text: equal hashes mean equal options.
std::string options_hash(const Json& options);

}  // namespace qattn::lab
