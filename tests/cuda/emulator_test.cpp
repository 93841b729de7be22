// What the CUDA emulator computes with, compiled for the CPU: the engine against the plain model, the encoders, exp2,
// and which recipes it takes.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/elementary.h"
#include "base/error.h"
#include "base/exponential.h"
#include "base/random.h"
#include "emulator/encoding.h"
#include "emulator/fused_engine.h"
#include "emulator/plan.h"
#include "emulator/scales.h"
#include "format/encode.h"
#include "lab/recipe_file.h"
#include "mma/fused_dot.h"
#include "mma/instruction.h"
#include "quant/scale.h"
#include "scalar/fa4_exp2.h"
#include "scalar/mufu.h"
#include "scalar/span.h"
#include "support/catch.h"

namespace {

using namespace qattn;

/// Of data/recipes; adding one to either side is a reason to look here.
constexpr int kTakenRecipes = 65;

using emulator::Element;
using emulator::Encoding;
using emulator::FusedEngine;
using emulator::ScaledElement;

/// Operands of one instruction: of all codes, of numbers near 1, or of the format's ends (zeros, subnormals, the
/// largest numbers, Inf, NaN).
struct Draw {
  const mma::Instruction& x;
  std::uint64_t stream;
  std::uint64_t index = 0;

  std::uint64_t bits() { return random_bits(7, stream, index++); }

  std::uint64_t code(const format::Format& format, int family) {
    const std::uint64_t all = (std::uint64_t{1} << format.bits) - 1, r = bits();
    if (family == 0) return mma::stored_code(format, r & all);
    if (family == 1) {
      const double value = (random_unit(7, stream, index++) - 0.5) * 8;
      const format::Policy policy;
      return mma::stored_code(format, format::encode(format, value, policy));
    }
    const std::uint64_t largest = format::max_finite_code(format), sign = r & format::sign_mask(format);
    const std::array<std::uint64_t, 6> ends = {0, 1, format::min_normal_code(format), largest, largest + 1, all >> 1};
    // Inf and NaN seldom, since one of them decides all.
    const std::size_t choice = (r >> 20) % 64 == 0 ? (r >> 30) % 6 : (r >> 30) % 4;
    return mma::stored_code(format, (ends[choice] | sign) & all);
  }
};

/// Scale codes of one operand, an element's among them; empty without block scales.
struct Scales {
  std::vector<std::uint64_t> codes;

  Scales(const mma::Instruction& x, Draw& draw, int family) {
    for (int k = 0; k < x.k && x.scale != nullptr; k += x.block) codes.push_back(draw.code(*x.scale, family));
  }
  float value(const mma::Instruction& x, std::size_t k) const {
    return format::decode_float(*x.scale, codes[k / static_cast<std::size_t>(x.block)]);
  }
};

template <class Packed, class Unpack>
Packed through_word(const Packed& x, const Unpack& unpack) {
  const std::uint32_t word = emulator::packed(x);
  const Packed back = unpack(word);
  if (emulator::packed(back) != word) FAIL("a word changes on its way");
  return back;
}

/// What the engine returns for the codes that the plain model takes.
std::uint32_t engine_result(const mma::Instruction& x, const FusedEngine& engine, const mma::DotOperands& operands,
                            const Scales& scales_a, const Scales& scales_b) {
  const auto depth = static_cast<std::size_t>(x.k);
  const auto c = static_cast<std::uint32_t>(operands.c);
  if (x.kind == mma::Kind::scaled_group_dot) {
    std::vector<ScaledElement> left(depth), right(depth);
    const auto element = [&](const Scales& scales, std::size_t k, std::uint64_t code) {
      const ScaledElement own =
          emulator::scaled_element(scales.value(x, k), x.scale->mantissa_bits, static_cast<std::uint32_t>(code));
      return through_word(own, emulator::scaled_unpacked);
    };
    for (std::size_t k = 0; k < depth; ++k) {
      left[k] = element(scales_a, k, operands.a[k]);
      right[k] = element(scales_b, k, operands.b[k]);
    }
    return emulator::grouped_instruction(engine, left.data(), right.data(), c);
  }
  std::vector<Element> left(depth), right(depth);
  const auto element = [&](const format::Format& format, const Scales& scales, std::size_t k, std::uint64_t code) {
    Element own = emulator::element_of(format, static_cast<std::uint32_t>(code), engine.interleaved);
    if (x.scale != nullptr) own = emulator::times_power(own, scales.value(x, k));
    return through_word(own, emulator::unpacked);
  };
  for (std::size_t k = 0; k < depth; ++k) {
    const auto at = static_cast<std::size_t>(emulator::group_position(engine, static_cast<int>(k)));
    left[at] = element(*x.a, scales_a, k, operands.a[k]);
    right[at] = element(*x.b, scales_b, k, operands.b[k]);
  }
  return emulator::fused_instruction(engine, left.data(), right.data(), c);
}

/// One random case: the engine's code equals the plain model's.
void compare(const mma::Instruction& x, const FusedEngine& engine, Draw& draw, int family, int c_family) {
  std::vector<std::uint64_t> a, b;
  for (int k = 0; k < x.k; ++k) {
    a.push_back(draw.code(*x.a, family));
    b.push_back(draw.code(*x.b, family));
  }
  // Scales of all codes are seldom near each other.
  const int scale_family = family == 0 ? 1 : family;
  const Scales scales_a(x, draw, scale_family), scales_b(x, draw, scale_family);
  const mma::DotOperands operands{a, b, draw.code(*x.c, c_family), scales_a.codes, scales_b.codes};
  const std::uint64_t expected = mma::dot(x, operands);
  const std::uint32_t actual = engine_result(x, engine, operands, scales_a, scales_b);
  if (actual == expected) return;
  INFO(x.name << " family " << family << ", c of family " << c_family << ": " << std::hex << actual << " instead of "
              << expected << ", c " << operands.c);
  CHECK(actual == expected);
}

TEST_CASE("cuda emulator: the engines equal the plain model on random and hostile operands") {
  int engines = 0, grouped = 0;
  for (const mma::Instruction& x : mma::instructions()) {
    const bool fused = x.kind == mma::Kind::fused_dot || x.kind == mma::Kind::interleaved_dot;
    CHECK(emulator::has_engine(x) == ((fused && x.c == x.d) || x.kind == mma::Kind::scaled_group_dot));
    if (!emulator::has_engine(x)) continue;
    grouped += fused ? 0 : 1;
    const FusedEngine engine = emulator::make_engine(x);
    Draw draw{x, static_cast<std::uint64_t>(++engines)};
    for (int round = 0; round < 12; ++round) {
      for (int family = 0; family < 3; ++family) {
        for (int c_family = 0; c_family < 3; ++c_family) compare(x, engine, draw, family, c_family);
      }
    }
  }
  CHECK(engines > 100);
  CHECK(grouped > 5);
}

/// The group as kernels sum it: the products of 16 lines in 32 bits.
TEST_CASE("cuda emulator: sixteen of the largest products stay below 2^31 in every instruction") {
  for (const mma::Instruction& x : mma::instructions()) {
    if (!emulator::has_engine(x) || x.kind == mma::Kind::scaled_group_dot) continue;
    const FusedEngine engine = emulator::make_engine(x);
    const auto largest = [&](const format::Format& format) {
      std::int64_t magnitude = 0;
      for (std::uint64_t code = 0; code < (std::uint64_t{1} << std::min(format.bits, 16)); ++code) {
        const std::uint64_t wide = format.bits > 16 ? code << (format.bits - 16) | 0x1FFF : code;
        const Element e = emulator::element_of(format, static_cast<std::uint32_t>(wide), engine.interleaved);
        if (e.exponent < emulator::kSpecialFrom) magnitude = std::max<std::int64_t>(magnitude, e.magnitude);
      }
      return magnitude;
    };
    const std::int64_t product = largest(*x.a) * largest(*x.b) << engine.product_shift;
    INFO(x.name);
    CHECK(product * std::min(engine.group, 16) < std::int64_t{1} << 31);
    CHECK(largest(*x.a) << engine.product_shift < std::int64_t{1} << 31);
  }
}

/// Floats whose top half is `high`, with low halves that tie, nearly tie and do not.
std::array<float, 6> floats_of(std::uint32_t high) {
  std::array<float, 6> x{};
  constexpr std::array<std::uint32_t, 6> kLow = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<float>(high << 16 | kLow[i]);
  return x;
}

TEST_CASE("cuda emulator: encodes and decodes as the CPU does") {
  for (const format::Format* format : format::formats()) {
    if (format->bits > 32 || !format->has_sign) continue;
    for (const format::Overflow overflow : {format::Overflow::saturate, format::Overflow::inf_or_nan}) {
      const Encoding encoding = emulator::make_encoding(*format, overflow);
      const format::Policy policy{format::Rounding::nearest_even, overflow, format::Subnormals::keep};
      std::int64_t wrong = 0;
      for (std::uint32_t high = 0; high < 0x10000; ++high) {
        for (const float x : floats_of(high))
          wrong += emulator::encode(encoding, x) != format::encode(*format, x, policy);
      }
      INFO(format->name);
      CHECK(wrong == 0);
      if (format->bits > 16) continue;
      const std::span<const float> values = format::decode_table(*format);
      for (std::uint32_t code = 0; code < values.size(); ++code) {
        wrong += std::bit_cast<std::uint32_t>(emulator::decode(encoding, code)) !=
                 std::bit_cast<std::uint32_t>(values[code]);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("cuda emulator: P's scales follow the rules of the quantizers") {
  using emulator::ScaleFormat;
  const std::array formats = {std::pair(ScaleFormat::fp32, &format::kFP32),
                              std::pair(ScaleFormat::e4m3, &format::kE4M3),
                              std::pair(ScaleFormat::e8m0, &format::kE8M0)};
  const auto differ = [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y) && !(x != x && y != y);
  };
  std::int64_t wrong = 0;
  for (std::size_t r = 0; r < quant::scale_rules().size(); ++r) {
    const quant::ScaleRule& rule = quant::scale_rules()[r];
    for (const float range : {6.0f, 7.0f, 127.0f, 448.0f, 7.5f}) {
      for (std::uint32_t high = 0; high <= 0x7FC0; ++high) {
        for (const float amax : floats_of(high)) {
          const float expected = rule.scale(amax, range);
          wrong += differ(emulator::scale_of(static_cast<emulator::ScaleRule>(r), amax, range), expected);
          if (expected == 0) continue;
          for (const auto& [format, of_cpu] : formats) {
            wrong += differ(emulator::round_scale(format, expected), quant::round_scale(expected, *of_cpu));
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda emulator: each exp2 is the one that the CPU runs by SIMD") {
  std::vector<float> x, exact, mufu, fa4;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const float value : floats_of(high)) x.push_back(value);
  }
  exact = mufu = fa4 = x;
  elementary::exp2_float(x, exact);
  scalar::ex2_approx_ftz(x, mufu);
  scalar::ex2_fa4_poly(x, fa4);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto code = std::bit_cast<std::uint32_t>(x[i]);
    const auto own = static_cast<float>(elementary::detail::exp2(static_cast<double>(x[i])));
    wrong += own != exact[i] && !(own != own && exact[i] != exact[i]);
    wrong += scalar::mufu_ex2(code, scalar::kEx2Table) != std::bit_cast<std::uint32_t>(mufu[i]);
    wrong += scalar::detail::fa4_exp2(code) != std::bit_cast<std::uint32_t>(fa4[i]);
  }
  CHECK(wrong == 0);
}

std::string refusal(const attention::Recipe& recipe) {
  try {
    emulator::check_supported(recipe);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::usage);
    return e.what();
  }
  return "";
}

TEST_CASE("cuda emulator: takes most recipes, and names the key of what it does not do") {
  int taken = 0;
  for (const attention::Recipe& recipe : lab::load_all_recipes()) taken += refusal(recipe).empty() ? 1 : 0;
  CHECK(taken == kTakenRecipes);
  attention::Recipe recipe = lab::load_recipe("sage2-8b");
  CHECK(refusal(recipe).empty());
  const std::vector<std::array<std::string, 3>> changes = {{"softmax", "f64", "softmax"},
                                                           {"row_sum_format", "bf16", "row_sum_format"},
                                                           {"s_format", "fp64", "s_format"},
                                                           {"accumulator", "cdna3.mfma", "accumulator"}};
  for (const auto& [key, value, named] : changes) {
    attention::Recipe changed = recipe;
    if (key == "accumulator") {
      attention::set(changed, "p_format", "fp16");
      attention::set(changed, "v_format", "fp16");
    }
    attention::set(changed, key, value);
    INFO(key << " = " << value << ": " << refusal(changed));
    CHECK(refusal(changed).find(named) != std::string::npos);
  }
}

}  // namespace
