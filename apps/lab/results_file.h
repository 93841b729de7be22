// Results as HDF5, schema qattn-results/1.
#pragma once

#include <string>

#include "lab/results.h"

namespace qattn::lab {

/// Writes the results in one step; the layout is described in results_file.cpp. Throws Error(input) when the file
/// cannot be written or is there and holds anything but results.
void write_results(const std::string& path, const Results& results);

/// Reads them back, every cell exactly. Throws Error(input) for anything that is no file of this schema.
Results read_results(const std::string& path);

/// Throws Error(input) unless `path` is free or holds results, which may be replaced.
void check_replaceable(const std::string& path);

}  // namespace qattn::lab
