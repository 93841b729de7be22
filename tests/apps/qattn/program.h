// Runs the qattn program as a shell would, and gives back all that it said.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "src/io/scratch.h"

namespace qattn::testing {

struct Outcome {
  int status = -1;  ///< exit status; 128 + signal as the shell has it
  std::string out;
  std::string err;
};

/// `qattn <arguments>` through sh; `arguments` may redirect.
inline Outcome qattn(const io::testing::ScratchFolder& folder, const std::string& arguments) {
  const std::string out = folder / "stdout", err = folder / "stderr";
  const std::string command = "exec >'" + out + "' 2>'" + err + "'; '" QATTN_PROGRAM "' " + arguments;
  const int status = std::system(("sh -c \"" + command + "\"").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, io::testing::slurp(out), io::testing::slurp(err)};
}

/// The JSON document on stdout; the test fails here when there is anything else.
inline nlohmann::json json_of(const Outcome& outcome) { return nlohmann::json::parse(outcome.out); }

/// Exactly one line.
inline bool is_one_line(const std::string& text) { return !text.empty() && text.find('\n') == text.size() - 1; }

}  // namespace qattn::testing
