// Tables whose tensors the paper describes: drawn, measured over several seeds, and each figure judged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/paper_table.h"
#include "lab/report.h"
#include "lab/runner.h"

namespace qattn::lab {

/// What the seeds gave for one printed figure.
struct SeedStatistics {
  double mean = 0, deviation = 0;  ///< of the sample (n - 1); 0 with one seed
  double least = 0, largest = 0;
  double log_mean = 0, log_deviation = 0;  ///< the same of the natural logarithms; NaN unless all are positive
  std::int64_t seeds = 0;
  bool finite = true;  ///< every seed gave a number
};

SeedStatistics statistics_of(const std::vector<double>& values);

/// Whether a printed figure lies within the spread over the seeds: at most kSpreadDeviations standard deviations from
/// the mean, half a unit of the last printed digit given. Where so many deviations would reach zero, which nothing but
/// a spread over decades does, the logarithms are held to it instead, so that a figure of zero is never within.
inline constexpr double kSpreadDeviations = 3.0;
bool within_spread(double printed, double half_unit, const SeedStatistics& ours);

/// Half a unit of the last digit of `printed`: with `decimals` or `digits` (significant ones) as the table says; 0 when
/// it says neither.
double half_unit(double printed, const SyntheticTensors& tensors);

/// Draws the table's tensors for each of its seeds (`seeds` > 0: for so many) in a temporary folder, runs its rows and
/// sets the means beside the paper's figures, with spread and verdict. The same report for every number of threads.
/// Throws Error(usage) when the table is not synthetic.
Report measure_synthetic(const PaperTable& table, std::int64_t seeds, const RunOptions& options,
                         RunResult* bad = nullptr);

}  // namespace qattn::lab
