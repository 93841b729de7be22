#include "lab/suspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/elementary.h"

namespace qattn::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// A row is wrong when its error is so many times what is plausible.
constexpr double kImplausible = 3;
constexpr std::size_t kWrongRows = 28, kOtherRows = 8, kHiddenRows = 64;
/// A hidden mistake: its share in the output's error has to lie between these, exceed that in the recipe's error by
/// kLeastExcess and by so many deviations of what independent errors would give. Errors of neighbours are not
/// independent: kAlike of them count as one.
constexpr double kLeastShare = 0.6, kMostShare = 1.6, kOwnShare = 0.25, kLeastExcess = 0.5, kDeviations = 6, kAlike = 8;
/// And that in any related recipe's error so many times.
constexpr double kOverRelated = 3;

std::vector<double> row_sums(const MatrixD& a, const MatrixD& b) {
  std::vector<double> sums(static_cast<std::size_t>(a.rows()), 0.0);
  for (Eigen::Index r = 0; r < a.rows(); ++r) {
    for (Eigen::Index c = 0; c < a.cols(); ++c) sums[static_cast<std::size_t>(r)] += std::fabs(a(r, c) - b(r, c));
  }
  return sums;
}

std::vector<std::int64_t> implausible(const std::vector<double>& errors, const std::vector<double>& losses) {
  const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  std::vector<std::int64_t> wrong;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (!(errors[i] <= kImplausible * std::max(losses[i], mean))) wrong.push_back(static_cast<std::int64_t>(i));
  }
  return wrong;
}

/// At most `count` of `from`, spread evenly, first and last among them.
std::vector<std::int64_t> spread(const std::vector<std::int64_t>& from, std::size_t count) {
  if (from.size() <= count) return from;
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(from[i * (from.size() - 1) / (count - 1)]);
  return chosen;
}

double magnitude(const MatrixD& values) {
  double sum = 0;
  for (Eigen::Index i = 0; i < values.size(); ++i) sum += std::fabs(values.data()[i]);
  return sum;
}

MatrixD pick(const MatrixD& from, const std::vector<std::int64_t>& rows) {
  MatrixD picked(static_cast<Eigen::Index>(rows.size()), from.cols());
  for (std::size_t i = 0; i < rows.size(); ++i) picked.row(static_cast<Eigen::Index>(i)) = from.row(rows[i]);
  return picked;
}

}  // namespace

WrongParts wrong_parts(const MatrixD& output, const MatrixD& reference, const MatrixD& emulated) {
  WrongParts parts;
  parts.rows = implausible(row_sums(output, reference), row_sums(emulated, reference));
  const auto transposed = [](const MatrixD& m) { return MatrixD(m.transpose()); };
  parts.channels = implausible(row_sums(transposed(output), transposed(reference)),
                               row_sums(transposed(emulated), transposed(reference)));
  return parts;
}

std::string describe_indices(std::string_view what, const std::vector<std::int64_t>& indices, std::int64_t offset) {
  const std::int64_t first = indices.front() + offset, last = indices.back() + offset;
  const auto count = static_cast<std::int64_t>(indices.size());
  if (count == 1) return fmt::format("{} {}", what, first);
  if (last - first + 1 == count) return fmt::format("{}s {} to {}", what, first, last);
  const std::int64_t step = indices[1] - indices[0];
  bool regular = true;
  for (std::size_t i = 1; i < indices.size(); ++i) regular = regular && indices[i] - indices[i - 1] == step;
  if (count == 2) return fmt::format("{}s {} and {}", what, first, last);
  if (regular) return fmt::format("{}s {}, {}, ... {} (every {}th)", what, first, first + step, last, step);
  return fmt::format("{} {}s between {} and {}", count, what, first, last);
}

Suspect::Suspect(const DumpSet& dumps, const CheckedHead& head, const attention::Recipe& recipe, Search search)
    : dumps_(dumps), head_(head), recipe_(recipe), search_(search) {
  double largest = -1;
  for (const HeadProblem& part : head.parts) {
    const std::int64_t count = part.problem.q.rows();
    const double error =
        magnitude(head.o.middleRows(part.first_row, count) - head.reference.middleRows(part.first_row, count));
    if (error <= largest) continue;
    largest = error;
    part_ = &part;
  }
  const std::int64_t count = problem().q.rows();
  output_ = head.o.middleRows(first_row(), count);
  reference_ = head.reference.middleRows(first_row(), count);
  emulated_ = head.emulated.middleRows(first_row(), count);
  if (!hidden()) wrong_ = wrong_parts(output_, reference_, emulated_);
  std::vector<std::int64_t> others;
  for (std::int64_t r = 0; r < count; ++r) {
    if (!std::binary_search(wrong_.rows.begin(), wrong_.rows.end(), r)) others.push_back(r);
  }
  rows_ = spread(wrong_.rows, kWrongRows);
  const std::size_t all_alike = hidden() ? kHiddenRows : kWrongRows + kOtherRows;
  const std::vector<std::int64_t> right = spread(others, wrong_.rows.empty() ? all_alike : kOtherRows);
  rows_.insert(rows_.end(), right.begin(), right.end());
  std::sort(rows_.begin(), rows_.end());
  for (const std::int64_t r : rows_) {
    sampled_wrong_.push_back(wrong_.rows.empty() || std::binary_search(wrong_.rows.begin(), wrong_.rows.end(), r));
  }
  sampled_output_ = pick(output_, rows_);
  sampled_reference_ = pick(reference_, rows_);
  sampled_loss_ = pick(emulated_, rows_) - sampled_reference_;
  for (const MatrixD& other : head.related) {
    related_losses_.push_back(pick(other.middleRows(first_row(), count), rows_) - sampled_reference_);
  }
  unexplained_ = residual(sampled_reference_);
  noise_ = magnitude(sampled_loss_) / std::max(magnitude(sampled_reference_), 1e-300);
}

bool Suspect::all_rows_wrong() const {
  return wrong_.rows.empty() || static_cast<double>(wrong_.rows.size()) >= 0.9 * static_cast<double>(output_.rows());
}

bool Suspect::all_channels_wrong() const {
  return wrong_.channels.empty() ||
         static_cast<double>(wrong_.channels.size()) >= 0.9 * static_cast<double>(output_.cols());
}

const attention::Problem& Suspect::problem_of_head(std::int64_t batch, std::int64_t q_head) {
  if (batch == head_.piece.batch && q_head == head_.piece.head) return problem();
  const auto known = others_.find({batch, q_head});
  if (known != others_.end()) return known->second;
  std::vector<HeadProblem> parts = dumps_.read(dumps_.calls()[head_.piece.call], batch, q_head);
  for (HeadProblem& part : parts) {
    if (part.first_row != first_row()) continue;
    return others_.emplace(std::pair(batch, q_head), std::move(part.problem)).first->second;
  }
  return problem();
}

MatrixD Suspect::rows_of_head(std::int64_t batch, std::int64_t q_head, const std::vector<std::int64_t>& rows) {
  const attention::Problem& other = problem_of_head(batch, q_head);
  std::vector<std::int64_t> visible;
  for (const std::int64_t r : rows) visible.push_back(other.visible_keys(r));
  return attend(scores_of(other, rows), visible, other.v, channels());
}

double Suspect::residual(const MatrixD& candidate) const {
  double plain = 0, lossy = 0;
  for (Eigen::Index i = 0; i < candidate.size(); ++i) {
    const double off = sampled_output_.data()[i] - candidate.data()[i];
    plain += std::fabs(off);
    lossy += std::fabs(off - sampled_loss_.data()[i]);
  }
  const double size = std::max(magnitude(sampled_reference_), magnitude(candidate));
  return std::min(plain, lossy) / std::max(size, 1e-300);
}

MatrixD Suspect::changed(const std::function<MatrixD(const MatrixD& whole)>& change) const {
  MatrixD exact = change(reference_), own = change(emulated_);
  return residual(own) < residual(exact) ? own : exact;
}

bool Suspect::stands_out(const MatrixD& candidate) const {
  double square = 0, share = 0, own_share = 0, own = 0, count = 0;
  for (Eigen::Index r = 0; r < candidate.rows(); ++r) {
    double in_row = 0;
    for (Eigen::Index c = 0; c < candidate.cols(); ++c) in_row += std::fabs(candidate(r, c) - sampled_reference_(r, c));
    if (in_row == 0) continue;
    for (Eigen::Index c = 0; c < candidate.cols(); ++c) {
      const double way = candidate(r, c) - sampled_reference_(r, c), loss = sampled_loss_(r, c);
      square += way * way;
      share += (sampled_output_(r, c) - sampled_reference_(r, c)) * way;
      own_share += loss * way;
      own += loss * loss;
      ++count;
    }
  }
  if (!(square > 0)) return false;
  share /= square;
  own_share /= square;
  double rest = 0;
  for (Eigen::Index i = 0; i < candidate.size(); ++i) {
    const double r = sampled_reference_.data()[i], way = candidate.data()[i] - r;
    if (way == 0) continue;
    const double off = sampled_output_.data()[i] - r - share * way;
    rest += off * off;
  }
  const double deviation = std::sqrt(std::max(own, rest) / square * kAlike / count);
  if (!(share >= kLeastShare && share <= kMostShare && std::fabs(own_share) <= kOwnShare)) return false;
  return share - own_share >= std::max(kLeastExcess, kDeviations * deviation) &&
         share >= kOverRelated * related_share(candidate, square);
}

double Suspect::related_share(const MatrixD& candidate, double square) const {
  double most = 0;
  for (const MatrixD& loss : related_losses_) {
    double share = 0;
    for (Eigen::Index i = 0; i < candidate.size(); ++i) {
      share += loss.data()[i] * (candidate.data()[i] - sampled_reference_.data()[i]);
    }
    most = std::max(most, std::fabs(share / square));
  }
  return most;
}

double Suspect::left_over(const MatrixD& candidate) const {
  double left = 0, all = 0;
  for (Eigen::Index i = 0; i < candidate.size(); ++i) {
    const double off = sampled_output_.data()[i] - candidate.data()[i];
    const double error = sampled_output_.data()[i] - sampled_reference_.data()[i];
    left += off * off;
    all += error * error;
  }
  return left / std::max(all, 1e-300);
}

void Suspect::offer(const MatrixD& candidate, std::string_view name, const std::function<std::string()>& detail) {
  if (hidden()) {
    if (!stands_out(candidate)) return;
    const double left = left_over(candidate);
    if (!best_ || left < 0.95 * best_->residual) best_ = Finding{std::string(name), detail(), left};
    return;
  }
  const double left = residual(candidate);
  if (best_ && !(left < 0.8 * best_->residual)) return;
  // Building the sentence may cost something; hopeless candidates do not get one.
  if (!(left <= 0.5 * unexplained_)) return;
  best_ = Finding{std::string(name), detail(), left};
}

std::optional<Finding> Suspect::verdict() const {
  if (hidden()) return best_;
  const double unit = std::ldexp(1.0, -head_.format().mantissa_bits);
  if (!best_ || best_->residual > std::max(3 * noise_, 2 * unit)) return std::nullopt;
  return best_;
}

MatrixD attend(const MatrixD& scores, const std::vector<std::int64_t>& visible, const MatrixD& v,
               std::int64_t channels) {
  MatrixD o = MatrixD::Zero(scores.rows(), channels);
  std::vector<double> weights;
  for (Eigen::Index r = 0; r < scores.rows(); ++r) {
    const auto keys =
        static_cast<std::size_t>(std::clamp<std::int64_t>(visible[static_cast<std::size_t>(r)], 0, v.rows()));
    weights.assign(scores.data() + r * scores.cols(), scores.data() + r * scores.cols() + keys);
    const double max = keys == 0 ? -kInfinity : *std::max_element(weights.begin(), weights.end());
    if (max == -kInfinity) continue;
    for (double& weight : weights) weight -= max;
    elementary::exp(weights, weights);
    double sum = 0;
    for (std::size_t j = 0; j < keys; ++j) {
      sum += weights[j];
      const double* row = v.data() + static_cast<Eigen::Index>(j) * v.cols();
      for (std::int64_t c = 0; c < channels; ++c) o(r, c) += weights[j] * row[c];
    }
    for (std::int64_t c = 0; c < channels; ++c) o(r, c) /= sum;
  }
  return o;
}

MatrixD scores_of(const attention::Problem& problem, const std::vector<std::int64_t>& rows, bool with_mask) {
  MatrixD scores(static_cast<Eigen::Index>(rows.size()), problem.k.rows());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto r = static_cast<Eigen::Index>(i);
    const double* q = problem.q.data() + rows[i] * problem.q.cols();
    for (Eigen::Index j = 0; j < problem.k.rows(); ++j) {
      const double* k = problem.k.data() + j * problem.k.cols();
      double dot = 0;
      for (Eigen::Index c = 0; c < problem.k.cols(); ++c) dot += q[c] * k[c];
      scores(r, j) = dot * problem.sm_scale;
      if (with_mask && problem.mask) scores(r, j) += (*problem.mask)(rows[i], j);
    }
  }
  return scores;
}

}  // namespace qattn::lab
