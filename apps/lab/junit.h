// JUnit XML, as CI systems read it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace qattn::lab {

struct JunitCase {
  std::string name;                    ///< "layer_18/batch 0/head 1/o"
  std::string group;                   ///< the recipe, kernel or kind: JUnit's classname
  std::optional<std::string> failure;  ///< why it failed, any text
  std::optional<std::string> error;    ///< why it could not be checked
  std::optional<std::string> skipped;  ///< why it was left out
};

/// One test suite called `suite`. Characters that XML 1.0 does not allow, and bytes that are no UTF-8, become '?'.
std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases);

}  // namespace qattn::lab
