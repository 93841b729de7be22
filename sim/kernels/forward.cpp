#include "kernels/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/elementary.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "kernels/codes.h"
#include "kernels/lanes.h"
#include "kernels/numbers.h"
#include "scalar/constants.h"
#include "scalar/mufu.h"
#include "scalar/ptx.h"
#include "scalar/span.h"

namespace qattn::kernels {
namespace {

using Eigen::Index;
using scalar::constants::kLn2;
using scalar::constants::kLog2E;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Index kLanes = 4;
constexpr Index kWarpColumns = 32;
/// Key/value heads whose decoded operands are held at a time.
constexpr std::int64_t kHeadsAtOnce = 8;

std::span<float> all(MatrixF& matrix) { return {matrix.data(), static_cast<std::size_t>(matrix.size())}; }
std::span<std::uint32_t> all(MatrixCodes& matrix) { return {matrix.data(), static_cast<std::size_t>(matrix.size())}; }

void power_of_two(PowerOfTwo power, std::span<float> x) {
  if (power == PowerOfTwo::mufu) return scalar::ex2_approx_ftz(x, x);
  if (power == PowerOfTwo::rounded) return elementary::exp2_float(x, x);
  std::vector<std::uint32_t> bits(x.size());
  to_bits(x, bits);
  scalar::apply(scalar::SimdFunction::ex2_approx, bits, bits);
  from_bits(bits, x);
}

/// One key/value head, decoded once for all query heads that use it.
struct Head {
  std::vector<mma::Operand> keys;      ///< one a tile, [keys, D]
  std::optional<mma::Operand> values;  ///< [D, Nk]
  MatrixCodes k, v;                    ///< the same as codes, v transposed too; for rules
  float s = 1;                         ///< from scores to powers of two
  float score_factor = 1;
  float lse_scale = 1;
  float v_descale = 1;
};

float descale(const std::vector<float>& descales, std::int64_t index) {
  return descales.empty() ? 1.0f : descales[static_cast<std::size_t>(index)];
}

Head prepare_head(const Forward& kernel, const Call& call, std::int64_t batch, std::int64_t kv_head) {
  Head head;
  head.k = head_codes(call.k, batch, kv_head);
  for (Index first = 0; first < head.k.rows(); first += kernel.key_tile) {
    const Index rows = std::min<Index>(kernel.key_tile, head.k.rows() - first);
    head.keys.emplace_back(*kernel.qk, mma::Side::b, head.k.middleRows(first, rows));
  }
  head.v = head_codes(call.v, batch, kv_head).transpose();
  head.values.emplace(*kernel.pv, mma::Side::b, head.v);
  if (!kernel.qk_rule) head.k.resize(0, 0);
  if (!kernel.pv_rule) head.v.resize(0, 0);

  const std::int64_t index = batch * call.kv_heads() + kv_head;
  const float qd = descale(call.q_descale, index), kd = descale(call.k_descale, index);
  head.score_factor = kernel.score_factor;
  switch (kernel.score_descale) {
    case ScoreDescale::together:
      head.s = kernel.c * (qd * kd);
      break;
    case ScoreDescale::one_by_one:
      head.s = kernel.c * qd * kd;
      break;
    case ScoreDescale::of_the_score:
      head.score_factor = qd * kd;
      head.s = kernel.c;
      break;
  }
  head.lse_scale = kernel.scale * (qd * kd);
  head.v_descale = descale(call.v_descale, index);
  return head;
}

/// Which keys a row sees: [0, visible(row)).
struct Mask {
  bool is_causal;
  std::int64_t diagonal;  ///< row i sees key i + diagonal and those before
  std::int64_t keys;

  Mask(const Forward& kernel, const Call& call)
      : is_causal(kernel.is_causal),
        diagonal(kernel.causal_align == attention::CausalAlign::bottom_right ? call.kv_tokens() - call.q_tokens() : 0),
        keys(call.kv_tokens()) {}

  std::int64_t visible(std::int64_t row) const {
    return is_causal ? std::clamp<std::int64_t>(row + 1 + diagonal, 0, keys) : keys;
  }
};

/// The stages of one row, if it is the row that is traced.
class Tracer {
 public:
  Tracer(RowTrace* trace, Index row) : trace_(trace), row_(row) {}

  bool on() const { return trace_ != nullptr; }
  Index row() const { return row_; }
  /// Names of stages begin with the part of a split call and the tile, where there are such.
  void part(Index part) { part_ = fmt::format("part {} ", part); }
  void tile(Index tile) { tile_ = fmt::format("tile {} ", tile); }
  void after_tiles() { tile_.clear(); }
  void add(std::string_view name, std::span<const float> values) {
    if (on()) trace_->stages.push_back({part_ + tile_ + std::string(name), {values.begin(), values.end()}});
  }
  void add(std::string_view name, float value) { add(name, std::span<const float>(&value, 1)); }

 private:
  RowTrace* trace_;
  Index row_;  ///< within its block
  std::string part_, tile_;
};

/// A block of query rows on its way over the key tiles.
class QueryBlock {
 public:
  QueryBlock(const Forward& kernel, const Head& head, const Mask& mask, const MatrixCodes& q, std::int64_t first_row,
             Tracer tracer)
      : kernel_(kernel),
        head_(head),
        mask_(mask),
        q_codes_(kernel.qk_rule ? q : MatrixCodes()),
        q_(*kernel.qk, mma::Side::a, q),
        first_row_(first_row),
        rows_(q.rows()),
        tracer_(std::move(tracer)),
        scores_(rows_, kernel.key_tile),
        codes_(rows_, kernel.key_tile),
        o_(MatrixF::Zero(rows_, head.values->rows())),
        chain_(MatrixCodes::Zero(rows_, o_.cols())),
        maximum_(static_cast<std::size_t>(rows_), -kInf),
        factor_(static_cast<std::size_t>(rows_), 0.0f),
        lanes_(static_cast<std::size_t>(rows_ * kLanes), 0.0f) {}

  void run(Index first_tile, Index last_tile);
  /// o and lse of the rows.
  std::pair<MatrixF, std::vector<float>> finish();

 private:
  void score(Index tile);
  void exponents();
  void exponents(float* row, float& maximum, float& factor) const;
  void sum_rows();
  void sum_row(const float* p, float factor, float* lanes) const;
  void round_p();
  void multiply_pv(Index tile);
  void accumulate(Index tile, bool last);
  void rescale_o();
  float total(Index row) const;
  float log_sum_exp(Index row, float l) const;
  void scale_output(Index row, float l);

  const Forward& kernel_;
  const Head& head_;
  const Mask& mask_;
  MatrixCodes q_codes_;  ///< for a rule
  mma::Operand q_;
  std::int64_t first_row_;
  Index rows_;
  Tracer tracer_;
  MatrixF scores_;     ///< S of the tile, then x, then P
  MatrixCodes codes_;  ///< S's bits, then P in the operand's type
  MatrixF o_;
  MatrixCodes chain_;  ///< P V^T of the last tile, bits
  std::vector<float> maximum_, factor_, lanes_;
};

/// Tiles [first_tile, last_tile) in the kernel's order.
void QueryBlock::run(Index first_tile, Index last_tile) {
  for (Index i = first_tile; i < last_tile; ++i) {
    const Index tile = kernel_.keys_descending ? last_tile - 1 - (i - first_tile) : i;
    score(tile);
    if (tracer_.on()) {
      tracer_.tile(tile);
      tracer_.add("scores", {scores_.row(tracer_.row()).data(), static_cast<std::size_t>(scores_.cols())});
    }
    exponents();
    if (!kernel_.row_sum.of_rounded_p) sum_rows();
    round_p();
    if (kernel_.row_sum.of_rounded_p) sum_rows();
    accumulate(tile, i + 1 == last_tile);
  }
  tracer_.after_tiles();
}

void QueryBlock::score(Index tile) {
  const std::int64_t first_key = tile * kernel_.key_tile;
  const mma::Operand& keys = head_.keys[static_cast<std::size_t>(tile)];
  codes_.setZero();
  if (kernel_.qk_rule) {
    MatrixCodes s = MatrixCodes::Zero(rows_, keys.rows());
    kernel_.qk_rule(*kernel_.qk, q_codes_, head_.k.middleRows(first_key, keys.rows()), s);
    codes_.leftCols(keys.rows()) = s;
  } else {
    mma::multiply_accumulate(*kernel_.qk, q_, keys, codes_.leftCols(keys.rows()), kernel_.path);
  }
  from_bits(all(codes_), all(scores_));
  if (head_.score_factor != 1) {
    for (float& score : all(scores_)) score *= head_.score_factor;
  }
  for (Index i = 0; i < rows_; ++i) {
    float* row = scores_.row(i).data();
    const auto seen = std::clamp<Index>(mask_.visible(first_row_ + i) - first_key, 0, keys.rows());
    std::fill(row + seen, row + kernel_.key_tile, -kInf);
    if (!kernel_.missing_keys_masked) std::fill(row + keys.rows(), row + kernel_.key_tile, 0.0f);
  }
}

void QueryBlock::exponents() {
  for (Index i = 0; i < rows_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    exponents(scores_.row(i).data(), maximum_[at], factor_[at]);
  }
  power_of_two(kernel_.power, factor_);
  power_of_two(kernel_.power, all(scores_));
  if (!tracer_.on()) return;
  const auto at = static_cast<std::size_t>(tracer_.row());
  tracer_.add("row maximum", maximum_[at]);
  tracer_.add("rescaling factor", factor_[at]);
  tracer_.add("P", {scores_.row(tracer_.row()).data(), static_cast<std::size_t>(scores_.cols())});
}

/// From scores to what P and the rescaling factor are the powers of two of; the maximum moves on.
void QueryBlock::exponents(float* row, float& maximum, float& factor) const {
  constexpr Index kAtOnce = 8;
  const Index columns = kernel_.key_tile;
  const float s = head_.s;
  float best[kAtOnce];
  std::fill_n(best, kAtOnce, maximum);
  for (Index j = 0; j < columns; j += kAtOnce) {
    for (Index t = 0; t < kAtOnce; ++t) best[t] = row[j + t] > best[t] ? row[j + t] : best[t];
  }
  const float old = maximum;
  maximum = *std::max_element(best, best + kAtOnce);
  if (kernel_.rescale_threshold > 0 && (maximum - old) * s <= kernel_.rescale_threshold) maximum = old;
  const float now = maximum == -kInf ? 0.0f : maximum;  // so that a row without keys gives no NaN
  const float product = now * s;
  switch (kernel_.rescale) {
    case Rescale::difference_first:
      factor = (old - now) * s;
      break;
    case Rescale::products_first:
      factor = old * s - product;
      break;
    case Rescale::fused:
      factor = std::fma(old, s, -product);
      break;
  }
  const float scaled = kernel_.offset_fused ? std::fma(now, s, -kernel_.offset) : product - kernel_.offset;
  switch (kernel_.exponent) {
    case Exponent::fused:
      for (Index j = 0; j < columns; ++j) row[j] = std::fma(row[j], s, -scaled);
      break;
    case Exponent::two_roundings:
      for (Index j = 0; j < columns; ++j) row[j] = row[j] * s - scaled;
      break;
    case Exponent::difference_first:
      for (Index j = 0; j < columns; ++j) row[j] = std::fma(row[j] - now, s, kernel_.offset);
      break;
  }
}

void QueryBlock::sum_rows() {
  for (Index i = 0; i < rows_; ++i) {
    sum_row(scores_.row(i).data(), factor_[static_cast<std::size_t>(i)], &lanes_[static_cast<std::size_t>(i * kLanes)]);
  }
  if (tracer_.on()) {
    tracer_.add("row sum by lane", std::span(lanes_).subspan(static_cast<std::size_t>(tracer_.row() * kLanes), kLanes));
  }
}

/// Calls add(column) for the columns of lane `lane` among [first, last), in the order in which they are added.
template <class Add>
void for_lane(const RowSum& form, Index lane, Index first, Index last, const Add& add) {
  if (form.one_lane && lane != 0) return;
  const Index step = form.one_lane ? 2 : 2 * kLanes;
  const Index begin = first + (form.one_lane ? 0 : 2 * lane);
  if (form.descending && form.terms != SumTerms::warp_totals) {
    for (Index column = begin + (last - 1 - begin) / step * step; column >= begin; column -= step) {
      add(column + 1);
      add(column);
    }
    return;
  }
  for (Index column = begin; column < last; column += step) {
    add(column);
    add(column + 1);
  }
}

float exchanged(const RowSum& form, const float* lanes) {
  if (form.one_lane) return lanes[0];
  return form.distance_2_first ? (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
                               : (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

void QueryBlock::sum_row(const float* p, float factor, float* lanes) const {
  const RowSum& form = kernel_.row_sum;
  const Index columns = kernel_.key_tile;
  const auto first_term = [&](float l, float term) {
    return form.contracted ? std::fma(l, factor, term) : l * factor + term;
  };
  const auto lane_total = [&](Index lane, Index first, Index last) {
    float sum = 0;
    for_lane(form, lane, first, last, [&](Index column) { sum += p[column]; });
    return sum;
  };
  if (form.terms == SumTerms::warp_totals) {
    const Index warps = columns / kWarpColumns;
    float together = 0;
    for (Index i = 0; i < warps; ++i) {
      const Index first = (form.descending ? warps - 1 - i : i) * kWarpColumns;
      float of_warp[kLanes];
      for (Index t = 0; t < kLanes; ++t) of_warp[t] = lane_total(t, first, first + kWarpColumns);
      const float term = exchanged(form, of_warp);
      together = i == 0 ? term : together + term;
      if (!form.warps_added_first) lanes[0] = i == 0 ? first_term(lanes[0], term) : lanes[0] + term;
    }
    if (form.warps_added_first) lanes[0] = first_term(lanes[0], together);
    return;
  }
  for (Index t = 0; t < kLanes; ++t) {
    if (form.terms == SumTerms::tile_totals) {
      lanes[t] = first_term(lanes[t], lane_total(t, 0, columns));
      continue;
    }
    bool first = true;
    float l = lanes[t];
    for_lane(form, t, 0, columns, [&](Index column) {
      l = first ? first_term(l, p[column]) : l + p[column];
      first = false;
    });
    lanes[t] = l;
  }
}

void QueryBlock::round_p() {
  const format::Format& type = *kernel_.pv->a;
  const bool saturate = !format::has_inf(type);
  const bool nearest = kernel_.round_p != RoundP::toward_zero;
  const scalar::Cast cast = saturate ? (nearest ? scalar::Cast::rn_satfinite : scalar::Cast::rz_satfinite)
                                     : (nearest ? scalar::Cast::rn : scalar::Cast::rz);
  to_bits(all(scores_), all(codes_));
  scalar::apply(scalar::cast_spec(type, cast), all(codes_), all(codes_));
  if (kernel_.round_p == RoundP::nearest_flushed) {
    for (std::uint32_t& code : all(codes_)) code = code < format::min_normal_code(type) ? 0 : code;
  }
  if (kernel_.row_sum.of_rounded_p || tracer_.on()) {
    MatrixF rounded(rows_, codes_.cols());
    format::decode_span(type, all(codes_), all(rounded));
    if (tracer_.on()) {
      tracer_.add("P rounded", {rounded.row(tracer_.row()).data(), static_cast<std::size_t>(rounded.cols())});
    }
    if (kernel_.row_sum.of_rounded_p) scores_ = rounded;
  }
}

void QueryBlock::rescale_o() {
  for (Index i = 0; i < rows_; ++i) {
    const float factor = factor_[static_cast<std::size_t>(i)];
    float* row = o_.row(i).data();
    for (Index j = 0; j < o_.cols(); ++j) row[j] *= factor;
    if (kernel_.flush_products) std::transform(row, row + o_.cols(), row, flush_subnormal);
  }
}

/// chain_ += P V^T of the tile.
void QueryBlock::multiply_pv(Index tile) {
  const Index first_key = tile * kernel_.key_tile;
  const Index keys = head_.keys[static_cast<std::size_t>(tile)].rows();
  if (kernel_.pv_rule) {
    kernel_.pv_rule(*kernel_.pv, codes_.leftCols(keys), head_.v.middleCols(first_key, keys), chain_);
    return;
  }
  const mma::Operand p(*kernel_.pv, mma::Side::a, codes_.leftCols(keys));
  mma::multiply_accumulate(*kernel_.pv, p, head_.values->slice(first_key, first_key + keys), chain_, kernel_.path);
}

void QueryBlock::accumulate(Index tile, bool last) {
  if (kernel_.accumulate == Accumulate::chained) {
    rescale_o();
    to_bits(all(o_), all(chain_));
    multiply_pv(tile);
    from_bits(all(chain_), all(o_));
  } else {
    chain_.setZero();
    multiply_pv(tile);
    if (last && kernel_.last_tile != LastTile::like_others) return;  // scale_output() joins them
    for (Index i = 0; i < o_.size(); ++i) {
      const float factor = factor_[static_cast<std::size_t>(i / o_.cols())];
      const float chain = std::bit_cast<float>(chain_.data()[i]);
      float& o = o_.data()[i];
      o = kernel_.accumulate == Accumulate::fused ? std::fma(o, factor, chain) : o * factor + chain;
    }
  }
  if (tracer_.on()) {
    tracer_.add("O so far", {o_.row(tracer_.row()).data(), static_cast<std::size_t>(o_.cols())});
  }
}

float QueryBlock::total(Index row) const {
  const float* lanes = &lanes_[static_cast<std::size_t>(row * kLanes)];
  return kernel_.row_sum.terms == SumTerms::warp_totals ? lanes[0] : exchanged(kernel_.row_sum, lanes);
}

float QueryBlock::log_sum_exp(Index row, float l) const {
  const float m = maximum_[static_cast<std::size_t>(row)], s = head_.s;
  float maximum = m, factor = head_.lse_scale;
  switch (kernel_.lse_maximum) {
    case LseMaximum::times_scale:
      break;
    case LseMaximum::times_scaled_ln2:
      factor = s * kLn2;
      break;
    case LseMaximum::rounded_times_ln2:
      maximum = m * s;
      factor = kLn2;
      break;
    case LseMaximum::over_log2e:
      maximum = m * s / kLog2E;
      factor = 1;
      break;
    case LseMaximum::times_inverse_log2e:
      maximum = m * s;
      factor = 1 / kLog2E;
      break;
  }
  const float sum = l * elementary::exp2_float(-kernel_.offset);
  float log2 = 0, log = 0;
  switch (kernel_.log) {
    case Log::mufu:
      log2 = scalar::mufu_lg2(sum);
      log = log2 * kLn2;
      break;
    case Log::approx:
      log2 = on_code(scalar::lg2_approx, sum);
      log = log2 * kLn2;
      break;
    case Log::rounded:
      log2 = static_cast<float>(elementary::log2(static_cast<double>(sum)));
      log = log2 * kLn2;
      break;
    case Log::logf:
      log = on_code(scalar::cuda::logf, sum);
      break;
    case Log::logf_rounded:
      log = static_cast<float>(elementary::log(static_cast<double>(sum)));
      break;
  }
  switch (kernel_.lse_join) {
    case LseJoin::fused_maximum:
      return std::fma(maximum, factor, log);
    case LseJoin::rounded:
      return maximum * factor + log;
    case LseJoin::fused_log:
      return std::fma(log2, kLn2, maximum * factor);
  }
  throw Error(ErrorKind::internal, "kernels: unknown form of lse");
}

/// O of the row becomes the output, still f32.
void QueryBlock::scale_output(Index row, float l) {
  float* o = o_.row(row).data();
  const float vd = head_.v_descale;
  float r = kernel_.reciprocal == Reciprocal::mufu ? scalar::mufu_rcp(l) : 1.0f / l;
  const bool empty = kernel_.empty.guarded && !(std::fabs(l) > 0);
  if (empty) r = kernel_.empty.reciprocal;
  const float a = factor_[static_cast<std::size_t>(row)];
  for (Index j = 0; j < o_.cols(); ++j) {
    const float chain = std::bit_cast<float>(chain_(row, j));
    switch (kernel_.last_tile) {
      case LastTile::like_others:
        break;
      case LastTile::scaled:
        o[j] = std::fma(r, chain, r * a * o[j]);
        continue;
      case LastTile::scaled_o_fused:
        o[j] = std::fma(r * a, o[j], r * chain);
        continue;
      case LastTile::scaled_rounded:
        o[j] = r * chain + r * a * o[j];
        continue;
      case LastTile::scaled_regrouped:
        o[j] = std::fma(r, chain, r * (a * o[j]));
        continue;
    }
    if (kernel_.reciprocal == Reciprocal::division && !empty) {
      o[j] = o[j] / l * vd;
    } else if (kernel_.output_descale == OutputDescale::of_the_reciprocal) {
      o[j] *= r * vd;
    } else if (kernel_.output_descale == OutputDescale::of_the_output) {
      o[j] = o[j] * r * vd;
    } else {
      o[j] *= empty ? r * vd : vd / l;
    }
  }
  if (kernel_.flush_products) std::transform(o, o + o_.cols(), o, flush_subnormal);
}

std::pair<MatrixF, std::vector<float>> QueryBlock::finish() {
  std::vector<float> lse(static_cast<std::size_t>(rows_));
  for (Index i = 0; i < rows_; ++i) {
    const float l = total(i);
    const bool empty = kernel_.empty.guarded && !(std::fabs(l) > 0);
    lse[static_cast<std::size_t>(i)] = empty ? kernel_.empty.lse : log_sum_exp(i, l);
    scale_output(i, l);
    if (tracer_.on() && i == tracer_.row()) {
      tracer_.add("row sum", l);
      tracer_.add("O scaled", {o_.row(i).data(), static_cast<std::size_t>(o_.cols())});
      tracer_.add("lse", lse[static_cast<std::size_t>(i)]);
    }
  }
  return {std::move(o_), std::move(lse)};
}

/// What the parts of a split call returned, as the combining kernel joins them.
class Combiner {
 public:
  explicit Combiner(const Split& split) : split_(split) {}

  void add(std::pair<MatrixF, std::vector<float>> part) { parts_.push_back(std::move(part)); }
  std::pair<MatrixF, std::vector<float>> combine() const;

 private:
  float exp(float x) const {
    if (split_.rounded_exp) return static_cast<float>(elementary::exp(static_cast<double>(x)));
    return on_code(scalar::cuda::expf, x);
  }
  float log(float x) const {
    if (split_.rounded_log) return static_cast<float>(elementary::log(static_cast<double>(x)));
    return on_code(scalar::cuda::logf, x);
  }
  float log_sum_exp(std::size_t row) const;

  const Split& split_;
  std::vector<std::pair<MatrixF, std::vector<float>>> parts_;
};

/// The parts, filled up to a power of two with -Inf, lie in a thread group's lanes; each lane adds its own in order,
/// then lanes exchange at half the distance each time. +Inf when no part saw a key.
float Combiner::log_sum_exp(std::size_t row) const {
  const std::size_t padded = std::max<std::size_t>(2, std::bit_ceil(parts_.size()));
  const std::size_t lanes = std::min(static_cast<std::size_t>(split_.lse_rows), padded);
  float maximum = -kInf;
  for (const auto& part : parts_) maximum = std::max(maximum, part.second[row]);
  if (maximum == -kInf) maximum = 0;
  std::vector<float> sums(lanes, 0.0f);
  for (std::size_t i = 0; i < padded; ++i) {
    const float lse = i < parts_.size() ? parts_[i].second[row] : -kInf;
    sums[i % lanes] += exp(lse - maximum);
  }
  const float sum = butterfly(sums);
  return std::fabs(sum) > 0 ? log(sum) + maximum : kInf;
}

std::pair<MatrixF, std::vector<float>> Combiner::combine() const {
  MatrixF o = MatrixF::Zero(parts_[0].first.rows(), parts_[0].first.cols());
  std::vector<float> lse(static_cast<std::size_t>(o.rows()));
  for (Index i = 0; i < o.rows(); ++i) {
    const auto row = static_cast<std::size_t>(i);
    lse[row] = log_sum_exp(row);
    for (const auto& [part, part_lse] : parts_) {
      const float weight = exp(part_lse[row] - lse[row]);
      for (Index j = 0; j < o.cols(); ++j) {
        o(i, j) = split_.fused ? std::fma(weight, part(i, j), o(i, j)) : weight * part(i, j) + o(i, j);
      }
    }
  }
  return {std::move(o), std::move(lse)};
}

/// One call in the making.
class Run {
 public:
  Run(const Forward& kernel, const Call& call)
      : kernel_(kernel),
        call_(call),
        mask_(kernel, call),
        group_(call.q_heads() / call.kv_heads()),
        blocks_((call.q_tokens() + kernel.query_tile - 1) / kernel.query_tile),
        o_(make_tensor(*kernel.output, call.q.shape)),
        lse_(make_tensor(format::kFP32, {call.batch(), call.q_heads(), call.q_tokens()})) {}

  Returned all();

 private:
  void block(const Head& head, std::int64_t batch, std::int64_t q_head, std::int64_t index);
  std::pair<MatrixF, std::vector<float>> rows(const Head& head, const MatrixCodes& q, std::int64_t index,
                                              Tracer tracer) const;

  const Forward& kernel_;
  const Call& call_;
  Mask mask_;
  std::int64_t group_, blocks_;
  Tensor o_, lse_;
};

Returned Run::all() {
  if (call_.trace != nullptr) call_.trace->stages.clear();
  const std::int64_t heads = call_.batch() * call_.kv_heads();
  for (std::int64_t first = 0; first < heads; first += kHeadsAtOnce) {
    const std::int64_t count = std::min(kHeadsAtOnce, heads - first);
    std::vector<Head> prepared(static_cast<std::size_t>(count));
    parallel_for(count, call_.threads, [&](std::int64_t i) {
      const std::int64_t head = first + i;
      prepared[static_cast<std::size_t>(i)] =
          prepare_head(kernel_, call_, head / call_.kv_heads(), head % call_.kv_heads());
    });
    parallel_for(count * group_ * blocks_, call_.threads, [&](std::int64_t i) {
      const std::int64_t at = i / (group_ * blocks_), head = first + at;
      const std::int64_t q_head = head % call_.kv_heads() * group_ + i / blocks_ % group_;
      block(prepared[static_cast<std::size_t>(at)], head / call_.kv_heads(), q_head, i % blocks_);
    });
  }
  Returned returned;
  returned.tensors.emplace("o", std::move(o_));
  returned.tensors.emplace("lse", std::move(lse_));
  return returned;
}

/// One thread block's rows, or with a split those of all thread blocks that share them.
std::pair<MatrixF, std::vector<float>> Run::rows(const Head& head, const MatrixCodes& q, std::int64_t index,
                                                 Tracer tracer) const {
  const std::int64_t first_row = index * kernel_.query_tile;
  const auto tiles = static_cast<Index>(head.keys.size());
  const Index seen = (mask_.visible(first_row + kernel_.query_tile - 1) + kernel_.key_tile - 1) / kernel_.key_tile;
  if (kernel_.split.parts == 1) {
    QueryBlock block(kernel_, head, mask_, q, first_row, tracer);
    block.run(0, seen);
    return block.finish();
  }
  Combiner combiner(kernel_.split);
  const Index each = (tiles + kernel_.split.parts - 1) / kernel_.split.parts;
  for (Index part = 0; part < kernel_.split.parts; ++part) {
    const Index first = part * each;
    tracer.part(part);
    QueryBlock block(kernel_, head, mask_, q, first_row, tracer);
    block.run(first, std::max(first, std::min(first + each, seen)));
    combiner.add(block.finish());
  }
  return combiner.combine();
}

void Run::block(const Head& head, std::int64_t batch, std::int64_t q_head, std::int64_t index) {
  const std::int64_t first_row = index * kernel_.query_tile;
  const std::int64_t count = std::min<std::int64_t>(kernel_.query_tile, call_.q_tokens() - first_row);
  RowTrace* trace = call_.trace;
  const bool traced = trace != nullptr && trace->batch == batch && trace->head == q_head && trace->row >= first_row &&
                      trace->row < first_row + count;
  const MatrixCodes q = head_codes(call_.q, batch, q_head, first_row, count);
  auto [o, lse] = rows(head, q, index, Tracer(traced ? trace : nullptr, traced ? trace->row - first_row : 0));
  MatrixCodes codes(o.rows(), o.cols());
  to_bits({o.data(), static_cast<std::size_t>(o.size())}, kernels::all(codes));
  scalar::apply(scalar::cast_spec(*kernel_.output, scalar::Cast::rn), kernels::all(codes), kernels::all(codes));
  const std::int64_t row = (batch * call_.q_heads() + q_head) * call_.q_tokens() + first_row;
  store_codes(o_, row * call_.head_dim(), kernels::all(codes));
  std::vector<std::uint32_t> bits(lse.size());
  to_bits(lse, bits);
  for (std::uint32_t& code : bits) code = scalar::is_nan(code) ? scalar::kNaN : code;  // the GPU knows one NaN only
  store_codes(lse_, row, bits);
}

}  // namespace

Returned run_forward(const Forward& kernel, const Call& call) {
  const FpEnvironment environment;
  return Run(kernel, call).all();
}

void check_call(const Call& call, std::string_view kernel, std::span<const format::Format* const> formats,
                std::int64_t largest_head_dim) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", kernel, what));
  };
  for (const Tensor* tensor : {&call.q, &call.k, &call.v}) {
    if (tensor->shape.size() != 4 || tensor->elements() == 0) fail("q, k and v must be [B, H, N, D], not empty");
    if (tensor->format != call.q.format) fail("q, k and v must have one format");
  }
  if (std::ranges::find(formats, call.q.format) == formats.end()) {
    fail(fmt::format("takes no {} operands", call.q.format->name));
  }
  if (call.v.shape != call.k.shape) fail("k and v must have one shape");
  if (call.k.shape[0] != call.batch() || call.k.shape[3] != call.head_dim() || call.q_heads() % call.kv_heads() != 0) {
    fail("q must have k's batch and head_dim, and a multiple of its heads");
  }
  if (call.d_o && (call.d_o->shape != call.q.shape || call.d_o->format != call.q.format)) {
    fail("do must have q's shape and format");
  }
  if (call.head_dim() > largest_head_dim) {
    fail(fmt::format("head_dim is {}; at most {}", call.head_dim(), largest_head_dim));
  }
  for (const std::vector<float>* descales : {&call.q_descale, &call.k_descale, &call.v_descale}) {
    if (!descales->empty() && static_cast<std::int64_t>(descales->size()) != call.batch() * call.kv_heads()) {
      fail("descales must be [B, Hkv]");
    }
  }
}

const mma::Instruction& instruction_of(const Call& call, std::string_view family, const format::Format& type, int k) {
  std::string name = call.arch + "." + std::string(family);
  if (family == "wgmma" && call.arch != "sm90") name = call.arch + (call.arch == "sm100" ? ".tcgen05" : ".mma");
  if (const mma::Instruction* found = mma::find(name, "f32", type, type, k)) return *found;
  throw Error(ErrorKind::usage, fmt::format("{} has no instruction of K = {} for {} operands", name, k, type.name));
}

void state_evidence(Returned& returned, const Forward& kernel, const Call& call, std::string reason) {
  if (reason.empty() && call.arch != "sm90") {
    reason = fmt::format("not recorded on {}; this is the H200's kernel with {}, {}", call.arch, kernel.qk->name,
                         mma::evidence_text(*kernel.qk));
  }
  for (const mma::Instruction* instruction : {kernel.qk, kernel.pv}) {
    if (reason.empty() && instruction->evidence != mma::Evidence::measured) reason = mma::evidence_text(*instruction);
  }
  returned.predicted = !reason.empty();
  returned.evidence = returned.predicted ? "predicted: " + reason : "measured here (H200)";
  const bool square = call.q_tokens() == call.kv_tokens();
  if (kernel.is_causal && !square && call.causal_align.value_or(kernel.causal_align) != kernel.causal_align) {
    const bool top_left = kernel.causal_align == attention::CausalAlign::top_left;
    returned.evidence += fmt::format("; the library's causal mask is {}, whatever causal_align says",
                                     top_left ? "top_left" : "bottom_right");
  }
}

}  // namespace qattn::kernels
