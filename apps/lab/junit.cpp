#include "lab/junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace qattn::lab {
namespace {

/// The length of the UTF-8 sequence at the front of `text` when it encodes a character that XML 1.0 allows, else 0.
std::size_t allowed_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 || lead == '\t' || lead == '\n' || lead == '\r' ? 1 : 0;
  const std::size_t length = lead >= 0xF0 && lead < 0xF8 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  if (length == 0 || lead >= 0xF8 || text.size() < length) return 0;
  std::uint32_t code = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t kShortest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kShortest[length] || surrogate || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF ? 0 : length;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = allowed_character(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0) {
      out += '?';
    } else if (character == "&") {
      out += "&amp;";
    } else if (character == "<") {
      out += "&lt;";
    } else if (character == ">") {
      out += "&gt;";
    } else if (character == "\"") {
      out += "&quot;";
    } else if (character == "\n" || character == "\r" || character == "\t") {
      out += fmt::format("&#{};", static_cast<int>(character[0]));
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string outcome(std::string_view element, const std::optional<std::string>& why) {
  if (!why) return "";
  const std::string text = escaped(*why);
  return fmt::format("      <{0} message=\"{1}\">{1}</{0}>\n", element, text);
}

}  // namespace

std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases) {
  const auto count = [&](std::optional<std::string> JunitCase::*why) {
    return std::count_if(cases.begin(), cases.end(), [why](const JunitCase& c) { return (c.*why).has_value(); });
  };
  const std::string totals = fmt::format("name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\"", escaped(suite),
                                         cases.size(), count(&JunitCase::failure), count(&JunitCase::error));
  const std::string skipped = fmt::format(" skipped=\"{}\"", count(&JunitCase::skipped));
  std::string xml = fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {0}>\n  <testsuite {0}{1}>\n",
                                totals, skipped);
  for (const JunitCase& each : cases) {
    const std::string inner =
        outcome("failure", each.failure) + outcome("error", each.error) + outcome("skipped", each.skipped);
    xml += fmt::format("    <testcase classname=\"{}\" name=\"{}\"", escaped(each.group), escaped(each.name));
    xml += inner.empty() ? "/>\n" : ">\n" + inner + "    </testcase>\n";
  }
  return xml + "  </testsuite>\n</testsuites>\n";
}

}  // namespace qattn::lab
