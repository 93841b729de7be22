// `qattn-gpu check --operands`: operand preparation on the device and on the CPU, compared bit for bit.
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <optional>
#include <regex>
#include <utility>

#include "attention/operand_differences.h"
#include "attention/prepare.h"
#include "base/error.h"
#include "base/parallel.h"
#include "commands.h"
#include "lab/dump_set.h"
#include "lab/recipe_file.h"
#include "operand_cases.h"
#include "report.h"

namespace qattn::gpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs of the kernels that a time is the mean of.
constexpr int kTimedRuns = 20;

constexpr std::string_view kRecipes[] = {"sage2-8b", "sage2-4b",         "sage1-B",         "fa2-fp16",
                                         "fa3-fp8",  "fa3-fp8-hadamard", "smoothquant-int8"};

/// What is reported in one row: the heads of one length or one file, under one recipe.
struct Count {
  std::int64_t heads = 0;
  OperandDifferences differences;
  std::string first_place;
  double device_seconds = 0;  ///< of the kernels, without the transfers
  double cpu_seconds = 0;     ///< of prepare_operands(), one thread
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The mean time of the kernels.
double timed(Preparation& preparation) {
  preparation.run();
  synchronize("operand preparation");
  const auto start = Clock::now();
  for (int i = 0; i < kTimedRuns; ++i) preparation.run();
  synchronize("operand preparation");
  return seconds_since(start) / kTimedRuns;
}

class Comparison {
 public:
  Comparison(std::vector<attention::Recipe> named, std::vector<attention::Recipe> drawn, int threads)
      : named_(named.size()), recipes_(std::move(named)), threads_(threads) {
    recipes_.insert(recipes_.end(), drawn.begin(), drawn.end());
  }

  void add(const OperandCase& item) {
    std::vector<attention::Operands> expected(recipes_.size());
    std::vector<double> seconds(recipes_.size());
    parallel_for(static_cast<std::int64_t>(recipes_.size()), threads_, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      const auto start = Clock::now();
      expected[at] = attention::prepare_operands(*item.problem, recipes_[at]);
      seconds[at] = seconds_since(start);
    });
    for (std::size_t i = 0; i < recipes_.size(); ++i) {
      const bool drawn = i >= named_;
      Preparation preparation(item.input, recipes_[i]);
      preparation.run();
      const OperandDifferences differences = compare_operands(expected[i], preparation.download());
      Count& count = counts_[{item.data, drawn ? "drawn recipes" : recipes_[i].name}];
      ++count.heads;
      count.cpu_seconds += seconds[i];
      count.device_seconds += timed(preparation);
      count.differences.elements += differences.elements;
      if (differences.differing > 0 && count.differences.differing == 0) {
        count.differences.first = differences.first;
        count.first_place = fmt::format("{}, recipe {}", item.place, recipes_[i].name);
      }
      count.differences.differing += differences.differing;
    }
    if (order_.empty() || order_.back() != item.data) order_.push_back(item.data);
  }

  bool empty() const { return counts_.empty(); }

  /// Prints the counts; whether nothing differed.
  bool report(bool json) const {
    Report report("check --operands", json);
    report.text("{:<16} {:<16} {:>7} {:>12} {:>10} {:>12} {:>12}\n", "data", "recipe", "heads", "elements", "differing",
                "device us", "CPU us");
    std::int64_t elements = 0, differing = 0;
    for (const std::string& data : order_) {
      for (const auto& [key, count] : counts_) {
        if (key.first != data) continue;
        add_row(key.first, key.second, count, report);
        elements += count.differences.elements;
        differing += count.differences.differing;
      }
    }
    report.text("{}: {} elements, {} differing\n", device().description, elements, differing);
    report.finish(device().description, {{"elements", elements}, {"differing", differing}, {"passed", differing == 0}});
    return differing == 0;
  }

 private:
  static void add_row(const std::string& data, const std::string& recipe, const Count& count, Report& report) {
    const auto heads = static_cast<double>(count.heads);
    const double device_us = count.device_seconds / heads * 1e6, cpu_us = count.cpu_seconds / heads * 1e6;
    const std::string first =
        count.first_place.empty() ? "" : fmt::format("  {}: {}\n", count.first_place, count.differences.first);
    report.text("{:<16} {:<16} {:>7} {:>12} {:>10} {:>12.1f} {:>12.1f}\n{}", data, recipe, count.heads,
                count.differences.elements, count.differences.differing, device_us, cpu_us, first);
    report.row({{"data", data},
                {"recipe", recipe},
                {"heads", count.heads},
                {"elements", count.differences.elements},
                {"differing", count.differences.differing},
                {"first", first.empty() ? Json() : Json(count.first_place + ": " + count.differences.first)},
                {"device_microseconds", device_us},
                {"cpu_microseconds", cpu_us}});
  }

  std::size_t named_;
  std::vector<attention::Recipe> recipes_;
  int threads_;
  std::map<std::pair<std::string, std::string>, Count> counts_;
  std::vector<std::string> order_;
};

std::vector<attention::Recipe> named_recipes(const DumpOptions& dump) {
  std::vector<std::string> names = dump.recipes;
  if (names.empty()) names.assign(std::begin(kRecipes), std::end(kRecipes));
  std::vector<attention::Recipe> recipes;
  for (const std::string& name : names) {
    recipes.push_back(lab::with_overrides(lab::load_recipe(name), dump.overrides));
    attention::validate(recipes.back());
    check_preparable(recipes.back());
  }
  return recipes;
}

}  // namespace

bool check_operands(const DumpOptions& dump, int variants, const Options& options) {
  Comparison comparison(named_recipes(dump), random_recipes(options.seed, variants), options.threads);
  std::optional<lab::DumpSet> dumps;
  if (!dump.selection.inputs.empty()) dumps.emplace(dump.selection);
  device();
  const auto add = [&](const OperandCase& item) {
    if (std::regex_search(item.data, options.only)) comparison.add(item);
  };
  if (dumps) {
    for_each_case(*dumps, add);
  } else {
    for_each_synthetic_case(options.seed, add);
  }
  if (comparison.empty()) throw Error(ErrorKind::usage, "check --operands: no data's name matches --only");
  return comparison.report(options.json);
}

}  // namespace qattn::gpu
