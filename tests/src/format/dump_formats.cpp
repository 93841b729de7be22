// Prints what check_against_python.py compares: the value of every code, and the codes of many floats.
//   values <format> <count>            then <count> lines: code, the double's bits
//   codes <format> <rounding> <overflow> <count>  then <count> lines: the float's bits, code
#include <fmt/core.h>

#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "format/encode.h"
#include "probes.h"

using namespace qattn;
using namespace qattn::format;

namespace {

constexpr int kWidest = 16;

/// Probes of the format (thinned out for the 16-bit ones), special values and seeded bit patterns.
std::vector<float> inputs(const Format& format) {
  std::vector<float> result = special_probes().floats;
  const std::vector<float> at_codes = probes(format).floats;
  const std::size_t step = at_codes.size() / 40000 + 1;  // odd or even, it meets every kind of probe in turn
  for (std::size_t i = 0; i < at_codes.size(); i += step % 2 == 0 ? step + 1 : step) result.push_back(at_codes[i]);
  for (std::uint64_t i = 0; i < 4000; ++i) {
    result.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_bits(41, 0, i))));
  }
  return result;
}

void print_values(const Format& format) {
  const std::uint64_t count = std::uint64_t{1} << format.bits;
  fmt::print("values {} {}\n", format.name, count);
  for (std::uint64_t code = 0; code < count; ++code) {
    fmt::print("{} {}\n", code, std::bit_cast<std::uint64_t>(decode(format, code)));
  }
}

void print_codes(const Format& format, std::string_view rounding_name, Rounding rounding) {
  const std::vector<float> x = inputs(format);
  for (const auto& [name, overflow] :
       {std::pair{"saturate", Overflow::saturate}, {"inf_or_nan", Overflow::inf_or_nan}}) {
    fmt::print("codes {} {} {} {}\n", format.name, rounding_name, name, x.size());
    for (const float value : x) {
      fmt::print("{} {}\n", std::bit_cast<std::uint32_t>(value), encode(format, value, {rounding, overflow}));
    }
  }
}

}  // namespace

int main() {
  for (const Format* format : formats()) {
    if (format->bits > kWidest) continue;
    print_values(*format);
    print_codes(*format, "nearest_even", Rounding::nearest_even);
    if (format->bits > 8) continue;
    print_codes(*format, "nearest_away", Rounding::nearest_away);
    print_codes(*format, "toward_zero", Rounding::toward_zero);
    print_codes(*format, "up", Rounding::up);
    print_codes(*format, "down", Rounding::down);
  }
  return 0;
}
