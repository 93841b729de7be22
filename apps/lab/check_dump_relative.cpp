// Relative mode: a kernel's outputs against float64 attention, in units of what a recipe loses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "lab/checked_head.h"
#include "lab/diagnosis.h"
#include "lab/dump_verdict.h"
#include "lab/exceptions.h"
#include "lab/explain.h"
#include "lab/local_limit.h"
#include "lab/lse_verdict.h"
#include "lab/relative_limit.h"
#include "lab/relatives.h"
#include "lab/runner.h"
#include "mma/replay.h"

namespace qattn::lab {
namespace {

using attention::Recipe;

/// Scales of P that kernels are known to leave in their lse: E4M3 and INT8 P (SageAttention), FlashAttention-3's 2^8,
/// two-level FP4 (448 * 6), E5M2.
constexpr double kKnownPScales[] = {448, 127, 256, 2688, 57344};

/// One element's error scatters: by so much it may exceed --factor times the largest of several related recipes.
constexpr double kElementSlack = 1.25;
constexpr double kAsGood = 1.2;

/// What came of one head, before the heads of its call have been compared.
struct HeadVerdict {
  Json o_row;
  std::string o_detail;
  metric::Accuracy output{format::kFP32}, recipe{format::kFP32};
  LocalErrors local;
  double largest_reference = 0;
  double largest_allowed = 0;  ///< the limit on max_abs
  bool as_good = false;        ///< the limit is at fault, and o is no worse than the recipe's: nothing to diagnose
  bool reversible = false;     ///< an output with its rows in reverse would pass
  std::optional<LseHead> lse;
  std::optional<Error> error;  ///< the head could not be read
};

class RelativeCheck {
 public:
  RelativeCheck(const DumpSet& dumps, const DumpCheckOptions& options, CheckResult& result)
      : dumps_(dumps), options_(options), exceptions_(*options.recipe), result_(result) {
    std::vector<double>& scales = lse_options_.p_scales;
    scales.assign(std::begin(kKnownPScales), std::end(kKnownPScales));
    const double own = attention::resolved_p_scale(*options.recipe);
    std::erase(scales, own);
    if (own != 1) scales.insert(scales.begin(), own);
    lse_options_.tolerance = options.lse_tolerance;
    lse_options_.demanded = options.lse_demanded;
    lse_options_.recipe = options.recipe->name;
    lse_options_.problems = [this](const Piece& piece) {
      return dumps_.read(dumps_.calls()[piece.call], piece.batch, piece.head);
    };
  }

  void run(std::span<const Piece> pieces) {
    std::vector<HeadVerdict> verdicts(pieces.size());
    std::mutex mutex;
    std::int64_t done = 0;
    parallel_for(static_cast<std::int64_t>(pieces.size()), options_.threads, [&](std::int64_t i) {
      if (options_.cancelled && options_.cancelled()) throw Interrupted();
      const auto index = static_cast<std::size_t>(i);
      try {
        verdicts[index] = judge(pieces[index]);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        verdicts[index].error = error;
      }
      if (!options_.progress) return;
      const std::lock_guard lock(mutex);
      options_.progress(++done, static_cast<std::int64_t>(pieces.size()));
    });
    for (std::size_t i = 0; i < pieces.size();) {
      std::size_t end = i;
      while (end < pieces.size() && pieces[end].call == pieces[i].call) ++end;
      const std::span<const Piece> of_call(pieces.data() + i, end - i);
      settle_call(of_call, {verdicts.data() + i, end - i});
      i = end;
    }
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
    CheckedHead head = check_head(dumps_, piece, &recipe);
    HeadVerdict verdict;
    verdict.output = accuracy_of(head, head.o);
    verdict.recipe = accuracy_of(head, head.emulated);
    verdict.largest_reference = head.reference.allFinite() ? head.reference.cwiseAbs().maxCoeff() : 0;
    verdict.local = local_errors(head, options_.factor);
    options_.ulp ? judge_ulp(head, verdict) : judge_relative(head, recipe, verdict);
    if (!verdict.o_row["passed"].get<bool>() && !verdict.as_good) explain_failure(head, recipe, verdict);
    if (head.has_lse) verdict.lse = lse_of(head, verdict);
    return verdict;
  }

  LseHead lse_of(const CheckedHead& head, const HeadVerdict& verdict) const {
    LseHead lse{head.piece, head.lse, fit_lse(head.lse, lse_options_.p_scales, options_.lse_tolerance), 0,
                verdict.o_row["passed"].get<bool>()};
    for (std::size_t i = 0; i < head.lse.reference.size(); ++i) {
      const double error = std::fabs(head.lse.emulated[i] - head.lse.reference[i]);
      if (error > lse.recipe_error) lse.recipe_error = error;
    }
    return lse;
  }

  Json base_row(const Piece& piece, std::string_view output, std::uint64_t elements) const {
    return dump_row(dumps_, piece, options_.recipe->name, output, elements,
                    attention::accumulator_evidence(*options_.recipe));
  }

  RelativeLimit limit_of(const HeadVerdict& verdict, double factor, const format::Format& format) const {
    return relative_limit(verdict.recipe, factor, format, verdict.largest_reference);
  }

  void judge_relative(CheckedHead& head, const Recipe& recipe, HeadVerdict& verdict) const {
    const RelativeLimit limit = settled_limit(head, recipe, verdict);
    verdict.largest_allowed = limit.max_abs;
    const RelativeLimit usual = limit_of(verdict, kUsualFactor, head.format());
    const LocalErrors& local = verdict.local;
    Json& row = verdict.o_row = base_row(head.piece, "o", static_cast<std::uint64_t>(verdict.output.count()));
    add_errors(row, verdict.output, verdict.recipe, limit);
    add_local(row, local);
    verdict.reversible = rows_in_reverse_pass(head.reference, limit, usual, head.format());
    const bool within_limit = within(verdict.output, limit) && local.within();
    const std::string passing = guard(head.reference, limit, usual, head.format());
    const std::optional<Finding> hidden =
        within_limit && passing.empty() ? hidden_mistake(dumps_, head, recipe, options_.factor) : std::nullopt;
    row["passed"] = within_limit && passing.empty() && !hidden;
    if (row["passed"].get<bool>()) return;
    row["mismatches"] = std::max<std::uint64_t>(1, elements_beyond(head, limit.max_abs));
    if (hidden) {
      row["first"] = first_beyond(head, limit.max_abs);
      row["diagnosis"] = hidden->name;
      verdict.o_detail = fmt::format(
          "o is within the limits, and yet off float64 in the direction of a mistake, which {} is not; looks like {}: "
          "{}",
          options_.recipe->name, hidden->name, hidden->detail);
    } else if (within_limit) {
      verdict.as_good = verdict.output.rel_l1() <= kAsGood * verdict.recipe.rel_l1();
      verdict.o_detail = guard_text(passing);
    } else if (within(verdict.output, limit)) {
      row["first"] = worst_in_parts(head, local);
      verdict.o_detail = local_text(local, options_.recipe->name, options_.factor);
    } else {
      row["first"] = first_beyond(head, limit.max_abs);
      verdict.o_detail = limit_text(verdict, limit);
    }
  }

  /// The limit of the head. Where only a part of it or one element is beyond, or may be, the recipe's relatives decide
  /// what is plausible there; the head's relative L1 is held against the recipe alone.
  RelativeLimit settled_limit(CheckedHead& head, const Recipe& recipe, HeadVerdict& verdict) const {
    RelativeLimit limit = limit_of(verdict, options_.factor, head.format());
    const RelativeLimit on_average{limit.rel_l1, std::numeric_limits<double>::infinity()};
    const bool only_a_part = within(verdict.output, on_average) && verdict.local.unwritten.empty();
    if (!only_a_part || (within(verdict.output, limit) && verdict.local.within())) return limit;
    add_related(dumps_, head, recipe);
    verdict.local = local_errors(head, options_.factor);
    for (const MatrixD& other : head.related) {
      const double largest = (other - head.reference).cwiseAbs().maxCoeff();
      limit.max_abs = std::max(limit.max_abs, kElementSlack * options_.factor * largest);
    }
    return limit;
  }

  static void add_local(Json& row, const LocalErrors& local) {
    if (local.block.last == 0) return;
    row["worst_block"] = part_json(local.block, "rows");
    row["worst_row"] = part_json(local.row, "rows");
    row["worst_channel"] = part_json(local.channel, "channels");
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
    return element_json(head, row, column);
  }

  static Json element_json(const CheckedHead& head, Eigen::Index row, Eigen::Index column) {
    Json first = {{"index", {head.piece.batch, head.piece.head, row, column}},
                  {"recorded", head.o(row, column)},
                  {"reference", head.reference(row, column)}};
    first["computed"] = head.emulated(row, column);
    return first;
  }

  /// The element that is furthest off in the first part beyond its limit.
  static Json worst_in_parts(const CheckedHead& head, const LocalErrors& local) {
    const bool rows = !local.unwritten.empty() || !local.beyond_blocks.empty() || !local.beyond_rows.empty();
    PartError part = !local.beyond_blocks.empty() ? local.block : rows ? local.row : local.channel;
    if (!local.unwritten.empty()) part.first = local.unwritten.front();
    if (!local.unwritten.empty()) part.last = part.first + 1;
    const Eigen::Index first_row = rows ? part.first : 0, last_row = rows ? part.last : head.o.rows();
    const Eigen::Index first_column = rows ? 0 : part.first, last_column = rows ? head.o.cols() : part.last;
    Eigen::Index row = first_row, column = first_column;
    const auto off = [&](Eigen::Index r, Eigen::Index c) { return std::fabs(head.o(r, c) - head.reference(r, c)); };
    for (Eigen::Index r = first_row; r < last_row; ++r) {
      for (Eigen::Index c = first_column; c < last_column; ++c) {
        if (off(r, c) <= off(row, column)) continue;
        row = r;
        column = c;
      }
    }
    return element_json(head, row, column);
  }

  /// --ulp: the recipe's own output, element by element.
  void judge_ulp(const CheckedHead& head, HeadVerdict& verdict) const {
    Json& row = verdict.o_row = base_row(head.piece, "o", static_cast<std::uint64_t>(head.o.size()));
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
    const std::string passing = ulp_guard(head.emulated, *options_.ulp, f);
    verdict.reversible = rows_in_reverse_pass(head.emulated, *options_.ulp, f);
    row["mismatches"] = beyond;
    row["max_ulp"] = ulp_json(largest);
    row["passed"] = beyond == 0 && !verdict.output.first_bad() && passing.empty();
    if (beyond > 0) {
      verdict.o_detail = fmt::format(
          "{} of {} elements of o are more than {} ulp from {}'s output ({})", beyond, head.o.size(), *options_.ulp,
          options_.recipe->name, ulp_json(largest).is_null() ? "NaN among them" : fmt::format("at most {}", largest));
    } else if (verdict.output.first_bad()) {
      verdict.o_detail = "o has NaN or Inf, as the recipe has";
    } else if (!passing.empty()) {
      fail_guard(verdict, ulp_guard_text(passing, *options_.ulp));
    }
  }

  static void fail_guard(HeadVerdict& verdict, const std::string& why) {
    verdict.o_row["passed"] = false;
    verdict.o_row["mismatches"] = 1;
    verdict.o_detail = why;
  }

  void explain_failure(CheckedHead& head, const Recipe& recipe, HeadVerdict& verdict) const {
    if (!verdict.o_row["diagnosis"].is_null()) return;
    const std::string why = diagnosis_text(dumps_, head, recipe, options_.factor, verdict.local, verdict.o_row);
    if (!why.empty()) verdict.o_detail += "; " + why;
    if (!options_.keep_o_format) verdict.o_detail += storage_hint(head.codes);
  }

  /// The rows of one call, or the error that kept one of its heads from being checked.
  void settle_call(std::span<const Piece> pieces, std::span<HeadVerdict> verdicts) {
    const SelectedCall& call = dumps_.calls()[pieces.front().call];
    for (const HeadVerdict& verdict : verdicts) {
      if (!verdict.error) continue;
      result_.errors.push_back(
          {dumps_.files()[call.file], call.call->path, verdict.error->what(), verdict.error->kind()});
      return;
    }
    if (options_.explain) explain_call(pieces, verdicts);
    close_call(pieces, verdicts);
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

  void close_call(std::span<const Piece> pieces, std::span<HeadVerdict> verdicts) {
    const bool reversible =
        std::all_of(verdicts.begin(), verdicts.end(), [](const HeadVerdict& verdict) { return verdict.reversible; });
    std::vector<LseHead> lse;
    for (HeadVerdict& verdict : verdicts) {
      if (options_.ulp && reversible && verdict.o_row["passed"].get<bool>()) {
        fail_guard(verdict, ulp_guard_text("an output with its rows in reverse order", *options_.ulp));
      }
      if (verdict.lse) lse.push_back(std::move(*verdict.lse));
    }
    const std::vector<LseVerdict> lse_verdicts = lse.empty() ? std::vector<LseVerdict>() : judge_lse(lse, lse_options_);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      finish(pieces[i], verdicts[i].o_row, verdicts[i].o_detail);
      if (!lse.empty()) finish_lse(lse[i], lse_verdicts[i]);
    }
    if (!options_.ulp) finish_call(pieces.front(), verdicts, reversible);
  }

  /// The row over the whole call: errors of flattened outputs.
  void finish_call(const Piece& piece, std::span<const HeadVerdict> verdicts, bool reversible) {
    metric::Accuracy output = verdicts.front().output, recipe = verdicts.front().recipe;
    double largest = verdicts.front().largest_reference;
    for (const HeadVerdict& verdict : verdicts.subspan(1)) {
      output.merge(verdict.output);
      recipe.merge(verdict.recipe);
      largest = std::max(largest, verdict.largest_reference);
    }
    const Tensor o = dumps_.read_codes(dumps_.calls()[piece.call], "o", piece.batch, piece.head);
    RelativeLimit limit = relative_limit(recipe, options_.factor, *o.format, largest);
    // No element of the call may be further off than its own head allows.
    for (const HeadVerdict& verdict : verdicts) limit.max_abs = std::max(limit.max_abs, verdict.largest_allowed);
    Json row = base_row(piece, "o", static_cast<std::uint64_t>(output.count()));
    // The elements are counted head by head; what fails here is a mean or a largest error.
    row["batch"] = row["head"] = row["mismatches"] = nullptr;
    add_errors(row, output, recipe, limit);
    const bool within_limit = within(output, limit);
    row["passed"] = within_limit && !reversible;
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

  void finish_lse(const LseHead& head, const LseVerdict& verdict) {
    Json row = base_row(head.piece, "lse", static_cast<std::uint64_t>(head.rows.recorded.size()));
    row["mismatches"] = verdict.fit.misfits;
    row["convention"] = describe(verdict.convention);
    row["lse_error"] = verdict.fit.max_error;
    row["lse_against"] = verdict.fit.to_recipe ? options_.recipe->name : "float64";
    row["passed"] = verdict.passed;
    if (!verdict.passed) row["first"] = {{"index", {head.piece.batch, head.piece.head, verdict.fit.worst_row}}};
    if (!verdict.diagnosis.empty()) row["diagnosis"] = verdict.diagnosis;
    finish(head.piece, std::move(row), verdict.detail);
  }

  void finish(const Piece& piece, Json row, const std::string& detail) {
    finish_dump_row(result_, place_of(dumps_, piece), std::move(row), detail);
  }

  const DumpSet& dumps_;
  const DumpCheckOptions& options_;
  const Exceptions exceptions_;
  LseOptions lse_options_;
  CheckResult& result_;
};

}  // namespace

void check_dump_relative(const DumpSet& dumps, const DumpCheckOptions& options, std::span<const Piece> pieces,
                         CheckResult& result) {
  RelativeCheck(dumps, options, result).run(pieces);
}

}  // namespace qattn::lab
