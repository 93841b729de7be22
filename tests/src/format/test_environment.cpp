// The caller's rounding mode and flush-to-zero flags change no bit of a conversion.
#include <bit>
#include <cfenv>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/random.h"
#include "format/encode.h"
#include "oracle.h"
#include "probes.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::format;

namespace {

/// Sets a control register for a scope: on x86-64 flush-to-zero and denormals-are-zero too.
class HostileEnvironment {
 public:
  explicit HostileEnvironment(int rounding) {
    std::fegetenv(&saved_);
    std::fesetround(rounding);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  }
  ~HostileEnvironment() { std::fesetenv(&saved_); }
  HostileEnvironment(const HostileEnvironment&) = delete;
  HostileEnvironment& operator=(const HostileEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

/// Bit patterns that flags could touch: subnormals of float and double, ties, and any others.
Probes inputs() {
  Probes result = special_probes();
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::uint64_t bits = random_bits(21, 0, i);
    const bool subnormal = i % 4 == 0;
    result.floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits) & (subnormal ? 0x807FFFFFu : ~0u)));
    result.doubles.push_back(std::bit_cast<double>(mix64(bits) & (subnormal ? 0x800FFFFFFFFFFFFFu : ~0ull)));
  }
  return result;
}

/// Every bit that the room's functions return for the inputs.
std::vector<std::uint64_t> outcome(const Format& format, const Probes& x) {
  std::vector<std::uint64_t> bits;
  std::vector<std::uint32_t> codes(x.floats.size()), random(x.floats.size());
  for (std::size_t i = 0; i < random.size(); ++i) random[i] = static_cast<std::uint32_t>(random_bits(22, 0, i));
  for (const Policy& policy : oracle::all_policies()) {
    for (const double value : x.doubles) bits.push_back(format::encode(format, value, policy, random[0]));
    for (const float value : x.floats) bits.push_back(format::encode(format, value, policy, random[0]));
    if (format.bits > 32) continue;
    encode_span(format, x.floats, policy, codes, random);
    bits.insert(bits.end(), codes.begin(), codes.end());
  }
  for (std::uint64_t i = 0; i < 4096; ++i) {
    const std::uint64_t code = i % 2 == 0 ? i : random_bits(23, 0, i) >> (64 - format.bits);
    bits.push_back(std::bit_cast<std::uint64_t>(decode(format, code)));
    if (format.bits > 32) continue;
    const auto narrow = static_cast<std::uint32_t>(code);
    float value = 0;
    decode_span(format, std::span(&narrow, 1), std::span(&value, 1));
    bits.push_back(std::bit_cast<std::uint32_t>(value));
    bits.push_back(std::bit_cast<std::uint32_t>(decode_float(format, code)));
  }
  return bits;
}

}  // namespace

TEST_CASE("no rounding mode and no flush-to-zero flag of the caller changes a bit") {
  const Probes x = inputs();
  for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::vector<std::vector<std::uint64_t>> hostile;
    {
      const HostileEnvironment environment(rounding);
#if defined(__x86_64__)
      // The flags are on: a subnormal product comes out as zero.
      volatile float tiny = 0x1p-100f;
      const float product = tiny * tiny;
      REQUIRE(std::bit_cast<std::uint32_t>(product) == 0);
#endif
      for (const Format* format : formats()) hostile.push_back(outcome(*format, x));
    }
    for (std::size_t i = 0; i < formats().size(); ++i) {
      CAPTURE(formats()[i]->name, rounding);
      CHECK((hostile[i] == outcome(*formats()[i], x)));
    }
  }
}
