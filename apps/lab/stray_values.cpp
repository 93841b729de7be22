#include "lab/stray_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/fp_environment.h"
#include "lab/local_limit.h"
#include "lab/relative_limit.h"

namespace qattn::lab {
namespace {

/// Right outputs with equal rows reach 2.8 (FP4). Less is enough where the row is off in what it does not
/// share with the recipe, by so many times what any other row is.
constexpr double kApart = 4, kAloneApart = 0.5, kAloneRow = 2;
/// Elements of right outputs reach 4.7 times the largest error of a related recipe; where one exceeds it by half, it is
/// at most 2.0 times the next.
constexpr double kStray = 6.5, kAlone = 3.5, kAloneStray = 1.5;
/// The largest of many errors in units of their root mean square; few have a smaller one by chance.
constexpr double kLeastTail = 3.5;
/// A channel's error in units of all channels': one that the recipe happens to meet exactly has some too.
constexpr double kLeastChannel = 0.3;
/// Rows that are tried for a shift of all; another row is nearer only where it leaves so much.
constexpr std::int64_t kRolledRows = 64, kLeastRolled = 16;
constexpr double kNearer = 0.5;

double root_mean_square(const double* values, Eigen::Index count) {
  double sum = 0;
  for (Eigen::Index i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum / static_cast<double>(count));
}

std::vector<double> of_rows(const MatrixD& values) {
  std::vector<double> sizes;
  for (Eigen::Index r = 0; r < values.rows(); ++r) {
    sizes.push_back(root_mean_square(values.data() + r * values.cols(), values.cols()));
  }
  return sizes;
}

/// What the recipe loses in each row and each channel, root mean squares. A row's loss may happen to be small; that of
/// its block is plausible there too.
struct OwnErrors {
  std::vector<double> rows, channels;
  double all = 0;

  explicit OwnErrors(const CheckedHead& head) {
    const MatrixD loss = head.emulated - head.reference;
    rows = of_rows(loss);
    channels = of_rows(loss.transpose());
    all = root_mean_square(loss.data(), loss.size());
    for (const HeadProblem& part : head.parts) {
      const std::int64_t count = part.problem.q.rows(), blocks = std::max<std::int64_t>(1, count / kLimitBlock);
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t first = part.first_row + b * kLimitBlock;
        const std::int64_t last = b + 1 == blocks ? part.first_row + count : first + kLimitBlock;
        const double block = root_mean_square(loss.data() + first * loss.cols(), (last - first) * loss.cols());
        for (auto r = static_cast<std::size_t>(first); r < static_cast<std::size_t>(last); ++r) {
          rows[r] = std::max(rows[r], block);
        }
      }
    }
  }
};

double half_unit(const CheckedHead& head) { return std::ldexp(0.5, -head.format().mantissa_bits); }

class EqualRows {
 public:
  explicit EqualRows(const CheckedHead& head) : head_(head), own_(head) {
    const std::vector<double> sizes = of_rows(head.reference.transpose());
    for (std::size_t c = 0; c < sizes.size(); ++c) {
      units_.push_back(std::max(own_.channels[c] + half_unit(head) * sizes[c], 1e-300));
    }
  }

  std::optional<Finding> run() const {
    for (const auto& [values, rows] : equal_rows()) {
      if (rows.size() < 2) continue;
      const std::int64_t right = *std::min_element(rows.begin(), rows.end(), [this](std::int64_t a, std::int64_t b) {
        return error(a) * noise(b) < error(b) * noise(a);
      });
      for (const std::int64_t row : rows) {
        if (row == right || head_.emulated.row(row) == head_.emulated.row(right)) continue;
        const double apart = std::min(error(row), distance(head_.reference, row, head_.reference, right));
        if (apart > kApart * noise(row)) return finding(row, right);
        if (apart > kAloneApart * noise(row) && alone(row)) return finding(row, right);
      }
    }
    return std::nullopt;
  }

 private:
  /// Rows of o by their values; those of zeros are left out.
  std::map<std::vector<double>, std::vector<std::int64_t>> equal_rows() const {
    std::map<std::vector<double>, std::vector<std::int64_t>> rows;
    for (const HeadProblem& part : head_.parts) {
      for (std::int64_t r = part.first_row; r < part.first_row + part.problem.q.rows(); ++r) {
        if (head_.o.row(r).isZero(0)) continue;
        const double* const first = head_.o.data() + r * head_.o.cols();
        rows[std::vector<double>(first, first + head_.o.cols())].push_back(r);
      }
    }
    return rows;
  }

  /// Root mean square over the channels of a - b, each in units of the recipe's error there.
  double distance(const MatrixD& a, std::int64_t row, const MatrixD& b, std::int64_t other) const {
    double sum = 0;
    for (Eigen::Index c = 0; c < a.cols(); ++c) {
      const double off = (a(row, c) - b(other, c)) / units_[static_cast<std::size_t>(c)];
      sum += off * off;
    }
    return std::sqrt(sum / static_cast<double>(a.cols()));
  }
  double error(std::int64_t row) const { return distance(head_.o, row, head_.reference, row); }
  /// The recipe's error of the row, or of its block where that is more.
  double noise(std::int64_t row) const {
    const double block = own_.all > 0 ? own_.rows[static_cast<std::size_t>(row)] / own_.all : 0;
    return std::max({distance(head_.emulated, row, head_.reference, row), block, 1e-300});
  }

  /// Whether what the row does not share with the recipe's error stands out of all others'.
  bool alone(std::int64_t row) const {
    const double share = shared_error(head_);
    const MatrixD expected = head_.reference + share * (head_.emulated - head_.reference);
    double others = 0;
    for (std::int64_t r = 0; r < head_.o.rows(); ++r) {
      if (r != row) others = std::max(others, distance(head_.o, r, expected, r));
    }
    return distance(head_.o, row, expected, row) > kAloneRow * others;
  }

  Finding finding(std::int64_t row, std::int64_t right) const {
    return {"repeated row",
            fmt::format("row {} holds exactly what row {} does, and differs from its own by {:.3g} times what the "
                        "recipe loses there",
                        row, right, error(row) / noise(row)),
            0};
  }

  const CheckedHead& head_;
  const OwnErrors own_;
  std::vector<double> units_;
};

/// How far elements are off in units of what is plausible in their row and channel.
struct Strays {
  double largest = 0, next = 0;
  double tail = kLeastTail, related_tail = 0;  ///< the recipe's own largest; that of its relatives
  Eigen::Index row = 0, channel = 0;           ///< of the largest
  std::vector<double> all;

  explicit Strays(const CheckedHead& head) {
    const OwnErrors own(head);
    const double share = shared_error(head);
    for (Eigen::Index r = 0; r < head.o.rows(); ++r) {
      for (Eigen::Index c = 0; c < head.o.cols(); ++c) {
        const double loss = head.emulated(r, c) - head.reference(r, c), error = head.o(r, c) - head.reference(r, c);
        const double in_channel = own.all > 0 ? own.channels[static_cast<std::size_t>(c)] / own.all : 1;
        const double plausible = own.rows[static_cast<std::size_t>(r)] * std::max(in_channel, kLeastChannel) +
                                 half_unit(head) * std::fabs(head.reference(r, c));
        if (!(plausible > 0)) continue;
        tail = std::max(tail, std::fabs(loss) / plausible);
        for (const MatrixD& other : head.related) {
          related_tail = std::max(related_tail, std::fabs(other(r, c) - head.reference(r, c)) / plausible);
        }
        const double off = std::min({std::fabs(error), std::fabs(error - loss), std::fabs(error - share * loss)});
        add(off / plausible, r, c);
      }
    }
  }

  std::int64_t beyond(double limit) const {
    return std::count_if(all.begin(), all.end(), [limit](double off) { return off > limit; });
  }

 private:
  void add(double off, Eigen::Index r, Eigen::Index c) {
    all.push_back(off);
    if (off <= largest) {
      next = std::max(next, off);
      return;
    }
    next = largest;
    largest = off;
    row = r;
    channel = c;
  }
};

}  // namespace

std::optional<Finding> repeated_row(const CheckedHead& head) {
  const FpEnvironment environment;
  if (!all_finite(head)) return std::nullopt;
  return EqualRows(head).run();
}

std::optional<Finding> rolled_rows(const CheckedHead& head) {
  const FpEnvironment environment;
  const std::int64_t rows = head.o.rows(), step = std::max<std::int64_t>(1, rows / kRolledRows);
  if (!all_finite(head) || head.parts.size() != 1) return std::nullopt;
  std::map<std::int64_t, std::int64_t> votes;
  std::int64_t tried = 0;
  for (std::int64_t row = 0; row < rows; row += step, ++tried) {
    std::int64_t nearest = row;
    double least = (head.o.row(row) - head.emulated.row(row)).cwiseAbs().maxCoeff();
    for (std::int64_t other = 0; other < rows; ++other) {
      const double distance = (head.o.row(row) - head.emulated.row(other)).cwiseAbs().maxCoeff();
      if (!(distance < kNearer * least)) continue;
      nearest = other;
      least = distance;
    }
    ++votes[(nearest - row + rows) % rows];
  }
  const auto most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most->first == 0 || tried < kLeastRolled || 10 * most->second < 8 * tried) return std::nullopt;
  const std::int64_t shift = most->first > rows / 2 ? most->first - rows : most->first;
  return Finding{"permuted rows",
                 fmt::format("each row is what the recipe returns for the row {:+} away, around the ends", shift), 0};
}

std::optional<Finding> stray_elements(const CheckedHead& head, double factor, std::int64_t most) {
  const FpEnvironment environment;
  if (!all_finite(head)) return std::nullopt;
  const Strays strays(head);
  const double wider = std::max(1.0, factor / kUsualFactor);
  const auto beyond = strays.beyond(wider * kStray * std::max(strays.tail, strays.related_tail));
  const bool alone = strays.largest > kAlone * strays.next && strays.largest > wider * kAloneStray * strays.tail;
  if (!alone && (beyond == 0 || beyond > most)) return std::nullopt;
  const std::string others = beyond > 1 ? fmt::format("; {} elements are off by so much", beyond) : "";
  return Finding{beyond > 1 ? "stray elements" : "stray element",
                 fmt::format("element (row {}, channel {}) is {:.4g} where float64 has {:.4g} and the recipe {:.4g}, "
                             "{:.3g} times further off than the errors of its row and channel go{}",
                             strays.row, strays.channel, head.o(strays.row, strays.channel),
                             head.reference(strays.row, strays.channel), head.emulated(strays.row, strays.channel),
                             strays.largest / strays.tail, others),
                 0};
}

}  // namespace qattn::lab
