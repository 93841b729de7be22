#include "lab/consistent_factor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "attention/dense_product.h"
#include "base/elementary.h"
#include "base/fp_environment.h"
#include "lab/local_limit.h"
#include "lab/relative_limit.h"

namespace qattn::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Right outputs of related recipes reach 11 deviations where they exceed kLeastStrength.
constexpr double kDeviations = 16;
/// Of what the recipe's own error has along a direction, so much may be missing or there once more.
constexpr double kOwnBias = 0.25;
/// A channel's factor among those of the others, in units of their spread and of the spread of the recipe's own.
constexpr double kAmongChannels = 6, kAmongOwn = 4;
/// Beside a related recipe so much of the change has to be left; else it is that recipe's bias.
constexpr double kLeastLeft = 0.5;
/// A direction that has so much of d's square is the main difference. Another has to move o so many times as much as
/// any relative is moved from the recipe along a direction of the kind.
constexpr double kMainDifference = 0.5, kOverSpread = 2;
/// Rows are alike when they differ by less than so much of the recipe's error; more rows than these are all told apart.
constexpr double kAlike = 0.5;
constexpr std::size_t kMostLeaders = 64;
constexpr std::int64_t kMostBlocks = 64;
/// Fewer rows or channels say nothing about a deviation.
constexpr std::size_t kLeastClusters = 8;

enum class Kind : std::uint8_t { head, channel, keys, tile };

/// What the factor is to differ from 1 by, and what the change is to have of the recipe's error (root mean squares).
struct Least {
  double change, strength;
};
constexpr Least least_of(Kind kind) {
  switch (kind) {
    case Kind::head:
      return {0.004, 0.2};
    case Kind::channel:
      return {0.075, 0.5};
    case Kind::keys:
    case Kind::tile:
      return {0.07, 0.25};  // more than one rounding to E4M3
  }
  return {};
}

/// A direction u: where it lies, and the sums over it. Tiles of several sequences differ by their rows.
struct Place {
  Kind kind = Kind::head;
  std::int64_t first_row = 0, last_row = 0, first = 0, last = 0;  ///< keys or channels [first, last)

  bool operator==(const Place&) const = default;
};

/// <d, u> and <u, u> of each row and of each channel; what is left out in turn for the deviation.
struct Clusters {
  std::vector<double> shared, square;

  void add(std::size_t index, double d, double u) {
    shared[index] += d * u;
    square[index] += u * u;
  }
};

Clusters clusters(std::size_t count) { return {std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)}; }

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

/// The jackknife's variance of sum(shared) / sum(square). Infinite where one cluster is all there is.
double variance(const Clusters& of) {
  const double shared = total(of.shared), square = total(of.square);
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < of.square.size(); ++i) {
    if (of.square[i] == 0) continue;
    const double rest = square - of.square[i];
    if (!(rest > 1e-12 * square)) return kInfinity;
    const double off = (shared - of.shared[i]) / rest - shared / square;
    sum += off * off;
    ++count;
  }
  if (count < kLeastClusters) return kInfinity;
  return sum * static_cast<double>(count - 1) / static_cast<double>(count);
}

struct Direction {
  Place place;
  double change = 0;        ///< the factor less 1
  double own = 0;           ///< the same of the recipe's output
  double deviation = 0;     ///< of `change`
  double strength = 0;      ///< |change u| over |e - r| on the rows and channels concerned
  double explained = 0;     ///< change^2 <u, u>
  double part_of_rest = 0;  ///< `explained` of d's square
  bool stands_out = false;
};

/// Sums along one direction while its rows are seen.
struct Along {
  Clusters rows, channels;
  double own = 0, noise = 0;  ///< <e - r, u>; sum of (e - r)^2 over rows with u

  Along(std::size_t row_count, std::size_t channel_count)
      : rows(clusters(row_count)), channels(clusters(channel_count)) {}

  double square() const { return total(rows.square); }
};

class Search {
 public:
  /// `share` is shared_error().
  Search(const HeadProblem& part, const CheckedHead& head, const MatrixD& emulated, double share, double factor)
      : problem_(part.problem), first_row_(part.first_row), factor_(std::max(1.0, factor / kUsualFactor)) {
    const std::int64_t rows = problem_.q.rows();
    reference_ = head.reference.middleRows(first_row_, rows);
    loss_ = emulated.middleRows(first_row_, rows) - reference_;
    rest_ = head.o.middleRows(first_row_, rows) - reference_ - share * loss_;
    for (Eigen::Index i = 0; i < rest_.size(); ++i) rest_square_ += rest_.data()[i] * rest_.data()[i];
    find_alike();
  }

  /// Every direction.
  std::vector<Direction> run() {
    whole_head();
    all_channels();
    tiles();
    return std::move(found_);
  }

 private:
  std::int64_t channels() const { return reference_.cols(); }

  /// Rows whose float64 outputs differ by less than what the recipe loses share their errors: they are one row to the
  /// jackknife.
  void find_alike() {
    double square = 0;
    for (Eigen::Index i = 0; i < loss_.size(); ++i) square += loss_.data()[i] * loss_.data()[i];
    const double alike = kAlike * kAlike * square / static_cast<double>(loss_.rows());
    std::vector<Eigen::Index> leaders;
    for (Eigen::Index r = 0; r < reference_.rows(); ++r) {
      const auto leader = std::find_if(leaders.begin(), leaders.end(), [&](Eigen::Index other) {
        double distance = 0;
        for (Eigen::Index c = 0; c < channels() && distance <= alike; ++c) {
          const double off = reference_(r, c) - reference_(other, c);
          distance += off * off;
        }
        return distance <= alike;
      });
      alike_.push_back(leader == leaders.end() ? index_of(r) : index_of(*leader));
      if (leader == leaders.end() && leaders.size() < kMostLeaders) leaders.push_back(r);
    }
  }

  static std::size_t index_of(Eigen::Index i) { return static_cast<std::size_t>(i); }

  Direction direction(const Place& place, const Along& along) const {
    const double square = along.square();
    Direction d{place, 0, 0, kInfinity, 0, 0};
    if (!(square > 0)) return d;
    d.change = total(along.rows.shared) / square;
    d.own = along.own / square;
    d.deviation = std::sqrt(variance(along.rows) + variance(along.channels));
    d.strength = std::fabs(d.change) * std::sqrt(square / std::max(along.noise, 1e-300));
    d.explained = d.change * d.change * square;
    d.part_of_rest = d.explained / std::max(rest_square_, 1e-300);
    return d;
  }

  bool stands_out(const Direction& d) const {
    const Least least = least_of(d.place.kind);
    const double beyond = std::fabs(d.change) - kOwnBias * std::fabs(d.own);
    return std::fabs(d.change) >= least.change && d.strength >= factor_ * least.strength &&
           std::isfinite(d.deviation) && beyond >= kDeviations * d.deviation;
  }

  void consider(const Place& place, const Along& along) {
    Direction d = direction(place, along);
    d.stands_out = stands_out(d);
    found_.push_back(d);
  }

  void whole_head() {
    const auto rows = static_cast<std::size_t>(reference_.rows()), columns = static_cast<std::size_t>(channels());
    Along along(rows, columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) add(along, alike_[r], r, c, reference_(index(r), index(c)));
    }
    consider({Kind::head, first_row_, first_row_ + reference_.rows(), 0, channels()}, along);
  }

  static Eigen::Index index(std::size_t i) { return static_cast<Eigen::Index>(i); }

  /// Element (row, channel) of a direction; `cluster` is the row's place in the direction.
  void add(Along& along, std::size_t cluster, std::size_t row, std::size_t channel, double u) const {
    const double d = rest_(index(row), index(channel)), loss = loss_(index(row), index(channel));
    along.rows.add(cluster, d, u);
    along.channels.add(channel, d, u);
    along.own += loss * u;
    along.noise += loss * loss;
  }

  void all_channels() {
    double mean_noise = 0;
    for (Eigen::Index i = 0; i < loss_.size(); ++i) mean_noise += loss_.data()[i] * loss_.data()[i];
    mean_noise /= static_cast<double>(channels());
    std::vector<Direction> all;
    double square = 0, spread = 0, own = 0;
    for (std::int64_t c = 0; c < channels(); ++c) {
      Clusters rows = clusters(static_cast<std::size_t>(reference_.rows()));
      Direction d{{Kind::channel, first_row_, first_row_ + reference_.rows(), c, c + 1}, 0, 0, kInfinity, 0, 0};
      double noise = 0, loss = 0, mean = 0;
      for (Eigen::Index r = 0; r < reference_.rows(); ++r) mean += reference_(r, c);
      mean /= static_cast<double>(reference_.rows());
      // What all rows have in common is one rounding of V's mean; a factor shows in what they differ by.
      for (Eigen::Index r = 0; r < reference_.rows(); ++r) {
        const double u = reference_(r, c) - mean;
        rows.add(alike_[index_of(r)], rest_(r, c), u);
        noise += loss_(r, c) * loss_(r, c);
        loss += loss_(r, c) * u;
      }
      const double size = total(rows.square);
      if (!(size > 0)) continue;
      d.change = total(rows.shared) / size;
      d.own = loss / size;
      d.deviation = std::sqrt(variance(rows));
      d.strength = std::fabs(d.change) * std::sqrt(size / std::max({noise, mean_noise, 1e-300}));
      d.explained = d.change * d.change * size;
      d.part_of_rest = d.explained / std::max(rest_square_, 1e-300);
      square += size;
      spread += d.explained;
      own += d.own * d.own * size;
      all.push_back(d);
    }
    for (Direction& d : all) {
      const double size = d.explained > 0 ? d.explained / (d.change * d.change) : 0;
      const double others = std::sqrt(std::max(0.0, spread - d.explained) / std::max(square - size, 1e-300));
      const double change = std::fabs(d.change);
      d.stands_out = change > kAmongChannels * others && change > kAmongOwn * std::sqrt(own / square) && stands_out(d);
      found_.push_back(d);
    }
  }

  /// Softmax weights of rows [first, last), [rows, keys].
  MatrixD weights(std::int64_t first, std::int64_t last) const {
    MatrixD p = MatrixD::Zero(last - first, problem_.k.rows());
    attention::accumulate_product(problem_.q.middleRows(first, last - first), keys_by_channel_, p);
    for (Eigen::Index r = 0; r < p.rows(); ++r) {
      const std::int64_t seen = std::clamp<std::int64_t>(problem_.visible_keys(first + r), 0, p.cols());
      p.row(r).tail(p.cols() - seen).setZero();
      if (seen == 0) continue;
      double* const row = p.data() + r * p.cols();
      for (std::int64_t j = 0; j < seen; ++j) {
        row[j] *= problem_.sm_scale;
        if (problem_.mask) row[j] += (*problem_.mask)(first + r, j);
      }
      const double max = *std::max_element(row, row + seen);
      for (std::int64_t j = 0; j < seen; ++j) row[j] = max == -kInfinity ? -kInfinity : row[j] - max;
      elementary::exp({row, static_cast<std::size_t>(seen)}, {row, static_cast<std::size_t>(seen)});
      double sum = 0;
      for (std::int64_t j = 0; j < seen; ++j) sum += row[j];
      if (sum > 0) p.row(r) /= sum;
    }
    return p;
  }

  /// Starts of blocks, and the end. A ragged last block of rows joins the one before it.
  static std::vector<std::int64_t> starts(std::int64_t length, bool join_ragged) {
    std::vector<std::int64_t> all = {0};
    for (std::int64_t first = kLimitBlock; first < length; first += kLimitBlock) {
      if (!join_ragged || length - first >= kLimitBlock) all.push_back(first);
    }
    all.push_back(length);
    return all;
  }

  void tiles() {
    const std::vector<std::int64_t> rows = starts(problem_.q.rows(), true);
    const std::vector<std::int64_t> keys = starts(problem_.k.rows(), false);
    keys_by_channel_ = problem_.k.transpose();
    const auto blocks = static_cast<std::int64_t>(rows.size()) - 1;
    const std::int64_t tried = std::min(blocks, kMostBlocks);
    // A ragged block has up to kLimitBlock - 1 rows more.
    const std::int64_t most_rows = std::min(problem_.q.rows(), (tried + 1) * kLimitBlock);
    std::vector<Along> groups(keys.size() - 1,
                              Along(static_cast<std::size_t>(most_rows), static_cast<std::size_t>(channels())));
    std::vector<std::size_t> cluster(alike_.size(), alike_.size());
    std::size_t seen_rows = 0;
    for (std::int64_t i = 0; i < tried; ++i) {
      const auto b = static_cast<std::size_t>(tried == 1 ? 0 : i * (blocks - 1) / (tried - 1));
      const MatrixD p = weights(rows[b], rows[b + 1]);
      for (std::int64_t r = rows[b]; r < rows[b + 1]; ++r, ++seen_rows) {
        const std::size_t leader = cluster[alike_[index_of(r)]];
        cluster[index_of(r)] = leader < alike_.size() ? leader : seen_rows;
      }
      for (std::size_t g = 0; g + 1 < keys.size(); ++g) {
        add_tile(p, {rows[b], rows[b + 1]}, {keys[g], keys[g + 1]}, groups[g], cluster);
      }
    }
    for (std::size_t g = 0; g + 1 < keys.size(); ++g) {
      consider({Kind::keys, first_row_, first_row_ + reference_.rows(), keys[g], keys[g + 1]}, groups[g]);
    }
  }

  struct Range {
    std::int64_t first, last;
  };

  /// `cluster`: of each row in `group`.
  void add_tile(const MatrixD& p, Range rows, Range keys, Along& group, const std::vector<std::size_t>& cluster) {
    const std::int64_t count = rows.last - rows.first;
    const MatrixD weights = p.middleCols(keys.first, keys.last - keys.first);
    if (weights.isZero(0)) return;
    MatrixD u = MatrixD::Zero(count, problem_.v.cols());
    attention::accumulate_product(weights, problem_.v.middleRows(keys.first, keys.last - keys.first), u);
    Along tile(static_cast<std::size_t>(count), static_cast<std::size_t>(channels()));
    for (std::int64_t r = 0; r < count; ++r) {
      if (weights.row(r).isZero(0)) continue;
      const std::size_t row = index_of(rows.first + r);
      std::size_t in_tile = 0;
      while (alike_[index_of(rows.first) + in_tile] != alike_[row]) ++in_tile;
      for (std::int64_t c = 0; c < channels(); ++c) {
        add(tile, in_tile, row, index_of(c), u(r, c));
        add(group, cluster[row], row, index_of(c), u(r, c));
      }
    }
    consider({Kind::tile, first_row_ + rows.first, first_row_ + rows.last, keys.first, keys.last}, tile);
  }

  const attention::Problem& problem_;
  const std::int64_t first_row_;
  const double factor_;
  MatrixD reference_, loss_, rest_;  ///< r, e - r, d
  double rest_square_ = 0;
  std::vector<std::size_t> alike_;  ///< of each row the first row that is like it
  MatrixD keys_by_channel_;
  std::vector<Direction> found_;
};

/// Every direction of every sequence, always in the same order, with `emulated` in place of the recipe's output.
std::vector<Direction> directions(const CheckedHead& head, const MatrixD& emulated, double factor) {
  const double share = shared_error(head, emulated);
  std::vector<Direction> all;
  for (const HeadProblem& part : head.parts) {
    const std::vector<Direction> some = Search(part, head, emulated, share, factor).run();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// How much a change of this size moves o: <u, u> of the direction is what was explained by it.
double moved(const Direction& d, double change) {
  return d.change == 0 ? 0 : std::fabs(change / d.change) * std::sqrt(d.explained);
}

/// Per kind of place, the most that a relative differs from the recipe by along any of its directions.
std::array<double, 4> spread_of(const std::vector<Direction>& all, const std::vector<std::vector<Direction>>& related,
                                double share) {
  std::array<double, 4> spread{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& most = spread[static_cast<std::size_t>(all[i].place.kind)];
    for (const std::vector<Direction>& other : related) {
      most = std::max(most, moved(all[i], other[i].own - share * all[i].own));
    }
  }
  return spread;
}

/// The direction that explains most; a plainer one that explains nearly as much goes before.
const Direction& best_of(const std::vector<Direction>& all) {
  const Direction* best = &all.front();
  for (const Direction& d : all) {
    const double lead = d.place.kind > best->place.kind ? 1.25 : d.place.kind < best->place.kind ? 0.8 : 1.0;
    if (d.explained > lead * best->explained) best = &d;
  }
  return *best;
}

Finding finding(const Direction& d) {
  const Place& at = d.place;
  const double factor = 1 + d.change;
  switch (at.kind) {
    case Kind::head:
      return {"constant factor", fmt::format("o is about {:.4g} times what it should be, in all rows alike", factor),
              0};
    case Kind::channel:
      return {"one wrong scale group",
              fmt::format("channel {} of o is about {:.3g} times what it should be: V's scale there is wrong", at.first,
                          factor),
              0};
    case Kind::keys:
      return {"one wrong scale group",
              fmt::format("V of keys {} to {} is about {:.3g} times what it should be: V's scale there is wrong",
                          at.first, at.last - 1, factor),
              0};
    case Kind::tile:
      break;
  }
  return {"one wrong scale group",
          fmt::format("P V of rows {} to {} with keys {} to {} counts about {:.3g} times: P's scale there is wrong",
                      at.first_row, at.last_row - 1, at.first, at.last - 1, factor),
          0};
}

}  // namespace

std::optional<Finding> consistent_factor(const CheckedHead& head, const attention::Recipe& recipe, double factor) {
  const FpEnvironment environment;
  const std::vector<Direction> all = directions(head, head.emulated, factor);
  std::vector<std::vector<Direction>> related;
  for (const MatrixD& other : head.related) related.push_back(directions(head, other, factor));
  const double rounding = recipe.v.scaled() ? std::ldexp(0.5, -recipe.v.format->mantissa_bits) : 0;
  const double share = shared_error(head, head.emulated);
  const std::array<double, 4> spread = spread_of(all, related, share);
  std::vector<Direction> found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Direction& d = all[i];
    if (!d.stands_out) continue;
    // A value that rounds to 4 bits or to zero may take its whole channel with it.
    if (d.place.kind == Kind::channel && (rounding > 0.2 || std::fabs(d.change) < 1.2 * rounding)) continue;
    const bool left = std::all_of(related.begin(), related.end(), [&](const std::vector<Direction>& other) {
      return other[i].change / d.change >= kLeastLeft;
    });
    const bool more = moved(d, d.change) >= kOverSpread * spread[static_cast<std::size_t>(d.place.kind)];
    if (left && (more || d.part_of_rest >= kMainDifference)) found.push_back(d);
  }
  if (found.empty()) return std::nullopt;
  return finding(best_of(found));
}

}  // namespace qattn::lab
