// What a wrong log-sum-exp looks like: each known mistake is undone, and what comes out is held against the
// conventions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "lab/lse_verdict.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

constexpr double kLn10 = 0x1.26BB1BBB55516p+1;
/// A mistake explains an lse when what is left is this small, or within the tolerance, or twice the recipe's own error.
constexpr double kExplained = 2e-3;
/// A constant or a factor has to change an lse by so many times what it leaves unexplained.
constexpr double kPlain = 4;

class LseSuspect {
 public:
  LseSuspect(std::span<const LseHead> heads, std::size_t index, const LseOptions& options)
      : heads_(heads), head_(heads[index]), options_(options) {
    tolerance_ = std::max(options.tolerance, std::min(std::max(kExplained, 2 * head_.recipe_error), spread() / 20));
  }

  std::optional<LseFinding> verdict() const {
    if (auto finding = not_finite()) return finding;
    if (auto finding = zeros()) return finding;
    if (auto finding = other_head()) return finding;
    // What follows may come from the mistake in o.
    if (!head_.o_passed) return std::nullopt;
    if (auto finding = moved_rows()) return finding;
    if (auto finding = changed_values()) return finding;
    if (auto finding = parts_of_the_sum()) return finding;
    return rounded();
  }

 private:
  std::size_t size() const { return head_.rows.recorded.size(); }

  /// How far the rows' own lse lie apart: an explanation that is less exact than this explains nothing.
  double spread() const {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (const double x : head_.rows.reference) {
      if (!std::isfinite(x)) continue;
      least = std::min(least, x);
      most = std::max(most, x);
    }
    return most > least ? most - least : 0;
  }
  bool sees_keys(std::size_t row) const { return std::isfinite(head_.rows.reference[row]); }

  std::string rows_text(const std::vector<std::int64_t>& rows) const {
    return rows.size() == size() ? "every row" : describe_indices("row", rows);
  }

  /// The plainest convention that fits `recorded` on this head's rows within `tolerance`.
  std::optional<LseConvention> fitting(std::vector<double> recorded, double tolerance) const {
    LseRows rows = head_.rows;
    rows.recorded = std::move(recorded);
    const std::vector<LseFit> fits = fit_lse(rows, options_.p_scales, tolerance);
    const auto found = std::find_if(fits.begin(), fits.end(), [](const LseFit& fit) { return fit.misfits == 0; });
    if (found == fits.end()) return std::nullopt;
    return found->convention;
  }

  template <class Undo>
  std::optional<LseConvention> fitting_once(const Undo& undo, double tolerance) const {
    std::vector<double> values = head_.rows.recorded;
    for (double& x : values) x = std::isfinite(x) ? undo(x) : x;
    return fitting(std::move(values), tolerance);
  }

  std::optional<LseFinding> not_finite() const {
    std::vector<std::int64_t> nan, inf;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!sees_keys(i) && !std::isnan(head_.rows.recorded[i])) continue;
      if (std::isnan(head_.rows.recorded[i])) nan.push_back(static_cast<std::int64_t>(i));
      if (std::isinf(head_.rows.recorded[i])) inf.push_back(static_cast<std::int64_t>(i));
    }
    if (nan.empty() && inf.empty()) return std::nullopt;
    const bool masked = inf.empty() && std::all_of(nan.begin(), nan.end(), [this](std::int64_t row) {
                          return !sees_keys(static_cast<std::size_t>(row));
                        });
    if (masked) {
      return LseFinding{"NaN in lse",
                        fmt::format("{} see no key; the logarithm of an empty sum is to be -Inf", rows_text(nan))};
    }
    if (!nan.empty()) return LseFinding{"NaN in lse", fmt::format("lse is NaN in {}", rows_text(nan))};
    return LseFinding{"Inf in lse", fmt::format("lse is infinite in {}, which see keys", rows_text(inf))};
  }

  std::optional<LseFinding> zeros() const {
    std::vector<std::int64_t> rows;
    bool others_fit = true;
    const std::optional<LseConvention> convention = other_heads_convention();
    for (std::size_t i = 0; i < size(); ++i) {
      if (head_.rows.recorded[i] == 0) {
        rows.push_back(static_cast<std::int64_t>(i));
      } else if (sees_keys(i)) {
        const double expected =
            expected_lse(head_.rows.reference[i], head_.rows.mean_shift[i], convention.value_or(LseConvention{}));
        others_fit = others_fit && std::fabs(head_.rows.recorded[i] - expected) <= tolerance_;
      }
    }
    if (rows.size() == size()) return LseFinding{"LSE all zeros", "lse is zero everywhere: it was not written"};
    if (rows.empty() || !others_fit) return std::nullopt;
    return LseFinding{"unwritten LSE rows",
                      fmt::format("lse is zero in {}, as if they were never written", rows_text(rows))};
  }

  /// What the first head that fits a convention follows.
  std::optional<LseConvention> other_heads_convention() const {
    for (const LseHead& other : heads_) {
      const LseFit& best = best_fit(other.fits);
      if (best.misfits == 0) return best.convention;
    }
    return std::nullopt;
  }

  std::optional<LseFinding> other_head() const {
    for (const LseHead& other : heads_) {
      if (&other == &head_) continue;
      const auto explains = [&](const std::vector<double>& recorded, const LseRows& of) {
        LseRows changed = of;
        changed.recorded = recorded;
        const std::vector<LseFit> fits = fit_lse(changed, options_.p_scales, tolerance_);
        return std::any_of(fits.begin(), fits.end(), [](const LseFit& fit) { return fit.misfits == 0; });
      };
      if (!explains(head_.rows.recorded, other.rows)) continue;
      const std::string where = other.piece.batch == head_.piece.batch
                                    ? fmt::format("head {}", other.piece.head)
                                    : fmt::format("batch {}, head {}", other.piece.batch, other.piece.head);
      if (explains(other.rows.recorded, head_.rows)) {
        return LseFinding{"LSE of two heads swapped",
                          fmt::format("lse is that of {}, and there stands what belongs here", where)};
      }
      return LseFinding{"LSE of another head", fmt::format("lse is that of {}", where)};
    }
    return std::nullopt;
  }

  std::optional<LseFinding> moved_rows() const {
    std::vector<double> values = head_.rows.recorded;
    std::reverse(values.begin(), values.end());
    if (fitting(values, tolerance_)) return LseFinding{"permuted LSE rows", "the rows of lse stand in reverse order"};
    // Written as [tokens, heads] and read as [heads, tokens], or the other way round.
    std::vector<const LseHead*> batch;
    for (const LseHead& other : heads_) {
      if (other.piece.batch == head_.piece.batch) batch.push_back(&other);
    }
    const std::size_t count = batch.size();
    if (count < 2) return std::nullopt;
    const auto own = static_cast<std::size_t>(std::find(batch.begin(), batch.end(), &head_) - batch.begin());
    for (const bool written_nh : {true, false}) {
      for (std::size_t n = 0; n < size(); ++n) {
        // Where element (own, n) of the right lse went.
        const std::size_t flat = written_nh ? n * count + own : own * size() + n;
        const std::size_t h = written_nh ? flat / size() : flat % count;
        const std::size_t row = written_nh ? flat % size() : flat / count;
        values[n] = batch[h]->rows.recorded[row];
      }
      if (!fitting(values, tolerance_)) continue;
      return LseFinding{"transposed LSE layout",
                        written_nh ? "lse was written as [tokens, heads] and is read as [heads, tokens]"
                                   : "lse was written as [heads, tokens] and is read as [tokens, heads]"};
    }
    return std::nullopt;
  }

  std::optional<LseFinding> changed_values() const {
    const auto text = [](const LseConvention& convention) { return describe(convention); };
    if (const auto c = fitting_once([](double x) { return -x; }, tolerance_)) {
      return LseFinding{"LSE negated", fmt::format("lse is minus what it should be in {}", text(*c))};
    }
    const auto natural = fitting_once([](double x) { return x * kLn10; }, tolerance_ * kLn10);
    if (natural && !natural->base2) {
      return LseFinding{"LSE in base 10", "lse is the logarithm to base 10; bases e and 2 are in use"};
    }
    if (const auto c = constant_added()) return c;
    return constant_factor();
  }

  /// What the mistake is added to or multiplied with: float64's lse and the recipe's own, to which a kernel of a noisy
  /// recipe is nearer.
  std::vector<const std::vector<double>*> right_ones() const {
    std::vector<const std::vector<double>*> all = {&head_.rows.reference};
    if (!head_.rows.emulated.empty()) all.push_back(&head_.rows.emulated);
    return all;
  }

  /// A constant or factor, and what it leaves.
  struct Change {
    double value = 0, left = std::numeric_limits<double>::infinity();
  };

  /// Of what `change_of(right)` finds, what leaves least.
  template <class ChangeOf>
  std::optional<double> nearest(const ChangeOf& change_of) const {
    std::optional<Change> best;
    for (const std::vector<double>* right : right_ones()) {
      const std::optional<Change> change = change_of(*right);
      if (change && (!best || change->left < best->left)) best = change;
    }
    return best ? std::optional(best->value) : std::nullopt;
  }

  std::optional<LseFinding> constant_added() const {
    for (const bool base2 : {false, true}) {
      for (const bool without_mean : {false, true}) {
        const LseConvention convention{base2, without_mean, 1};
        const auto added = nearest([&](const std::vector<double>& right) { return constant_to(right, convention); });
        if (!added) continue;
        return LseFinding{
            "constant added to LSE",
            fmt::format("lse is {:+.5g} from what it should be in {}, in every row", *added, describe(convention))};
      }
    }
    return std::nullopt;
  }

  /// The constant that all rows are off by: within the tolerance, and several times as large as what is left.
  std::optional<Change> constant_to(const std::vector<double>& right, const LseConvention& convention) const {
    std::vector<double> off;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!sees_keys(i)) continue;
      off.push_back(head_.rows.recorded[i] - expected_lse(right[i], head_.rows.mean_shift[i], convention));
    }
    if (off.size() < 4) return std::nullopt;
    const auto [least, most] = std::minmax_element(off.begin(), off.end());
    const double constant = (*least + *most) / 2, left = (*most - *least) / 2;
    if (!(left <= tolerance_) || std::fabs(constant) < kPlain * std::max(left, options_.tolerance)) return std::nullopt;
    return Change{constant, left};
  }

  std::optional<LseFinding> constant_factor() const {
    for (const bool without_mean : {false, true}) {
      const LseConvention convention{false, without_mean, 1};
      const auto factor = nearest([&](const std::vector<double>& right) { return factor_of(right, convention); });
      if (!factor) continue;
      return LseFinding{"constant factor of LSE", fmt::format("lse is {:.6g} times what it should be in {}{}", *factor,
                                                              describe(convention), factor_text(*factor))};
    }
    return std::nullopt;
  }

  /// Likewise a factor.
  std::optional<Change> factor_of(const std::vector<double>& right, const LseConvention& convention) const {
    const auto expected = [&](std::size_t i) { return expected_lse(right[i], head_.rows.mean_shift[i], convention); };
    double dot = 0, square = 0, off = 0, left = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!sees_keys(i)) continue;
      dot += head_.rows.recorded[i] * expected(i);
      square += expected(i) * expected(i);
      off = std::max(off, std::fabs(head_.rows.recorded[i] - expected(i)));
    }
    const double factor = square > 0 ? dot / square : 0;
    if (!(std::fabs(factor) > 1e-3)) return std::nullopt;
    for (std::size_t i = 0; i < size(); ++i) {
      if (sees_keys(i)) left = std::max(left, std::fabs(head_.rows.recorded[i] / factor - expected(i)));
    }
    // A factor that hardly changes anything explains nothing.
    if (!(left <= tolerance_) || off < kPlain * std::max(left, options_.tolerance)) return std::nullopt;
    return Change{factor, left};
  }

  std::string factor_text(double factor) const {
    const auto near = [factor](double x) { return std::fabs(factor - x) < 1e-2 * std::fabs(x); };
    if (near(0x1.62E42FEFA39EFp-1)) return ": ln 2 is in it though it was a natural logarithm";
    if (near(0x1.0A6FC94E86F35p+1)) return ": log2(e) is in it twice";
    return "";
  }

  /// lse = maximum + logarithm of the sum relative to it: one of them is missing, or the scores are not those of P.
  std::optional<LseFinding> parts_of_the_sum() const {
    const std::vector<HeadProblem> parts = options_.problems(head_.piece);
    std::vector<double> maximum(size(), -std::numeric_limits<double>::infinity());
    std::vector<double> unscaled = maximum, unmasked = maximum;
    for (const HeadProblem& part : parts) {
      const attention::Problem& problem = part.problem;
      for (std::int64_t r = 0; r < problem.q.rows(); ++r) {
        const auto row = static_cast<std::size_t>(part.first_row + r);
        const MatrixD scores = scores_of(problem, {r});
        const std::int64_t visible = problem.visible_keys(r);
        const auto all = static_cast<std::size_t>(scores.cols());
        const auto seen = static_cast<std::size_t>(std::max<std::int64_t>(visible, 0));
        const std::vector<double> values(scores.data(), scores.data() + all);
        unmasked[row] = log_sum(values, all, 1);
        unscaled[row] = log_sum(values, seen, 1 / problem.sm_scale);
        if (seen > 0) maximum[row] = *std::max_element(values.begin(), values.begin() + visible);
      }
    }
    const auto as_recorded = [&](const std::vector<double>& natural) {
      double change = 0;
      for (std::size_t i = 0; i < size(); ++i) {
        if (sees_keys(i)) change = std::max(change, std::fabs(natural[i] - head_.rows.reference[i]));
      }
      // An lse that the mistake leaves as it was cannot show it.
      if (change < 2 * tolerance_) return false;
      LseRows rows = head_.rows;
      rows.reference = natural;
      rows.emulated.clear();
      const std::vector<LseFit> fits = fit_lse(rows, options_.p_scales, tolerance_);
      return std::any_of(fits.begin(), fits.end(), [](const LseFit& fit) { return fit.misfits == 0; });
    };
    if (as_recorded(maximum)) {
      return LseFinding{"LSE without the sum", "lse is the row maximum; the logarithm of the row sum is missing"};
    }
    std::vector<double> relative = head_.rows.reference, sums = relative;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!sees_keys(i)) continue;
      relative[i] -= maximum[i];
      sums[i] = elementary::exp(relative[i]);
    }
    if (as_recorded(relative)) {
      return LseFinding{"LSE without the maximum",
                        "lse is the logarithm of the row sum; the row maximum is not added back"};
    }
    if (as_recorded(sums))
      return LseFinding{"row sum in place of LSE", "lse is the row sum; its logarithm was not taken"};
    if (as_recorded(unscaled))
      return LseFinding{"LSE without sm_scale", "lse is that of scores without the softmax scale"};
    if (as_recorded(unmasked))
      return LseFinding{"LSE without the mask", "lse sums over the keys that the mask hides too"};
    return std::nullopt;
  }

  static double log_sum(const std::vector<double>& scores, std::size_t count, double factor) {
    if (count == 0) return -std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t j = 0; j < count; ++j) max = std::max(max, factor * scores[j]);
    if (!std::isfinite(max)) return max;
    for (std::size_t j = 0; j < count; ++j) sum += elementary::exp(factor * scores[j] - max);
    return max + elementary::log(sum);
  }

  /// An lse that was kept in a narrow format: every value is one of it, and off by its rounding at most.
  std::optional<LseFinding> rounded() const {
    const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};
    double largest = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      if (sees_keys(i)) largest = std::max(largest, std::fabs(head_.rows.recorded[i]));
    }
    for (const format::Format* f : {&format::kFP16, &format::kBF16}) {
      const bool all = std::all_of(head_.rows.recorded.begin(), head_.rows.recorded.end(), [&](double x) {
        return format::decode(*f, format::encode(*f, x, to_nearest)) == x;
      });
      const double unit = std::ldexp(largest, -f->mantissa_bits);
      if (!all || !fitting(head_.rows.recorded, std::max(tolerance_, unit))) continue;
      return LseFinding{"rounded LSE",
                        fmt::format("every value of lse is one of {}: it was stored in too few bits", f->dtype)};
    }
    return std::nullopt;
  }

  std::span<const LseHead> heads_;
  const LseHead& head_;
  const LseOptions& options_;
  double tolerance_ = 0;
};

}  // namespace

std::optional<LseFinding> diagnose_lse(std::span<const LseHead> heads, std::size_t head, const LseOptions& options) {
  const FpEnvironment environment;
  return LseSuspect(heads, head, options).verdict();
}

}  // namespace qattn::lab
