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
  if (!all_finite(head)) return false;
  return accuracy_of(head, head.emulated).rel_l1() > kNoisyRecipe;
}

std::optional<Finding> small(const CheckedHead& head, const attention::Recipe& recipe, double factor,
                             std::int64_t most_strays) {
  if (std::optional<Finding> finding = rolled_rows(head)) return finding;
  if (std::optional<Finding> finding = repeated_row(head)) return finding;
  if (std::optional<Finding> finding = stray_elements(head, factor, most_strays)) return finding;
  return consistent_factor(head, recipe, factor);
}

std::optional<Finding> named(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe,
                             Suspect::Search search) {
  Suspect suspect(dumps, head, recipe, search);
  suspect_outputs(suspect);
  suspect_scores(suspect);
  return suspect.verdict();
}

/// What `look` finds in a head under a recipe that loses much: it has to find something beside the recipe's relatives
/// too.
template <class Look>
std::optional<Finding> beside_relatives(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                        const Look& look) {
  const FpEnvironment environment;
  if (!is_noisy(head)) return std::nullopt;
  const std::optional<Finding> finding = look();
  if (!finding || !head.related.empty()) return finding;
  add_related(dumps, head, recipe);
  return look();
}

}  // namespace

std::optional<Finding> diagnose(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe) {
  const FpEnvironment environment;
  if (!all_finite(head)) return std::nullopt;
  return named(dumps, head, recipe, Suspect::Search::known_wrong);
}

std::optional<Finding> hidden_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                      double factor) {
  return beside_relatives(dumps, head, recipe, [&] {
    std::optional<Finding> finding = named(dumps, head, recipe, Suspect::Search::hidden);
    return finding ? finding : small(head, recipe, factor, head.o.size());
  });
}

std::optional<Finding> small_mistake(const DumpSet& dumps, CheckedHead& head, const attention::Recipe& recipe,
                                     double factor) {
  return beside_relatives(dumps, head, recipe, [&] { return small(head, recipe, factor, kFewStrays); });
}

std::string locate(const CheckedHead& head) {
  if (!all_finite(head)) return "";
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
