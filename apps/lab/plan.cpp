// Choosing from the rows of a run.
#include "lab/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <regex>

#include "base/error.h"

namespace qattn::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string layer_name(const std::string& path, const std::string& expression, const std::regex& compiled) {
  std::smatch found;
  return !expression.empty() && std::regex_search(path, found, compiled) ? found.str() : path;
}

double figure(const Json& row, const char* key) {
  const Json& value = row.at(key);
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// How bad a call is under the first recipe; NaN is worse than all.
double badness(const Json& row, Sensitivity by) {
  const double value = by == Sensitivity::rel_l1    ? figure(row, "rel_l1")
                       : by == Sensitivity::cos_sim ? 1.0 - figure(row, "cos_sim")
                                                    : figure(row, "rmse");
  return std::isnan(value) ? kInfinity : value;
}

}  // namespace

Sensitivity parse_sensitivity(std::string_view name) {
  if (name == "rel_l1") return Sensitivity::rel_l1;
  if (name == "cos_sim") return Sensitivity::cos_sim;
  if (name == "rmse") return Sensitivity::rmse;
  throw Error(ErrorKind::usage, fmt::format("--by: '{}' is not one of rel_l1, cos_sim, rmse", name));
}

std::vector<PlannedLayer> layers_of(const DumpSet& dumps, const std::string& expression) {
  std::regex compiled;
  try {
    compiled = std::regex(expression, std::regex::ECMAScript);
  } catch (const std::regex_error& e) {
    throw Error(ErrorKind::usage, fmt::format("--layer: '{}' is no regular expression: {}", expression, e.what()));
  }
  std::vector<PlannedLayer> layers;
  for (std::size_t c = 0; c < dumps.calls().size(); ++c) {
    const std::string name = layer_name(dumps.calls()[c].label, expression, compiled);
    const auto known =
        std::find_if(layers.begin(), layers.end(), [&](const PlannedLayer& layer) { return layer.name == name; });
    if (known == layers.end()) {
      layers.push_back({name, {c}});
    } else {
      known->calls.push_back(c);
    }
  }
  return layers;
}

void plan_by_threshold(std::vector<PlannedLayer>& layers, std::span<const Json> first, double threshold) {
  for (PlannedLayer& layer : layers) {
    layer.worst = kInfinity;
    layer.second = false;
    for (const std::size_t call : layer.calls) {
      const double cosine = figure(first[call], "cos_sim");
      if (!(cosine > threshold)) layer.second = true;
      layer.worst = std::isnan(cosine) ? cosine : std::min(layer.worst, cosine);
    }
  }
}

void plan_by_budget(std::vector<PlannedLayer>& layers, std::span<const Json> first, Sensitivity by,
                    std::int64_t budget) {
  for (PlannedLayer& layer : layers) {
    layer.worst = -kInfinity;
    for (const std::size_t call : layer.calls) layer.worst = std::max(layer.worst, badness(first[call], by));
  }
  std::vector<std::size_t> order(layers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return layers[a].worst > layers[b].worst; });
  for (std::size_t i = 0; i < order.size(); ++i) layers[order[i]].second = static_cast<std::int64_t>(i) < budget;
}

std::vector<Json> call_rows(const RunResult& result, std::size_t trial, std::size_t trials) {
  std::vector<Json> rows;
  std::size_t index = 0;
  for (const Json& row : result.rows) {
    if (!row.at("head").is_null()) continue;
    if (index++ % trials == trial) rows.push_back(row);
  }
  return rows;
}

metric::Summary planned_summary(const DumpSet& dumps, std::span<const Json> rows) {
  metric::Summary summary;
  for (std::size_t c = 0; c < rows.size(); ++c) {
    const std::string& call = dumps.calls()[c].label;
    summary.cos_sim.add(figure(rows[c], "cos_sim"), call);
    summary.rel_l1.add(figure(rows[c], "rel_l1"), call);
    summary.rmse.add(figure(rows[c], "rmse"), call);
    summary.max_abs.add(figure(rows[c], "max_abs"), call);
    summary.nan_count += rows[c].at("nan_count").get<std::int64_t>();
    summary.inf_count += rows[c].at("inf_count").get<std::int64_t>();
  }
  return summary;
}

std::vector<Json> planned_rows(const std::vector<PlannedLayer>& layers, std::span<const Json> first,
                               std::span<const Json> second) {
  std::vector<Json> rows(first.size());
  for (const PlannedLayer& layer : layers) {
    for (const std::size_t call : layer.calls) rows[call] = layer.second ? second[call] : first[call];
  }
  return rows;
}

}  // namespace qattn::lab
