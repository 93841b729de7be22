// Reading "layer_0[12]$; layer_18 heads 3:5".
#include "lab/exceptions.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "lab/recipe_file.h"

namespace qattn::lab {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::regex compiled(std::string_view text) {
  try {
    return std::regex(std::string(text), std::regex::ECMAScript);
  } catch (const std::regex_error& e) {
    throw Error(ErrorKind::usage, fmt::format("exceptions: '{}' is no regular expression: {}", text, e.what()));
  }
}

}  // namespace

Exceptions::Exceptions(const attention::Recipe& recipe) : recipe_(recipe) {
  constexpr std::string_view kHeads = " heads ";
  std::string_view rest = recipe_.exceptions;
  while (!rest.empty()) {
    const std::size_t end = rest.find(';');
    std::string_view rule = trimmed(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (rule.empty()) continue;
    HeadRange heads{0, std::numeric_limits<std::int64_t>::max()};
    if (const std::size_t at = rule.rfind(kHeads); at != std::string_view::npos) {
      heads = parse_heads(std::string(trimmed(rule.substr(at + kHeads.size()))));
      rule = trimmed(rule.substr(0, at));
    }
    if (rule.starts_with(kHeads.substr(1))) {  // no path has that, so that the exception would be none
      throw Error(ErrorKind::usage,
                  fmt::format("exceptions: '{}' names no calls; REGEX heads A:B does, '.' being all of them", rule));
    }
    rules_.push_back({compiled(rule), heads});
  }
  if (rules_.empty()) return;
  other_ = load_recipe(recipe_.exception_recipe);
  if (!other_.exceptions.empty()) {
    throw Error(ErrorKind::usage, fmt::format("exception_recipe '{}' has exceptions itself", other_.name));
  }
  other_.o_format = recipe_.o_format;
}

bool Exceptions::applies(std::string_view call, std::int64_t head) const {
  for (const Rule& rule : rules_) {
    if (head < rule.heads.first || head >= rule.heads.last) continue;
    if (std::regex_search(call.begin(), call.end(), rule.calls)) return true;
  }
  return false;
}

const attention::Recipe& Exceptions::effective(std::string_view call, std::int64_t head) const {
  return applies(call, head) ? other_ : recipe_;
}

std::string Exceptions::evidence() const {
  const std::string own = attention::accumulator_evidence(recipe_);
  if (rules_.empty()) return own;
  return fmt::format("{}; exceptions ({}): {}", own, other_.name, attention::accumulator_evidence(other_));
}

std::string exceptions_text(const std::vector<std::string>& calls) {
  constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{})";
  std::string text;
  for (const std::string& call : calls) {
    text += text.empty() ? "^(" : "|";
    for (const char c : call) {
      if (kSpecial.find(c) != std::string_view::npos) text += '\\';
      text += c == ';' ? '.' : c;  // ';' separates exceptions
    }
  }
  return text.empty() ? text : text + ")$";
}

}  // namespace qattn::lab
