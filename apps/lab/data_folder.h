// Where recipes and the papers' tables lie.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qattn::lab {

/// The folder that holds recipes/ and papers/: the environment variable QATTN_DATA where it is set; else share/qattn
/// of the prefix that the program was installed under; else data/ of the source tree it was built from. Throws
/// Error(usage) that names the variable when none of them exists.
std::string data_folder();

/// The entries of a subfolder of data_folder(): the stems of its *.toml files, sorted.
std::vector<std::string> data_entries(std::string_view subfolder);

/// The file of an entry: `name` itself when it ends in .toml, else <data_folder()>/<subfolder>/<name>.toml. Throws
/// Error(usage) that lists the names when there is no such file; `kind` ("recipe", "table") says what was looked for.
std::string data_file(std::string_view subfolder, std::string_view name, std::string_view kind);

}  // namespace qattn::lab
