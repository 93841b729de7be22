#include "scalar/ptx.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fp_environment.h"
#include "scalar/constants.h"
#include "scalar/fa4_exp2.h"
#include "scalar/mufu.h"

namespace qattn::scalar {
namespace {

using constants::from_bits;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

std::uint32_t canonical(float y) {
  const std::uint32_t bits = bits_of(y);
  return is_nan(bits) ? kNaN : bits;
}

/// Nothing is computed from `code` before this line, nor after it what was computed before: the compiler does not know
/// that arithmetic depends on the floating-point environment.
void pin(std::uint32_t& code) { asm volatile("" : "+r"(code) : : "memory"); }

/// function(x) in the default environment.
template <class Function>
std::uint32_t guarded(Function function, std::uint32_t x) {
  const FpEnvironment environment;
  pin(x);
  std::uint32_t y = function(x);
  pin(y);
  return y;
}

template <class Function>
std::uint32_t guarded(Function function, std::uint32_t x, std::uint32_t y) {
  const FpEnvironment environment;
  pin(x);
  pin(y);
  std::uint32_t z = function(x, y);
  pin(z);
  return z;
}

/// A product as FMUL.FTZ forms it.
float multiply_ftz(float a, float b) {
  const auto flush = [](float v) { return is_tiny(bits_of(v)) ? from_bits(bits_of(v) & kSign) : v; };
  return flush(flush(a) * flush(b));
}

std::uint32_t scaled(std::uint32_t x, float factor) { return bits_of(from_bits(x) * factor); }

/// Horner's rule in fma, from the highest power down.
template <std::size_t n>
float polynomial(const std::array<float, n>& coefficients, float x) {
  float p = coefficients[0];
  for (std::size_t i = 1; i < n; ++i) p = std::fma(p, x, coefficients[i]);
  return p;
}

bool needs_half(std::uint32_t x) { return from_bits(x) < -126.0f; }

std::uint32_t ex2_argument(std::uint32_t x) { return needs_half(x) ? scaled(x, 0.5f) : x; }

std::uint32_t ex2(std::uint32_t x) {
  const float y = from_bits(mufu_ex2(ex2_argument(x)));
  return canonical(needs_half(x) ? y * y : y);
}

float rcp_scale(std::uint32_t x) {
  const std::uint32_t magnitude = x & ~kSign;
  if (magnitude > 0x7E800000) return 0.25f;  // 2^126
  return is_tiny(x) ? 0x1p24f : 1.0f;
}

std::uint32_t rcp(std::uint32_t x) {
  const float k = rcp_scale(x);
  return canonical(k * from_bits(mufu_rcp(scaled(x, k))));
}

std::uint32_t lift_subnormal(std::uint32_t x) { return is_tiny(x) ? scaled(x, 0x1p24f) : x; }

std::uint32_t lg2(std::uint32_t x) {
  const float y = from_bits(mufu_lg2(lift_subnormal(x)));
  return canonical(is_tiny(x) ? y - 24.0f : y);
}

std::uint32_t rsqrt(std::uint32_t x) {
  const float y = from_bits(mufu_rsqrt(lift_subnormal(x)));
  return canonical(is_tiny(x) ? y * 0x1p12f : y);
}

std::uint32_t sqrt(std::uint32_t x) {
  const float y = from_bits(mufu_sqrt(lift_subnormal(x)));
  return canonical(is_tiny(x) ? y * 0x1p-12f : y);
}

/// expf's range reduction: x log2(e) = power + rest with the integer power in -126..126 (clamped there), rest as its
/// two-step Cody-Waite remainder.
struct ExpSplit {
  int power;
  float rest;
};

ExpSplit split_exp(float x) {
  float j = std::fma(x, constants::kExpRange, 0.5f);
  j = j > 0.0f ? std::min(j, 1.0f) : 0.0f;  // saturated; NaN gives 0
  // The GPU adds 252 j to 2^23 + 2^22 + 1 rounding down, which takes the floor; the double product is exact.
  const int power = static_cast<int>(static_cast<double>(j) * 252.0) - 126;
  float rest = std::fma(x, constants::kLog2E, -static_cast<float>(power));
  rest = std::fma(x, constants::kLog2ELow, rest);
  return {power, rest};
}

std::uint32_t exp(std::uint32_t x) {
  const ExpSplit split = split_exp(from_bits(x));
  const float scale = from_bits(static_cast<std::uint32_t>(split.power + 127) << 23);
  return canonical(scale * from_bits(mufu_ex2(bits_of(split.rest))));
}

/// The common frame of logf and log2f: x = 2^exponent (1 + f), the mantissa centred by `split`.
struct LogSplit {
  float exponent;
  float f;
};

LogSplit split_log(std::uint32_t x, std::int32_t split) {
  const bool is_small = from_bits(x) < 0x1p-126f;
  const auto code = std::bit_cast<std::int32_t>(is_small ? scaled(x, 0x1p23f) : x);
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>((static_cast<std::uint32_t>(code) - static_cast<std::uint32_t>(split)) & 0xFF800000);
  const auto mantissa = static_cast<std::uint32_t>(code) - static_cast<std::uint32_t>(exponent);
  return {std::fma(static_cast<float>(exponent), 0x1p-23f, is_small ? -23.0f : 0.0f), from_bits(mantissa) - 1.0f};
}

/// logf and log2f outside the positive finite numbers; `regular` otherwise.
std::uint32_t log_special(std::uint32_t x, float regular) {
  if ((x & ~kSign) == 0) return kSign | kInf;
  if (x >= kInf) return canonical(std::fma(from_bits(x), from_bits(kInf), from_bits(kInf)));
  return canonical(regular);
}

std::uint32_t log2(std::uint32_t x) {
  const auto [exponent, f] = split_log(x, constants::kLog2Split);
  const float p = polynomial(constants::kLog2Polynomial, f);
  return log_special(x, exponent + std::fma(f, constants::kLog2E, f * (f * p)));
}

std::uint32_t log(std::uint32_t x) {
  const auto [exponent, f] = split_log(x, constants::kLogSplit);
  const float p = f * polynomial(constants::kLogPolynomial, f);
  return log_special(x, std::fma(exponent, constants::kLn2, std::fma(f, p, f)));
}

std::uint32_t tanh(std::uint32_t code) {
  const float x = from_bits(code), magnitude = std::fabs(x);
  if (!(magnitude >= constants::kTanhSmall)) {  // NaN too
    const float s = x * x;
    const float p = std::fma(s, polynomial(constants::kTanhPolynomial, s), 0.0f);
    return canonical(std::fma(x, p, x));
  }
  const std::uint32_t power = mufu_ex2(bits_of(magnitude * constants::kTwoLog2E));
  const float reciprocal = from_bits(mufu_rcp(bits_of(from_bits(power) + 1.0f)));
  const float y = magnitude >= constants::kTanhLarge ? 1.0f : std::fma(reciprocal, -2.0f, 1.0f);
  return canonical(std::copysign(y, x));
}

std::uint32_t divide(std::uint32_t x, std::uint32_t y) {
  const float k = is_tiny(y) ? 0x1p24f : 1.0f;
  return canonical(from_bits(mufu_rcp(scaled(y, k))) * (from_bits(x) * k));
}

}  // namespace

std::uint32_t ex2_approx(std::uint32_t x) { return guarded(ex2, x); }
std::uint32_t rcp_approx(std::uint32_t x) { return guarded(rcp, x); }
std::uint32_t lg2_approx(std::uint32_t x) { return guarded(lg2, x); }
std::uint32_t rsqrt_approx(std::uint32_t x) { return guarded(rsqrt, x); }
std::uint32_t sqrt_approx(std::uint32_t x) { return guarded(sqrt, x); }
std::uint32_t rcp_rn(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return canonical(1.0f / from_bits(v)); }, x);
}

std::uint32_t ex2_fa4_poly(std::uint32_t x) { return guarded(detail::fa4_exp2, x); }

std::uint32_t int2float_rz(std::uint32_t x) {
  if (x == 0) return 0;
  const std::uint32_t sign = x & kSign;
  return sign | detail::truncate(sign != 0 ? 0 - x : x, 0);
}

std::uint32_t int2float_rn(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return bits_of(static_cast<float>(std::bit_cast<std::int32_t>(v))); }, x);
}

namespace cuda {
std::uint32_t fast_expf(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return ex2(scaled(v, constants::kLog2E)); }, x);
}
std::uint32_t expf(std::uint32_t x) { return guarded(exp, x); }
std::uint32_t logf(std::uint32_t x) { return guarded(log, x); }
std::uint32_t log2f(std::uint32_t x) { return guarded(log2, x); }
std::uint32_t tanhf(std::uint32_t x) { return guarded(tanh, x); }
std::uint32_t fdividef(std::uint32_t x, std::uint32_t y) { return guarded(divide, x, y); }
}  // namespace cuda

namespace cuda_fast {
std::uint32_t expf(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return mufu_ex2(bits_of(multiply_ftz(from_bits(v), constants::kLog2E))); }, x);
}
std::uint32_t logf(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return canonical(multiply_ftz(from_bits(mufu_lg2(v)), constants::kLn2)); }, x);
}
std::uint32_t fdividef(std::uint32_t x, std::uint32_t y) {
  const auto product = [](std::uint32_t a, std::uint32_t b) {
    return canonical(multiply_ftz(from_bits(a), from_bits(mufu_rcp(b))));
  };
  return guarded(product, x, y);
}
}  // namespace cuda_fast

std::uint32_t ex2_approx_argument(std::uint32_t x) { return guarded(ex2_argument, x); }
std::uint32_t rcp_approx_argument(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return scaled(v, rcp_scale(v)); }, x);
}
std::uint32_t lift_subnormal_argument(std::uint32_t x) { return guarded(lift_subnormal, x); }
std::uint32_t expf_argument(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return bits_of(split_exp(from_bits(v)).rest); }, x);
}
std::uint32_t fast_expf_argument(std::uint32_t x) {
  return guarded([](std::uint32_t v) { return scaled(v, constants::kLog2E); }, x);
}

}  // namespace qattn::scalar
