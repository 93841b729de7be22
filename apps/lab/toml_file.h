// TOML files of ours: parsed with errors that name file and line.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qattn::lab {

/// Throws Error(usage) "file:line: reason" when the text is no TOML (a key that is there twice included) and
/// Error(input) when the file cannot be read.
toml::table parse_toml(const std::string& file);

/// "file:line" of a node.
std::string place(const std::string& file, const toml::node& node);

/// The keys of a table in the order of the file; toml++ sorts them by name.
std::vector<std::pair<std::string, const toml::node*>> in_file_order(const toml::table& table);

/// A string, number or boolean as recipes take it: "int8", "128", "0.5", "true". Throws Error(usage) for anything else.
std::string scalar_text(const toml::node& node, const std::string& where);

/// The string under `key`. Throws Error(usage) when it is missing or no string.
std::string require_string(const toml::table& table, std::string_view key, const std::string& file);

}  // namespace qattn::lab
