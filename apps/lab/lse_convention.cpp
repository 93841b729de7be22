#include "lab/lse_convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.h"
#include "base/error.h"
#include "base/exponential_constants.h"
#include "base/fp_environment.h"

namespace qattn::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a row is off, in the units of the convention.
double row_error(double recorded, double natural, double shift, const LseConvention& convention) {
  if (natural == -kInfinity) return std::isinf(recorded) ? 0.0 : kInfinity;
  if (!std::isfinite(recorded)) return kInfinity;
  const double expected = expected_lse(natural, shift, convention);
  const double resolution = std::ldexp(std::max(std::fabs(expected), 0x1p-126), -23);
  return std::max(0.0, std::fabs(recorded - expected) - resolution);
}

LseFit fit_one(const LseRows& rows, const std::vector<double>& natural, const LseConvention& convention,
               double tolerance) {
  LseFit fit{convention};
  for (std::size_t i = 0; i < rows.recorded.size(); ++i) {
    const double error = row_error(rows.recorded[i], natural[i], rows.mean_shift[i], convention);
    if (!(error <= tolerance)) ++fit.misfits;
    if (!(error <= fit.max_error)) {
      fit.max_error = error;
      fit.worst_row = static_cast<std::int64_t>(i);
    }
  }
  return fit;
}

bool better(const LseFit& a, const LseFit& b) {
  if (a.misfits != b.misfits) return a.misfits < b.misfits;
  return a.max_error < b.max_error;
}

}  // namespace

double expected_lse(double natural, double mean_shift, const LseConvention& convention) {
  double expected = natural;
  if (convention.without_mean) expected -= mean_shift;
  if (convention.p_scale != 1) expected += elementary::log(convention.p_scale);
  return convention.base2 ? expected * elementary::kLog2E : expected;
}

std::string describe(const LseConvention& convention) {
  std::string text = convention.base2 ? "base 2" : "base e";
  if (convention.without_mean) text += " without the K-mean shift";
  if (convention.p_scale != 1) {
    text +=
        fmt::format("{} with {} of the P scale", convention.without_mean ? "," : "", convention.base2 ? "log2" : "log");
    if (convention.p_scale > 0) text += fmt::format(" {}", convention.p_scale);
  }
  return text;
}

LseConvention parse_lse_convention(std::string_view text) {
  LseConvention convention;
  bool has_base = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if ((part == "e" || part == "2") && !has_base) {
      convention.base2 = part == "2";
      has_base = true;
    } else if (part == "no-mean") {
      convention.without_mean = true;
    } else if (part == "p-scale") {
      convention.p_scale = 0;
    } else {
      throw Error(ErrorKind::usage,
                  fmt::format("--lse: '{}' is to be e or 2, with ,no-mean or ,p-scale or both behind it", text));
    }
  }
  if (!has_base) throw Error(ErrorKind::usage, fmt::format("--lse: '{}' names no base; give e or 2", text));
  return convention;
}

std::vector<LseFit> fit_lse(const LseRows& rows, std::span<const double> p_scales, double tolerance) {
  const FpEnvironment environment;
  std::vector<double> scales = {1.0};
  scales.insert(scales.end(), p_scales.begin(), p_scales.end());
  std::vector<LseFit> fits;
  for (const double scale : scales) {
    for (const bool without_mean : {false, true}) {
      for (const bool base2 : {false, true}) {
        const LseConvention convention{base2, without_mean, scale};
        LseFit fit = fit_one(rows, rows.reference, convention, tolerance);
        if (!rows.emulated.empty()) {
          LseFit own = fit_one(rows, rows.emulated, convention, tolerance);
          own.to_recipe = true;
          if (fit.misfits > 0 && better(own, fit)) fit = own;
        }
        fits.push_back(fit);
      }
    }
  }
  return fits;
}

const LseFit& best_fit(std::span<const LseFit> fits) {
  const auto fitting = std::find_if(fits.begin(), fits.end(), [](const LseFit& fit) { return fit.misfits == 0; });
  if (fitting != fits.end()) return *fitting;
  // One that is only a little nearer than a plainer one is nearer by chance.
  const LseFit* best = &fits.front();
  for (const LseFit& fit : fits) {
    if (fit.max_error < 0.1 * best->max_error) best = &fit;
  }
  return *best;
}

bool satisfies(const LseConvention& convention, const LseConvention& demanded) {
  const bool scaled = convention.p_scale != 1;
  return convention.base2 == demanded.base2 && convention.without_mean == demanded.without_mean &&
         scaled == (demanded.p_scale != 1);
}

}  // namespace qattn::lab
