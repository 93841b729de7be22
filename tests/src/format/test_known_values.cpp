// The formats' figures as their specifications print them, lookup by name, and the worked examples of encode.h.
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "base/error.h"
#include "format/encode.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::format;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Policy kSaturate{};
constexpr Policy kOverflow{.overflow = Overflow::inf_or_nan};

std::uint64_t code(const Format& format, float x, const Policy& policy) { return encode(format, x, policy); }

}  // namespace

TEST_CASE("the figures of each format are those of its specification") {
  struct Row {
    const Format& format;
    double max_finite, min_normal, min_subnormal;
  };
  // OCP FP8 1.0 table 1, OCP MX 1.0 tables 1 to 7, IEEE 754-2019 table 3.5, ml_dtypes' README for the fnuz forms.
  const Row rows[] = {
      {kFP64, std::numeric_limits<double>::max(), 0x1p-1022, 0x1p-1074},
      {kFP32, 0x1.FFFFFEp127, 0x1p-126, 0x1p-149},
      {kTF32, 0x1.FFCp127, 0x1p-126, 0x1p-136},
      {kE8M13, 0x1.FFF8p127, 0x1p-126, 0x1p-139},
      {kFP16, 65504, 0x1p-14, 0x1p-24},
      {kBF16, 0x1.FEp127, 0x1p-126, 0x1p-133},
      {kE5M2, 57344, 0x1p-14, 0x1p-16},
      {kE4M3, 448, 0x1p-6, 0x1p-9},
      {kE5M2Fnuz, 57344, 0x1p-15, 0x1p-17},
      {kE4M3Fnuz, 240, 0x1p-7, 0x1p-10},
      {kE3M2, 28, 0.25, 0.0625},
      {kE2M3, 7.5, 1, 0.125},
      {kE2M1, 6, 1, 0.5},
      {kE8M0, 0x1p127, 0x1p-127, 0x1p-127},
      {kUE4M3, 448, 0x1p-6, 0x1p-9},
      {kInt8, 127, 1, 1},
      {kInt4, 7, 1, 1},
  };
  CHECK(std::size(rows) == formats().size());
  for (const Row& row : rows) {
    CAPTURE(row.format.name);
    CHECK(max_finite(row.format) == row.max_finite);
    CHECK(min_normal(row.format) == row.min_normal);
    CHECK(min_subnormal(row.format) == row.min_subnormal);
  }
}

TEST_CASE("every name, dtype name and alias finds its format and no other") {
  std::set<std::string_view> seen;
  for (const Format* format : formats()) {
    std::set<std::string_view> names{format->name, format->dtype, format->alias};
    names.erase("");
    for (const std::string_view name : names) {
      CAPTURE(name);
      CHECK(&find(name) == format);
      CHECK(seen.insert(name).second);
    }
  }
  CHECK(&find("float8_e4m3fn") == &kE4M3);
  CHECK(&find("fp22") == &kE8M13);
  CHECK(find_or_null("") == nullptr);
  CHECK(find_or_null("e4m3 ") == nullptr);
  try {
    find("float9");
    FAIL("an unknown name was accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()).find("'float9'") != std::string::npos);
    CHECK(std::string(error.what()).find("e4m3") != std::string::npos);
  }
}

TEST_CASE("canonical NaN and infinity codes") {
  CHECK(nan_code(kFP64) == 0x7FF8000000000000);
  CHECK(nan_code(kFP32) == 0x7FC00000);
  CHECK(nan_code(kFP16) == 0x7E00);
  CHECK(nan_code(kBF16) == 0x7FC0);
  CHECK(nan_code(kE5M2) == 0x7E);
  CHECK(nan_code(kE4M3) == 0x7F);
  CHECK(nan_code(kE4M3Fnuz) == 0x80);
  CHECK(nan_code(kE8M0) == 0xFF);
  CHECK(nan_code(kUE4M3) == 0x7F);
  CHECK(inf_code(kE5M2) == 0x7C);
  CHECK(inf_code(kFP16, true) == 0xFC00);
  CHECK_THROWS_AS(nan_code(kE2M1), Error);
  CHECK_THROWS_AS(inf_code(kE4M3), Error);
  CHECK_THROWS_AS(decode_float(kFP64, 0), Error);
}

TEST_CASE("E4M3 overflows from the midpoint beyond 448 on") {
  CHECK(code(kE4M3, 464.0f, kOverflow) == 0x7E);
  CHECK(code(kE4M3, std::nextafter(464.0f, kInf), kOverflow) == 0x7F);
  CHECK(code(kE4M3, 464.0f, {.rounding = Rounding::nearest_away, .overflow = Overflow::inf_or_nan}) == 0x7F);
  CHECK(code(kE4M3, -1e30f, kSaturate) == 0xFE);
  CHECK(code(kE4M3, -kInf, kSaturate) == 0xFE);
  CHECK(code(kE4M3, kInf, kOverflow) == 0x7F);
  CHECK(code(kE4M3, 1e30f, {.rounding = Rounding::toward_zero, .overflow = Overflow::inf_or_nan}) == 0x7E);
  CHECK(code(kE4M3, -1e30f, {.rounding = Rounding::up, .overflow = Overflow::inf_or_nan}) == 0xFE);
  CHECK(code(kE4M3, 448.5f, {.rounding = Rounding::up, .overflow = Overflow::inf_or_nan}) == 0x7F);
}

TEST_CASE("E5M2 overflows to infinity from 61440 on") {
  CHECK(code(kE5M2, std::nextafter(61440.0f, 0.0f), kOverflow) == 0x7B);
  CHECK(code(kE5M2, 61440.0f, kOverflow) == 0x7C);
  CHECK(code(kE5M2, -61440.0f, kOverflow) == 0xFC);
  CHECK(code(kE5M2, kInf, {.rounding = Rounding::toward_zero, .overflow = Overflow::inf_or_nan}) == 0x7C);
}

TEST_CASE("E8M0 ties upward, and what it cannot hold follows the overflow policy") {
  CHECK(code(kE8M0, 1.5f, kSaturate) == 0x80);
  CHECK(code(kE8M0, 3.0f, kSaturate) == 0x81);
  CHECK(code(kE8M0, 2.9f, kSaturate) == 0x80);
  CHECK(code(kE8M0, 1.001f, {.rounding = Rounding::up}) == 0x80);
  CHECK(code(kE8M0, 1.999f, {.rounding = Rounding::toward_zero}) == 0x7F);
  CHECK(code(kE8M0, 0x1.8p127f, kSaturate) == 0xFE);
  CHECK(code(kE8M0, 0x1.8p127f, kOverflow) == 0xFF);
  CHECK(code(kE8M0, 0x1p-149f, kOverflow) == 0x00);
  for (const float x : {0.0f, -0.0f, -1.0f, -kInf}) {
    CAPTURE(x);
    CHECK(code(kE8M0, x, kSaturate) == 0x00);
    CHECK(code(kE8M0, x, kOverflow) == 0xFF);
  }
}

TEST_CASE("UE4M3 ignores the sign bit of a code and clamps negative numbers at zero") {
  CHECK(decode(kUE4M3, 0xB8) == 1.0);
  CHECK(code(kUE4M3, -0.0f, kOverflow) == 0x00);
  CHECK(code(kUE4M3, -1.0f, kSaturate) == 0x00);
  CHECK(code(kUE4M3, -1.0f, kOverflow) == 0x7F);
  CHECK(code(kUE4M3, kInf, kSaturate) == 0x7E);
}

TEST_CASE("integers round, clamp to two's complement and take NaN as zero") {
  CHECK(code(kInt8, 2.5f, kSaturate) == 2);
  CHECK(code(kInt8, -2.5f, {.rounding = Rounding::nearest_away}) == 0xFD);
  CHECK(code(kInt8, -2.5f, {.rounding = Rounding::up}) == 0xFE);
  CHECK(code(kInt8, 1e9f, kOverflow) == 0x7F);
  CHECK(code(kInt8, -kInf, kOverflow) == 0x80);
  CHECK(code(kInt4, -7.6f, kSaturate) == 0x8);
  CHECK(code(kInt4, 7.6f, kSaturate) == 0x7);
  CHECK(code(kInt8, std::nanf(""), kSaturate) == 0);
  CHECK(decode(kInt4, 0xF8) == -8.0);
}

TEST_CASE("flush makes a result that is subnormal after rounding a zero of its sign") {
  const Policy flush{.subnormals = Subnormals::flush};
  CHECK(code(kE4M3, -0x1.8p-7f, flush) == 0x80);
  CHECK(code(kE4M3, -0x1.8p-7f, kSaturate) == 0x86);
  CHECK(code(kE4M3, 0x1.FFp-7f, flush) == 0x08);
  CHECK(code(kE4M3Fnuz, -0x1.8p-9f, flush) == 0x00);
  CHECK(code(kE2M1, 0x1p-149f, {.rounding = Rounding::up, .subnormals = Subnormals::flush}) == 0x0);
}

TEST_CASE("formats that cannot say NaN or -0 return zero") {
  CHECK(code(kE2M1, std::nanf(""), kOverflow) == 0);
  CHECK(code(kE2M1, -0.0f, kOverflow) == 8);
  CHECK(code(kE5M2Fnuz, -0.0f, kOverflow) == 0);
  CHECK(code(kE5M2Fnuz, -0x1p-19f, kOverflow) == 0);
}
