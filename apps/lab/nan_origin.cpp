#include "lab/nan_origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/contraction.h"
#include "attention/operands.h"
#include "attention/pipeline.h"
#include "base/elementary.h"
#include "base/error.h"
#include "base/exponential_constants.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

using attention::Problem;
using attention::Recipe;

struct Place {
  Eigen::Index row = 0, column = 0;
};

std::optional<Place> first_nonfinite(const MatrixD& values) {
  for (Eigen::Index r = 0; r < values.rows(); ++r) {
    for (Eigen::Index c = 0; c < values.cols(); ++c) {
      if (!std::isfinite(values(r, c))) return Place{r, c};
    }
  }
  return std::nullopt;
}

std::string_view kind_of(double x) { return std::isnan(x) ? "NaN" : "Inf"; }

/// A NaN or Inf of q, k, v or the mask; the place is that of the first in q, else in k, else in v.
std::optional<NanOrigin> in_inputs(const HeadProblem& part) {
  const std::string inputs = bad_inputs(part);
  if (inputs.empty()) return std::nullopt;
  NanOrigin origin{"input", {}, {}, "input", "input " + inputs};
  for (const auto& [values, first] :
       {std::pair(&part.problem.q, part.first_row), std::pair(&part.problem.k, part.first_key),
        std::pair(&part.problem.v, part.first_key)}) {
    const auto bad = first_nonfinite(*values);
    if (!bad) continue;
    origin.row = first + bad->row;
    origin.channel = bad->column;
    break;
  }
  return origin;
}

/// A scale that is zero or not finite, by row, of which the first is token `first`, or by channel.
std::optional<NanOrigin> in_scales(std::string_view name, const std::vector<float>& scales, bool by_row,
                                   std::int64_t first) {
  const auto bad = std::find_if(scales.begin(), scales.end(), [](float x) { return x == 0 || !std::isfinite(x); });
  if (bad == scales.end()) return std::nullopt;
  const std::int64_t index = static_cast<std::int64_t>(bad - scales.begin()) + (by_row ? first : 0);
  NanOrigin origin{fmt::format("scale of {}", name), {}, {}, *bad == 0 ? "zero scale" : "overflow", {}};
  (by_row ? origin.row : origin.channel) = index;
  const std::string_view axis = by_row ? "token" : "channel";
  origin.detail = *bad == 0 ? fmt::format("the scale of {}'s group with {} {} is zero, since the whole group is: 0 / 0",
                                          name, axis, index)
                            : fmt::format("the scale of {}'s group with {} {} is {}", name, axis, index,
                                          kind_of(static_cast<double>(*bad)));
  return origin;
}

/// A scale or element of an operand whose first row is token `first`.
std::optional<NanOrigin> in_operand(std::string_view name, const attention::Stored& stored, std::int64_t first) {
  if (auto origin = in_scales(name, stored.row_scale, true, first)) return origin;
  if (auto origin = in_scales(name, stored.column_scale, false, 0)) return origin;
  MatrixD values = stored.values;
  if (values.size() == 0) {
    values.resize(stored.codes.rows(), stored.codes.cols());
    for (Eigen::Index i = 0; i < values.size(); ++i)
      values.data()[i] = format::decode(*stored.format, stored.codes.data()[i]);
  }
  const auto bad = first_nonfinite(values);
  if (!bad) return std::nullopt;
  return NanOrigin{fmt::format("operand {}", name), first + bad->row, bad->column, "overflow",
                   fmt::format("{}[token {}, channel {}] is {} once it is stored{}", name, first + bad->row,
                               bad->column, kind_of(values(bad->row, bad->column)),
                               stored.format != nullptr ? fmt::format(" as {}", stored.format->name) : "")};
}

/// The first bad element of what `recipe` gives.
std::optional<Place> bad_output(const Problem& problem, const Recipe& recipe, const format::Format& input_format) {
  return first_nonfinite(attention::run_recipe(problem, recipe, input_format).o);
}

// ---- Products that overflow ----

/// Steps through one row of a product and says where the sum stops being finite.
std::string overflow_text(const attention::Accumulator& accumulator, const attention::Side& left,
                          const attention::Side& right, attention::PartialSum& sum, std::int64_t count,
                          Eigen::Index column, std::string_view what, std::int64_t offset) {
  const std::int64_t step = accumulator.step() > 0 ? accumulator.step() : count;
  MatrixF before = MatrixF::Zero(1, column + 1), now;
  for (std::int64_t start = 0; start < count; start += step) {
    const std::int64_t end = std::min(count, start + step);
    sum.read(before);
    sum.add(left, right, start, end);
    sum.read(now);
    if (std::isfinite(now(0, column))) continue;
    return fmt::format("the partial sum is {:.6g} before {} {} to {} and {} after them", before(0, column), what,
                       offset + start, offset + end - 1, std::isnan(now(0, column)) ? "NaN" : "Inf");
  }
  return "";
}

std::string qk_overflow(const HeadProblem& part, const Recipe& recipe, const attention::Operands& operands,
                        Eigen::Index query) {
  const Problem& problem = part.problem;
  if (!operands.q.coded() || !operands.k.coded()) return "";
  const attention::Accumulator accumulator = attention::resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k);
  const MatrixCodes q = operands.q.codes.middleRows(query, 1);
  const attention::Side left = attention::left_side(accumulator, *operands.q.format, q);
  for (Eigen::Index key = 0; key < problem.visible_keys(query); ++key) {
    const MatrixCodes k = operands.k.codes.middleRows(key, 1).transpose();
    attention::PartialSum sum(accumulator, 1, 1);
    const std::string text = overflow_text(accumulator, left, attention::right_side(accumulator, *operands.k.format, k),
                                           sum, problem.q.cols(), 0, "channels", 0);
    if (!text.empty()) return fmt::format("key {}: {}", part.first_key + key, text);
  }
  return "";
}

/// P of one row against one tile, as the recipe stores it: weights relative to the running maximum.
MatrixCodes p_codes(const Recipe& recipe, const MatrixD& scores, std::int64_t first, std::int64_t count, double max) {
  MatrixF p(1, count);
  const double p_scale = attention::resolved_p_scale(recipe);
  for (std::int64_t j = 0; j < count; ++j) {
    p(0, j) = static_cast<float>(p_scale * elementary::exp2((scores(0, first + j) - max) * elementary::kLog2E));
  }
  if (!recipe.p.scaled()) return attention::cast_codes(p, *recipe.p.format);
  MatrixCodes codes(1, count);
  format::encode_span(*recipe.p.format, {p.data(), static_cast<std::size_t>(count)}, format::Policy{},
                      {codes.data(), static_cast<std::size_t>(count)});
  return codes;
}

std::string pv_overflow(const HeadProblem& part, const Recipe& recipe, const attention::Operands& operands, Place bad) {
  const Problem& problem = part.problem;
  if (!operands.v.coded() || recipe.p.exact() || recipe.p.micro_scaled()) return "";
  const attention::Accumulator accumulator = attention::resolve_accumulator(recipe.accumulator, recipe.p, recipe.v);
  const MatrixD scores = scores_of(problem, {bad.row});
  attention::PartialSum sum(accumulator, 1, problem.v.cols());
  double max = -std::numeric_limits<double>::infinity();
  const std::int64_t visible = problem.visible_keys(bad.row);
  for (std::int64_t first = 0; first < visible; first += recipe.k_block) {
    const std::int64_t count = std::min<std::int64_t>(recipe.k_block, visible - first);
    const double now = std::max(max, scores.row(0).segment(first, count).maxCoeff());
    if (recipe.promotion == 0 && first > 0) {
      sum.rescale_row(0, elementary::exp2((max - now) * elementary::kLog2E));
    } else {
      sum.clear();
    }
    max = now;
    const MatrixCodes v = operands.v.codes.middleRows(first, count);
    const std::string text = overflow_text(
        accumulator, attention::left_side(accumulator, *recipe.p.format, p_codes(recipe, scores, first, count, max)),
        attention::right_side(accumulator, *operands.v.format, v), sum, count, bad.column, "keys",
        part.first_key + first);
    if (!text.empty()) return text;
  }
  return "";
}

/// `bad` is the call's row.
NanOrigin product_origin(std::string_view stage, std::string_view accumulator, Place bad, const std::string& where) {
  const bool narrow = accumulator.size() > 4 && accumulator.substr(accumulator.size() - 4) == ".f16";
  return {std::string(stage), bad.row, stage == "P V" ? std::optional<std::int64_t>(bad.column) : std::nullopt,
          narrow ? "FP16 overflow" : "overflow",
          fmt::format("the accumulator {} of {} overflows in row {}{}{}{}", accumulator, stage, bad.row,
                      stage == "P V" ? fmt::format(", channel {}", bad.column) : "", where.empty() ? "" : ": ", where)};
}

/// Scores that the softmax's type cannot hold: their maximum is Inf, and Inf - Inf is NaN.
std::optional<NanOrigin> in_scores(const HeadProblem& part, const Recipe& recipe, Place bad) {
  const Problem& problem = part.problem;
  if (recipe.softmax != attention::Softmax::f32) return std::nullopt;
  const MatrixD scores = scores_of(problem, {bad.row});
  for (Eigen::Index j = 0; j < problem.visible_keys(bad.row); ++j) {
    const double raw = scores(0, j) / problem.sm_scale;
    if (std::fabs(raw) <= static_cast<double>(std::numeric_limits<float>::max())) continue;
    return NanOrigin{
        "scores", part.first_row + bad.row, std::nullopt, "Inf - Inf",
        fmt::format("the score of row {} and key {} is {:.4g}, beyond FP32; the row maximum is Inf, and Inf - "
                    "Inf is NaN",
                    part.first_row + bad.row, part.first_key + j, raw)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<NanOrigin> nan_origin(const HeadProblem& part, const Recipe& recipe, const format::Format& input_format) {
  const FpEnvironment environment;
  const Problem& problem = part.problem;
  if (auto origin = in_inputs(part)) return origin;
  const std::optional<Place> bad = bad_output(problem, recipe, input_format);
  if (!bad) return std::nullopt;
  const Place of_call{part.first_row + bad->row, bad->column};
  const attention::Operands operands = attention::prepare_operands(problem, recipe);
  if (auto origin = in_operand("Q", operands.q, part.first_row)) return origin;
  if (auto origin = in_operand("K", operands.k, part.first_key)) return origin;
  if (auto origin = in_operand("V", operands.v, part.first_key)) return origin;
  Recipe exact_qk = recipe;
  exact_qk.qk_accumulator = "exact";
  const std::optional<Place> without_qk = bad_output(problem, exact_qk, input_format);
  if (!without_qk) {
    return product_origin("Q K^T", recipe.qk_accumulator, of_call, qk_overflow(part, recipe, operands, bad->row));
  }
  if (auto origin = in_scores(part, recipe, *without_qk)) return origin;
  Recipe exact_pv = exact_qk;
  exact_pv.accumulator = "exact";
  const std::optional<Place> without_pv = bad_output(problem, exact_pv, input_format);
  if (!without_pv) {
    return product_origin("P V", recipe.accumulator, of_call, pv_overflow(part, recipe, operands, *bad));
  }
  Recipe wide = exact_pv;
  wide.o_format = &format::kFP32;
  if (!bad_output(problem, wide, input_format)) {
    const format::Format& f = recipe.o_format == nullptr ? input_format : *recipe.o_format;
    return NanOrigin{"output", of_call.row, of_call.column, "overflow",
                     fmt::format("o[row {}, channel {}] is beyond {}, the largest number of {}", of_call.row,
                                 of_call.column, format::max_finite(f), f.name)};
  }
  return NanOrigin{"softmax", of_call.row, of_call.column, "unknown",
                   fmt::format("the softmax of row {} is not finite", of_call.row)};
}

namespace {

/// The pattern of a kernel's bad elements, where the recipe is finite.
struct Pattern {
  std::vector<std::int64_t> rows, channels;  ///< that hold a bad element, ascending
};

Pattern pattern_of(const MatrixD& o) {
  Pattern pattern;
  for (Eigen::Index r = 0; r < o.rows(); ++r) {
    if (!o.row(r).allFinite()) pattern.rows.push_back(r);
  }
  for (Eigen::Index c = 0; c < o.cols(); ++c) {
    if (!o.col(c).allFinite()) pattern.channels.push_back(c);
  }
  return pattern;
}

/// Recipes that differ in one thing that is known to make NaN or Inf; the first whose bad elements are the kernel's.
std::string matching_change(const CheckedHead& head, const Recipe& recipe, const format::Format& input_format,
                            const Pattern& pattern, std::string& name) {
  const std::pair<const char*, const char*> changes[] = {{"zero_scale", "propagate"}, {"accumulator", "sm80.mma.f16"}};
  for (const auto& [key, value] : changes) {
    Recipe changed = recipe;
    try {
      attention::set(changed, key, value);
      attention::validate(changed);
    } catch (const Error&) {
      continue;
    }
    for (const HeadProblem& part : head.parts) {
      const std::optional<NanOrigin> origin = nan_origin(part, changed, input_format);
      if (!origin) continue;
      const MatrixD o = attention::run_recipe(part.problem, changed, input_format).o;
      const Pattern other = pattern_of(o.leftCols(head.channels()));
      if (head.parts.size() == 1 && other.channels != pattern.channels) continue;
      name = origin->cause;
      return fmt::format("with {} = {} the recipe gives the same: {}", key, value, origin->detail);
    }
  }
  return "";
}

bool sees_no_key(const CheckedHead& head, std::int64_t row) {
  return head.lse.reference[static_cast<std::size_t>(row)] == -std::numeric_limits<double>::infinity();
}

}  // namespace

std::string explain_nonfinite(const CheckedHead& head, const Recipe& recipe, const format::Format& input_format,
                              std::string& name) {
  for (const HeadProblem& part : head.parts) {
    if (const std::optional<NanOrigin> origin = nan_origin(part, recipe, input_format)) {
      name = origin->cause;
      return fmt::format("{} itself makes it in stage {}: {}", recipe.name, origin->stage, origin->detail);
    }
  }
  const Pattern pattern = pattern_of(head.o);
  if (pattern.rows.empty()) return "";
  const std::string where =
      fmt::format("{} and {}", describe_indices("row", pattern.rows), describe_indices("channel", pattern.channels));
  const std::string finite =
      fmt::format("{} is finite on these inputs, so its arithmetic is not the cause", recipe.name);
  if (std::all_of(pattern.rows.begin(), pattern.rows.end(), [&](std::int64_t row) { return sees_no_key(head, row); })) {
    name = "masked row";
    return fmt::format("{}; {} see no key: their row sum is 0, and 0 / 0 is NaN", finite,
                       describe_indices("row", pattern.rows));
  }
  const std::string change = matching_change(head, recipe, input_format, pattern, name);
  return fmt::format("{}; it stands in {}{}{}", finite, where, change.empty() ? "" : "; ", change);
}

}  // namespace qattn::lab
