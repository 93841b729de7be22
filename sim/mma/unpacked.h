// A code taken apart into integers, as every model of this room needs it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "format/format.h"

namespace qattn::mma {

/// (-1)^negative * significand * 2^(exponent - fraction_bits). The exponent of a subnormal is the format's smallest, so
/// the significand is below 2^(fraction_bits + 1); zero has significand 0.
struct Unpacked {
  enum class Class : std::uint8_t { finite, infinite, nan };
  Class kind = Class::finite;
  bool negative = false;
  int exponent = 0;
  int fraction_bits = 0;
  std::uint64_t significand = 0;

  bool is_zero() const { return kind == Class::finite && significand == 0; }
};

/// The stored operand reduced to its format's bits: tf32 and xf32 operands are f32 codes whose low bits the hardware
/// ignores (PTX ISA, mma; MMA-Sim), and other codes may carry bits above the format's width.
constexpr std::uint64_t operand_code(const format::Format& format, std::uint64_t code) {
  if (format.exponent_bits == 8 && format.mantissa_bits == 10) code >>= 13;
  return format.bits == 64 ? code : code & ((std::uint64_t{1} << format.bits) - 1);
}

/// The opposite: a code of the format's own width as operands store it.
constexpr std::uint64_t stored_code(const format::Format& format, std::uint64_t code) {
  return format.exponent_bits == 8 && format.mantissa_bits == 10 ? code << 13 : code;
}

/// Bits of a code as operands store it: the format's own, of tf32 and xf32 those of f32.
constexpr int stored_bits(const format::Format& format) {
  return format.exponent_bits == 8 && format.mantissa_bits == 10 ? 32 : format.bits;
}

/// Takes a floating-point code apart; any format but the integer ones.
constexpr Unpacked unpack(const format::Format& format, std::uint64_t code) {
  using format::Specials;
  code = operand_code(format, code);
  const std::uint64_t mantissa_mask = (std::uint64_t{1} << format.mantissa_bits) - 1;
  const std::uint64_t exponent_mask = (std::uint64_t{1} << format.exponent_bits) - 1;
  const std::uint64_t mantissa = code & mantissa_mask;
  const std::uint64_t field = (code >> format.mantissa_bits) & exponent_mask;
  Unpacked x;
  x.negative = format.has_sign && ((code >> (format.bits - 1)) & 1) != 0;
  x.fraction_bits = format.mantissa_bits;
  if (format.specials == Specials::power_of_two) {
    if (field == exponent_mask) x.kind = Unpacked::Class::nan;
    x.exponent = static_cast<int>(field) - format.bias;
    x.significand = 1;
    return x;
  }
  x.exponent = std::max(static_cast<int>(field), 1) - format.bias;
  x.significand = mantissa | (field == 0 ? 0 : std::uint64_t{1} << format.mantissa_bits);
  const bool all_ones = field == exponent_mask;
  if (format.specials == Specials::ieee && all_ones) {
    x.kind = mantissa == 0 ? Unpacked::Class::infinite : Unpacked::Class::nan;
  } else if (format.specials == Specials::nan_all_ones && all_ones && mantissa == mantissa_mask) {
    x.kind = Unpacked::Class::nan;
  } else if (format.specials == Specials::nan_neg_zero && x.negative && x.significand == 0) {
    x.kind = Unpacked::Class::nan;
  }
  return x;
}

/// The same number as FP16 holds it: a subnormal of a format with fewer exponents becomes normal. Only the exponent
/// that alignment sees changes, not the value.
constexpr Unpacked as_fp16(Unpacked x) {
  if (x.kind != Unpacked::Class::finite || x.significand == 0) return x;
  const int below_one = x.fraction_bits + 1 - static_cast<int>(std::bit_width(x.significand));
  const int shift = std::clamp(x.exponent + format::kFP16.bias - 1, 0, below_one);
  x.significand <<= shift;
  x.exponent -= shift;
  return x;
}

/// The value of an integer code (s8, u8, s4, u4, s32).
constexpr std::int64_t unpack_integer(const format::Format& format, std::uint64_t code) {
  code = operand_code(format, code);
  const bool negative = format.has_sign && ((code >> (format.bits - 1)) & 1) != 0;
  return static_cast<std::int64_t>(code) - (negative ? std::int64_t{1} << format.bits : 0);
}

}  // namespace qattn::mma
