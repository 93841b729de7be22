// The configuration of a sweep: which dumps, which recipes with which keys, where the results go.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/dump_set.h"
#include "lab/measurement.h"

namespace qattn::lab {

/// A configuration file with its grids spread out.
///
///   output = "results.h5"             # beside this file; default: this file's name with .h5
///   threads = 2                       # default: one for each core
///   backward = true                   # gradients too: o, dq, dk and dv
///   upstream_seed = 0                 # of the upstream gradient of calls without `do`
///   [dump]
///   files = ["a.h5", "folder"]        # beside this file, else in the working directory
///   calls = "layer_0[0-3]"            # regular expression, searched for in a call's path
///   heads = "0:4"
///   [[grid]]                          # one or more
///   base = ["sage2-4b", "my.toml"]    # names or files, and/or
///   recipes = "^sage"                 # a regular expression over the names of all recipes
///   smoothing = ["none", "qk"]        # any key of a recipe: a list makes one recipe a value, times all other lists
///   pv_format = "e4m3"                # one value: set in all of them
///   skip_invalid = true               # leave out what does not fit together; default: that is an error
///   [grid.zip]                        # lists of one length that advance together; [[grid.zip]] for several of them
///   q_block = [64, 128]
///   q_warp = [16, 32]
///
/// The recipes come grid by grid, base by base, then as nested loops over the keys in the order of the file, the first
/// outermost; their names say what was set. The same recipe twice counts once.
struct SweepConfig {
  std::string file;
  DumpSelection selection;
  std::vector<Trial> trials;
  int threads = 0;
  bool backward = false;
  std::uint64_t seed = 0;  ///< of upstream gradients
  std::string output;
  std::vector<std::string> left_out;  ///< why combinations do not fit together, a line each
};

/// Throws Error(usage) "file:line: reason" that names the key and what is allowed, Error(input) when the file cannot
/// be read.
SweepConfig load_sweep(const std::string& file);

/// Whether a path names a results file, by its ending: .h5 or .hdf5.
bool is_results_name(std::string_view path);

}  // namespace qattn::lab
