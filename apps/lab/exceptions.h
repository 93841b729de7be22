// Layers and heads that a recipe leaves to another one.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "attention/recipe.h"
#include "lab/dump_set.h"
#include "lab/report.h"

namespace qattn::lab {

/// An `exceptions` text: which heads of which calls it finds.
class ExceptionRules {
 public:
  /// Throws Error(usage) for a text that is no list of exceptions.
  explicit ExceptionRules(std::string_view text);

  bool empty() const { return rules_.empty(); }
  bool applies(std::string_view call, std::int64_t head) const;
  /// A row's `exception`: `recipe` where all query heads [first, first + count) of a call are exceptions, "RECIPE in
  /// query heads 3, 5" where some are, null where none is.
  Json label(std::string_view call, std::int64_t first, std::int64_t count, std::string_view recipe) const;
  /// The rules, as they are written, that find none of the selected heads.
  std::vector<std::string> idle(const DumpSet& dumps) const;

 private:
  struct Rule {
    std::string text;
    std::regex calls;
    HeadRange heads;

    bool finds(std::string_view call, std::int64_t head) const;
  };
  std::vector<Rule> rules_;
};

/// A recipe's `exceptions` and the recipe that they name, read once.
class Exceptions {
 public:
  /// Throws Error(usage) for a text that is no list of exceptions and for an unknown recipe.
  explicit Exceptions(const attention::Recipe& recipe);

  const ExceptionRules& rules() const { return rules_; }
  /// What query head `head` of a call runs under: `recipe` itself, or the exception's recipe with its o_format.
  const attention::Recipe& effective(std::string_view call, std::int64_t head) const;
  /// The exceptions' recipe; nullptr where there are no exceptions.
  const attention::Recipe* other() const { return rules_.empty() ? nullptr : &other_; }

  /// What the accumulators of the recipe, and of the exceptions' recipe where there is one, rest on.
  std::string evidence() const;
  /// Why a selected head cannot run under its recipe, with file, call and recipe ("the rotation needs ..."); empty when
  /// all can.
  std::string misfit(const DumpSet& dumps) const;

 private:
  attention::Recipe recipe_;
  ExceptionRules rules_;
  attention::Recipe other_;
};

/// The `exceptions` text for whole calls: an expression that finds exactly these paths.
std::string exceptions_text(const std::vector<std::string>& calls);

}  // namespace qattn::lab
