#include "base/exact_sum.h"

#include <bit>
#include <cmath>

#include "base/error.h"

namespace qattn {

void ExactSum::add(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int field = static_cast<int>((bits >> 52) & 0x7FF);
  if (field == 0x7FF) throw Error(ErrorKind::internal, "ExactSum::add: the term is NaN or Inf");
  std::uint64_t significand = bits & 0xFFFFFFFFFFFFFu;
  if (field != 0) significand |= std::uint64_t{1} << 52;
  // The significand counts units of 2^(position - 1074).
  const int position = field == 0 ? 0 : field - 1;
  const int lane = position >> 5;
  const int shift = position & 31;
  const std::uint64_t low = (significand << shift) & 0xFFFFFFFFu;
  const std::uint64_t high = shift == 0 ? significand >> 32 : significand >> (32 - shift);
  if (bits >> 63) {
    lanes_[lane] -= static_cast<std::int64_t>(low);
    lanes_[lane + 1] -= static_cast<std::int64_t>(high);
  } else {
    lanes_[lane] += static_cast<std::int64_t>(low);
    lanes_[lane + 1] += static_cast<std::int64_t>(high);
  }
  if (++pending_ == kMaxPending) resolve_carries();
}

// Afterwards every lane but the last lies in [0, 2^32); the last carries the sign. That form is unique.
void ExactSum::resolve_carries() {
  std::int64_t carry = 0;
  for (int i = 0; i + 1 < kLanes; ++i) {
    const std::int64_t total = lanes_[i] + carry;
    carry = total >> 32;
    lanes_[i] = total & 0xFFFFFFFF;
  }
  lanes_[kLanes - 1] += carry;
  pending_ = 0;
}

// Turns a resolved sum into its magnitude; true when it was negative.
bool ExactSum::make_positive() {
  if (lanes_[kLanes - 1] >= 0) return false;
  for (auto& lane : lanes_) lane = -lane;
  resolve_carries();
  return true;
}

void ExactSum::merge(const ExactSum& other) {
  ExactSum addend = other;
  addend.resolve_carries();
  resolve_carries();
  for (int i = 0; i < kLanes; ++i) lanes_[i] += addend.lanes_[i];
  resolve_carries();
}

bool ExactSum::operator==(const ExactSum& other) const {
  ExactSum a = *this;
  ExactSum b = other;
  a.resolve_carries();
  b.resolve_carries();
  return a.lanes_ == b.lanes_;
}

// Sign and first lane, number of lanes, lanes: those of the magnitude from the first to the last that is not zero.
void ExactSum::save(ByteWriter& bytes) const {
  ExactSum sum = *this;
  sum.resolve_carries();
  const bool negative = sum.make_positive();
  int first = 0, end = kLanes;
  while (end > 0 && sum.lanes_[end - 1] == 0) --end;
  while (first < end && sum.lanes_[first] == 0) ++first;
  bytes.put_unsigned(static_cast<std::uint64_t>(2 * first + (negative ? 1 : 0)));
  bytes.put_unsigned(static_cast<std::uint64_t>(end - first));
  for (int i = first; i < end; ++i) bytes.put_unsigned(static_cast<std::uint64_t>(sum.lanes_[i]));
}

ExactSum ExactSum::load(ByteReader& bytes) {
  const std::uint64_t head = bytes.get_unsigned(), count = bytes.get_unsigned(), first = head / 2;
  const auto lanes = static_cast<std::uint64_t>(kLanes);
  if (first > lanes || count > lanes - first)
    throw Error(ErrorKind::input, "stored values are damaged: a sum is too long");
  ExactSum sum;
  for (std::uint64_t i = first; i < first + count; ++i) {
    const std::uint64_t lane = bytes.get_unsigned();
    if (lane >> (i + 1 < lanes ? 32 : 62) != 0) {
      throw Error(ErrorKind::input, "stored values are damaged: a sum has a word that is too large");
    }
    sum.lanes_[i] = head % 2 != 0 ? -static_cast<std::int64_t>(lane) : static_cast<std::int64_t>(lane);
  }
  sum.resolve_carries();
  return sum;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  sum.resolve_carries();
  const bool negative = sum.make_positive();
  const auto& lanes = sum.lanes_;
  int top = kLanes - 1;
  while (top >= 0 && lanes[top] == 0) --top;
  if (top < 0) return 0.0;
  // The leading 64 bits at least, from three lanes, the rest as a sticky bit.
  const auto lane_at = [&](int i) { return i < 0 ? std::uint64_t{0} : static_cast<std::uint64_t>(lanes[i]); };
  const int leading_bits = 64 - std::countl_zero(lane_at(top));
  const int below =
      64 - leading_bits;  // bits that the lower lanes contribute; at least 32 unless the last lane is huge
  std::uint64_t window = below == 0 ? lane_at(top) : lane_at(top) << below;
  const std::uint64_t next = (lane_at(top - 1) << 32) | lane_at(top - 2);
  bool sticky = false;
  if (below > 0) {
    window |= next >> (64 - below);
    sticky = below < 64 && (next << below) != 0;
  } else {
    sticky = next != 0;
  }
  for (int i = top - 3; i >= 0 && !sticky; --i) sticky = lanes[i] != 0;
  // The window's lowest bit has weight 2^exponent; a result below the normal range keeps fewer bits.
  const int exponent = 32 * top - 1074 - below;
  const int dropped = std::max(11, -1074 - exponent);
  if (dropped >= 64) return negative ? -0.0 : 0.0;
  std::uint64_t kept = window >> dropped;
  const std::uint64_t rest = window << (64 - dropped);
  const std::uint64_t half = std::uint64_t{1} << 63;
  if (rest > half || (rest == half && (sticky || (kept & 1)))) ++kept;
  const double magnitude = std::ldexp(static_cast<double>(kept), exponent + dropped);
  return negative ? -magnitude : magnitude;
}

}  // namespace qattn
