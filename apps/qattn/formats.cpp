// qattn formats: the number formats that are known.
#include <memory>

#include "command.h"
#include "format/encode.h"
#include "format/format.h"
#include "lab/provenance.h"
#include "options.h"

namespace qattn::cli {
namespace {

std::string_view specials_text(const format::Format& format) {
  switch (format.specials) {
    case format::Specials::ieee:
      return "Inf and NaN (IEEE)";
    case format::Specials::nan_all_ones:
      return "NaN (all ones), no Inf";
    case format::Specials::nan_neg_zero:
      return "NaN (code of -0), no Inf";
    case format::Specials::finite:
      return "none";
    case format::Specials::power_of_two:
      return "NaN (all ones), powers of two";
    case format::Specials::integer:
      return "none, two's complement";
  }
  return "";
}

int formats(const OutputOptions& output) {
  lab::Report report;
  report.context = lab::tool_context();
  report.columns = {{"name", "name"},
                    {"dtype", "dtype"},
                    {"bits", "bits"},
                    {"exponent_bits", "exponent"},
                    {"mantissa_bits", "mantissa"},
                    {"bias", "bias"},
                    {"max", "max"},
                    {"min_normal", "min normal"},
                    {"min_subnormal", "min subnormal"},
                    {"specials", "specials"}};
  report.csv_keys = {"name", "dtype",  "alias", "bits",       "exponent_bits", "mantissa_bits",
                     "bias", "signed", "max",   "min_normal", "min_subnormal", "specials"};
  for (const format::Format* format : format::formats()) {
    const auto text = [](std::string_view s) { return s.empty() ? lab::Json() : lab::Json(s); };
    report.rows.push_back({{"name", format->name},
                           {"dtype", text(format->dtype)},
                           {"alias", text(format->alias)},
                           {"bits", format->bits},
                           {"exponent_bits", format->exponent_bits},
                           {"mantissa_bits", format->mantissa_bits},
                           {"bias", format->bias},
                           {"signed", format->has_sign},
                           {"max", format::max_finite(*format)},
                           {"min_normal", format::min_normal(*format)},
                           {"min_subnormal", format::min_subnormal(*format)},
                           {"specials", specials_text(*format)}});
  }
  emit(report, output);
  return 0;
}

}  // namespace

void add_formats(CLI::App& app, Action& action) {
  const auto output = std::make_shared<OutputOptions>();
  CLI::App* command = app.add_subcommand("formats", "the number formats that are known, with their parameters");
  add_output_options(*command, *output);
  command->callback([output, &action] { action = [output] { return formats(*output); }; });
}

}  // namespace qattn::cli
