// Named values that describe a file, a group or an array, whatever container they come from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace qattn::io {

/// std::monostate stands for a value that is there but is no single boolean, number or string (an array, a
/// reference): it may be ignored, but asking for it by type is an error.
using AttributeValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
using Attributes = std::map<std::string, AttributeValue, std::less<>>;

/// The value of attribute `name`, or nothing when it is absent. Texts are read as the type asked for where that is
/// unambiguous ("true", "0.125"), because safetensors' metadata knows only texts. Throws Error(input) that starts with
/// `where` (file and group) when the value has another type.
std::optional<bool> find_bool(const Attributes& attributes, std::string_view name, const std::string& where);
std::optional<std::int64_t> find_integer(const Attributes& attributes, std::string_view name, const std::string& where);
std::optional<double> find_number(const Attributes& attributes, std::string_view name, const std::string& where);
std::optional<std::string> find_text(const Attributes& attributes, std::string_view name, const std::string& where);

/// find_text(), or Error(input) when the attribute is absent.
std::string require_text(const Attributes& attributes, std::string_view name, const std::string& where);

/// `nearer` where it has a value, `farther` elsewhere: how a group's attributes override its parents'.
Attributes override_attributes(const Attributes& farther, const Attributes& nearer);

}  // namespace qattn::io
