// Making the inputs.
#include "probes.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "base/random.h"
#include "oracle.h"

namespace qattn::format {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kInfFloat = std::numeric_limits<float>::infinity();

/// The numbers of a format to probe at, counted from zero; the largest finite one and the next are among them.
std::vector<std::uint64_t> indices(const Format& format) {
  const std::uint64_t count = oracle::magnitudes(format, true);
  std::set<std::uint64_t> chosen;
  if (format.bits <= 16) {
    for (std::uint64_t index = 0; index <= count; ++index) chosen.insert(index);
  } else {
    for (std::uint64_t i = 0; i < 4; ++i) chosen.insert({i, count - i});
    for (std::uint64_t start = 1; start < count; start *= 2) chosen.insert({start - 1, start, start + 1});
    for (std::uint64_t binade = 1; binade < std::uint64_t{1} << format.exponent_bits; ++binade) {
      const std::uint64_t start = binade << format.mantissa_bits;
      if (start <= count) chosen.insert({start - 1, start});
    }
    for (std::uint64_t i = 0; i < 2000; ++i) {
      chosen.insert(random_bits(1, static_cast<std::uint64_t>(format.bits), i) % count);
    }
  }
  return {chosen.begin(), chosen.end()};
}

void add(Probes& result, double magnitude) {
  for (const double x : {magnitude, -magnitude}) {
    for (const double near : {std::nextafter(x, -kInf), x, std::nextafter(x, kInf)}) result.doubles.push_back(near);
    if (magnitude > static_cast<double>(std::numeric_limits<float>::max())) continue;
    const float nearest = static_cast<float>(x);
    for (const float near : {std::nextafter(nearest, -kInfFloat), nearest, std::nextafter(nearest, kInfFloat)}) {
      result.floats.push_back(near);
    }
  }
}

}  // namespace

Probes probes(const Format& format) {
  Probes result;
  for (const std::uint64_t index : indices(format)) {
    add(result, oracle::to_double(oracle::magnitude_at(format, index)));
    add(result, oracle::to_double(oracle::midpoint_after(format, index)));
  }
  return result;
}

Probes special_probes() {
  Probes result;
  for (const std::uint32_t magnitude : {0x0u, 0x1u, 0x7FFFFFu, 0x800000u, 0x3F800000u, 0x7F7FFFFFu, 0x7F800000u,
                                        0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FC12345u, 0x7FFFFFFFu}) {
    for (const std::uint32_t sign : {0u, 1u}) result.floats.push_back(std::bit_cast<float>(sign << 31 | magnitude));
  }
  for (const std::uint64_t magnitude : {0x0ull, 0x1ull, 0xFFFFFFFFFFFFFull, 0x10000000000000ull, 0x3FF0000000000000ull,
                                        0x7FEFFFFFFFFFFFFFull, 0x7FF0000000000000ull, 0x7FF0000000000001ull,
                                        0x7FF7FFFFFFFFFFFFull, 0x7FF8000000000000ull, 0x7FFFFFFFFFFFFFFFull}) {
    for (const std::uint64_t sign : {0u, 1u}) result.doubles.push_back(std::bit_cast<double>(sign << 63 | magnitude));
  }
  return result;
}

}  // namespace qattn::format
