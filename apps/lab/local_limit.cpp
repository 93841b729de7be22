#include "lab/local_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "format/encode.h"
#include "lab/suspect.h"

namespace qattn::lab {
namespace {

/// Sums of |o - r|, |e - r| and |r| over one row.
struct RowSums {
  double error = 0, own = 0, size = 0;

  void add(const RowSums& other) {
    error += other.error;
    own += other.own;
    size += other.size;
  }
  void add(double o, double e, double r) {
    error += std::fabs(o - r);
    own += std::fabs(e - r);
    size += std::fabs(r);
  }
};

class Local {
 public:
  Local(const CheckedHead& head, double factor)
      : head_(head), factor_(factor), half_unit_(std::ldexp(0.5, -head.format().mantissa_bits)) {}

  LocalErrors run() {
    for (const HeadProblem& part : head_.parts) add_sequence(part.first_row, part.problem.q.rows());
    add_channels();
    return std::move(errors_);
  }

 private:
  PartError part(std::int64_t first, std::int64_t last, const RowSums& sums, double own, double slack) const {
    const double wide = slack * factor_ * own;
    const double useful = std::max(kUsefulLimit * sums.size, kLeastSlack * factor_ * own);
    return {first, last, sums.error, sums.own, sums.size, std::min(wide, useful) + half_unit_ * sums.size};
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
    std::vector<RowSums> rows;
    RowSums block;
    for (std::int64_t r = first; r < last; ++r) {
      RowSums sums;
      for (Eigen::Index c = 0; c < head_.o.cols(); ++c) {
        sums.add(head_.o(r, c), head_.emulated(r, c), head_.reference(r, c));
      }
      rows.push_back(sums);
      block.add(sums);
      if (is_unwritten(r)) errors_.unwritten.push_back(r);
    }
    keep(part(first, last, block, block.own, kBlockSlack), errors_.block, errors_.beyond_blocks);
    const double mean = block.own / static_cast<double>(last - first);
    for (std::int64_t r = first; r < last; ++r) {
      const RowSums& sums = rows[static_cast<std::size_t>(r - first)];
      keep(part(r, r + 1, sums, std::max(sums.own, mean), kRowSlack), errors_.row, errors_.beyond_rows);
    }
  }

  void add_channels() {
    const Eigen::Index channels = head_.o.cols();
    std::vector<RowSums> columns(static_cast<std::size_t>(channels));
    double own = 0;
    for (Eigen::Index r = 0; r < head_.o.rows(); ++r) {
      for (Eigen::Index c = 0; c < channels; ++c) {
        columns[static_cast<std::size_t>(c)].add(head_.o(r, c), head_.emulated(r, c), head_.reference(r, c));
      }
    }
    for (const RowSums& column : columns) own += column.own;
    const double mean = own / static_cast<double>(channels);
    for (Eigen::Index c = 0; c < channels; ++c) {
      const RowSums& column = columns[static_cast<std::size_t>(c)];
      keep(part(c, c + 1, column, std::max(column.own, mean), kChannelSlack), errors_.channel, errors_.beyond_channels);
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
  const double factor_, half_unit_;
  LocalErrors errors_;
};

std::string part_text(const PartError& part, const std::string& which, bool plural, std::string_view recipe,
                      double slack, double factor) {
  const auto relative = [&](double x) { return x / part.size; };
  if (!(part.size > 0)) {
    return fmt::format("{} {} to be zero, and the magnitudes there add up to {:.4g}", which, plural ? "are" : "is",
                       part.error);
  }
  return fmt::format(
      "{} {} off float64 by {:.4g} (relative L1); {} itself is off by {:.4g} there, {} times {} times that allows "
      "{:.4g}",
      which, plural ? "are" : "is", relative(part.error), recipe, relative(part.own), slack, factor,
      relative(part.limit));
}

}  // namespace

double PartError::of_limit() const {
  if (error == 0) return 0;
  return limit > 0 ? error / limit : std::numeric_limits<double>::infinity();
}

LocalErrors local_errors(const CheckedHead& head, double factor) {
  if (!head.o.allFinite() || !head.emulated.allFinite() || !head.reference.allFinite()) return {};
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
