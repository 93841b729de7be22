#include "lab/relatives.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>

#include "attention/pipeline.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"

namespace qattn::lab {
namespace {

using attention::Recipe;
using Change = std::function<void(Recipe&)>;

/// The largest FP4 value times the largest E4M3 scale.
constexpr double kMicroPScale = 6 * 448;

void other_row_sum(Recipe& r) {
  r.row_sum = r.row_sum == attention::RowSum::rounded ? attention::RowSum::unrounded : attention::RowSum::rounded;
}

/// V's largest element is mapped to another code.
Change v_range(double share) {
  return [share](Recipe& r) {
    if (!r.v.scaled()) return;
    const double largest = format::decode(*r.v.format, format::max_finite_code(*r.v.format));
    r.v.range = static_cast<float>(share * (r.v.range > 0 ? static_cast<double>(r.v.range) : largest));
  };
}

/// A scale of P of few bits, so that the row's largest weight, 1, stays exact: `share` of a power of two that is not
/// above the recipe's.
Change p_scale(double share) {
  return [share](Recipe& r) {
    const double scale = attention::resolved_p_scale(r);
    if (scale != 1) {
      r.p_scale = share * std::ldexp(1.0, std::ilogb(scale));
    } else if (r.p.micro_scaled()) {
      r.p_scale = kMicroPScale;
    }
  };
}

void smoothed_v(Recipe& r) { r.smooth_v = !r.smooth_v; }

void descending(Recipe& r) {
  r.tile_order = r.tile_order == attention::TileOrder::ascending ? attention::TileOrder::descending
                                                                 : attention::TileOrder::ascending;
}

void other_tiles(Recipe& r) {
  const auto other = [](int length) { return length == 64 ? 128 : 64; };
  r.k_block = other(r.k_block);
  r.q_block = other(r.q_block);
  r.k_warp = std::min(r.k_warp, r.k_block);
  r.q_warp = std::min(r.q_warp, r.q_block);
}

void finer(Recipe& r) {
  if (r.smoothing == attention::Smoothing::none) r.smoothing = attention::Smoothing::k;
  for (attention::OperandSpec* operand : {&r.q, &r.k}) {
    if (!operand->scaled()) continue;
    if (operand->micro_scaled()) {
      operand->global_scale = !operand->global_scale;
    } else {
      operand->granularity = quant::Granularity::per_token;
    }
  }
}

void cut_sums(Recipe& r) {
  if (!r.v.scaled() || r.v.integer() || r.v.micro_scaled()) return;
  r.accumulator = "sm90.wgmma";
  r.promotion = 0;
}

}  // namespace

std::vector<Recipe> relatives(const Recipe& recipe) {
  const std::initializer_list<std::initializer_list<Change>> all = {
      {other_row_sum, v_range(0.8)}, {p_scale(1), descending}, {smoothed_v, p_scale(0.9375)},
      {other_tiles, v_range(0.55)},  {finer, v_range(0.7)},    {cut_sums},
  };
  std::vector<Recipe> found;
  for (const auto& changes : all) {
    Recipe changed = recipe;
    for (const Change& change : changes) {
      Recipe next = changed;
      change(next);
      try {
        attention::validate(next);
      } catch (const Error&) {
        continue;  // The change does not go with the recipe's other keys.
      }
      changed = std::move(next);
    }
    found.push_back(std::move(changed));
  }
  return found;
}

void add_related(const DumpSet& dumps, CheckedHead& head, const Recipe& recipe) {
  const FpEnvironment environment;
  const format::Format& input = *dumps.calls()[head.piece.call].call->q_format;
  head.related.clear();
  for (const Recipe& other : relatives(recipe)) {
    MatrixD o = MatrixD::Zero(head.o.rows(), head.o.cols());
    for (const HeadProblem& part : head.parts) {
      const attention::Output own = attention::run_recipe(part.problem, other, input);
      o.middleRows(part.first_row, part.problem.q.rows()) = own.o.leftCols(head.channels());
    }
    if (o.allFinite()) head.related.push_back(std::move(o));
  }
}

}  // namespace qattn::lab
