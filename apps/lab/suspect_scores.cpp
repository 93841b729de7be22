// Mistakes that show in which keys a row attends to, and how strongly.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "attention/operands.h"
#include "attention/pipeline.h"
#include "base/elementary.h"
#include "lab/suspect.h"
#include "quant/groups.h"

namespace qattn::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostGroups = 256;

/// The sampled rows' scores and what softmax makes of them, ready to be changed in parts.
class ScoreRows {
 public:
  explicit ScoreRows(const Suspect& suspect)
      : problem_(suspect.problem()), scores_(scores_of(problem_, suspect.rows())) {
    for (const std::int64_t row : suspect.rows()) visible_.push_back(problem_.visible_keys(row));
    weights_ = MatrixD::Zero(scores_.rows(), scores_.cols());
    o_ = MatrixD::Zero(scores_.rows(), suspect.channels());
    for (Eigen::Index r = 0; r < scores_.rows(); ++r) {
      const std::int64_t keys = visible(r);
      max_.push_back(keys == 0 ? -kInfinity : scores_.row(r).head(keys).maxCoeff());
      sum_.push_back(0);
      if (max_.back() == -kInfinity) continue;
      for (std::int64_t j = 0; j < keys; ++j) {
        weights_(r, j) = elementary::exp(scores_(r, j) - max_.back());
        sum_.back() += weights_(r, j);
        add(r, j, weights_(r, j), o_);
      }
    }
  }

  Eigen::Index rows() const { return scores_.rows(); }
  std::int64_t keys() const { return scores_.cols(); }
  std::int64_t visible(Eigen::Index row) const { return visible_[static_cast<std::size_t>(row)]; }
  const MatrixD& scores() const { return scores_; }
  double weight(Eigen::Index row, std::int64_t key) const { return weights_(row, key); }
  double max(Eigen::Index row) const { return max_[static_cast<std::size_t>(row)]; }
  double sum(Eigen::Index row) const { return sum_[static_cast<std::size_t>(row)]; }
  /// sum of weight * v, not divided.
  const MatrixD& unnormalised() const { return o_; }

  /// o.row += weight * v[key].
  void add(Eigen::Index row, std::int64_t key, double weight, MatrixD& o) const {
    const double* v = problem_.v.data() + key * problem_.v.cols();
    for (std::int64_t c = 0; c < o.cols(); ++c) o(row, c) += weight * v[c];
  }

  /// o where the keys of `changed` have other weights and meet other rows of V: `weight(row, key)` relative to
  /// max(row), `v_row(key)`. Keys that a row does not see keep weight zero.
  template <class Weight, class VRow>
  MatrixD with(const std::vector<std::int64_t>& changed, const Weight& new_weight, const VRow& v_row) const {
    MatrixD o = o_;
    for (Eigen::Index r = 0; r < rows(); ++r) {
      double sum_now = sum(r);
      for (const std::int64_t j : changed) {
        if (j >= visible(r)) continue;
        const double now = new_weight(r, j);
        sum_now += now - weight(r, j);
        add(r, j, -weight(r, j), o);
        add(r, v_row(j), now, o);
      }
      o.row(r) = sum_now > 1e-12 * sum(r) ? MatrixD(o.row(r) / sum_now) : MatrixD::Zero(1, o.cols());
    }
    return o;
  }

 private:
  const attention::Problem& problem_;
  MatrixD scores_, weights_, o_;
  std::vector<std::int64_t> visible_;
  std::vector<double> max_, sum_;
};

const auto kSameRow = [](std::int64_t key) { return key; };

std::vector<std::int64_t> range(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> keys;
  for (std::int64_t j = first; j < last; ++j) keys.push_back(j);
  return keys;
}

/// Tile lengths worth trying: the recipe's, and those in use.
std::vector<std::int64_t> tile_lengths(const Suspect& suspect, std::int64_t keys) {
  std::vector<std::int64_t> lengths = {suspect.recipe().k_block};
  for (const std::int64_t length : {64, 128, 32, 256, 16}) {
    if (length != lengths.front()) lengths.push_back(length);
  }
  std::erase_if(lengths, [keys](std::int64_t length) { return length >= keys; });
  // There the diagnosis is made for every head, not for wrong ones alone.
  if (suspect.hidden() && lengths.size() > 3) lengths.resize(3);
  return lengths;
}

// ---- Masks ----

template <class Visible>
void offer_mask(Suspect& suspect, const ScoreRows& s, const Visible& visible, std::string_view name,
                const std::string& detail) {
  std::vector<std::int64_t> keys;
  bool changes = false;
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    keys.push_back(std::clamp<std::int64_t>(visible(suspect.rows()[static_cast<std::size_t>(r)]), 0, s.keys()));
    changes = changes || keys.back() != s.visible(r);
  }
  if (!changes) return;
  suspect.offer(attend(s.scores(), keys, suspect.problem().v, suspect.channels()), name, [&] { return detail; });
}

void masks(Suspect& suspect, const ScoreRows& s) {
  const attention::Problem& problem = suspect.problem();
  const std::int64_t keys = s.keys(), offset = keys - problem.q.rows();
  const bool bottom = problem.causal_align == attention::CausalAlign::bottom_right;
  if (!problem.is_causal) {
    offer_mask(
        suspect, s, [](std::int64_t r) { return r + 1; }, "wrong mask", "a causal mask (top-left) where none belongs");
    offer_mask(
        suspect, s, [offset](std::int64_t r) { return r + 1 + offset; }, "wrong mask",
        "a causal mask (bottom-right) where none belongs");
    return;
  }
  const auto own = [&](std::int64_t r) { return r + 1 + (bottom ? offset : 0); };
  offer_mask(
      suspect, s, [&](std::int64_t r) { return r + 1 + (bottom ? 0 : offset); }, "wrong mask",
      bottom ? "a top-left causal mask used as bottom-right" : "a bottom-right causal mask used as top-left");
  offer_mask(
      suspect, s, [keys](std::int64_t) { return keys; }, "wrong mask", "no causal mask: every row sees all keys");
  offer_mask(
      suspect, s, [&](std::int64_t r) { return own(r) - 1; }, "wrong mask",
      "the causal mask is one key too narrow: a row does not see its own key (j < i in place of j <= i)");
  offer_mask(
      suspect, s, [&](std::int64_t r) { return own(r) == 1 ? 1 : own(r) - 1; }, "wrong mask",
      "the causal mask is one key too narrow: a row does not see its own key, unless it is the only one");
  offer_mask(
      suspect, s, [&](std::int64_t r) { return own(r) + 1; }, "wrong mask",
      "the causal mask is one key too wide: a row sees the key after its own");
  for (const std::int64_t tile : tile_lengths(suspect, keys)) {
    offer_mask(
        suspect, s, [&](std::int64_t r) { return (own(r) + tile - 1) / tile * tile; }, "wrong mask",
        fmt::format("the causal mask hides whole tiles of {} keys only: the diagonal tile is not masked", tile));
  }
}

/// The plainest mistakes with the causal mask as the recipe itself would compute them: a noisy one's errors are larger
/// than what the mask changes in rows that see much the same keys.
void emulated_masks(Suspect& suspect) {
  const attention::Recipe& recipe = suspect.recipe();
  if (suspect.hidden() || recipe.causal_align != attention::CausalStart::input) return;
  const auto offer = [&](bool is_causal, attention::CausalAlign align, const std::string& detail) {
    attention::Problem wrong = suspect.problem();
    wrong.is_causal = is_causal;
    wrong.causal_align = align;
    const MatrixD o = attention::run_recipe(wrong, recipe, *suspect.call().q_format).o;
    MatrixD candidate(suspect.output().rows(), suspect.channels());
    for (Eigen::Index i = 0; i < candidate.rows(); ++i) {
      candidate.row(i) = o.row(suspect.rows()[static_cast<std::size_t>(i)]).head(suspect.channels());
    }
    suspect.offer(candidate, "wrong mask", [&] { return detail; });
  };
  using attention::CausalAlign;
  const attention::Problem& problem = suspect.problem();
  if (!problem.is_causal) return offer(true, CausalAlign::top_left, "a causal mask (top-left) where none belongs");
  offer(false, problem.causal_align, "no causal mask: every row sees all keys");
  if (problem.q.rows() == problem.k.rows()) return;
  const bool bottom = problem.causal_align == CausalAlign::bottom_right;
  offer(true, bottom ? CausalAlign::top_left : CausalAlign::bottom_right,
        bottom ? "a top-left causal mask used as bottom-right" : "a bottom-right causal mask used as top-left");
}

/// The rows' outputs where `hidden(row, key)` hides keys, and the causal mask does not.
template <class Hidden>
void offer_hidden(Suspect& suspect, const ScoreRows& s, const Hidden& hidden, const std::string& detail) {
  MatrixD scores = s.scores();
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    for (std::int64_t j = 0; j < s.keys(); ++j) {
      if (hidden(suspect.rows()[static_cast<std::size_t>(r)], j)) scores(r, j) = -kInfinity;
    }
  }
  const std::vector<std::int64_t> all(static_cast<std::size_t>(s.rows()), s.keys());
  suspect.offer(attend(scores, all, suspect.problem().v, suspect.channels()), "wrong mask", [&] { return detail; });
}

/// The mask read by columns, and hidden for visible.
void turned_masks(Suspect& suspect, const ScoreRows& s) {
  const attention::Problem& problem = suspect.problem();
  const auto sees = [&](std::int64_t i, std::int64_t j) {
    return j < problem.visible_keys(i) && (!problem.mask || (*problem.mask)(i, j) != -kInfinity);
  };
  const bool square = problem.q.rows() == s.keys();
  if (problem.is_causal && square && !problem.mask) {
    offer_hidden(
        suspect, s, [&](std::int64_t i, std::int64_t j) { return !sees(j, i); },
        "the causal mask is transposed: a row sees the keys from its own on");
    offer_hidden(
        suspect, s, [&](std::int64_t i, std::int64_t j) { return sees(i, j); },
        "the causal mask is inverted: a row sees the keys that it should not");
  }
  if (!problem.mask || problem.is_causal) return;
  const MatrixD plain = scores_of(problem, suspect.rows(), false);
  const std::vector<std::int64_t> all(static_cast<std::size_t>(s.rows()), s.keys());
  const auto masked = [&](const std::function<double(std::int64_t, std::int64_t)>& mask, const std::string& detail) {
    MatrixD scores = plain;
    for (Eigen::Index r = 0; r < s.rows(); ++r) {
      for (std::int64_t j = 0; j < s.keys(); ++j) scores(r, j) += mask(suspect.rows()[static_cast<std::size_t>(r)], j);
    }
    suspect.offer(attend(scores, all, problem.v, suspect.channels()), "wrong mask", [&] { return detail; });
  };
  if (square) {
    masked([&](std::int64_t i, std::int64_t j) { return (*problem.mask)(j, i); }, "the dump's mask is transposed");
  }
  masked([&](std::int64_t i, std::int64_t j) { return sees(i, j) ? -kInfinity : 0.0; },
         "the dump's mask is inverted: hidden keys are attended to and the others are not");
}

/// The window whose rows come nearest: keys from own - W + 1 on, and without a causal mask up to own + W - 1.
std::int64_t best_window(const Suspect& suspect, const ScoreRows& s, std::int64_t offset) {
  std::vector<double> left(static_cast<std::size_t>(s.keys()) + 1, 0.0);
  MatrixD o(1, suspect.channels());
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    const std::int64_t own = suspect.rows()[static_cast<std::size_t>(r)] + offset;
    o.setZero();
    double sum = 0, distance = 0;
    for (std::int64_t window = 1; window <= s.keys(); ++window) {
      const auto see = [&](std::int64_t j) {
        if (j < 0 || j >= s.visible(r)) return;
        s.add(0, j, s.weight(r, j), o);
        sum += s.weight(r, j);
      };
      see(own - window + 1);
      if (window > 1) see(own + window - 1);
      if (sum > 0) {
        distance = 0;
        for (std::int64_t c = 0; c < suspect.channels(); ++c) {
          distance += std::fabs(suspect.output()(r, c) - o(0, c) / sum);
        }
      }
      left[static_cast<std::size_t>(window)] += distance;
    }
  }
  return std::min_element(left.begin() + 1, left.end()) - left.begin();
}

void sliding_window(Suspect& suspect, const ScoreRows& s) {
  const attention::Problem& problem = suspect.problem();
  const bool bottom = problem.is_causal && problem.causal_align == attention::CausalAlign::bottom_right;
  const std::int64_t offset = bottom ? s.keys() - problem.q.rows() : 0;
  const std::int64_t window = best_window(suspect, s, offset);
  if (window >= s.keys()) return;
  offer_hidden(
      suspect, s,
      [&](std::int64_t i, std::int64_t j) {
        return j >= problem.visible_keys(i) || std::abs(j - i - offset) >= window;
      },
      problem.is_causal
          ? fmt::format("a sliding window: a row sees its own key and the {} before it", window - 1)
          : fmt::format("a sliding window: a row sees its own key and the {} on either side", window - 1));
}

void mask_ignored(Suspect& suspect) {
  if (!suspect.problem().mask) return;
  std::vector<std::int64_t> visible;
  for (const std::int64_t row : suspect.rows()) visible.push_back(suspect.problem().visible_keys(row));
  suspect.offer(
      attend(scores_of(suspect.problem(), suspect.rows(), false), visible, suspect.problem().v, suspect.channels()),
      "wrong mask", [] { return "the dump's mask is not applied"; });
}

// ---- Tiles ----

void dropped_tiles(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  const auto none = [](Eigen::Index, std::int64_t) { return 0.0; };
  for (std::int64_t first = (s.keys() - 1) / tile * tile; first >= 0; first -= tile) {
    const std::int64_t last = std::min(first + tile, s.keys());
    const bool is_last = last == s.keys();
    suspect.offer(s.with(range(first, last), none, kSameRow), is_last ? "a dropped last tile" : "a dropped tile", [&] {
      return fmt::format("keys {} to {} are not attended to{}", first, last - 1,
                         is_last ? fmt::format(": the loop over tiles of {} ends one too early", tile) : "");
    });
  }
}

/// The loop over keys that begins or ends one key off.
void missed_keys(Suspect& suspect, const ScoreRows& s) {
  const auto none = [](Eigen::Index, std::int64_t) { return 0.0; };
  const std::int64_t last = s.keys() - 1;
  suspect.offer(s.with({last}, none, kSameRow), "a missed key", [last] {
    return fmt::format("the last key, {}, is not attended to: the number of keys is one short", last);
  });
  suspect.offer(s.with({0}, none, kSameRow), "a missed key", [] { return "the first key, 0, is not attended to"; });
}

/// A tile's scores count in the row sum, and its V does not in o; or the other way round.
void half_tiles(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  for (std::int64_t first = 0; first < s.keys(); first += tile) {
    const std::int64_t last = std::min(first + tile, s.keys());
    MatrixD without_v = s.unnormalised(), without_sum = s.unnormalised();
    for (Eigen::Index r = 0; r < s.rows(); ++r) {
      double sum = s.sum(r);
      for (std::int64_t j = first; j < std::min(last, s.visible(r)); ++j) {
        s.add(r, j, -s.weight(r, j), without_v);
        sum -= s.weight(r, j);
      }
      if (!(s.sum(r) > 0)) continue;
      without_v.row(r) /= s.sum(r);
      if (sum > 1e-12 * s.sum(r)) without_sum.row(r) /= sum;
    }
    suspect.offer(without_v, "a skipped tile of P V", [&] {
      return fmt::format("keys {} to {} count in the row sum, and their V is not added to o", first, last - 1);
    });
    suspect.offer(without_sum, "a tile missing in the row sum", [&] {
      return fmt::format("V of keys {} to {} is added to o, and they do not count in the row sum", first, last - 1);
    });
  }
}

/// The same for the last tile that each row sees.
void half_diagonal(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  if (!suspect.problem().is_causal) return;
  MatrixD o = s.unnormalised();
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    if (!(s.sum(r) > 0)) continue;
    for (std::int64_t j = (s.visible(r) - 1) / tile * tile; j < s.visible(r); ++j) s.add(r, j, -s.weight(r, j), o);
    o.row(r) /= s.sum(r);
  }
  suspect.offer(o, "a skipped tile of P V", [tile] {
    return fmt::format("the last tile of {} keys that a row sees counts in its row sum, and its V is not added to o",
                       tile);
  });
}

/// Every row loses the last tile that it sees (under a causal mask another one for each).
void dropped_diagonal(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  if (!suspect.problem().is_causal) return;
  offer_mask(
      suspect, s, [&](std::int64_t r) { return (suspect.problem().visible_keys(r) - 1) / tile * tile; },
      "a dropped last tile",
      fmt::format("every row lacks the last tile of {} keys that it sees (the one on the diagonal)", tile));
}

/// One tile meets data of the tile `back` tiles before it: V, K, or both.
void stale_tiles(Suspect& suspect, const ScoreRows& s, std::int64_t tile, std::int64_t back) {
  const std::int64_t shift = tile * back;
  const auto stale_weight = [&](Eigen::Index r, std::int64_t j) {
    return elementary::exp(s.scores()(r, j - shift) - s.max(r));
  };
  const auto own_weight = [&](Eigen::Index r, std::int64_t j) { return s.weight(r, j); };
  const auto stale_v = [shift](std::int64_t j) { return j - shift; };
  for (std::int64_t first = shift; first < s.keys(); first += tile) {
    const std::vector<std::int64_t> keys = range(first, std::min(first + tile, s.keys()));
    const auto text = [&](std::string_view what) {
      return fmt::format("keys {} to {} meet {} of keys {} to {}: the buffer was not filled anew", keys.front(),
                         keys.back(), what, keys.front() - shift, keys.back() - shift);
    };
    suspect.offer(s.with(keys, own_weight, stale_v), "stale tile", [&] { return text("V"); });
    suspect.offer(s.with(keys, stale_weight, kSameRow), "stale tile", [&] { return text("K"); });
    suspect.offer(s.with(keys, stale_weight, stale_v), "stale tile", [&] { return text("K and V"); });
  }
}

/// o where the running maximum of a row grows from tile to tile and what was summed before is not scaled down: the sum
/// of P V, and with `sum_too` the row sum.
MatrixD without_rescaling(const Suspect& suspect, const ScoreRows& s, std::int64_t tile, bool sum_too) {
  MatrixD o = MatrixD::Zero(s.rows(), suspect.channels());
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    double running = -kInfinity, sum = 0;
    for (std::int64_t first = 0; first < s.visible(r); first += tile) {
      const std::int64_t last = std::min(first + tile, s.visible(r));
      running = std::max(running, s.scores().row(r).segment(first, last - first).maxCoeff());
      if (running == -kInfinity) continue;
      for (std::int64_t j = first; j < last; ++j) {
        const double weight = elementary::exp(s.scores()(r, j) - running);
        sum += weight;
        s.add(r, j, weight, o);
      }
    }
    if (s.sum(r) > 0) o.row(r) /= sum_too ? sum : s.sum(r);
  }
  return o;
}

void not_rescaled(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  for (const bool sum_too : {false, true}) {
    suspect.offer(without_rescaling(suspect, s, tile, sum_too), "O not rescaled", [&] {
      return fmt::format("{} not scaled down when a tile of {} keys raises the row maximum",
                         sum_too ? "O and the row sum are" : "O is", tile);
    });
  }
}

/// Keys that only fill up the last tile have score 0 and count in the row sum.
void padding_attended(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  // A tile of one key stands for a number of keys that is one too large.
  const std::int64_t padding = tile == 1 ? 1 : (tile - s.keys() % tile) % tile;
  if (padding == 0 || suspect.problem().is_causal) return;
  MatrixD o = s.unnormalised();
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    o.row(r) /= s.sum(r) + static_cast<double>(padding) * elementary::exp(-s.max(r));
  }
  suspect.offer(o, "wrong mask", [&] {
    if (tile == 1) return std::string("one key of zeros behind the last is attended to");
    return fmt::format("{} keys of zeros that fill up the last tile of {} are attended to", padding, tile);
  });
}

// ---- Scales ----

/// The factor in [1/32, 32] with the smallest residual: a grid of half binades, then finer steps around the best.
template <class Candidate>
double best_factor(const Suspect& suspect, const Candidate& candidate) {
  double best = 1, smallest = kInfinity;
  const auto attempt = [&](double exponent) {
    const double factor = elementary::exp2(exponent);
    const double left = suspect.residual(candidate(factor));
    if (left >= smallest) return false;
    smallest = left;
    best = exponent;
    return true;
  };
  for (int step = -10; step <= 10; ++step) {
    if (step != 0) attempt(step / 2.0);
  }
  // Large scores make the residual flat at factors of sqrt(2): a small mistake is to be found from nearby.
  for (const double step : {-0.15, -0.045, 0.045, 0.15}) attempt(step);
  for (double width = 0.25; width > 1e-4; width /= 2) {
    const double centre = best;
    if (!attempt(centre - width)) attempt(centre + width);
  }
  return elementary::exp2(best);
}

/// Scores of `keys` times a factor, for all rows or for the wrong ones alone.
MatrixD scaled_scores(const Suspect& suspect, const ScoreRows& s, const std::vector<std::int64_t>& keys, double factor,
                      bool wrong_rows_only) {
  MatrixD scores = s.scores();
  std::vector<std::int64_t> visible;
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    visible.push_back(s.visible(r));
    if (wrong_rows_only && !suspect.is_wrong(static_cast<std::size_t>(r))) continue;
    for (const std::int64_t j : keys) scores(r, j) *= factor;
  }
  return attend(scores, visible, suspect.problem().v, suspect.channels());
}

std::string softmax_scale_text(double factor, double head_dim) {
  const auto near = [factor](double x) { return std::fabs(factor - x) < 0.01 * x; };
  if (near(std::sqrt(head_dim))) return "the division by sqrt(head_dim) is missing";
  if (near(1 / std::sqrt(head_dim))) return "they are divided by sqrt(head_dim) twice";
  if (near(0x1.71547652B82FEp+0)) return "log2(e) is in them once too often";
  if (near(0x1.62E42FEFA39EFp-1)) return "log2(e) is missing before an exp2";
  return "sm_scale is another";
}

/// All scores times a factor, then those of the wrong rows alone: rows that see few keys hardly notice.
void score_factor(Suspect& suspect, const ScoreRows& s) {
  const std::vector<std::int64_t> all = range(0, s.keys());
  for (const bool wrong_rows_only : {false, true}) {
    if (wrong_rows_only && suspect.all_rows_wrong()) return;
    const auto candidate = [&](double factor) { return scaled_scores(suspect, s, all, factor, wrong_rows_only); };
    const double factor = best_factor(suspect, candidate);
    suspect.offer(candidate(factor), wrong_rows_only ? "one wrong scale group" : "wrong softmax scale", [&] {
      if (wrong_rows_only) {
        return fmt::format("the scores of {} are {:.5g} times what they should be: Q's scale there is wrong",
                           describe_indices("row", suspect.wrong().rows, suspect.first_row()), factor);
      }
      return fmt::format("the scores are {:.5g} times what they should be: {}", factor,
                         softmax_scale_text(factor, static_cast<double>(suspect.call().head_dim_original)));
    });
  }
}

/// Groups of keys that share a scale: the recipe's, and tiles.
std::vector<std::vector<std::int64_t>> key_groups(const Suspect& suspect, std::int64_t keys) {
  std::vector<std::vector<std::int64_t>> groups;
  const attention::Recipe& recipe = suspect.recipe();
  if (recipe.k.scaled() && !recipe.k.micro_scaled()) {
    const quant::QuantizerSpec spec = attention::quantizer_spec(recipe, recipe.k, quant::Operand::k);
    const quant::GroupMap map(spec.groups, keys, 1);
    for (std::int64_t g = 0; g < map.groups() && map.groups() <= kMostGroups; ++g) groups.push_back(map.member_rows(g));
  }
  for (const std::int64_t tile :
       {std::int64_t{recipe.k_block}, std::int64_t{64}, std::int64_t{128}, std::int64_t{32}, std::int64_t{16}}) {
    for (std::int64_t first = 0; first < keys; first += tile)
      groups.push_back(range(first, std::min(first + tile, keys)));
  }
  // The keys of a tile that one thread of a warp holds, in the layout of m16n8 fragments.
  for (std::int64_t first = 0; first < keys && keys <= kMostGroups * 16; first += 64) {
    for (std::int64_t thread = 0; thread < 4; ++thread) {
      groups.emplace_back();
      for (std::int64_t j = first; j < std::min(first + 64, keys); ++j) {
        if (j % 8 / 2 == thread) groups.back().push_back(j);
      }
    }
  }
  std::erase_if(groups, [keys](const auto& group) { return group.empty() || std::ssize(group) == keys; });
  return groups;
}

/// What smoothing K leaves out of all scores of a row, and a wrong scale of K therefore does not touch: the mean of its
/// scores over all keys.
std::vector<double> unscaled_part(const Suspect& suspect, const ScoreRows& s) {
  std::vector<double> part(static_cast<std::size_t>(s.rows()), 0.0);
  const auto smoothing = suspect.recipe().smoothing;
  if (smoothing != attention::Smoothing::k && smoothing != attention::Smoothing::qk) return part;
  for (Eigen::Index r = 0; r < s.rows(); ++r) {
    const double mean = s.scores().row(r).mean();
    if (std::isfinite(mean)) part[static_cast<std::size_t>(r)] = mean;
  }
  return part;
}

/// Close enough that one of them is nearer to any factor off by some percent than 1 is.
constexpr double kCoarseFactors[] = {0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.03, 1.1, 1.4, 2.0, 4.0};

/// One group of keys with other scores, all but `unscaled` of them. A coarse factor decides which group is worth a
/// search.
void key_scale(Suspect& suspect, const ScoreRows& s, const std::vector<double>& unscaled) {
  std::vector<std::int64_t> best;
  double smallest = kInfinity;
  const auto weight = [&s, &unscaled](double factor) {
    return [&s, &unscaled, factor](Eigen::Index r, std::int64_t j) {
      const double left = unscaled[static_cast<std::size_t>(r)];
      return elementary::exp(factor * (s.scores()(r, j) - left) + left - s.max(r));
    };
  };
  for (const std::vector<std::int64_t>& group : key_groups(suspect, s.keys())) {
    for (const double factor : kCoarseFactors) {
      const double left = suspect.residual(s.with(group, weight(factor), kSameRow));
      if (!(left < smallest)) continue;
      smallest = left;
      best = group;
    }
  }
  if (best.empty() || smallest > 0.9 * suspect.residual(suspect.reference())) return;
  const auto candidate = [&](double factor) { return s.with(best, weight(factor), kSameRow); };
  const double factor = best_factor(suspect, candidate);
  suspect.offer(candidate(factor), "one wrong scale group", [&] {
    return fmt::format("the scores of {} are {:.5g} times what they should be: K's scale there is wrong",
                       describe_indices("key", best), factor);
  });
  suspect.offer(candidate(0), "one wrong scale group", [&] {
    return fmt::format("the scores of {} are zero: K's scale there is zero", describe_indices("key", best));
  });
}

/// Scales of K off by a power of two: no factor is fitted.
void power_of_two_scales(Suspect& suspect, const ScoreRows& s) {
  const std::vector<double> unscaled = unscaled_part(suspect, s);
  for (const std::vector<std::int64_t>& group : key_groups(suspect, s.keys())) {
    for (const double factor : {0.5, 2.0}) {
      const auto weight = [&](Eigen::Index r, std::int64_t j) {
        const double left = unscaled[static_cast<std::size_t>(r)];
        return elementary::exp(factor * (s.scores()(r, j) - left) + left - s.max(r));
      };
      suspect.offer(s.with(group, weight, kSameRow), "one wrong scale group", [&] {
        return fmt::format("the scores of {} are about {} times what they should be: K's scale there is wrong",
                           describe_indices("key", group), factor);
      });
    }
  }
}

/// One tile of V times a factor, which is linear in o.
void value_scale(Suspect& suspect, const ScoreRows& s, std::int64_t tile) {
  for (std::int64_t first = 0; first < s.keys(); first += tile) {
    const std::int64_t last = std::min(first + tile, s.keys());
    MatrixD part = MatrixD::Zero(s.rows(), suspect.channels());
    double dot = 0, square = 0;
    for (Eigen::Index r = 0; r < s.rows(); ++r) {
      for (std::int64_t j = first; j < std::min(last, s.visible(r)); ++j) s.add(r, j, s.weight(r, j) / s.sum(r), part);
      for (std::int64_t c = 0; c < suspect.channels(); ++c) {
        dot += part(r, c) * (suspect.output()(r, c) - suspect.reference()(r, c));
        square += part(r, c) * part(r, c);
      }
    }
    if (!(square > 0)) continue;
    const double factor = 1 + dot / square;
    suspect.offer(suspect.reference() + (factor - 1) * part, "one wrong scale group", [&] {
      return fmt::format("V of keys {} to {} is {:.5g} times what it should be: V's scale there is wrong", first,
                         last - 1, factor);
    });
  }
}

// ---- The rest ----

/// Row factors are row sums when they leave so much of their logarithms, root mean square.
constexpr double kLikeRowSums = 0.3;

std::string undivided_text(double scale) {
  if (scale == 1) return "o is not divided by the row sum";
  return fmt::format("o is neither divided by the row sum nor by P's scale {}", scale);
}

void missing_division(Suspect& suspect, const ScoreRows& s) {
  suspect.offer(s.unnormalised(), "missing 1/l", [] { return undivided_text(1); });
  const double p_scale = attention::resolved_p_scale(suspect.recipe());
  for (const double scale : {p_scale, 448.0, 127.0}) {
    if (scale == 1) continue;
    suspect.offer(s.unnormalised() * scale, "missing 1/l", [scale] { return undivided_text(scale); });
  }
}

/// The scale times which each row's factor is nearly its row sum; nothing if none is. A kernel's row sum is relative to
/// its own maximum, which a noisy recipe may have off by some tenths.
std::optional<double> row_sum_scale(const Suspect& suspect, const ScoreRows& s, const std::vector<double>& factors) {
  std::optional<double> best;
  double least = kLikeRowSums * kLikeRowSums;
  for (const double scale : {1.0, attention::resolved_p_scale(suspect.recipe()), 448.0, 256.0, 127.0}) {
    double all = 0, left = 0;
    for (Eigen::Index r = 0; r < s.rows(); ++r) {
      const double factor = factors[static_cast<std::size_t>(r)];
      if (!(s.sum(r) > 0)) continue;
      if (!(factor > 0)) return std::nullopt;
      const double as_it_is = elementary::log(factor), divided = elementary::log(factor / (scale * s.sum(r)));
      all += as_it_is * as_it_is;
      left += divided * divided;
    }
    if (!(left < least * all)) continue;
    least = left / all;
    best = scale;
  }
  return best;
}

/// A factor of its own for each row: one not divided by a row sum, or what is left when no cause of wrong ones fits.
void row_factors(Suspect& suspect, const ScoreRows& s) {
  MatrixD scaled = suspect.reference();
  std::vector<double> factors;
  for (Eigen::Index r = 0; r < scaled.rows(); ++r) {
    const double square = scaled.row(r).squaredNorm();
    factors.push_back(square > 0 ? suspect.output().row(r).dot(scaled.row(r)) / square : 1);
    scaled.row(r) *= factors.back();
  }
  if (const std::optional<double> scale = row_sum_scale(suspect, s, factors)) {
    suspect.offer(scaled, "missing 1/l", [&] { return undivided_text(*scale); });
    return;
  }
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  suspect.offer(scaled, "wrong row sums", [least = *least, most = *most] {
    return fmt::format("each row is a multiple of what it should be, {:.4g} to {:.4g} times: the row sums are wrong",
                       least, most);
  });
}

void other_kv_head(Suspect& suspect, const ScoreRows& s) {
  const io::AttentionCall& call = suspect.call();
  const std::int64_t group = call.q_heads / call.kv_heads, own = call.kv_head(suspect.head().piece.head);
  std::vector<std::int64_t> visible;
  for (Eigen::Index r = 0; r < s.rows(); ++r) visible.push_back(s.visible(r));
  for (std::int64_t kv = 0; kv < std::min<std::int64_t>(call.kv_heads, 64); ++kv) {
    if (kv == own) continue;
    attention::Problem other = suspect.problem_of_head(suspect.head().piece.batch, kv * group);
    other.q = suspect.problem().q;
    const auto offer = [&](const MatrixD& scores, const MatrixD& v, std::string_view what) {
      suspect.offer(attend(scores, visible, v, suspect.channels()), "wrong key/value head", [&] {
        return fmt::format("the head reads {} of key/value head {} in place of {}", what, kv, own);
      });
    };
    const MatrixD scores = scores_of(other, suspect.rows());
    offer(scores, other.v, "K and V");
    offer(s.scores(), other.v, "V");
    offer(scores, suspect.problem().v, "K");
  }
}

/// Smoothing Q takes its block's mean from every query; without the correction row that mean's scores are missing.
void missing_correction(Suspect& suspect, const ScoreRows& s) {
  const auto smoothing = suspect.recipe().smoothing;
  if (smoothing != attention::Smoothing::q && smoothing != attention::Smoothing::qk) return;
  attention::Problem centred = suspect.problem();
  const std::int64_t block = suspect.recipe().q_block;
  for (std::int64_t first = 0; first < centred.q.rows(); first += block) {
    const std::int64_t count = std::min(block, centred.q.rows() - first);
    const Eigen::RowVectorXd mean = centred.q.middleRows(first, count).colwise().mean();
    centred.q.middleRows(first, count).rowwise() -= mean;
  }
  std::vector<std::int64_t> visible;
  for (Eigen::Index r = 0; r < s.rows(); ++r) visible.push_back(s.visible(r));
  suspect.offer(attend(scores_of(centred, suspect.rows()), visible, centred.v, suspect.channels()),
                "missing correction",
                [] { return "the mean that smoothing took from Q is not put back into the scores"; });
}

}  // namespace

void suspect_scores(Suspect& suspect) {
  const ScoreRows s(suspect);
  masks(suspect, s);
  emulated_masks(suspect);
  turned_masks(suspect, s);
  mask_ignored(suspect);
  missed_keys(suspect, s);
  padding_attended(suspect, s, 1);
  if (!suspect.hidden()) missing_division(suspect, s);
  const std::vector<std::int64_t> tiles = tile_lengths(suspect, s.keys());
  for (const std::int64_t tile : tiles) {
    dropped_tiles(suspect, s, tile);
    dropped_diagonal(suspect, s, tile);
    padding_attended(suspect, s, tile);
    not_rescaled(suspect, s, tile);
    half_tiles(suspect, s, tile);
    half_diagonal(suspect, s, tile);
  }
  for (const std::int64_t tile : tiles) {
    stale_tiles(suspect, s, tile, 1);
    stale_tiles(suspect, s, tile, 2);
  }
  other_kv_head(suspect, s);
  missing_correction(suspect, s);
  if (suspect.hidden()) return power_of_two_scales(suspect, s);
  sliding_window(suspect, s);
  score_factor(suspect, s);
  const std::vector<double> part = unscaled_part(suspect, s), none(part.size(), 0.0);
  key_scale(suspect, s, part);
  if (part != none) key_scale(suspect, s, none);
  for (const std::int64_t tile : tiles) value_scale(suspect, s, tile);
  row_factors(suspect, s);
}

}  // namespace qattn::lab
