// Attention the plainest way: a quantizer that looks at every group's elements one by one, whole rows of softmax, and
// the same in tiles with a running maximum where a recipe's rounding depends on them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <vector>

#include "accumulator.h"
#include "dump.h"
#include "matrix.h"
#include "options.h"

namespace oracle {

/// Rounds to FP32 where a recipe computes in FP32. A double rounded once more is the FP32 result of + - * and /.
struct Rounder {
  bool f32;
  double operator()(double x) const { return f32 ? static_cast<double>(static_cast<float>(x)) : x; }
};

/// A matrix after quantization: element (r, c) stands for codes(r, c) * scales(r, c), the scale of a block times what
/// is left for after the sum.
struct Quantized {
  Matrix codes, scales, block_scales;
  bool in_blocks = false;
  int smallest_exponent = -1100;
  int smallest_scale_exponent = -1100;

  Factor row(int r) const { return line(r, 0, codes.columns, true); }
  /// Rows first .. last - 1 of column c.
  Factor column(int c, int first, int last) const { return line(c, first, last, false); }

 private:
  Factor line(int fixed, int first, int last, bool along_row) const {
    Factor factor{{}, smallest_exponent, {}, smallest_scale_exponent};
    for (int i = first; i < last; ++i) {
      const int r = along_row ? fixed : i, c = along_row ? i : fixed;
      factor.codes.push_back(codes(r, c));
      if (in_blocks) factor.block_scales.push_back(block_scales(r, c));
    }
    return factor;
  }
};

enum class Role { query, key, value, weight };

/// The name of the group that an element is in. Per thread: the rows of an m16n8 accumulator that one lane of a warp
/// holds (SageAttention2, section 3.2).
inline int group_of(const Options& o, Share share, Role role, int row, int column) {
  const bool is_query = role == Role::query;
  const int block = is_query ? o.q_block : o.k_block;
  const int warp = is_query ? o.q_warp : o.k_warp;
  switch (share) {
    case Share::tensor:
      return 0;
    case Share::block:
      return row / block;
    case Share::warp:
      return row / warp;
    case Share::thread:
      return is_query ? row / warp * 8 + row % 8 : row / warp * 4 + row % 8 / 2;
    case Share::token:
      return row;
    case Share::channel:
      return column;
    case Share::block16:
    case Share::block32: {
      const int length = share == Share::block16 ? 16 : 32;
      return role == Role::value ? row / length * 65536 + column : row * 65536 + column / length;
    }
  }
  return 0;
}

/// A scale as its own set holds it; `fraction` and `largest` of the elements' set.
inline double scale_of(const Operand& operand, double largest, const Rounder& round) {
  const double range = operand.range != 0 ? operand.range : operand.set->largest();
  switch (operand.scales) {
    case ScaleSet::f32:
      return round(largest / range);
    case ScaleSet::e4m3:
      return e4m3().nearest(round(largest / range));
    case ScaleSet::power_of_two:
      return largest == 0 ? 0 : std::ldexp(1.0, std::ilogb(largest) - std::ilogb(operand.set->largest()));
  }
  return 0;
}

inline Quantized quantize(const Options& o, const Matrix& x, const Operand& operand, Role role, bool half_away) {
  const Rounder round{o.f32};
  const Matrix ones(x.rows, x.columns, 1.0);
  Quantized result{x, ones, ones};
  if (operand.set == nullptr) return result;
  result.smallest_exponent = operand.set->smallest_exponent;
  result.in_blocks = operand.in_blocks();
  if (operand.scales == ScaleSet::e4m3) result.smallest_scale_exponent = e4m3().smallest_exponent;
  std::map<int, double> largest;
  for (int r = 0; r < x.rows; ++r)
    for (int c = 0; c < x.columns; ++c) {
      double& l = largest[group_of(o, operand.share, role, r, c)];
      l = std::max(l, std::fabs(x(r, c)));
    }
  for (int r = 0; r < x.rows; ++r)
    for (int c = 0; c < x.columns; ++c) {
      double divisor = 1;
      if (operand.set->scaled) {
        const double amount = largest[group_of(o, operand.share, role, r, c)];
        const double scale = scale_of(operand, amount, round);
        (operand.in_blocks() ? result.block_scales : result.scales)(r, c) = scale > 0 ? scale : 1;
        divisor = scale > 0 ? scale : 1;
        if (role == Role::weight && o.p_true_divisor && scale > 0) divisor = round(amount / operand.set->largest());
      }
      result.codes(r, c) = operand.set->nearest(round(x(r, c) / divisor), half_away);
    }
  return result;
}

/// Row r: the mean of the tokens of r's block (of all tokens when block is 0).
inline Matrix token_means(const Matrix& x, int block, const Rounder& round) {
  Matrix means(x.rows, x.columns);
  for (int r = 0; r < x.rows; ++r) {
    const int first = block == 0 ? 0 : r / block * block;
    const int last = block == 0 ? x.rows : std::min(x.rows, first + block);
    for (int c = 0; c < x.columns; ++c) {
      if (r > first) {
        means(r, c) = means(first, c);
        continue;
      }
      Wide sum = 0;
      for (int t = first; t < last; ++t) sum += wide(x(t, c));
      means(r, c) = round(static_cast<double>(sum / (last - first)));
    }
  }
  return means;
}

inline Matrix difference(const Matrix& x, const Matrix& y, const Rounder& round) {
  Matrix d = x;
  for (std::size_t i = 0; i < d.elements.size(); ++i) d.elements[i] = round(x.elements[i] - y.elements[i]);
  return d;
}

inline std::vector<double> row_of(const Matrix& m, int row) {
  std::vector<double> result;
  for (int c = 0; c < m.columns; ++c) result.push_back(m(row, c));
  return result;
}

inline double exact_dot(const std::vector<double>& a, const std::vector<double>& b) {
  Wide sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += wide(a[i]) * wide(b[i]);
  return static_cast<double>(sum);
}

/// Everything that a row of the output needs.
struct Prepared {
  Quantized q, k, v;
  Matrix q_means;       ///< subtracted from Q, row by row
  Matrix correcting_k;  ///< the K that the means of Q are multiplied with
  Matrix v_means;       ///< subtracted from V
};

inline Prepared prepare(const Options& o, const Head& head) {
  const Rounder round{o.f32};
  Prepared p;
  Matrix q = head.q, k = head.k, v = head.v;
  p.q_means = Matrix(q.rows, q.columns);
  p.v_means = Matrix(v.rows, v.columns);
  if (o.scale_in_q)
    for (double& element : q.elements) element = round(element * round(head.sm_scale));
  if (o.smooth_k) k = difference(k, token_means(k, 0, round), round);
  if (o.smooth_q) {
    p.q_means = token_means(q, o.q_block, round);
    q = difference(q, p.q_means, round);
  }
  if (o.smooth_v) {
    p.v_means = token_means(v, 0, round);
    v = difference(v, p.v_means, round);
  }
  p.q = quantize(o, q, o.q, Role::query, o.half_away);
  p.k = quantize(o, k, o.k, Role::key, o.half_away);
  p.v = quantize(o, v, o.v, Role::value, false);
  p.correcting_k = k;
  if (o.correct_by_codes)
    for (std::size_t i = 0; i < k.elements.size(); ++i)
      p.correcting_k.elements[i] = round(p.k.codes.elements[i] * p.k.block_scales.elements[i] * p.k.scales.elements[i]);
  return p;
}

/// The scores of keys 0 .. keys - 1; in tiles, where kernels take powers of two, in units of log 2.
inline std::vector<double> scores_of_row(const Options& o, const Head& head, const Prepared& p, int row, int keys) {
  const Rounder round{o.f32};
  const Factor q = p.q.row(row);
  const std::vector<double> q_mean = row_of(p.q_means, row);
  const double left = o.scale_in_q ? 1.0 : head.sm_scale;
  const double score_scale = o.tiled ? round(left * std::numbers::log2e) : left;
  std::vector<double> scores;
  for (int j = 0; j < keys; ++j) {
    const double dot = round(accumulate(o.qk, 0.0, q, p.k.row(j)));
    double score = round(dot * round(p.q.scales(row, 0) * p.k.scales(j, 0)));
    if (o.smooth_q) score = round(score + round(exact_dot(q_mean, row_of(p.correcting_k, j))));
    if (o.s != nullptr) score = o.s->nearest(score);
    scores.push_back(round(score * score_scale));
  }
  return scores;
}

inline double p_scale_of(const Options& o) {
  if (o.p_scale != 0) return o.p_scale;
  return o.p.set != nullptr && o.p.set->scaled && o.p.share == Share::tensor ? o.p.set->largest() : 1.0;
}

/// One row of O at a time, keys in tiles.
struct RunningRow {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> o;
};

/// The weights of one row of a tile as they are stored, and what their sums are still to be multiplied with.
struct StoredWeights {
  Quantized p;
  double factor = 1;
};

inline StoredWeights store_weights(const Options& o, const std::vector<double>& weights) {
  const Rounder round{o.f32};
  Matrix row(1, static_cast<int>(weights.size()));
  double largest = 0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    row(0, static_cast<int>(j)) = round(weights[j] * p_scale_of(o));
    largest = std::max(largest, row(0, static_cast<int>(j)));
  }
  StoredWeights stored;
  if (o.p_row_level) {
    stored.factor = round(largest / (e4m3().largest() * o.p.set->largest()));
    if (stored.factor == 0) stored.factor = 1;
    for (double& p : row.elements) p = round(p / stored.factor);
  }
  if (o.p.set != nullptr && o.p.set->scaled && o.p.share == Share::tensor) {
    stored.p = quantize(o, row, Operand{}, Role::weight, false);
    stored.p.smallest_exponent = o.p.set->smallest_exponent;
    for (double& code : stored.p.codes.elements) code = o.p.set->nearest(code);
    return stored;
  }
  stored.p = quantize(o, row, o.p, Role::weight, false);
  if (o.p.share == Share::token) stored.factor = stored.p.scales(0, 0);
  return stored;
}

/// O += P V over one tile, moving to O whenever `promotion` says so.
inline void add_tile(const Options& o, const Prepared& prepared, const StoredWeights& p, int first_key,
                     RunningRow& row) {
  const Rounder round{o.f32};
  const int keys = p.p.codes.columns;
  const int chunk = o.promotion > 0 ? o.promotion * o.pv.instruction_keys : keys;
  const Factor weights = p.p.row(0);
  for (int c = 0; c < prepared.v.codes.columns; ++c)
    for (int first = 0; first < keys; first += chunk) {
      const int last = std::min(keys, first + chunk);
      const Factor a = weights.part(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
      double& out = row.o[static_cast<std::size_t>(c)];
      const double start = o.promotion == 0 ? out : 0.0;
      const double part = round(accumulate(o.pv, start, a, prepared.v.column(c, first_key + first, first_key + last)));
      out = o.promotion == 0 ? part : round(out + round(part * p.factor));
    }
}

/// The first keys of the tiles, in the order in which they are visited.
inline std::vector<int> tile_starts(const Options& o, int keys) {
  std::vector<int> starts;
  for (int first = 0; first < keys; first += o.k_block) starts.push_back(first);
  if (o.backwards) std::reverse(starts.begin(), starts.end());
  return starts;
}

/// `scores` of all keys of the tiles that the row's block visits, of which `visible` are seen.
inline std::vector<double> tiled_row(const Options& o, const Prepared& prepared, const std::vector<double>& scores,
                                     int visible) {
  const Rounder round{o.f32};
  RunningRow row;
  row.o.assign(static_cast<std::size_t>(prepared.v.codes.columns), 0.0);
  const int keys = static_cast<int>(scores.size());
  for (const int first : tile_starts(o, keys)) {
    const int last = std::min(keys, first + o.k_block);
    const double old_max = row.max;
    double new_max = old_max;
    for (int j = first; j < (o.max_of_hidden ? last : std::min(last, visible)); ++j)
      new_max = std::max(new_max, scores[static_cast<std::size_t>(j)]);
    if (round(new_max - old_max) > o.patience) row.max = new_max;
    if (std::isinf(row.max)) continue;
    const double shrink = round(std::exp2(round(old_max - row.max)));
    row.sum = round(row.sum * shrink);
    for (double& out : row.o) out = round(out * shrink);
    std::vector<double> weights;
    double tile_sum = 0;
    for (int j = first; j < last; ++j) {
      const double score = scores[static_cast<std::size_t>(j)];
      weights.push_back(j < visible ? round(std::exp2(round(score - row.max))) : 0.0);
      tile_sum = round(tile_sum + weights.back());
    }
    if (o.p_normalized)
      for (double& w : weights) w = round(w / tile_sum);
    const StoredWeights stored = store_weights(o, weights);
    if (o.sum_rounded_p) {
      tile_sum = 0;
      for (const double code : stored.p.codes.elements) tile_sum = round(tile_sum + code);
    }
    row.sum = round(row.sum + tile_sum);
    add_tile(o, prepared, stored, first, row);
  }
  double sum = o.sum_rounded_p ? round(row.sum / p_scale_of(o)) : row.sum;
  if (o.p_normalized) sum = 1;
  for (std::size_t c = 0; c < row.o.size(); ++c) {
    const double scale = round(prepared.v.scales(0, static_cast<int>(c)) / p_scale_of(o));
    row.o[c] = round(round(round(row.o[c] / sum) * scale) + prepared.v_means(0, static_cast<int>(c)));
  }
  return row.o;
}

/// The whole row's maximum first, then P, then O: wide sums, no rounding but P's own.
inline std::vector<double> whole_row(const Options& o, const Prepared& prepared, const std::vector<double>& scores) {
  const Wide max = wide(*std::max_element(scores.begin(), scores.end()));
  const Wide p_scale = wide(p_scale_of(o));
  std::vector<double> weights;
  Wide sum = 0;
  for (const double s : scores) {
    const Wide weight = std::exp(wide(s) - max);
    sum += weight;
    const double scaled = static_cast<double>(weight * p_scale);
    weights.push_back(o.p.set != nullptr ? o.p.set->nearest(scaled) : scaled);
  }
  std::vector<double> out;
  for (int c = 0; c < prepared.v.codes.columns; ++c) {
    Wide total = 0;
    for (std::size_t j = 0; j < weights.size(); ++j)
      total += wide(weights[j]) * wide(prepared.v.codes(static_cast<int>(j), c));
    const Wide normal = total / (sum * p_scale) * wide(prepared.v.scales(0, c));
    out.push_back(static_cast<double>(normal + wide(prepared.v_means(0, c))));
  }
  return out;
}

/// Keys of the tiles that the row's block of queries visits: up to the one that its last row sees.
inline int keys_of_block(const Options& o, const Head& head, int row) {
  if (!head.causal) return head.k.rows;
  const int last_row = std::min(head.q.rows, (row / o.q_block + 1) * o.q_block) - 1;
  const int seen = std::min(last_row + 1, head.k.rows);
  return std::min(head.k.rows, (seen + o.k_block - 1) / o.k_block * o.k_block);
}

/// O [Nq, head_dim].
inline Matrix attention(const Options& o, const Head& head) {
  const Prepared prepared = prepare(o, head);
  Matrix result(head.q.rows, head.v.columns);
  for (int row = 0; row < head.q.rows; ++row) {
    const int visible = head.causal ? std::min(row + 1, head.k.rows) : head.k.rows;
    const int keys = o.tiled ? keys_of_block(o, head, row) : visible;
    const std::vector<double> scores = scores_of_row(o, head, prepared, row, keys);
    const std::vector<double> out = o.tiled ? tiled_row(o, prepared, scores, visible) : whole_row(o, prepared, scores);
    for (int c = 0; c < result.columns; ++c) {
      double x = out[static_cast<std::size_t>(c)];
      if (o.round_o_to_f32) x = static_cast<double>(static_cast<float>(x));
      result(row, c) = o.round_o_to_f16 ? fp16().nearest(x) : x;
    }
  }
  return result;
}

/// CosSim, relative L1 and RMSE of any number of heads, flattened to one vector.
struct Errors {
  Wide product = 0, square = 0, reference_square = 0, difference = 0, reference = 0, difference_square = 0;
  Wide count = 0;

  void add(const Matrix& output, const Matrix& exact) {
    for (std::size_t i = 0; i < output.elements.size(); ++i) {
      const Wide o = wide(output.elements[i]);
      const Wide r = wide(exact.elements[i]);
      product += o * r;
      square += o * o;
      reference_square += r * r;
      difference += std::fabs(o - r);
      reference += std::fabs(r);
      difference_square += (o - r) * (o - r);
      count += 1;
    }
  }

  double cosine() const { return static_cast<double>(product / std::sqrt(square) / std::sqrt(reference_square)); }
  double relative_l1() const { return static_cast<double>(difference / reference); }
  double rmse() const { return static_cast<double>(std::sqrt(difference_square / count)); }
};

}  // namespace oracle
