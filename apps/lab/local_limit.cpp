#include "lab/local_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "format/encode.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

/// Relative, of an element: what float32 sums may cost, whatever o is stored in.
constexpr double kFloatSums = 0x1p-21;
constexpr Eigen::Index kFewRows = 8;

/// Sums of |o - r|, |e - r| and |r| over some elements; |e - r| of the recipe and of each relative.
struct Sums {
  double error = 0, size = 0;
  std::vector<double> own;

  explicit Sums(std::size_t recipes) : own(recipes, 0.0) {}

  void add(const Sums& other) {
    error += other.error;
    size += other.size;
    for (std::size_t i = 0; i < own.size(); ++i) own[i] += other.own[i];
  }
  double most() const { return *std::max_element(own.begin(), own.end()); }
};

class Local {
 public:
  Local(const CheckedHead& head, double factor)
      : head_(head),
        factor_(factor),
        floor_(std::max(std::ldexp(0.5, -head.format().mantissa_bits), kFloatSums)),
        recipes_(head.related.size() + 1) {}

  LocalErrors run() {
    for (const HeadProblem& part : head_.parts) add_sequence(part.first_row, part.problem.q.rows());
    add_channels();
    return std::move(errors_);
  }

 private:
  /// `size`: what zeros would be off there.
  PartError part(std::int64_t first, std::int64_t last, const Sums& sums, double plausible, double slack,
                 double size) const {
    const double wide = slack * factor_ * plausible;
    const double least = recipes_ > 1 ? kRelatedSlack : kLeastSlack;
    const double useful = std::max(kUsefulLimit * size, least * factor_ * plausible);
    return {
        first, last, sums.error, sums.own.front(), plausible, sums.size, std::min(wide, useful) + floor_ * sums.size};
  }

  void add(Sums& sums, Eigen::Index row, Eigen::Index channel) const {
    const double r = head_.reference(row, channel);
    sums.error += std::fabs(head_.o(row, channel) - r);
    sums.size += std::fabs(r);
    sums.own[0] += std::fabs(head_.emulated(row, channel) - r);
    for (std::size_t i = 1; i < recipes_; ++i) sums.own[i] += std::fabs(head_.related[i - 1](row, channel) - r);
  }

  static void keep(const PartError& candidate, PartError& nearest, std::vector<std::int64_t>& beyond) {
    if (!candidate.within()) beyond.push_back(candidate.first);
    if (nearest.last == 0 || candidate.of_limit() > nearest.of_limit()) nearest = candidate;
  }

  void add_sequence(std::int64_t first, std::int64_t rows) {
    const std::int64_t blocks = std::max<std::int64_t>(1, rows / kLimitBlock);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t last = b + 1 == blocks ? rows : (b + 1) * kLimitBlock;
      add_block(first + b * kLimitBlock, first + last);
    }
  }

  void add_block(std::int64_t first, std::int64_t last) {
    std::vector<Sums> rows;
    Sums block(recipes_);
    double most = 0;
    for (std::int64_t r = first; r < last; ++r) {
      rows.emplace_back(recipes_);
      for (Eigen::Index c = 0; c < head_.o.cols(); ++c) add(rows.back(), r, c);
      block.add(rows.back());
      most = std::max(most, rows.back().most());
      if (is_unwritten(r)) errors_.unwritten.push_back(r);
    }
    keep(part(first, last, block, block.most(), kBlockSlack, block.size), errors_.block, errors_.beyond_blocks);
    // One recipe alone says little about a single row; several show how far any row of the block may be off.
    const double plausible = recipes_ > 1 ? most : block.most() / static_cast<double>(last - first);
    for (std::int64_t r = first; r < last; ++r) {
      const Sums& sums = rows[static_cast<std::size_t>(r - first)];
      keep(part(r, r + 1, sums, std::max(sums.most(), plausible), kRowSlack, sums.size), errors_.row,
           errors_.beyond_rows);
    }
  }

  void add_channels() {
    const Eigen::Index channels = head_.o.cols();
    std::vector<Sums> columns(static_cast<std::size_t>(channels), Sums(recipes_));
    Sums all(recipes_);
    for (Eigen::Index c = 0; c < channels; ++c) {
      for (Eigen::Index r = 0; r < head_.o.rows(); ++r) add(columns[static_cast<std::size_t>(c)], r, c);
      all.add(columns[static_cast<std::size_t>(c)]);
    }
    const double mean = all.most() / static_cast<double>(channels);
    const double mean_size = all.size / static_cast<double>(channels);
    for (Eigen::Index c = 0; c < channels; ++c) {
      const Sums& column = columns[static_cast<std::size_t>(c)];
      // A channel of a few elements may be small by chance.
      const double size = head_.o.rows() < kFewRows ? std::max(column.size, mean_size) : column.size;
      keep(part(c, c + 1, column, std::max(column.most(), mean), kChannelSlack, size), errors_.channel,
           errors_.beyond_channels);
    }
  }

  /// All zeros, where neither the recipe's row nor the reference's is once it is stored in the output's format.
  bool is_unwritten(std::int64_t row) const {
    const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};
    bool reference = false, recipe = false;
    for (Eigen::Index c = 0; c < head_.o.cols(); ++c) {
      if (head_.o(row, c) != 0) return false;
      recipe = recipe || head_.emulated(row, c) != 0;
      const double r = head_.reference(row, c);
      reference = reference || format::decode(head_.format(), format::encode(head_.format(), r, to_nearest)) != 0;
    }
    return reference && recipe;
  }

  const CheckedHead& head_;
  const double factor_, floor_;
  const std::size_t recipes_;
  LocalErrors errors_;
};

std::string part_text(const PartError& part, const std::string& which, bool plural, std::string_view recipe,
                      double slack, double factor) {
  const auto relative = [&](double x) { return x / part.size; };
  if (!(part.size > 0)) {
    return fmt::format("{} {} to be zero, and the magnitudes there add up to {:.4g}", which, plural ? "are" : "is",
                       part.error);
  }
  const std::string related = part.plausible > part.own ? fmt::format(" (its block or related recipes by up to {:.4g})",
                                                                      relative(part.plausible))
                                                        : "";
  return fmt::format(
      "{} {} off float64 by {:.4g} (relative L1); {} itself is off by {:.4g} there{}, {} times {} times that allows "
      "{:.4g}",
      which, plural ? "are" : "is", relative(part.error), recipe, relative(part.own), related, slack, factor,
      relative(part.limit));
}

}  // namespace

double PartError::of_limit() const {
  if (error == 0) return 0;
  return limit > 0 ? error / limit : std::numeric_limits<double>::infinity();
}

LocalErrors local_errors(const CheckedHead& head, double factor) {
  if (!all_finite(head)) return {};
  return Local(head, factor).run();
}

Json part_json(const PartError& part, std::string_view axis) {
  Json json;
  json[std::string(axis)] = {part.first, part.last};
  json["rel_l1"] = part.error / part.size;
  json["recipe_rel_l1"] = part.own / part.size;
  json["limit_rel_l1"] = part.limit / part.size;
  json["of_limit"] = part.of_limit();
  return json;
}

std::string local_text(const LocalErrors& errors, std::string_view recipe, double factor) {
  if (!errors.unwritten.empty()) {
    return fmt::format("o is within the limits as a whole, but has {} of zeros",
                       describe_indices("row", errors.unwritten));
  }
  if (!errors.beyond_blocks.empty()) {
    const std::size_t others = errors.beyond_blocks.size() - 1;
    const PartError& block = errors.block;
    return part_text(block, fmt::format("rows {} to {}", block.first, block.last - 1), true, recipe, kBlockSlack,
                     factor) +
           (others == 0 ? "" : fmt::format(" (and {} other blocks of rows)", others));
  }
  if (!errors.beyond_rows.empty()) {
    return part_text(errors.row, fmt::format("row {}", errors.row.first), false, recipe, kRowSlack, factor) +
           (errors.beyond_rows.size() == 1 ? "" : fmt::format(" (and {} other rows)", errors.beyond_rows.size() - 1));
  }
  if (errors.beyond_channels.empty()) return "";
  return part_text(errors.channel, fmt::format("channel {}", errors.channel.first), false, recipe, kChannelSlack,
                   factor) +
         (errors.beyond_channels.size() == 1
              ? ""
              : fmt::format(" (and {} other channels)", errors.beyond_channels.size() - 1));
}

}  // namespace qattn::lab
