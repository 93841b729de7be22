// Reading "layer_0[12]$; layer_18 heads 3:5".
#include "lab/exceptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "lab/recipe_file.h"
#include "quant/rotate.h"

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

ExceptionRules::ExceptionRules(std::string_view text) {
  constexpr std::string_view kHeads = " heads ";
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    std::string_view rule = trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (rule.empty()) continue;
    const std::string whole(rule);
    HeadRange heads{0, std::numeric_limits<std::int64_t>::max()};
    if (const std::size_t at = rule.rfind(kHeads); at != std::string_view::npos) {
      heads = parse_heads(std::string(trimmed(rule.substr(at + kHeads.size()))));
      rule = trimmed(rule.substr(0, at));
    }
    if (rule.starts_with(kHeads.substr(1))) {  // no path has that, so that the exception would be none
      throw Error(ErrorKind::usage,
                  fmt::format("exceptions: '{}' names no calls; REGEX heads A:B does, '.' being all of them", rule));
    }
    rules_.push_back({whole, compiled(rule), heads});
  }
}

bool ExceptionRules::Rule::finds(std::string_view call, std::int64_t head) const {
  return head >= heads.first && head < heads.last && std::regex_search(call.begin(), call.end(), calls);
}

bool ExceptionRules::applies(std::string_view call, std::int64_t head) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) { return rule.finds(call, head); });
}

Json ExceptionRules::label(std::string_view call, std::int64_t first, std::int64_t count,
                           std::string_view recipe) const {
  std::vector<std::int64_t> excepted;
  for (std::int64_t head = first; head < first + count; ++head) {
    if (applies(call, head)) excepted.push_back(head);
  }
  if (excepted.empty()) return nullptr;
  if (static_cast<std::int64_t>(excepted.size()) == count) return recipe;
  return fmt::format("{} in query heads {}", recipe, fmt::join(excepted, ", "));
}

std::vector<std::string> ExceptionRules::idle(const DumpSet& dumps) const {
  const std::vector<SelectedCall>& calls = dumps.calls();
  std::vector<std::string> idle;
  for (const Rule& rule : rules_) {
    const bool used = std::any_of(calls.begin(), calls.end(), [&rule](const SelectedCall& call) {
      for (std::int64_t head = call.first_head; head < call.last_head; ++head) {
        if (rule.finds(call.call->path, head)) return true;
      }
      return false;
    });
    if (!used) idle.push_back(rule.text);
  }
  return idle;
}

Exceptions::Exceptions(const attention::Recipe& recipe) : recipe_(recipe), rules_(recipe.exceptions) {
  if (rules_.empty()) return;
  other_ = load_recipe(recipe_.exception_recipe);
  if (!other_.exceptions.empty()) {
    throw Error(ErrorKind::usage, fmt::format("exception_recipe '{}' has exceptions itself", other_.name));
  }
  other_.o_format = recipe_.o_format;
}

const attention::Recipe& Exceptions::effective(std::string_view call, std::int64_t head) const {
  return rules_.applies(call, head) ? other_ : recipe_;
}

std::string Exceptions::misfit(const DumpSet& dumps) const {
  for (const SelectedCall& call : dumps.calls()) {
    for (std::int64_t head = call.first_head; head < call.last_head; ++head) {
      const attention::Recipe& recipe = effective(call.call->path, head);
      if (recipe.rotation == attention::Rotation::none) continue;
      try {
        static_cast<void>(quant::rotation_factor(call.call->head_dim, 1));
      } catch (const Error& error) {
        return fmt::format("{}: {}: recipe {}: {}", dumps.files()[call.file], call.call->path, recipe.name,
                           error.what());
      }
    }
  }
  return "";
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
