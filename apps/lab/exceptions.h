// Layers and heads that a recipe leaves to another one.
#pragma once

#include <cstdint>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "attention/recipe.h"
#include "lab/dump_set.h"

namespace qattn::lab {

/// A recipe's `exceptions` and the recipe that they name, read once.
class Exceptions {
 public:
  /// Throws Error(usage) for a text that is no list of exceptions and for an unknown recipe.
  explicit Exceptions(const attention::Recipe& recipe);

  /// What query head `head` of a call runs under: `recipe` itself, or the exception's recipe with its o_format.
  const attention::Recipe& effective(std::string_view call, std::int64_t head) const;
  bool applies(std::string_view call, std::int64_t head) const;
  /// The exceptions' recipe; nullptr where there are no exceptions.
  const attention::Recipe* other() const { return rules_.empty() ? nullptr : &other_; }

  /// What the accumulators of the recipe, and of the exceptions' recipe where there is one, rest on.
  std::string evidence() const;

 private:
  struct Rule {
    std::regex calls;
    HeadRange heads;
  };
  attention::Recipe recipe_;
  std::vector<Rule> rules_;
  attention::Recipe other_;
};

/// The `exceptions` text for whole calls: an expression that finds exactly these paths.
std::string exceptions_text(const std::vector<std::string>& calls);

}  // namespace qattn::lab
