#include "metric/accuracy.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"

namespace qattn::metric {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// From here on a square could overflow a double.
constexpr double kTooLarge = 0x1p510;

bool is_in_range(double x) { return std::fabs(x) < kTooLarge; }

// NaN is worse than any number.
bool is_worse_value(double a, double b, MetricSummary::Better better) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return better == MetricSummary::Better::higher ? a < b : a > b;
}

// Doubles in order, both zeros as 0.
std::int64_t double_ordinal(double x) {
  const auto bits = std::bit_cast<std::int64_t>(x);
  return bits < 0 ? std::numeric_limits<std::int64_t>::min() - bits : bits;
}

std::uint64_t difference(std::int64_t a, std::int64_t b) {
  return a > b ? static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)
               : static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a);
}

// At least ulp_distance(), at a tenth of its cost: neighbours in a format of m mantissa bits are 2^(52 - m) doubles or
// more apart, and rounding r may add one step.
std::uint64_t ulp_distance_bound(const format::Format& format, double o, double r) {
  return (difference(double_ordinal(o), double_ordinal(r)) >> (52 - format.mantissa_bits)) + 1;
}

std::uint64_t ulp_distance(const format::Format& format, double o, double r) {
  constexpr format::Policy kNearest{.overflow = format::Overflow::inf_or_nan};
  constexpr format::Policy kSaturate{};
  const format::Policy& policy = format::has_inf(format) ? kNearest : kSaturate;
  const std::int64_t a = format::ordinal(format, format::encode(format, o, policy));
  const std::int64_t b = format::ordinal(format, format::encode(format, r, policy));
  return difference(a, b);
}

[[noreturn]] void fail_load(const char* reason) {
  throw Error(ErrorKind::input, std::string("stored values are damaged: ") + reason);
}

std::int64_t load_count(ByteReader& bytes) {
  const std::uint64_t count = bytes.get_unsigned();
  if (count >> 62 != 0) fail_load("a count is too large");
  return static_cast<std::int64_t>(count);
}

void save_location(const Location& where, ByteWriter& bytes) {
  for (const std::int64_t x : {where.batch, where.head, where.row, where.column}) bytes.put_signed(x);
}

Location load_location(ByteReader& bytes) {
  Location where;
  for (std::int64_t* x : {&where.batch, &where.head, &where.row, &where.column}) *x = bytes.get_signed();
  return where;
}

}  // namespace

void ErrorHistogram::add(double magnitude) {
  // The exponent and the top three mantissa bits of a positive double, read as one integer, number the bins.
  const auto eighths = static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(magnitude) >> 49);
  constexpr std::int64_t kFirst = std::int64_t{kLowestExponent + 1023} * kParts;
  const std::int64_t bin = std::clamp<std::int64_t>(eighths - kFirst + 1, 0, kBinades * kParts + 1);
  ++bins_[static_cast<std::size_t>(bin)];
  ++count_;
}

void ErrorHistogram::merge(const ErrorHistogram& other) {
  for (std::size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
  count_ += other.count_;
}

double ErrorHistogram::percentile(double p) const {
  if (!(p >= 0 && p <= 100)) throw Error(ErrorKind::usage, "a percentile must lie in 0..100");
  if (count_ == 0) return kNaN;
  const FpEnvironment environment;
  const double exact_rank = std::ceil(p * static_cast<double>(count_) / 100);
  const std::int64_t rank = std::clamp<std::int64_t>(static_cast<std::int64_t>(exact_rank), 1, count_);
  std::int64_t seen = 0;
  std::size_t bin = 0;
  while (seen + bins_[bin] < rank) seen += bins_[bin++];
  if (bin == 0) return 0;
  if (bin == bins_.size() - 1) return kInf;
  const int upper = static_cast<int>(bin);
  return std::ldexp(1 + static_cast<double>(upper % kParts) / kParts, kLowestExponent + upper / kParts);
}

// The number of bins that are not empty; for each its distance from the bin after the last such one, and its count.
void ErrorHistogram::save(ByteWriter& bytes) const {
  bytes.put_unsigned(
      static_cast<std::uint64_t>(std::count_if(bins_.begin(), bins_.end(), [](auto n) { return n != 0; })));
  std::size_t next = 0;
  for (std::size_t i = 0; i < bins_.size(); ++i) {
    if (bins_[i] == 0) continue;
    bytes.put_unsigned(i - next);
    bytes.put_unsigned(static_cast<std::uint64_t>(bins_[i]));
    next = i + 1;
  }
}

ErrorHistogram ErrorHistogram::load(ByteReader& bytes) {
  ErrorHistogram histogram;
  std::size_t next = 0;
  for (std::uint64_t left = bytes.get_unsigned(); left > 0; --left) {
    const std::uint64_t gap = bytes.get_unsigned();
    if (gap >= histogram.bins_.size() - next) fail_load("a histogram has too many bins");
    next += gap;
    histogram.bins_[next] = load_count(bytes);
    histogram.count_ += histogram.bins_[next++];
  }
  return histogram;
}

Accuracy::Accuracy(const format::Format& output_format) : output_format_(&output_format) {}

void Accuracy::add_bad(double o, double r, const Location& where) {
  ++(std::isnan(o) || std::isnan(r) ? nan_ : inf_);
  if (!is_in_range(r)) ++bad_reference_;
  if (!first_bad_ || where < *first_bad_) first_bad_ = where;
}

void Accuracy::add(double o, double r, const Location& where) {
  const FpEnvironment environment;
  add_pair(o, r, where);
}

void Accuracy::add_pair(double o, double r, const Location& where) {
  if (!is_in_range(o) || !is_in_range(r)) return add_bad(o, r, where);
  const double error = o - r;
  const double magnitude = std::fabs(error);
  dot_.add(o * r);
  o_squared_.add(o * o);
  r_squared_.add(r * r);
  r_magnitude_.add(std::fabs(r));
  error_magnitude_.add(magnitude);
  error_squared_.add(error * error);
  histogram_.add(magnitude);
  if (finite_ == 0 || magnitude > max_abs_ || (magnitude == max_abs_ && where < worst_)) {
    max_abs_ = magnitude;
    worst_ = where;
  }
  if (ulp_distance_bound(*output_format_, o, r) > max_ulp_)
    max_ulp_ = std::max(max_ulp_, ulp_distance(*output_format_, o, r));
  ++finite_;
}

void Accuracy::add(MatrixView<float> o, MatrixView<double> r, const Location& origin) {
  const FpEnvironment environment;
  if (o.rows() != r.rows() || o.cols() != r.cols())
    throw Error(ErrorKind::internal, "Accuracy: an output of " + std::to_string(o.rows()) + " x " +
                                         std::to_string(o.cols()) + " against a reference of " +
                                         std::to_string(r.rows()) + " x " + std::to_string(r.cols()));
  for (std::int64_t i = 0; i < o.rows(); ++i)
    for (std::int64_t j = 0; j < o.cols(); ++j)
      add_pair(static_cast<double>(o(i, j)), r(i, j), {origin.batch, origin.head, origin.row + i, origin.column + j});
}

void Accuracy::merge(const Accuracy& other) {
  if (output_format_ != other.output_format_)
    throw Error(ErrorKind::internal, "Accuracy: outputs in " + std::string(output_format_->name) + " and " +
                                         std::string(other.output_format_->name) + " cannot be merged");
  dot_.merge(other.dot_);
  o_squared_.merge(other.o_squared_);
  r_squared_.merge(other.r_squared_);
  r_magnitude_.merge(other.r_magnitude_);
  error_magnitude_.merge(other.error_magnitude_);
  error_squared_.merge(other.error_squared_);
  histogram_.merge(other.histogram_);
  const bool other_is_worse =
      other.max_abs_ > max_abs_ || (other.max_abs_ == max_abs_ && other.worst_ < worst_) || finite_ == 0;
  if (other.finite_ > 0 && other_is_worse) {
    max_abs_ = other.max_abs_;
    worst_ = other.worst_;
  }
  max_ulp_ = std::max(max_ulp_, other.max_ulp_);
  finite_ += other.finite_;
  nan_ += other.nan_;
  inf_ += other.inf_;
  bad_reference_ += other.bad_reference_;
  if (other.first_bad_ && (!first_bad_ || *other.first_bad_ < *first_bad_)) first_bad_ = other.first_bad_;
}

double Accuracy::cos_sim() const {
  const FpEnvironment environment;
  if (!usable()) return kNaN;
  return dot_.value() / (std::sqrt(o_squared_.value()) * std::sqrt(r_squared_.value()));
}

double Accuracy::rel_l1() const {
  const FpEnvironment environment;
  if (!usable()) return kNaN;
  return error_magnitude_.value() / r_magnitude_.value();
}

double Accuracy::rel_l2() const {
  const FpEnvironment environment;
  if (!usable()) return kNaN;
  return std::sqrt(error_squared_.value() / r_squared_.value());
}
double Accuracy::rmse() const {
  const FpEnvironment environment;
  if (!usable()) return kNaN;
  return std::sqrt(error_squared_.value() / static_cast<double>(finite_));
}

double Accuracy::max_abs() const { return usable() ? max_abs_ : kNaN; }

std::optional<Location> Accuracy::worst() const { return usable() ? std::optional(worst_) : std::nullopt; }

std::optional<std::uint64_t> Accuracy::max_ulp() const { return usable() ? std::optional(max_ulp_) : std::nullopt; }

double Accuracy::percentile(double p) const {
  const double bound = histogram_.percentile(p);
  return usable() ? std::min(bound, max_abs_) : kNaN;
}

bool Accuracy::operator==(const Accuracy& other) const {
  return output_format_ == other.output_format_ && dot_ == other.dot_ && o_squared_ == other.o_squared_ &&
         r_squared_ == other.r_squared_ && r_magnitude_ == other.r_magnitude_ &&
         error_magnitude_ == other.error_magnitude_ && error_squared_ == other.error_squared_ &&
         histogram_ == other.histogram_ && finite_ == other.finite_ && nan_ == other.nan_ && inf_ == other.inf_ &&
         bad_reference_ == other.bad_reference_ && max_abs_ == other.max_abs_ && worst_ == other.worst_ &&
         max_ulp_ == other.max_ulp_ && first_bad_ == other.first_bad_;
}

void Accuracy::save(ByteWriter& bytes) const {
  bytes.put_text(output_format_->name);
  for (const ExactSum* sum : {&dot_, &o_squared_, &r_squared_, &r_magnitude_, &error_magnitude_, &error_squared_}) {
    sum->save(bytes);
  }
  histogram_.save(bytes);
  for (const std::int64_t count : {nan_, inf_, bad_reference_}) bytes.put_unsigned(static_cast<std::uint64_t>(count));
  bytes.put_double(max_abs_);
  save_location(worst_, bytes);
  bytes.put_unsigned(max_ulp_);
  bytes.put_unsigned(first_bad_ ? 1 : 0);
  if (first_bad_) save_location(*first_bad_, bytes);
}

Accuracy Accuracy::load(ByteReader& bytes) {
  const format::Format* format = format::find_or_null(bytes.get_text());
  if (format == nullptr) fail_load("a number format is unknown");
  Accuracy a(*format);
  for (ExactSum* sum :
       {&a.dot_, &a.o_squared_, &a.r_squared_, &a.r_magnitude_, &a.error_magnitude_, &a.error_squared_}) {
    *sum = ExactSum::load(bytes);
  }
  a.histogram_ = ErrorHistogram::load(bytes);
  a.finite_ = a.histogram_.count();
  for (std::int64_t* count : {&a.nan_, &a.inf_, &a.bad_reference_}) *count = load_count(bytes);
  a.max_abs_ = bytes.get_double();
  a.worst_ = load_location(bytes);
  a.max_ulp_ = bytes.get_unsigned();
  if (bytes.get_unsigned() != 0) a.first_bad_ = load_location(bytes);
  return a;
}

bool MetricSummary::is_worse(double value, std::string_view call) const {
  if (is_worse_value(value, worst_, better_)) return true;
  return !is_worse_value(worst_, value, better_) && call < worst_call_;
}

void MetricSummary::take_worst(double value, std::string_view call) {
  worst_ = value;
  worst_call_ = call;
}

void MetricSummary::add(double value, std::string_view call) {
  if (calls_ == 0 || is_worse(value, call)) take_worst(value, call);
  ++calls_;
  if (std::isnan(value))
    ++missing_;
  else if (std::isinf(value))
    ++infinite_;
  else
    sum_.add(value);
}

void MetricSummary::merge(const MetricSummary& other) {
  if (other.calls_ > 0 && (calls_ == 0 || is_worse(other.worst_, other.worst_call_)))
    take_worst(other.worst_, other.worst_call_);
  calls_ += other.calls_;
  missing_ += other.missing_;
  infinite_ += other.infinite_;
  sum_.merge(other.sum_);
}

double MetricSummary::average() const {
  if (calls_ == 0 || missing_ > 0) return kNaN;
  if (infinite_ > 0) return kInf;
  const FpEnvironment environment;
  return sum_.value() / static_cast<double>(calls_);
}

double MetricSummary::worst() const { return worst_; }

bool MetricSummary::operator==(const MetricSummary& other) const {
  return better_ == other.better_ && sum_ == other.sum_ && calls_ == other.calls_ && missing_ == other.missing_ &&
         infinite_ == other.infinite_ && worst_call_ == other.worst_call_ &&
         std::bit_cast<std::uint64_t>(worst_) == std::bit_cast<std::uint64_t>(other.worst_);
}

void Summary::add(const Accuracy& accuracy, std::string_view call) {
  cos_sim.add(accuracy.cos_sim(), call);
  rel_l1.add(accuracy.rel_l1(), call);
  rel_l2.add(accuracy.rel_l2(), call);
  rmse.add(accuracy.rmse(), call);
  max_abs.add(accuracy.max_abs(), call);
  nan_count += accuracy.nan_count();
  inf_count += accuracy.inf_count();
}

void Summary::merge(const Summary& other) {
  cos_sim.merge(other.cos_sim);
  rel_l1.merge(other.rel_l1);
  rel_l2.merge(other.rel_l2);
  rmse.merge(other.rmse);
  max_abs.merge(other.max_abs);
  nan_count += other.nan_count;
  inf_count += other.inf_count;
}

}  // namespace qattn::metric
