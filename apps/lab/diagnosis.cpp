#include "lab/diagnosis.h"

#include <fmt/format.h>

#include "base/fp_environment.h"
#include "lab/consistent_factor.h"
#include "lab/relatives.h"
#include "lab/stray_values.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

/// Below this, limits leave no room for a mistake to hide in.
constexpr double kNoisyRecipe = 0.005;
/// Of a head that is beyond its limits; more strays say that something else is wrong.
constexpr std::int64_t kFewStrays = 8;

bool is_noisy(const CheckedHead& head) {
  if (!head.o.allFinite() || !head.reference.allFinite() || !head.emulated.allFinite()) return false;
  return accuracy_of(head, head.emulated).rel_l1() > kNoisyRecipe;
}

std::optional<Finding> small(const CheckedHead& head, const attention::Recipe& recipe, double factor,
                             std::int64_t most_strays) {
  if (std::optional<Finding> finding = rolled_rows(head)) return finding;
  if (std::optional<Finding> finding = repeated_row(head)) return finding;
  if (std::optional<Finding> finding = stray_elements(head, factor, most_strays)) return finding;
  return consistent_factor(head, recipe, factor);
}

std::optional<Finding> hidden(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe,
                              double factor) {
  Suspect suspect(dumps, head, recipe, Suspect::Search::hidden);
  suspect_outputs(suspect);
  suspect_scores(suspect);
  if (std::optional<Finding> finding = suspect.verdict()) return finding;
  return small(head, recipe, factor, head.o.size());
}

}  // namespace

std::optional<Finding> diagnose(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe) {
  const FpEnvironment environment;
  if (!head.o.allFinite() || !head.reference.allFinite() || !head.emulated.allFinite()) return std::nullopt;
  Suspect suspect(dumps, head, recipe);
  suspect_outputs(suspect);
  suspect_scores(suspect);
  return suspect.verdict();
}

std::optional<Finding> hidden_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                      double factor) {
  const FpEnvironment environment;
  if (!is_noisy(head)) return std::nullopt;
  const std::optional<Finding> finding = hidden(dumps, head, recipe, factor);
  if (!finding || !head.related.empty()) return finding;
  add_related(head, recipe, *dumps.calls()[head.piece.call].call->q_format);
  return hidden(dumps, head, recipe, factor);
}

std::optional<Finding> small_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                     double factor) {
  const FpEnvironment environment;
  if (!is_noisy(head)) return std::nullopt;
  const std::optional<Finding> finding = small(head, recipe, factor, kFewStrays);
  if (!finding || !head.related.empty()) return finding;
  add_related(head, recipe, *dumps.calls()[head.piece.call].call->q_format);
  return small(head, recipe, factor, kFewStrays);
}

std::string locate(const CheckedHead& head) {
  if (!head.o.allFinite() || !head.reference.allFinite() || !head.emulated.allFinite()) return "";
  const WrongParts wrong = wrong_parts(head.o, head.reference, head.emulated);
  const auto most = [](const std::vector<std::int64_t>& indices, Eigen::Index of) {
    return static_cast<double>(indices.size()) >= 0.9 * static_cast<double>(of);
  };
  if (wrong.rows.empty()) return "no known mistake explains it; no single row stands out";
  std::string where =
      most(wrong.rows, head.o.rows()) ? "all rows are off" : describe_indices("row", wrong.rows) + " off";
  if (!wrong.channels.empty() && !most(wrong.channels, head.o.cols())) {
    where += ", " + describe_indices("channel", wrong.channels) + " most of all";
  }
  return "no known mistake explains it; " + where;
}

}  // namespace qattn::lab
