#include "attention/rounding.h"

#include <algorithm>
#include <vector>

#include "base/elementary.h"
#include "format/encode.h"
#include "scalar/span.h"

namespace qattn::attention {
namespace {

constexpr format::Policy kToNearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                    format::Subnormals::keep};

}  // namespace

float rounded(const format::Format& format, float x) {
  return format::decode_float(format, static_cast<std::uint32_t>(format::encode(format, x, kToNearest)));
}

double rounded(const format::Format& format, double x) {
  return format::decode(format, format::encode(format, x, kToNearest));
}

void apply_exp2(Exp2 kind, std::span<float> x) {
  switch (kind) {
    case Exp2::exact:
      return elementary::exp2_float(x, x);
    case Exp2::mufu:
      return scalar::ex2_approx_ftz(x, x);
    case Exp2::fa4_poly:
      return scalar::ex2_fa4_poly(x, x);
  }
}

void apply_exp2(Exp2 kind, std::span<double> x) {
  if (kind == Exp2::exact) return elementary::exp2(x, x);
  std::vector<float> narrow(x.size());
  std::transform(x.begin(), x.end(), narrow.begin(), [](double value) { return static_cast<float>(value); });
  apply_exp2(kind, std::span<float>(narrow));
  std::copy(narrow.begin(), narrow.end(), x.begin());
}

}  // namespace qattn::attention
