// Reading TOML files and telling where they are wrong.
#include "lab/toml_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace qattn::lab {

toml::table parse_toml(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw Error(ErrorKind::input, file + ": cannot be read");
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    throw Error(ErrorKind::usage, fmt::format("{}:{}: {}", file, e.source().begin.line, e.description()));
  }
}

std::string place(const std::string& file, const toml::node& node) {
  return fmt::format("{}:{}", file, node.source().begin.line);
}

std::vector<std::pair<std::string, const toml::node*>> in_file_order(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> nodes;
  for (const auto& [key, node] : table) nodes.emplace_back(std::string(key.str()), &node);
  const auto position = [](const toml::node& node) {
    return std::pair(node.source().begin.line, node.source().begin.column);
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const auto& a, const auto& b) { return position(*a.second) < position(*b.second); });
  return nodes;
}

std::string scalar_text(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  throw Error(ErrorKind::usage, where + ": a string, a number or a boolean is expected here");
}

std::string require_string(const toml::table& table, std::string_view key, const std::string& file) {
  const toml::node* node = table.get(key);
  if (node == nullptr)
    throw Error(ErrorKind::usage, fmt::format("{}: the key '{}' is missing", place(file, table), key));
  if (!node->is_string())
    throw Error(ErrorKind::usage, fmt::format("{}: '{}' is to be a string", place(file, *node), key));
  return node->as_string()->get();
}

}  // namespace qattn::lab
