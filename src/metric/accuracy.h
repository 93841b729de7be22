// How far an output is from its reference: the Sage papers' metrics, worst elements and percentiles, as accumulators
// whose bits do not depend on order, threads or shards.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_stream.h"
#include "base/exact_sum.h"
#include "format/format.h"
#include "tensor/matrix.h"

namespace qattn::metric {

/// Where an element lies; ordered as files are: batch, head, row (token), column (channel).
struct Location {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
  auto operator<=>(const Location&) const = default;
};

/// Counts of |o - r| in bins of fixed edges: each binade from 2^-96 to 2^32 in 8 equal parts (12.5 % wide at most),
/// one bin below for 0 .. 2^-96, one above.
class ErrorHistogram {
 public:
  void add(double magnitude);
  void merge(const ErrorHistogram& other);
  std::int64_t count() const { return count_; }
  /// The ceil(p / 100 * count)-th smallest magnitude (at least the first), p in [0, 100], as the upper edge of its bin,
  /// so never too small and at most 12.5 % too large; 0 for the lowest bin, Inf for the highest. NaN without elements.
  /// Throws Error(usage) for another p.
  double percentile(double p) const;
  bool operator==(const ErrorHistogram&) const = default;

  void save(ByteWriter& bytes) const;
  static ErrorHistogram load(ByteReader& bytes);

 private:
  static constexpr int kLowestExponent = -96;
  static constexpr int kBinades = 128;
  static constexpr int kParts = 8;
  std::array<std::int64_t, kBinades * kParts + 2> bins_{};
  std::int64_t count_ = 0;
};

/// Accumulates pairs (o, r) of an output and its float64 reference. Any order of add() and any tree of merge() give the
/// same bits: sums are exact, all else is an integer count or a maximum. Each term is rounded to double once (o * r,
/// o * o, r * r), that of the RMSE twice (d = RN(o - r), RN(d * d)); a sum is rounded when it is read.
///
/// A pair in which o or r is NaN or Inf is counted and located and enters nothing else; then every metric is NaN and
/// max_ulp has no value, so that it cannot be averaged away. A magnitude from 2^510 on, whose square could overflow,
/// counts as Inf. Without any pair all metrics are NaN too.
class Accuracy {
 public:
  /// `output_format` is the format that o is held in; it defines the ulp.
  explicit Accuracy(const format::Format& output_format);

  void add(double o, double r, const Location& where);
  /// A block of one head whose first element lies at `origin`. Throws Error(internal) when the shapes differ.
  void add(MatrixView<float> o, MatrixView<double> r, const Location& origin = {});
  void merge(const Accuracy& other);

  /// Pairs seen, those that are not finite included.
  std::int64_t count() const { return finite_ + nan_ + inf_; }
  /// Pairs in which o or r is NaN; in which one is Inf and none NaN; in which r (whatever o) is one of both, which
  /// means that the inputs are to blame.
  std::int64_t nan_count() const { return nan_; }
  std::int64_t inf_count() const { return inf_; }
  std::int64_t bad_reference_count() const { return bad_reference_; }
  /// The first pair, by location, that is not finite.
  std::optional<Location> first_bad() const { return first_bad_; }

  /// sum(o r) / (sqrt(sum o^2) * sqrt(sum r^2)); NaN when o or r is all zero.
  double cos_sim() const;
  /// sum|o - r| / sum|r|; r all zero: Inf, or NaN when o is too.
  double rel_l1() const;
  /// sqrt(sum (o - r)^2 / sum r^2); r all zero: as rel_l1().
  double rel_l2() const;
  /// sqrt(sum (o - r)^2 / count).
  double rmse() const;
  double max_abs() const;
  /// Where max_abs() is reached first, by location.
  std::optional<Location> worst() const;
  /// The largest distance between o and r rounded to nearest-even in the output's format, in steps between neighbouring
  /// numbers of that format (-0 and +0 are one number, Inf is the one after the largest).
  std::optional<std::uint64_t> max_ulp() const;
  /// An upper bound of a percentile of |o - r|, see ErrorHistogram; at most max_abs().
  double percentile(double p) const;

  bool operator==(const Accuracy& other) const;

  /// Everything, exactly, in a kilobyte or so: what is loaded merges and reads like what was saved. Equal accuracies
  /// give equal bytes, on every machine. load() throws Error(input) for bytes that save() does not make.
  void save(ByteWriter& bytes) const;
  static Accuracy load(ByteReader& bytes);

 private:
  bool usable() const { return finite_ > 0 && !first_bad_; }
  void add_pair(double o, double r, const Location& where);
  void add_bad(double o, double r, const Location& where);

  const format::Format* output_format_;
  ExactSum dot_, o_squared_, r_squared_, r_magnitude_, error_magnitude_, error_squared_;
  ErrorHistogram histogram_;
  std::int64_t finite_ = 0, nan_ = 0, inf_ = 0, bad_reference_ = 0;
  double max_abs_ = 0;
  Location worst_{};
  std::uint64_t max_ulp_ = 0;
  std::optional<Location> first_bad_;
};

/// One metric over many calls: the mean over calls and the worst of them. One call without a value (NaN) makes both
/// NaN, and the worst names such a call.
class MetricSummary {
 public:
  enum class Better : std::uint8_t { higher, lower };
  explicit MetricSummary(Better better) : better_(better) {}

  void add(double value, std::string_view call);
  void merge(const MetricSummary& other);

  std::int64_t calls() const { return calls_; }
  /// Calls whose value is NaN.
  std::int64_t missing() const { return missing_; }
  /// The exact sum rounded once, over the number of calls; Inf when a value is Inf.
  double average() const;
  double worst() const;
  /// The worst call's name; of equally bad ones the name that sorts first. Empty without calls.
  const std::string& worst_call() const { return worst_call_; }
  bool operator==(const MetricSummary& other) const;

 private:
  bool is_worse(double value, std::string_view call) const;
  void take_worst(double value, std::string_view call);

  Better better_;
  ExactSum sum_;
  std::int64_t calls_ = 0, missing_ = 0, infinite_ = 0;
  double worst_ = std::numeric_limits<double>::quiet_NaN();
  std::string worst_call_;
};

/// The papers' "average" and "worst" rows.
struct Summary {
  MetricSummary cos_sim{MetricSummary::Better::higher};
  MetricSummary rel_l1{MetricSummary::Better::lower};
  MetricSummary rel_l2{MetricSummary::Better::lower};
  MetricSummary rmse{MetricSummary::Better::lower};
  MetricSummary max_abs{MetricSummary::Better::lower};
  std::int64_t nan_count = 0;
  std::int64_t inf_count = 0;

  void add(const Accuracy& accuracy, std::string_view call);
  void merge(const Summary& other);
  bool operator==(const Summary& other) const = default;
};

}  // namespace qattn::metric
