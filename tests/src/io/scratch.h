// A folder of its own for each test, and how tests look at errors and bytes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"

namespace qattn::io::testing {

/// Made on construction, removed with everything in it on destruction.
class ScratchFolder {
 public:
  ScratchFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("qattn_io_test_" + std::to_string(::getpid()) + "_" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string fixture(const std::string& name) {
  return std::string(QATTN_SOURCE_DIR) + "/tests/src/io/data/" + name;
}
inline std::string real_dump(const std::string& name) { return std::string(QATTN_SOURCE_DIR) + "/data/real/" + name; }

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Removes first: file systems flush a file that is truncated and written again, which would make tests slow.
inline void spill(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The message of the Error(kind) that `action` throws; "" when it throws none, another kind's message with a mark.
template <class Action>
std::string message_of(Action action, ErrorKind kind = ErrorKind::input) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == kind ? error.what() : std::string("wrong kind: ") + error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace qattn::io::testing
