// The list of formats, lookup by name, and what a code is.
#include "format/format.h"

#include <string>

#include "base/error.h"

namespace qattn::format {
namespace {

[[noreturn]] void lacks(const Format& format, const char* what) {
  throw Error(ErrorKind::internal, "format '" + std::string(format.name) + "' has no " + what + ": test for it first");
}

}  // namespace

std::span<const Format* const> formats() { return kFormats; }

const Format* find_or_null(std::string_view name) {
  if (name.empty()) return nullptr;
  for (const Format* format : kFormats) {
    if (name == format->name || name == format->dtype || name == format->alias) return format;
  }
  return nullptr;
}

const Format& find(std::string_view name) {
  if (const Format* format = find_or_null(name)) return *format;
  std::string message = "unknown number format '" + std::string(name) + "'; known are";
  for (const Format* format : kFormats) message.append(" ").append(format->name);
  throw Error(ErrorKind::usage, message);
}

std::uint64_t nan_code(const Format& format) {
  switch (format.specials) {
    case Specials::ieee:
      return inf_code(format) | std::uint64_t{1} << (format.mantissa_bits - 1);
    case Specials::nan_all_ones:
    case Specials::power_of_two:
      return magnitude_mask(format);
    case Specials::nan_neg_zero:
      return sign_mask(format);
    default:
      lacks(format, "NaN");
  }
}

std::uint64_t inf_code(const Format& format, bool negative) {
  if (!has_inf(format)) lacks(format, "infinity");
  return (negative ? sign_mask(format) : 0) | (max_finite_code(format) + 1);
}

bool is_nan(const Format& format, std::uint64_t code) {
  const std::uint64_t magnitude = code & magnitude_mask(format);
  switch (format.specials) {
    case Specials::ieee:
      return magnitude > max_finite_code(format) + 1;
    case Specials::nan_all_ones:
    case Specials::power_of_two:
      return magnitude > max_finite_code(format);
    case Specials::nan_neg_zero:
      return magnitude == 0 && is_negative(format, code);
    default:
      return false;
  }
}

bool is_inf(const Format& format, std::uint64_t code) {
  return has_inf(format) && (code & magnitude_mask(format)) == max_finite_code(format) + 1;
}

bool is_negative(const Format& format, std::uint64_t code) { return (code & sign_mask(format)) != 0; }

std::int64_t ordinal(const Format& format, std::uint64_t code) {
  const auto magnitude = static_cast<std::int64_t>(code & magnitude_mask(format));
  if (!is_negative(format, code)) return magnitude;
  if (format.specials == Specials::integer) return magnitude - static_cast<std::int64_t>(sign_mask(format));
  return -magnitude;
}

}  // namespace qattn::format
