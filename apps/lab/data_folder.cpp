// Finding the data that comes with the program.
#include "lab/data_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace qattn::lab {

namespace fs = std::filesystem;

std::string data_folder() {
  if (const char* folder = std::getenv("QATTN_DATA"); folder != nullptr && *folder != '\0') {
    if (fs::is_directory(folder)) return folder;
    throw Error(ErrorKind::usage,
                fmt::format("QATTN_DATA={} is no folder; set it to the one that holds recipes/", folder));
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share/qattn";
  for (const fs::path& folder : {installed, fs::path(QATTN_SOURCE_DATA)}) {
    if (fs::is_directory(folder / "recipes", ignored)) return folder.string();
  }
  throw Error(ErrorKind::usage, fmt::format("no data folder: neither {} nor {} exists; set QATTN_DATA to the folder "
                                            "that holds recipes/",
                                            installed.string(), QATTN_SOURCE_DATA));
}

std::vector<std::string> data_entries(std::string_view subfolder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(fs::path(data_folder()) / subfolder, failed)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string data_file(std::string_view subfolder, std::string_view name, std::string_view kind) {
  std::error_code ignored;
  if (name.ends_with(".toml")) {
    if (fs::is_regular_file(fs::path(name), ignored)) return std::string(name);
    throw Error(ErrorKind::usage, fmt::format("{}: no such {} file", name, kind));
  }
  const fs::path folder = fs::path(data_folder()) / subfolder;
  const bool is_plain = !name.empty() && name.find('/') == std::string_view::npos;
  const fs::path file = folder / fmt::format("{}.toml", name);
  if (is_plain && fs::is_regular_file(file, ignored)) return file.string();
  throw Error(ErrorKind::usage, fmt::format("unknown {0} '{1}'; {2} holds {3}; or give the path of a .toml file", kind,
                                            name, folder.string(), fmt::join(data_entries(subfolder), ", ")));
}

}  // namespace qattn::lab
