// The one exception type of the house, and the exit status each kind of failure maps to.
#pragma once

#include <stdexcept>
#include <string>

namespace qattn {

/// What went wrong, by who can mend it; the value is the program's exit status.
enum class ErrorKind {
  usage = 2,     ///< the command line or a configuration file is wrong
  input = 3,     ///< a file cannot be read, is inconsistent, or an output cannot be written
  internal = 4,  ///< a fault of this program
};

/// An error with a one-line message that says what failed, where (file, dataset, line) and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace qattn
