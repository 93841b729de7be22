#include "scalar/describe.h"

#include <cmath>
#include <limits>

#include "format/encode.h"
#include "scalar/exact.h"

namespace qattn::scalar {
namespace {

template <int segments>
Segment segment_of(Mufu mufu, const MufuTable<segments>& table, std::uint32_t argument, MufuPoint point, int w_bits) {
  const std::uint32_t s = point.segment;
  return {mufu, argument, s, segments, point.w, w_bits, table.c0[s], table.c1[s], table.c2[s], table.bias};
}

std::uint32_t correctly_rounded_code(const Function& function, double to_odd) {
  const format::Format& format = function.precision();
  const bool has_inf = format.specials == format::Specials::ieee;
  const format::Policy policy{.rounding = format::Rounding::nearest_even,
                              .overflow = has_inf ? format::Overflow::inf_or_nan : format::Overflow::saturate};
  const auto code = static_cast<std::uint32_t>(format::encode(format, to_odd, policy));
  return code << (function.output->bits - format.bits);
}

double value_of(const format::Format& format, std::uint32_t code) { return format::decode(format, code); }

}  // namespace

std::optional<Segment> find_segment(Mufu mufu, std::uint32_t argument) {
  const int exponent = detail::exponent_of(argument);
  const bool regular = !is_tiny(argument) && exponent < 128;
  const bool positive = (argument & kSign) == 0;
  switch (mufu) {
    case Mufu::ex2:
      if (exponent < 7) return segment_of(mufu, kEx2Table, argument, ex2_point(argument), 17);
      break;
    case Mufu::rcp:
      if (regular) return segment_of(mufu, kRcpTable, argument, rcp_point(argument), 16);
      break;
    case Mufu::lg2:
      if (regular && positive) return segment_of(mufu, kLg2Table, argument, lg2_point(argument), 17);
      break;
    case Mufu::rsqrt:
      if (regular && positive) return segment_of(mufu, kRsqTable, argument, root_point(argument), 17);
      break;
    case Mufu::sqrt:
      if (regular && positive) return segment_of(mufu, kSqrtTable, argument, root_point(argument), 17);
      break;
    case Mufu::tanh:
      if (exponent >= -8 && exponent < 3) return segment_of(mufu, kTanhTable, argument, tanh_point(argument), 17);
      break;
    case Mufu::none:
      break;
  }
  return std::nullopt;
}

Description describe(const Function& function, std::uint32_t x) {
  Description result{};
  result.function = &function;
  result.x = function.input_bits() == 32 ? x : x & ((1u << function.input_bits()) - 1);
  result.y = function.plain(result.x);
  result.x_value = value_of(*function.input, result.x);
  result.y_value = value_of(*function.output, result.y);
  result.exact = exact_to_odd(function.reference, result.x_value);
  if (!std::isnan(result.exact)) result.correctly_rounded = correctly_rounded_code(function, result.exact);
  if (std::isfinite(result.exact) && std::isfinite(result.y_value)) {
    result.ulps = ulps_from_exact(function.reference, result.x_value, function.precision(), result.y_value);
  }
  const std::uint32_t argument = function.argument != nullptr ? function.argument(result.x) : result.x;
  result.segment = find_segment(function.mufu, argument);
  return result;
}

}  // namespace qattn::scalar
