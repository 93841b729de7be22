#include "lab/lse_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/fp_environment.h"

namespace qattn::lab {
namespace {

/// An lse that is off by less may come from roundings; by more, something is wrong.
constexpr double kSmallLseError = 0.05;
/// Conventions that differ by less everywhere cannot be told apart by any sensible tolerance.
constexpr double kToldApart = 0.01;

/// The convention that most heads follow; of equally good ones the plainest.
LseConvention convention_of(std::span<const LseHead> heads, const LseOptions& options) {
  const std::vector<LseFit>& some = heads.front().fits;
  std::optional<LseConvention> best;
  std::size_t most = 0;
  for (std::size_t c = 0; c < some.size(); ++c) {
    if (options.demanded && !satisfies(some[c].convention, *options.demanded)) continue;
    const auto count = static_cast<std::size_t>(
        std::count_if(heads.begin(), heads.end(), [c](const LseHead& head) { return head.fits[c].misfits == 0; }));
    if (count > most || !best) best = some[c].convention;
    most = std::max(most, count);
  }
  return most > 0 || options.demanded ? *best : best_fit(some).convention;
}

const LseFit& fit_of(const std::vector<LseFit>& fits, const LseConvention& convention) {
  return *std::find_if(fits.begin(), fits.end(), [&](const LseFit& each) { return each.convention == convention; });
}

/// The head with another lse in place of the recorded one.
std::vector<LseFit> fits_with(const LseHead& head, const std::function<double(double)>& change,
                              const LseOptions& options) {
  LseRows rows = head.rows;
  for (double& x : rows.recorded) x = std::isfinite(x) ? change(x) : x;
  return fit_lse(rows, options.p_scales, options.tolerance);
}

/// How far two conventions are apart on a head, at most.
double apart(const LseRows& rows, const LseConvention& a, const LseConvention& b) {
  double largest = 0;
  for (std::size_t i = 0; i < rows.reference.size(); ++i) {
    if (!std::isfinite(rows.reference[i])) continue;
    const auto value = [&](const LseConvention& each) {
      return expected_lse(rows.reference[i], rows.mean_shift[i], each);
    };
    largest = std::max(largest, std::fabs(value(a) - value(b)));
  }
  return largest;
}

/// What else the tolerance would let pass; empty: nothing.
std::string tolerance_guard(const LseHead& head, const LseConvention& convention, const LseOptions& options) {
  const LseRows& rows = head.rows;
  const bool any_key =
      std::any_of(rows.reference.begin(), rows.reference.end(), [](double x) { return std::isfinite(x); });
  if (!any_key) return "";
  const auto allowed = [&](const LseConvention& each) {
    return !options.demanded || satisfies(each, *options.demanded);
  };
  for (const LseFit& fit : fits_with(
           head, [](double) { return 0.0; }, options)) {
    double largest = 0;
    for (std::size_t i = 0; i < rows.reference.size(); ++i) {
      if (std::isfinite(rows.reference[i])) {
        largest = std::max(largest, std::fabs(expected_lse(rows.reference[i], rows.mean_shift[i], fit.convention)));
      }
    }
    if (fit.misfits == 0 && allowed(fit.convention) && largest > kToldApart) return "an lse of zeros would pass";
  }
  const std::vector<LseFit> plus_one = fits_with(
      head, [](double x) { return x + 1; }, options);
  if (fit_of(plus_one, convention).misfits == 0) return "an lse that is larger by one would pass";
  for (const LseFit& fit : head.fits) {
    if (fit.misfits > 0 || fit.convention == convention || !allowed(fit.convention)) continue;
    const double distance = apart(rows, fit.convention, convention);
    if (distance <= kToldApart) continue;
    return fmt::format("an lse in {} passes as one in {} does, though they differ by up to {:.3g}",
                       describe(fit.convention), describe(convention), distance);
  }
  return "";
}

std::string misfit_text(const LseHead& head, const LseFit& fit, const LseFit& best, const LseOptions& options) {
  const std::string where =
      fmt::format("lse is off by up to {:.4g} (row {}) in {}", fit.max_error, fit.worst_row, describe(fit.convention));
  if (best.misfits == 0) {
    const std::string_view expected = options.demanded ? "that was demanded" : "that the other heads follow";
    return fmt::format("{}, the convention {}; this head is in {} (within {:.3g})", where, expected,
                       describe(best.convention), best.max_error);
  }
  std::string text = fmt::format(
      "no convention fits the lse within {:.3g}: {} of {} rows are off in {}, the nearest, "
      "by up to {:.4g} (row {})",
      options.tolerance, best.misfits, head.rows.recorded.size(), describe(best.convention), best.max_error,
      best.worst_row);
  if (!head.o_passed) return text + "; o is wrong too";
  if (best.max_error < kSmallLseError && head.recipe_error > options.tolerance) {
    text += fmt::format(
        "; that of {} is itself off float64 by up to {:.4g}, so a kernel of its kind may need "
        "--lse-tolerance",
        options.recipe, head.recipe_error);
  }
  return text;
}

LseVerdict judge_head(std::span<const LseHead> heads, std::size_t index, const LseConvention& expected,
                      const LseOptions& options) {
  const LseHead& head = heads[index];
  const LseFit& fit = fit_of(head.fits, expected);
  const LseFit& best = best_fit(head.fits);
  LseVerdict verdict{fit.misfits == 0, fit, fit.misfits == 0 ? expected : best.convention, "", ""};
  if (fit.misfits == 0) {
    const std::string passing = tolerance_guard(head, expected, options);
    if (passing.empty()) return verdict;
    verdict.passed = false;
    verdict.fit.misfits = 1;
    verdict.detail =
        fmt::format("the tolerance {:.4g} is worth nothing: {}; lower --lse-tolerance", options.tolerance, passing);
    return verdict;
  }
  verdict.detail = misfit_text(head, fit, best, options);
  if (best.misfits == 0) {
    verdict.diagnosis = "LSE in " + describe(best.convention);
  } else if (const std::optional<LseFinding> finding = diagnose_lse(heads, index, options)) {
    verdict.diagnosis = finding->name;
    verdict.detail += fmt::format("; looks like {}: {}", finding->name, finding->detail);
  }
  return verdict;
}

}  // namespace

std::vector<LseVerdict> judge_lse(std::span<const LseHead> heads, const LseOptions& options) {
  const FpEnvironment environment;
  const LseConvention expected = convention_of(heads, options);
  std::vector<LseVerdict> verdicts;
  for (std::size_t i = 0; i < heads.size(); ++i) verdicts.push_back(judge_head(heads, i, expected, options));
  return verdicts;
}

}  // namespace qattn::lab
