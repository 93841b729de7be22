// How a command's findings reach stdout: as text while it runs, or as one JSON document at its end (--json).
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qattn::gpu {

using Json = nlohmann::ordered_json;

class Report {
 public:
  Report(std::string_view command, bool json) : command_(command), json_(json) {}

  /// Printed at once, unless the report is JSON.
  template <class... Args>
  void text(fmt::format_string<Args...> format, Args&&... args) {
    if (json_) return;
    fmt::print(format, std::forward<Args>(args)...);
    std::fflush(stdout);
  }

  /// A row of the document.
  void row(Json row) {
    if (json_) rows_.push_back(std::move(row));
  }

  /// Prints {"context": ..., "rows": [...], "summary": ...}. `source`: the GPU, or the file that was looked at.
  void finish(std::string_view source, const Json& summary) const {
    if (!json_) return;
    const Json context{{"tool", "qattn-gpu"}, {"command", command_}, {"source", source}};
    fmt::print("{}\n", Json{{"context", context}, {"rows", rows_}, {"summary", summary}}.dump());
  }

 private:
  std::string command_;
  bool json_;
  std::vector<Json> rows_;
};

}  // namespace qattn::gpu
