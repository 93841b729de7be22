// The casts against format::encode, a second implementation, on every code, every midpoint and their neighbours.
#include <cmath>
#include <string>
#include <vector>

#include "format/encode.h"
#include "inputs.h"
#include "scalar/cast.h"
#include "scalar/function.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;
using format::Format, format::Overflow, format::Policy, format::Rounding;

namespace {

/// Every number of the format, every midpoint of two, and the two floats beside each of them, in both signs; then the
/// float range's own corners.
std::vector<std::uint32_t> deciding_inputs(const Format& format) {
  std::vector<std::uint32_t> x{0, 1, 0x007FFFFF, 0x00800000, 0x00400000, 0x00400001, 0x7F7FFFFF, kInf};
  const auto largest = static_cast<std::uint32_t>(format::max_finite_code(format));
  // All of 8-bit formats and FP16; of the wider ones every 257th code.
  const std::uint32_t step = largest > 0x8000 ? 257 : 1;
  for (std::uint32_t c = 0; c <= largest; c += step) {
    const double here = format::decode(format, c);
    const double next = c == largest ? 2 * here - format::decode(format, c - 1) : format::decode(format, c + 1);
    for (const double value : {here, (here + next) / 2}) {
      const std::uint32_t near = code(static_cast<float>(value));
      if (near >= kInf) continue;
      if (near != 0) x.push_back(near - 1);
      x.push_back(near);
      x.push_back(near + 1);
    }
  }
  const std::size_t positive = x.size();
  for (std::size_t i = 0; i < positive; ++i) x.push_back(x[i] | kSign);
  return x;
}

std::uint64_t differing(const Function& function, const Format& format, const Policy& policy, bool relu = false) {
  std::uint64_t count = 0;
  for (const std::uint32_t x : deciding_inputs(format)) {
    std::uint32_t expected = static_cast<std::uint32_t>(format::encode(format, number(x), policy));
    if (relu && (x & kSign) != 0) expected = 0;
    count += function.plain(x) != expected << (function.output->bits - format.bits);
  }
  return count;
}

struct Named {
  const char* name;
  const Format& format;
  Policy policy;
  bool relu = false;
};

}  // namespace

TEST_CASE("casts from f32 equal format::encode on all codes and midpoints") {
  const Policy nearest{Rounding::nearest_even, Overflow::inf_or_nan}, zero{Rounding::toward_zero, Overflow::inf_or_nan};
  const Policy nearest_sat{Rounding::nearest_even, Overflow::saturate};
  const Policy zero_sat{Rounding::toward_zero, Overflow::saturate};
  const Named casts[] = {
      {"cvt.rn.f16.f32", format::kFP16, nearest},
      {"cvt.rz.f16.f32", format::kFP16, zero},
      {"cvt.rn.relu.f16.f32", format::kFP16, nearest, true},
      {"cvt.rz.relu.f16.f32", format::kFP16, zero, true},
      {"cvt.rn.satfinite.f16.f32", format::kFP16, nearest_sat},
      {"cvt.rz.satfinite.f16.f32", format::kFP16, zero_sat},
      {"cvt.rn.relu.satfinite.f16.f32", format::kFP16, nearest_sat, true},
      {"cvt.rz.relu.satfinite.f16.f32", format::kFP16, zero_sat, true},
      {"cvt.rn.bf16.f32", format::kBF16, nearest},
      {"cvt.rz.bf16.f32", format::kBF16, zero},
      {"cvt.rn.relu.bf16.f32", format::kBF16, nearest, true},
      {"cvt.rz.relu.bf16.f32", format::kBF16, zero, true},
      {"cvt.rn.satfinite.bf16.f32", format::kBF16, nearest_sat},
      {"cvt.rz.satfinite.bf16.f32", format::kBF16, zero_sat},
      {"cvt.rn.relu.satfinite.bf16.f32", format::kBF16, nearest_sat, true},
      {"cvt.rz.relu.satfinite.bf16.f32", format::kBF16, zero_sat, true},
      {"cvt.rn.tf32.f32", format::kTF32, nearest},
      {"cvt.rz.tf32.f32", format::kTF32, zero},
      {"cvt.rn.relu.tf32.f32", format::kTF32, nearest, true},
      {"cvt.rz.relu.tf32.f32", format::kTF32, zero, true},
      {"cvt.rna.tf32.f32", format::kTF32, {Rounding::nearest_away, Overflow::inf_or_nan}},
      {"cvt.rna.satfinite.tf32.f32", format::kTF32, {Rounding::nearest_away, Overflow::saturate}},
      {"cvt.rn.satfinite.e4m3x2.f32", format::kE4M3, nearest_sat},
      {"cvt.rn.satfinite.relu.e4m3x2.f32", format::kE4M3, nearest_sat, true},
      {"cvt.rn.satfinite.e5m2x2.f32", format::kE5M2, nearest_sat},
      {"cvt.rn.satfinite.relu.e5m2x2.f32", format::kE5M2, nearest_sat, true},
      {"cvt.rn.satfinite.e3m2x2.f32", format::kE3M2, nearest_sat},
      {"cvt.rn.satfinite.relu.e3m2x2.f32", format::kE3M2, nearest_sat, true},
      {"cvt.rn.satfinite.e2m3x2.f32", format::kE2M3, nearest_sat},
      {"cvt.rn.satfinite.relu.e2m3x2.f32", format::kE2M3, nearest_sat, true},
      {"cvt.rn.satfinite.e2m1x2.f32", format::kE2M1, nearest_sat},
      {"cvt.rn.satfinite.relu.e2m1x2.f32", format::kE2M1, nearest_sat, true},
      {"cvt.rni.s8.f32", format::kInt8, nearest_sat},
      {"cvt.rzi.s8.f32", format::kInt8, zero_sat},
      {"cvt.rmi.s8.f32", format::kInt8, {Rounding::down, Overflow::saturate}},
      {"cvt.rpi.s8.f32", format::kInt8, {Rounding::up, Overflow::saturate}},
  };
  for (const Named& cast : casts) {
    INFO(cast.name);
    CHECK(differing(find(cast.name), cast.format, cast.policy, cast.relu) == 0);
  }
}

TEST_CASE("casts to UE8M0 take the magnitude: rounded to or above a power of two, 2^-127 at the least") {
  for (const std::uint32_t x : deciding_inputs(format::kE8M0)) {
    const std::uint32_t magnitude = x & ~kSign;
    if (magnitude == kInf) continue;
    const auto value = static_cast<double>(number(magnitude));
    int exponent = value == 0 ? -127 : std::max(std::ilogb(value), -127);
    REQUIRE(find("cvt.rz.ue8m0x2.f32").plain(x) == static_cast<std::uint32_t>(exponent + 127));
    if (value > std::ldexp(1.0, exponent)) ++exponent;
    REQUIRE(find("cvt.rp.ue8m0x2.f32").plain(x) == static_cast<std::uint32_t>(exponent + 127));
    REQUIRE(find("cvt.rp.satfinite.ue8m0x2.f32").plain(x) == static_cast<std::uint32_t>(std::min(exponent, 127) + 127));
  }
  CHECK(cast_ue8m0(false, false, kInf) == 0xFF);
  CHECK(cast_ue8m0(false, true, kInf) == 0xFE);
  CHECK(cast_ue8m0(true, true, kNaN) == 0xFF);
}

TEST_CASE("casts give the GPU's NaN codes") {
  for (const std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu}) {
    CHECK(find("cvt.rn.f16.f32").plain(nan) == 0x7FFF);
    CHECK(find("cvt.rz.bf16.f32").plain(nan) == 0x7FFF);
    CHECK(find("cvt.rn.satfinite.e4m3x2.f32").plain(nan) == 0x7F);
    CHECK(find("cvt.rn.satfinite.relu.e4m3x2.f32").plain(nan) == 0x7F);
    CHECK(find("cvt.rn.satfinite.e5m2x2.f32").plain(nan) == 0x7F);
    CHECK(find("cvt.rn.satfinite.e2m1x2.f32").plain(nan) == 0x7);  // no NaN: the largest number, positive
    CHECK(find("cvt.rn.satfinite.e3m2x2.f32").plain(nan) == 0x1F);
    CHECK(find("cvt.rn.satfinite.e2m3x2.f32").plain(nan) == 0x1F);
    CHECK(find("cvt.rni.s8.f32").plain(nan) == 0);
    CHECK(find("cvt.rn.tf32.f32").plain(nan) == kNaN);
  }
  CHECK(find("cvt.rna.tf32.f32").plain(0xFF800001) == 0xFF800000);  // the payload is cut off: -Inf
  CHECK(find("cvt.rna.tf32.f32").plain(0xFFC00001) == 0xFFC00000);
}

TEST_CASE("casts from every f16 and bf16 code equal format::encode of its value") {
  const Policy nearest{Rounding::nearest_even, Overflow::inf_or_nan};
  const Policy saturate{Rounding::nearest_even, Overflow::saturate};
  const Named casts[] = {
      {"cvt.rn.bf16.f16", format::kBF16, nearest},
      {"cvt.rn.f16.bf16", format::kFP16, nearest},
      {"cvt.f32.f16", format::kFP32, nearest},
      {"cvt.f32.bf16", format::kFP32, nearest},
      {"cvt.rn.satfinite.e4m3x2.f16x2", format::kE4M3, saturate},
      {"cvt.rn.satfinite.relu.e4m3x2.f16x2", format::kE4M3, saturate, true},
      {"cvt.rn.satfinite.e5m2x2.f16x2", format::kE5M2, saturate},
      {"cvt.rn.satfinite.relu.e5m2x2.f16x2", format::kE5M2, saturate, true},
      {"cvt.rni.s8.f16", format::kInt8, saturate},
      {"cvt.rzi.s8.f16", format::kInt8, {Rounding::toward_zero, Overflow::saturate}},
      {"cvt.rmi.s8.f16", format::kInt8, {Rounding::down, Overflow::saturate}},
      {"cvt.rpi.s8.f16", format::kInt8, {Rounding::up, Overflow::saturate}},
  };
  for (const Named& cast : casts) {
    INFO(cast.name);
    const Function& function = find(cast.name);
    std::uint64_t count = 0;
    for (std::uint32_t x = 0; x < 0x10000; ++x) {
      if (format::is_nan(*function.input, x)) continue;
      const double value = format::decode(*function.input, x);
      auto expected = static_cast<std::uint32_t>(format::encode(cast.format, value, cast.policy));
      if (cast.relu && std::signbit(value)) expected = 0;
      count += function.plain(x) != expected;
    }
    CHECK(count == 0);
  }
}

TEST_CASE("conversions back from every narrow code give its value, or zero for a negative one with relu") {
  for (const Function& function : functions()) {
    if (function.input_bits() > 8) continue;
    INFO(function.name);
    const bool relu = function.reference == Reference::relu;
    for (std::uint32_t x = 0; x < 1u << function.input_bits(); ++x) {
      if (format::is_nan(*function.input, x)) {
        CHECK(function.plain(x) == (function.output == &format::kFP32 ? kNaN : 0x7FFF));
        continue;
      }
      const double value = format::decode(*function.input, x);
      const double y = format::decode(*function.output, function.plain(x));
      CHECK(y == (relu && std::signbit(value) ? 0.0 : value));
      CHECK(std::signbit(y) == (!relu && std::signbit(value)));
    }
  }
}

TEST_CASE("integers become floats truncated or to nearest even, as the double of the same integer does") {
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random_bits(6, 2, i));
    const auto value =
        std::bit_cast<std::int32_t>(static_cast<std::uint32_t>(i < 64 ? (1u << (i / 2)) - (i % 2) : bits >> (i % 32)));
    const double exact = value;
    const std::uint32_t x = std::bit_cast<std::uint32_t>(value);
    const auto truncated = format::encode(format::kFP32, exact, {Rounding::toward_zero, Overflow::saturate});
    const auto nearest = format::encode(format::kFP32, exact, {Rounding::nearest_even, Overflow::saturate});
    REQUIRE(find("__int2float_rz").plain(x) == truncated);
    REQUIRE(find("cvt.rn.f32.s32").plain(x) == nearest);
  }
  CHECK(number(find("cvt.rz.f32.s32").plain(0x80000000)) == -0x1p31f);
}
