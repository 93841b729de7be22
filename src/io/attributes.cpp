// Typed access to attributes.
#include "io/attributes.h"

#include <charconv>

#include "io/fail.h"

namespace qattn::io {
namespace {

[[noreturn]] void fail_type(std::string_view name, const std::string& where, const char* expected) {
  fail(where, "attribute '" + std::string(name) + "' must be " + expected);
}

std::optional<bool> bool_of_text(const std::string& text) {
  if (text == "true" || text == "True" || text == "TRUE" || text == "1") return true;
  if (text == "false" || text == "False" || text == "FALSE" || text == "0") return false;
  return std::nullopt;
}

template <class T>
std::optional<T> number_of_text(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

const AttributeValue* find_value(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(name);
  return found == attributes.end() ? nullptr : &found->second;
}

}  // namespace

std::optional<bool> find_bool(const Attributes& attributes, std::string_view name, const std::string& where) {
  const AttributeValue* value = find_value(attributes, name);
  if (value == nullptr) return std::nullopt;
  if (const auto* b = std::get_if<bool>(value)) return *b;
  if (const auto* i = std::get_if<std::int64_t>(value); i != nullptr && (*i == 0 || *i == 1)) return *i == 1;
  if (const auto* text = std::get_if<std::string>(value)) {
    if (const auto parsed = bool_of_text(*text)) return parsed;
  }
  fail_type(name, where, "a boolean (true or false, 0 or 1)");
}

std::optional<std::int64_t> find_integer(const Attributes& attributes, std::string_view name,
                                         const std::string& where) {
  const AttributeValue* value = find_value(attributes, name);
  if (value == nullptr) return std::nullopt;
  if (const auto* i = std::get_if<std::int64_t>(value)) return *i;
  if (const auto* text = std::get_if<std::string>(value)) {
    if (const auto parsed = number_of_text<std::int64_t>(*text)) return parsed;
  }
  fail_type(name, where, "an integer");
}

std::optional<double> find_number(const Attributes& attributes, std::string_view name, const std::string& where) {
  const AttributeValue* value = find_value(attributes, name);
  if (value == nullptr) return std::nullopt;
  if (const auto* d = std::get_if<double>(value)) return *d;
  if (const auto* i = std::get_if<std::int64_t>(value)) return static_cast<double>(*i);
  if (const auto* text = std::get_if<std::string>(value)) {
    if (const auto parsed = number_of_text<double>(*text)) return parsed;
  }
  fail_type(name, where, "a number");
}

std::optional<std::string> find_text(const Attributes& attributes, std::string_view name, const std::string& where) {
  const AttributeValue* value = find_value(attributes, name);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  fail_type(name, where, "a string");
}

std::string require_text(const Attributes& attributes, std::string_view name, const std::string& where) {
  if (auto text = find_text(attributes, name, where)) return *std::move(text);
  fail(where, "attribute '" + std::string(name) + "' is missing; add it as a string");
}

Attributes override_attributes(const Attributes& farther, const Attributes& nearer) {
  Attributes result = nearer;
  result.insert(farther.begin(), farther.end());
  return result;
}

}  // namespace qattn::io
