#include "lab/diagnosis.h"

#include <fmt/format.h>

#include "base/fp_environment.h"
#include "lab/consistent_factor.h"
#include "lab/stray_values.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

/// Below this, limits leave no room for a mistake to hide in.
constexpr double kNoisyRecipe = 0.005;

bool is_noisy(const CheckedHead& head) {
  if (!head.o.allFinite() || !head.reference.allFinite() || !head.emulated.allFinite()) return false;
  return accuracy_of(head, head.emulated).rel_l1() > kNoisyRecipe;
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

std::optional<Finding> hidden_mistake(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe,
                                      double factor) {
  const FpEnvironment environment;
  if (!is_noisy(head)) return std::nullopt;
  Suspect suspect(dumps, head, recipe, Suspect::Search::hidden);
  suspect_outputs(suspect);
  suspect_scores(suspect);
  if (std::optional<Finding> finding = suspect.verdict()) return finding;
  return small_mistake(dumps, head, recipe, factor);
}

std::optional<Finding> small_mistake(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe,
                                     double factor) {
  if (!is_noisy(head)) return std::nullopt;
  if (std::optional<Finding> finding = repeated_row(head)) return finding;
  if (std::optional<Finding> finding = stray_element(head, factor)) return finding;
  return consistent_factor(head, recipe, *dumps.calls()[head.piece.call].call->q_format, factor);
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
