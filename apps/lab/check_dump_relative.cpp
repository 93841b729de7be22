// Relative mode: a kernel's outputs against float64 attention, in units of what a recipe loses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "lab/checked_head.h"
#include "lab/diagnosis.h"
#include "lab/dump_verdict.h"
#include "lab/exceptions.h"
#include "lab/explain.h"
#include "lab/relative_limit.h"
#include "lab/runner.h"
#include "mma/replay.h"

namespace qattn::lab {
namespace {

using attention::Recipe;

/// Scales of P that kernels are known to leave in their lse: E4M3 and INT8 P (SageAttention), FlashAttention-3's 2^8,
/// two-level FP4 (448 * 6), E5M2.
constexpr double kKnownPScales[] = {448, 127, 256, 2688, 57344};

/// An lse that is off by less may come from roundings; by more, something is wrong.
constexpr double kSmallLseError = 0.05;

/// What came of one head, before the heads of its call have been compared.
struct HeadVerdict {
  Json o_row;
  std::string o_detail;
  metric::Accuracy output{format::kFP32}, recipe{format::kFP32};
  double largest_reference = 0;
  bool reversible = false;  ///< an output with its rows in reverse would pass
  std::int64_t rows = 0;
  std::vector<LseFit> lse;
  double recipe_lse_error = 0;  ///< the largest distance of the recipe's lse from float64
};

class RelativeCheck {
 public:
  RelativeCheck(const DumpSet& dumps, const DumpCheckOptions& options)
      : dumps_(dumps), options_(options), exceptions_(*options.recipe) {
    p_scales_.assign(std::begin(kKnownPScales), std::end(kKnownPScales));
    const double own = attention::resolved_p_scale(*options.recipe);
    std::erase(p_scales_, own);
    if (own != 1) p_scales_.insert(p_scales_.begin(), own);
  }

  CheckResult run() {
    const std::vector<Piece> pieces = pieces_of(dumps_);
    std::vector<HeadVerdict> verdicts(pieces.size());
    std::mutex mutex;
    std::int64_t done = 0;
    parallel_for(static_cast<std::int64_t>(pieces.size()), options_.threads, [&](std::int64_t i) {
      if (options_.cancelled && options_.cancelled()) throw Interrupted();
      const auto index = static_cast<std::size_t>(i);
      verdicts[index] = judge(pieces[index]);
      if (!options_.progress) return;
      const std::lock_guard lock(mutex);
      options_.progress(++done, static_cast<std::int64_t>(pieces.size()));
    });
    for (std::size_t i = 0; i < pieces.size();) {
      std::size_t end = i;
      while (end < pieces.size() && pieces[end].call == pieces[i].call) ++end;
      const std::span<const Piece> of_call(pieces.data() + i, end - i);
      if (options_.explain) explain_call(of_call, {verdicts.data() + i, end - i});
      close_call(of_call, {verdicts.data() + i, end - i});
      i = end;
    }
    return std::move(result_);
  }

 private:
  /// The recipe of the head, with O rounded as the dump's o is stored.
  Recipe recipe_for(const Piece& piece) const {
    const SelectedCall& selected = dumps_.calls()[piece.call];
    Recipe recipe = exceptions_.effective(selected.call->path, piece.head);
    if (!options_.keep_o_format) {
      recipe.o_format = dumps_.read_codes(selected, "o", piece.batch, piece.head).format;
    }
    return recipe;
  }

  HeadVerdict judge(const Piece& piece) const {
    const Recipe recipe = recipe_for(piece);
    const CheckedHead head = check_head(dumps_, piece, &recipe);
    HeadVerdict verdict;
    verdict.output = accuracy_of(head, head.o);
    verdict.recipe = accuracy_of(head, head.emulated);
    verdict.largest_reference = head.reference.allFinite() ? head.reference.cwiseAbs().maxCoeff() : 0;
    verdict.rows = head.o.rows();
    const RelativeLimit limit =
        relative_limit(verdict.recipe, options_.factor, head.format(), verdict.largest_reference);
    verdict.o_row = options_.ulp ? ulp_row(head, verdict) : relative_row(head, limit, verdict);
    verdict.reversible = !options_.ulp && rows_in_reverse_pass(head.reference, limit, head.format());
    if (!verdict.o_row["passed"].get<bool>()) explain_failure(head, recipe, verdict);
    if (head.has_lse) verdict.lse = fit_lse(head.lse, p_scales_, options_.lse_tolerance);
    for (std::size_t i = 0; i < head.lse.reference.size(); ++i) {
      const double error = std::fabs(head.lse.emulated[i] - head.lse.reference[i]);
      if (error > verdict.recipe_lse_error) verdict.recipe_lse_error = error;
    }
    return verdict;
  }

  Json base_row(const Piece& piece, std::string_view output, std::uint64_t elements) const {
    return dump_row(dumps_, piece, options_.recipe->name, output, elements,
                    attention::accumulator_evidence(*options_.recipe));
  }

  Json relative_row(const CheckedHead& head, const RelativeLimit& limit, HeadVerdict& verdict) const {
    Json row = base_row(head.piece, "o", static_cast<std::uint64_t>(verdict.output.count()));
    add_errors(row, verdict.output, verdict.recipe, limit);
    const bool within_limit = within(verdict.output, limit);
    const std::string passing = guard(head.reference, limit, head.format());
    row["passed"] = within_limit && passing.empty();
    if (within_limit && passing.empty()) return row;
    row["mismatches"] = std::max<std::uint64_t>(1, elements_beyond(head, limit.max_abs));
    if (!within_limit) row["first"] = first_beyond(head, limit.max_abs);
    verdict.o_detail = within_limit ? guard_text(passing) : limit_text(verdict, limit);
    return row;
  }

  std::string guard_text(const std::string& passing) const {
    return fmt::format(
        "the limit is worth nothing: {} would pass, so far off is {} itself (times {}); lower --factor, "
        "or check against a finer recipe",
        passing, options_.recipe->name, options_.factor);
  }

  std::string limit_text(const HeadVerdict& verdict, const RelativeLimit& limit) const {
    const metric::Accuracy& o = verdict.output;
    if (o.first_bad()) {
      return fmt::format("o has {} NaN and {} Inf, the first in row {}, channel {}", o.nan_count(), o.inf_count(),
                         o.first_bad()->row, o.first_bad()->column);
    }
    if (verdict.recipe.first_bad()) return fmt::format("{} itself gives NaN or Inf here", options_.recipe->name);
    return fmt::format(
        "o is off float64 by {:.4g} (relative L1; largest {:.4g}); {} itself is off by {:.4g} ({:.4g}), "
        "{} times that allows {:.4g} ({:.4g})",
        o.rel_l1(), o.max_abs(), options_.recipe->name, verdict.recipe.rel_l1(), verdict.recipe.max_abs(),
        options_.factor, limit.rel_l1, limit.max_abs);
  }

  static bool is_beyond(double o, double r, double limit) { return !(std::fabs(o - r) <= limit); }

  static std::uint64_t elements_beyond(const CheckedHead& head, double limit) {
    std::uint64_t count = 0;
    for (Eigen::Index i = 0; i < head.o.size(); ++i) {
      count += is_beyond(head.o.data()[i], head.reference.data()[i], limit) ? 1U : 0U;
    }
    return count;
  }

  /// The first element beyond the limit; of a head that is only too far off on the average, the worst.
  static Json first_beyond(const CheckedHead& head, double limit) {
    Eigen::Index found = 0;
    double largest = -1;
    for (Eigen::Index i = 0; i < head.o.size(); ++i) {
      const double o = head.o.data()[i], r = head.reference.data()[i];
      if (!is_beyond(o, r, limit) && std::fabs(o - r) <= largest) continue;
      largest = std::fabs(o - r);
      found = i;
      if (is_beyond(o, r, limit)) break;
    }
    const Eigen::Index row = found / head.o.cols(), column = found % head.o.cols();
    Json first = {{"index", {head.piece.batch, head.piece.head, row, column}},
                  {"recorded", head.o(row, column)},
                  {"reference", head.reference(row, column)}};
    first["computed"] = head.emulated(row, column);
    return first;
  }

  /// --ulp: the recipe's own output, element by element.
  Json ulp_row(const CheckedHead& head, HeadVerdict& verdict) const {
    Json row = base_row(head.piece, "o", static_cast<std::uint64_t>(head.o.size()));
    const format::Format& f = head.format();
    const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};
    std::uint64_t largest = 0, beyond = 0;
    const std::int64_t width = head.codes.shape.at(1);
    for (Eigen::Index r = 0; r < head.o.rows(); ++r) {
      for (Eigen::Index c = 0; c < head.o.cols(); ++c) {
        const std::uint64_t want = head.codes.code(r * width + c);
        const std::uint64_t distance = mma::ulp_distance(f, want, format::encode(f, head.emulated(r, c), to_nearest));
        largest = std::max(largest, distance);
        if (distance <= *options_.ulp) continue;
        if (beyond++ == 0) {
          row["first"] = {{"index", {head.piece.batch, head.piece.head, r, c}},
                          {"recorded", head.o(r, c)},
                          {"computed", head.emulated(r, c)}};
        }
      }
    }
    row["mismatches"] = beyond;
    row["max_ulp"] = largest;
    row["passed"] = beyond == 0 && !verdict.output.first_bad();
    if (beyond > 0) {
      verdict.o_detail = fmt::format("{} of {} elements of o are more than {} ulp from {}'s output (at most {})",
                                     beyond, head.o.size(), *options_.ulp, options_.recipe->name, largest);
    } else if (verdict.output.first_bad()) {
      verdict.o_detail = "o has NaN or Inf, as the recipe has";
    }
    return row;
  }

  void explain_failure(const CheckedHead& head, const Recipe& recipe, HeadVerdict& verdict) const {
    const std::string why = diagnosis_text(dumps_, head, recipe, verdict.o_row);
    if (!why.empty()) verdict.o_detail += "; " + why;
  }

  /// --explain: the head that is furthest beyond its limit speaks for the call.
  void explain_call(std::span<const Piece> pieces, std::span<HeadVerdict> verdicts) {
    const auto excess = [](const HeadVerdict& verdict) {
      if (verdict.output.first_bad() || verdict.recipe.first_bad()) return -1.0;
      return verdict.output.rel_l1() / verdict.recipe.rel_l1();
    };
    std::size_t worst = 0;
    for (std::size_t i = 1; i < verdicts.size(); ++i) {
      if (excess(verdicts[i]) > excess(verdicts[worst])) worst = i;
    }
    const Recipe recipe = recipe_for(pieces[worst]);
    const CheckedHead head = check_head(dumps_, pieces[worst], &recipe);
    const format::Format& input = *dumps_.calls()[pieces[worst].call].call->q_format;
    const std::vector<Resemblance> found = resemblances(head, recipe, input, options_.threads);
    Json list = Json::array();
    for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 8); ++i) {
      list.push_back({{"key", found[i].key},
                      {"value", found[i].value},
                      {"words", found[i].words},
                      {"rel_l1", found[i].distance},
                      {"equal", found[i].equal}});
    }
    verdicts[worst].o_row["explain"] = list;
    result_.remarks.push_back(fmt::format("{}: {}", place_of(dumps_, pieces[worst]), resemblance_text(found, recipe)));
  }

  void close_call(std::span<const Piece> pieces, std::span<const HeadVerdict> verdicts) {
    const std::optional<LseConvention> convention = convention_of(verdicts);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      finish(pieces[i], verdicts[i].o_row, verdicts[i].o_detail);
      if (convention) finish_lse(pieces[i], verdicts[i], *convention);
    }
    if (!options_.ulp) finish_call(pieces.front(), verdicts);
  }

  /// The row over the whole call: errors of flattened outputs.
  void finish_call(const Piece& piece, std::span<const HeadVerdict> verdicts) {
    metric::Accuracy output = verdicts.front().output, recipe = verdicts.front().recipe;
    double largest = verdicts.front().largest_reference;
    bool reversible = verdicts.front().reversible;
    for (const HeadVerdict& verdict : verdicts.subspan(1)) {
      output.merge(verdict.output);
      recipe.merge(verdict.recipe);
      largest = std::max(largest, verdict.largest_reference);
      reversible = reversible && verdict.reversible;
    }
    const Tensor o = dumps_.read_codes(dumps_.calls()[piece.call], "o", piece.batch, piece.head);
    const RelativeLimit limit = relative_limit(recipe, options_.factor, *o.format, largest);
    Json row = base_row(piece, "o", static_cast<std::uint64_t>(output.count()));
    row["batch"] = row["head"] = nullptr;
    add_errors(row, output, recipe, limit);
    const bool within_limit = within(output, limit);
    row["passed"] = within_limit && !reversible;
    row["mismatches"] = within_limit && !reversible ? 0 : 1;
    std::string detail;
    if (!within_limit) {
      HeadVerdict whole;
      whole.output = output;
      whole.recipe = recipe;
      detail = "over the whole call " + limit_text(whole, limit);
    } else if (reversible) {
      detail = guard_text("an output with its rows in reverse order");
    }
    finish(piece, std::move(row), detail);
  }

  /// The convention that most heads follow; of equally good ones the plainest.
  std::optional<LseConvention> convention_of(std::span<const HeadVerdict> verdicts) const {
    if (verdicts.front().lse.empty()) return std::nullopt;
    const std::vector<LseFit>& some = verdicts.front().lse;
    std::optional<LseConvention> best;
    std::size_t most = 0;
    for (std::size_t c = 0; c < some.size(); ++c) {
      if (options_.lse_demanded && !satisfies(some[c].convention, *options_.lse_demanded)) continue;
      const auto count = static_cast<std::size_t>(std::count_if(
          verdicts.begin(), verdicts.end(), [c](const HeadVerdict& verdict) { return verdict.lse[c].misfits == 0; }));
      if (count > most || !best) best = some[c].convention;
      most = std::max(most, count);
    }
    return most > 0 || options_.lse_demanded ? best : best_fit(some).convention;
  }

  void finish_lse(const Piece& piece, const HeadVerdict& verdict, const LseConvention& expected) {
    const auto fit = std::find_if(verdict.lse.begin(), verdict.lse.end(),
                                  [&](const LseFit& each) { return each.convention == expected; });
    const LseFit& best = best_fit(verdict.lse);
    Json row = base_row(piece, "lse", static_cast<std::uint64_t>(verdict.rows));
    row["mismatches"] = fit->misfits;
    row["convention"] = describe(fit->misfits == 0 ? expected : best.convention);
    row["lse_error"] = fit->max_error;
    row["lse_against"] = fit->to_recipe ? options_.recipe->name : "float64";
    row["passed"] = fit->misfits == 0;
    std::string detail;
    if (fit->misfits > 0) {
      row["first"] = {{"index", {piece.batch, piece.head, fit->worst_row}}};
      detail = lse_text(verdict, *fit, best);
      if (best.misfits == 0) row["diagnosis"] = "LSE in " + describe(best.convention);
    }
    finish(piece, std::move(row), detail);
  }

  std::string lse_text(const HeadVerdict& verdict, const LseFit& fit, const LseFit& best) const {
    const std::string where = fmt::format("lse is off by up to {:.4g} (row {}) in {}", fit.max_error, fit.worst_row,
                                          describe(fit.convention));
    if (best.misfits == 0) {
      const std::string_view expected = options_.lse_demanded ? "that was demanded" : "that the other heads follow";
      return fmt::format("{}, the convention {}; this head is in {} (within {:.3g})", where, expected,
                         describe(best.convention), best.max_error);
    }
    std::string text = fmt::format(
        "no convention fits the lse within {:.3g}: {} of {} rows are off in {}, the nearest, "
        "by up to {:.4g} (row {})",
        options_.lse_tolerance, best.misfits, verdict.rows, describe(best.convention), best.max_error, best.worst_row);
    if (!verdict.o_row["passed"].get<bool>()) return text + "; o is wrong too";
    if (best.max_error < kSmallLseError && verdict.recipe_lse_error > options_.lse_tolerance) {
      text += fmt::format(
          "; that of {} is itself off float64 by up to {:.4g}, so a kernel of its kind may need "
          "--lse-tolerance",
          options_.recipe->name, verdict.recipe_lse_error);
    }
    return text;
  }

  void finish(const Piece& piece, Json row, const std::string& detail) {
    finish_dump_row(result_, place_of(dumps_, piece), std::move(row), detail);
  }

  const DumpSet& dumps_;
  const DumpCheckOptions& options_;
  const Exceptions exceptions_;
  std::vector<double> p_scales_;
  CheckResult result_;
};

}  // namespace

CheckResult check_dump_relative(const DumpSet& dumps, const DumpCheckOptions& options) {
  return RelativeCheck(dumps, options).run();
}

}  // namespace qattn::lab
