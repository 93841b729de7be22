#include "lab/lse_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/exponential_constants.h"
#include "base/fp_environment.h"

namespace qattn::lab {
namespace {

/// An lse whose largest error is within so many times the recipe's own may have it from the recipe's arithmetic.
constexpr double kOwnSize = 2;
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

/// x > 0 in two digits, rounded up.
double two_digits(double x) {
  const std::string nearest = fmt::format("{:.1e}", x);
  if (std::stod(nearest) >= x) return std::stod(nearest);
  const double unit = std::stod("0.1" + nearest.substr(nearest.find('e')));
  return std::stod(fmt::format("{:.1e}", std::stod(nearest) + unit));
}

/// The least tolerance of two digits under which all heads whose o is right follow `convention`; nothing where wrong
/// ones would pass under it as well as right ones.
std::optional<double> passing_tolerance(std::span<const LseHead> heads, const LseConvention& convention,
                                        const LseOptions& options) {
  double error = 0;
  for (const LseHead& head : heads) {
    if (head.o_passed) error = std::max(error, fit_of(head.fits, convention).max_error);
  }
  if (!std::isfinite(error) || error == 0) return std::nullopt;
  LseOptions wide = options;
  wide.tolerance = two_digits(error);
  for (const LseHead& head : heads) {
    if (!head.o_passed) continue;
    LseHead right = head;
    for (std::size_t i = 0; i < right.rows.recorded.size(); ++i) {
      right.rows.recorded[i] = expected_lse(head.rows.reference[i], head.rows.mean_shift[i], convention);
    }
    right.fits = fit_lse(right.rows, wide.p_scales, wide.tolerance);
    if (!tolerance_guard(right, convention, wide).empty()) return std::nullopt;
  }
  return wide.tolerance;
}

/// Whether the recipe's own lse is that far off, and which tolerance would do.
std::string tolerance_text(std::span<const LseHead> heads, const LseHead& head, const LseFit& best,
                           const LseOptions& options) {
  if (!std::isfinite(best.max_error)) return "";
  const double own = head.recipe_error * (best.convention.base2 ? elementary::kLog2E : 1);
  std::string text = fmt::format("; that of {} is itself off float64 by up to {:.4g}, ", options.recipe, own);
  text += best.max_error <= kOwnSize * own ? "an error of that size: it may come from the recipe's arithmetic"
                                           : "less than that: the recipe's arithmetic does not explain it";
  const std::optional<double> tolerance = passing_tolerance(heads, best.convention, options);
  if (!tolerance) return text + "; no --lse-tolerance that would let it pass is worth anything";
  return text + fmt::format("; --lse-tolerance {:.2g} would let {} pass", *tolerance,
                            heads.size() == 1 ? "it" : "all heads of the call with a right o");
}

std::string misfit_text(std::span<const LseHead> heads, const LseHead& head, const LseFit& fit, const LseFit& best,
                        const LseOptions& options) {
  const std::string where =
      fmt::format("lse is off by up to {:.4g} (row {}) in {}", fit.max_error, fit.worst_row, describe(fit.convention));
  if (best.misfits == 0) {
    const std::string_view expected = options.demanded ? "that was demanded" : "that the other heads follow";
    return fmt::format("{}, the convention {}; this head is in {} (within {:.3g})", where, expected,
                       describe(best.convention), best.max_error);
  }
  const std::string text = fmt::format(
      "no convention fits the lse within {:.3g}: {} of {} rows are off in {}, the nearest, "
      "by up to {:.4g} (row {})",
      options.tolerance, best.misfits, head.rows.recorded.size(), describe(best.convention), best.max_error,
      best.worst_row);
  return text + (head.o_passed ? tolerance_text(heads, head, best, options) : "; o is wrong too");
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
  verdict.detail = misfit_text(heads, head, fit, best, options);
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
