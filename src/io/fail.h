// How this room reports bad input: one line that starts with the place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace qattn::io {

/// Throws Error(input) "<where>: <what>".
[[noreturn]] inline void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::input, where + ": " + what);
}

/// "file: path", the place of an array or a group in a file.
inline std::string place(const std::string& file, const std::string& path) {
  return path.empty() || path == "/" ? file : file + ": " + path;
}

/// "[2, 3]"
inline std::string to_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace qattn::io
