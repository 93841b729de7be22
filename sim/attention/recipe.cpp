#include "attention/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "attention/contraction.h"
#include "base/error.h"
#include "format/encode.h"
#include "quant/quantize.h"

namespace qattn::attention {
namespace {

[[noreturn]] void bad_value(std::string_view key, std::string_view value, std::string_view allowed) {
  throw Error(ErrorKind::usage, fmt::format("recipe key '{}': '{}' is not one of: {}", key, value, allowed));
}

/// An enumeration with the names its values have in recipes.
template <class E>
using Names = std::span<const std::pair<std::string_view, E>>;

template <class E>
E parse_enum(Names<E> names, std::string_view key, std::string_view value) {
  std::string allowed;
  for (const auto& [name, e] : names) {
    if (name == value) return e;
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  }
  bad_value(key, value, allowed);
}

template <class E>
std::string enum_name(Names<E> names, E value) {
  for (const auto& [name, e] : names) {
    if (e == value) return std::string(name);
  }
  throw Error(ErrorKind::internal, "recipe: an enumeration value has no name");
}

constexpr std::pair<std::string_view, Smoothing> kSmoothing[] = {
    {"none", Smoothing::none}, {"k", Smoothing::k}, {"q", Smoothing::q}, {"qk", Smoothing::qk}};
constexpr std::pair<std::string_view, Correction> kCorrection[] = {{"smoothed_k", Correction::smoothed_k},
                                                                   {"quantized_k", Correction::quantized_k}};
constexpr std::pair<std::string_view, RowSum> kRowSum[] = {{"unrounded", RowSum::unrounded},
                                                           {"rounded", RowSum::rounded}};
constexpr std::pair<std::string_view, Exp2> kExp2[] = {
    {"exact", Exp2::exact}, {"mufu", Exp2::mufu}, {"fa4-poly", Exp2::fa4_poly}};
constexpr std::pair<std::string_view, quant::Scaling> kScaling[] = {{"divide", quant::Scaling::divide},
                                                                    {"reciprocal", quant::Scaling::reciprocal}};
constexpr std::pair<std::string_view, Softmax> kSoftmax[] = {{"f32", Softmax::f32}, {"f64", Softmax::f64}};
constexpr std::pair<std::string_view, Rotation> kRotation[] = {{"none", Rotation::none},
                                                               {"hadamard", Rotation::hadamard}};
constexpr std::pair<std::string_view, Balance> kBalance[] = {{"none", Balance::none},
                                                             {"smoothquant", Balance::smoothquant}};
constexpr std::pair<std::string_view, ScalePlace> kScalePlace[] = {
    {"logits", ScalePlace::logits}, {"q", ScalePlace::q}, {"qk", ScalePlace::qk}};
constexpr std::pair<std::string_view, RowMax> kRowMax[] = {{"after_mask", RowMax::after_mask},
                                                           {"before_mask", RowMax::before_mask}};
constexpr std::pair<std::string_view, SecondLevel> kSecondLevel[] = {
    {"none", SecondLevel::none}, {"tile", SecondLevel::tile}, {"row", SecondLevel::row}};
constexpr std::pair<std::string_view, TileOrder> kTileOrder[] = {{"ascending", TileOrder::ascending},
                                                                 {"descending", TileOrder::descending}};
constexpr std::pair<std::string_view, CausalStart> kCausalStart[] = {
    {"input", CausalStart::input}, {"top_left", CausalStart::top_left}, {"bottom_right", CausalStart::bottom_right}};
constexpr std::pair<std::string_view, QueryHeads> kQueryHeads[] = {{"one", QueryHeads::one},
                                                                   {"group", QueryHeads::group}};
constexpr std::pair<std::string_view, bool> kDivisor[] = {{"rounded", false}, {"unrounded", true}};
constexpr std::pair<std::string_view, bool> kBool[] = {{"true", true}, {"false", false}};
constexpr std::pair<std::string_view, bool> kRounding[] = {{"nearest_even", false}, {"half_away", true}};

template <class T>
T parse_number(std::string_view key, std::string_view value, std::string_view allowed) {
  T number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) bad_value(key, value, allowed);
  return number;
}

int parse_tile(std::string_view key, std::string_view value) {
  const int number = parse_number<int>(key, value, "a number of tokens from 1 to 65536");
  if (number < 1 || number > 65536) bad_value(key, value, "a number of tokens from 1 to 65536");
  return number;
}

/// "auto" is 0. Any other number is one that f32 arithmetic multiplies by: neither 0 nor Inf nor subnormal there.
double parse_auto(std::string_view key, std::string_view value) {
  constexpr std::string_view allowed = "auto, or a positive number that is normal in fp32";
  if (value == "auto") return 0.0;
  const auto number = parse_number<double>(key, value, allowed);
  const bool normal = number >= format::min_normal(format::kFP32) && number <= format::max_finite(format::kFP32);
  if (!normal) bad_value(key, value, allowed);
  return number;
}

std::string auto_name(double value) { return value == 0.0 ? "auto" : fmt::format("{}", value); }

double parse_threshold(std::string_view value) {
  constexpr std::string_view allowed = "a number from 0 to 100, in powers of two";
  const auto threshold = parse_number<double>("rescale_threshold", value, allowed);
  if (!(threshold >= 0.0 && threshold <= 100.0)) bad_value("rescale_threshold", value, allowed);
  return threshold;
}

/// A format, "exact", or a micro-scaled format ("nvfp4", "mxfp4", ...), which brings its groups and scales along.
void set_format(OperandSpec& operand, quant::Operand role, std::string_view key, std::string_view value) {
  if (value == "exact") {
    operand.format = nullptr;
    return;
  }
  if (const format::Format* format = format::find_or_null(value)) {
    if (format->specials == format::Specials::power_of_two || !format->has_sign) {
      bad_value(key, value, "a format with a sign (see `qattn formats`)");
    }
    operand.format = format->bits == 64 ? nullptr : format;
    return;
  }
  try {
    const quant::QuantizerSpec spec = quant::micro_scaled(value, role);
    operand.format = spec.format;
    operand.granularity = spec.groups.granularity;
    operand.scale_rule = spec.rule->name;
    operand.scale_format = spec.scale_format;
    operand.global_scale = spec.outer.has_value();
  } catch (const Error&) {
    bad_value(key, value,
              "exact, a format of `qattn formats`, nvfp4, mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2");
  }
}

std::string format_name(const OperandSpec& operand) {
  return operand.exact() ? "exact" : std::string(operand.format->name);
}

const format::Format* parse_plain_format(std::string_view key, std::string_view value) {
  const format::Format* format = format::find_or_null(value);
  if (format == nullptr) bad_value(key, value, "a format of `qattn formats`");
  return format;
}

/// A bare enumeration value that has a range of its own, with the library's error turned into the key's.
template <class Parse>
auto parse_named(std::string_view key, std::string_view value, Parse parse) {
  try {
    return parse(value);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, fmt::format("recipe key '{}': {}", key, error.what()));
  }
}

void set_tiling(Recipe& r, std::string_view value) {
  const quant::Tiling& tiling =
      parse_named("tiling", value, [](std::string_view v) -> const quant::Tiling& { return quant::find_tiling(v); });
  r.q_block = tiling.q_block;
  r.q_warp = tiling.q_warp;
  r.k_block = tiling.k_block;
  r.k_warp = tiling.k_warp;
}

int parse_promotion(std::string_view value) {
  constexpr std::string_view allowed = "tile, never, or a number of instruction steps from 1 on";
  if (value == "tile") return -1;
  if (value == "never") return 0;
  const int steps = parse_number<int>("promotion", value, allowed);
  if (steps < 1) bad_value("promotion", value, allowed);
  return steps;
}

std::string promotion_name(int promotion) {
  if (promotion < 0) return "tile";
  return promotion == 0 ? "never" : std::to_string(promotion);
}

std::string bool_name(bool value) { return value ? "true" : "false"; }

void set_p_granularity(Recipe& r, std::string_view value) {
  if (value == "static") {
    r.p.granularity = quant::Granularity::per_tensor;
  } else if (value == "per_token" || value == "1x16" || value == "1x32") {
    r.p.granularity = quant::find_granularity(value);
  } else {
    bad_value("p_granularity", value, "static, per_token, 1x16, 1x32");
  }
}

std::string p_granularity_name(const Recipe& r) {
  if (!r.p.scaled() || r.p.granularity == quant::Granularity::per_tensor) return "static";
  return std::string(quant::name(r.p.granularity));
}

void set_v_micro_axis(Recipe& r, std::string_view value) {
  if (value != "tokens" && value != "channels") bad_value("v_micro_axis", value, "tokens, channels");
  r.v.micro_axis = value == "tokens" ? std::nullopt : std::optional(quant::Axis::columns);
}

using Source = GradientOperand::Source;

/// An own operand of the backward pass has one scale a tile.
void set_own_format(OperandSpec& spec, quant::Operand role, std::string_view key, std::string_view value) {
  spec = OperandSpec{};
  spec.granularity = quant::Granularity::per_block;
  set_format(spec, role, key, value);
}

void set_gradient_operand(GradientOperand& operand, quant::Operand role, std::string_view key, std::string_view value) {
  operand = GradientOperand{};
  if (value == "forward" || value == "original") {
    operand.source = value == "forward" ? Source::forward : Source::original;
    return;
  }
  operand.source = Source::own;
  set_own_format(operand.spec, role, key, value);
}

std::string gradient_operand_name(const GradientOperand& operand) {
  if (operand.source == Source::own) return format_name(operand.spec);
  return operand.source == Source::forward ? "forward" : "original";
}

void set_tile_granularity(std::initializer_list<OperandSpec*> specs, std::string_view key, std::string_view value) {
  constexpr std::string_view allowed = "per_block, per_token, 1x16, 1x32";
  if (value != "per_block" && value != "per_token" && value != "1x16" && value != "1x32")
    bad_value(key, value, allowed);
  for (OperandSpec* spec : specs) spec->granularity = quant::find_granularity(value);
}

std::string tile_granularity_name(const OperandSpec& spec) {
  return std::string(quant::name(spec.scaled() ? spec.granularity : quant::Granularity::per_block));
}

void set_o_prime_p(Recipe& r, std::string_view value) {
  r.backward.o_prime_p = value == "exact" ? nullptr : parse_plain_format("o_prime_p_format", value);
}

std::string o_prime_p_name(const Recipe& r) {
  return r.backward.o_prime_p == nullptr ? "exact" : std::string(r.backward.o_prime_p->name);
}

constexpr std::pair<std::string_view, bool> kDelta[] = {{"o", false}, {"o_prime", true}};

using View = std::string_view;

// clang-format off
constexpr std::string_view kFormats = "exact, fp32, tf32, bf16, fp16, e5m2, e4m3, e3m2, e2m3, e2m1, int8, int4, nvfp4, mxfp4, ...";
constexpr std::string_view kGranularities = "per_tensor, per_channel, per_token, per_block, per_warp, per_thread, 1x16, 1x32";
constexpr std::string_view kRules = "amax, reciprocal, triton_eps, e8m0_floor, e8m0_ceil, e8m0_nearest";

/// How the scales of an operand are made.
#define QATTN_RULE_KEYS(o)                                                                                                 \
  RecipeKey{#o "_scale_rule", kRules, "how a scale of " #o " follows from the largest magnitude",                         \
            [](Recipe& r, View v) { r.o.scale_rule = parse_named(#o "_scale_rule", v, quant::find_scale_rule).name; },    \
            [](const Recipe& r) { return r.o.scale_rule; }},                                                              \
  RecipeKey{#o "_scale_format", "fp32, e4m3, e8m0", "format of the scales of " #o,                                        \
            [](Recipe& r, View v) { r.o.scale_format = parse_plain_format(#o "_scale_format", v); },                      \
            [](const Recipe& r) { return std::string(r.o.scale_format->name); }}

/// The keys of one scaled operand, written once for q, k and v.
#define QATTN_OPERAND_KEYS(o)                                                                                              \
  RecipeKey{#o "_format", kFormats, "format that " #o " is stored in",                                                    \
            [](Recipe& r, View v) { set_format(r.o, quant::Operand::o, #o "_format", v); },                               \
            [](const Recipe& r) { return format_name(r.o); }},                                                            \
  RecipeKey{#o "_granularity", kGranularities, "what shares a scale of " #o,                                              \
            [](Recipe& r, View v) { r.o.granularity = parse_named(#o "_granularity", v, quant::find_granularity); },      \
            [](const Recipe& r) { return std::string(quant::name(r.o.granularity)); }},                                   \
  QATTN_RULE_KEYS(o),                                                                                                      \
  RecipeKey{#o "_global_scale", "true, false", "a second FP32 scale for the whole of " #o,                                \
            [](Recipe& r, View v) { r.o.global_scale = parse_enum<bool>(kBool, #o "_global_scale", v); },                 \
            [](const Recipe& r) { return bool_name(r.o.global_scale); }}

/// A key of the backward pass for an operand that is quantized there (P, dS, dO), and for one of Q, K and V.
#define QATTN_TILE_KEY(field, role, help)                                                                                 \
  RecipeKey{#field "_format", kFormats, help,                                                                            \
            [](Recipe& r, View v) { set_own_format(r.backward.field, quant::Operand::role, #field "_format", v); },       \
            [](const Recipe& r) { return format_name(r.backward.field); }}
#define QATTN_SOURCE_KEY(field, name, role, help)                                                                         \
  RecipeKey{name, "forward, original, or a format", help,                                                                \
            [](Recipe& r, View v) { set_gradient_operand(r.backward.field, quant::Operand::role, name, v); },             \
            [](const Recipe& r) { return gradient_operand_name(r.backward.field); }}
#define QATTN_PRODUCT_KEY(product, left, right)                                                                           \
  RecipeKey{#product "_format", kFormats, "sets " #left "_format and " #right "_format",                                 \
            [](Recipe& r, View v) { set(r, #left "_format", v); set(r, #right "_format", v); }, nullptr}

const RecipeKey kKeys[] = {
  {"name", "text", "the recipe's name",
   [](Recipe& r, View v) {
     if (v.empty()) bad_value("name", v, "a text that is not empty");
     r.name = v;
   },
   [](const Recipe& r) { return r.name; }},
  {"description", "text", "what it is", [](Recipe& r, View v) { r.description = v; },
   [](const Recipe& r) { return r.description; }},
  {"source", "text", "where it is defined", [](Recipe& r, View v) { r.source = v; },
   [](const Recipe& r) { return r.source; }},
  {"alias_of", "a recipe's name", "the recipe whose output this one gives under another name",
   [](Recipe& r, View v) { r.alias_of = v; }, [](const Recipe& r) { return r.alias_of; }},
  {"scale_place", "logits, q, qk", "what the softmax scale multiplies: the scores, q, or q and k by its square root",
   [](Recipe& r, View v) { r.scale_place = parse_enum<ScalePlace>(kScalePlace, "scale_place", v); },
   [](const Recipe& r) { return enum_name<ScalePlace>(kScalePlace, r.scale_place); }},
  {"query_heads", "one, group", "query heads that share Q's per-tensor scale and SmoothQuant's factors",
   [](Recipe& r, View v) { r.query_heads = parse_enum<QueryHeads>(kQueryHeads, "query_heads", v); },
   [](const Recipe& r) { return enum_name<QueryHeads>(kQueryHeads, r.query_heads); }},
  {"rotation", "none, hadamard", "orthogonal rotation of Q and K",
   [](Recipe& r, View v) { r.rotation = parse_enum<Rotation>(kRotation, "rotation", v); },
   [](const Recipe& r) { return enum_name<Rotation>(kRotation, r.rotation); }},
  {"rotation_seed", "an integer", "seed of the rotation's signs",
   [](Recipe& r, View v) { r.rotation_seed = parse_number<std::uint64_t>("rotation_seed", v, "an integer from 0 on"); },
   [](const Recipe& r) { return std::to_string(r.rotation_seed); }},
  {"balance", "none, smoothquant", "per-channel balance between Q and K",
   [](Recipe& r, View v) { r.balance = parse_enum<Balance>(kBalance, "balance", v); },
   [](const Recipe& r) { return enum_name<Balance>(kBalance, r.balance); }},
  {"balance_alpha", "0 to 1", "SmoothQuant's alpha",
   [](Recipe& r, View v) {
     const auto alpha = parse_number<double>("balance_alpha", v, "a number from 0 to 1");
     if (!(alpha >= 0.0 && alpha <= 1.0)) bad_value("balance_alpha", v, "a number from 0 to 1");
     r.balance_alpha = alpha;
   },
   [](const Recipe& r) { return fmt::format("{}", r.balance_alpha); }},
  {"smoothing", "none, k, q, qk", "means subtracted from K (over tokens) and Q (over a query block)",
   [](Recipe& r, View v) { r.smoothing = parse_enum<Smoothing>(kSmoothing, "smoothing", v); },
   [](const Recipe& r) { return enum_name<Smoothing>(kSmoothing, r.smoothing); }},
  {"smooth_v", "true, false", "channel mean subtracted from V, added back to O",
   [](Recipe& r, View v) { r.smooth_v = parse_enum<bool>(kBool, "smooth_v", v); },
   [](const Recipe& r) { return bool_name(r.smooth_v); }},
  {"correction", "smoothed_k, quantized_k", "the K of the correction row qbar K^T",
   [](Recipe& r, View v) { r.correction = parse_enum<Correction>(kCorrection, "correction", v); },
   [](const Recipe& r) { return enum_name<Correction>(kCorrection, r.correction); }},
  {"correction_format", "fp32, fp16, bf16", "format of the correction row",
   [](Recipe& r, View v) { r.correction_format = parse_plain_format("correction_format", v); },
   [](const Recipe& r) { return std::string(r.correction_format->name); }},
  {"qk_format", kFormats, "sets q_format and k_format",
   [](Recipe& r, View v) { set(r, "q_format", v); set(r, "k_format", v); }, nullptr},
  {"pv_format", kFormats, "sets p_format and v_format",
   [](Recipe& r, View v) { set(r, "p_format", v); set(r, "v_format", v); }, nullptr},
  {"granularity", kGranularities, "sets q_granularity and k_granularity",
   [](Recipe& r, View v) { set(r, "q_granularity", v); set(r, "k_granularity", v); }, nullptr},
  {"scale_rule", kRules, "sets q_scale_rule, k_scale_rule and v_scale_rule",
   [](Recipe& r, View v) { for (View o : {"q", "k", "v"}) set(r, std::string(o) + "_scale_rule", v); }, nullptr},
  QATTN_OPERAND_KEYS(q),
  QATTN_OPERAND_KEYS(k),
  QATTN_OPERAND_KEYS(v),
  {"v_range", "auto, or a positive number", "code magnitude that the largest element of v is mapped to (SageAttention2++: 2.25, 4.5, 9)",
   [](Recipe& r, View v) { r.v.range = static_cast<float>(parse_auto("v_range", v)); },
   [](const Recipe& r) { return auto_name(static_cast<double>(r.v.range)); }},
  {"v_micro_axis", "tokens, channels", "where V's 1x16 and 1x32 groups lie", set_v_micro_axis,
   [](const Recipe& r) { return std::string(r.v.micro_axis ? "channels" : "tokens"); }},
  {"p_format", kFormats, "format that P is stored in", [](Recipe& r, View v) {
     r.p = OperandSpec{};
     set_format(r.p, quant::Operand::p, "p_format", v);
   },
   [](const Recipe& r) { return format_name(r.p); }},
  {"p_granularity", "static, per_token, 1x16, 1x32", "static scale of P, or one from the values of a tile's row or group",
   set_p_granularity, p_granularity_name},
  QATTN_RULE_KEYS(p),
  {"p_divisor", "rounded, unrounded", "P is divided by its scale as stored, or before that is rounded to p_scale_format",
   [](Recipe& r, View v) { r.p.unrounded_divisor = parse_enum<bool>(kDivisor, "p_divisor", v); },
   [](const Recipe& r) { return enum_name<bool>(kDivisor, r.p.unrounded_divisor); }},
  {"p_scale", "auto, or a positive number", "P is multiplied by it (auto: the largest code of its format; 1 with other scales)",
   [](Recipe& r, View v) { r.p_scale = parse_auto("p_scale", v); }, [](const Recipe& r) { return auto_name(r.p_scale); }},
  {"p_second_level", "none, tile, row", "second FP32 scale of micro-scaled P, from the largest weight of the tile or of its row",
   [](Recipe& r, View v) { r.p_second_level = parse_enum<SecondLevel>(kSecondLevel, "p_second_level", v); },
   [](const Recipe& r) { return enum_name<SecondLevel>(kSecondLevel, r.p_second_level); }},
  {"p_normalized", "true, false", "P is divided by its row sum before it is stored; all keys in one tile",
   [](Recipe& r, View v) { r.p_normalized = parse_enum<bool>(kBool, "p_normalized", v); },
   [](const Recipe& r) { return bool_name(r.p_normalized); }},
  {"rounding", "nearest_even, half_away", "rounding of the integer codes of Q and K",
   [](Recipe& r, View v) { r.round_half_away = parse_enum<bool>(kRounding, "rounding", v); },
   [](const Recipe& r) { return enum_name<bool>(kRounding, r.round_half_away); }},
  {"zero_scale", "one, epsilon, propagate, error", "what replaces a scale of zero",
   [](Recipe& r, View v) { r.zero_scale = parse_named("zero_scale", v, quant::find_zero_scale); },
   [](const Recipe& r) { return std::string(quant::name(r.zero_scale)); }},
  {"scaling", "divide, reciprocal", "elements are divided by their scale, or multiplied by its rounded reciprocal",
   [](Recipe& r, View v) { r.scaling = parse_enum<quant::Scaling>(kScaling, "scaling", v); },
   [](const Recipe& r) { return enum_name<quant::Scaling>(kScaling, r.scaling); }},
  {"tiling", "sm80, sm89, sm90", "sets q_block, q_warp, k_block and k_warp", set_tiling, nullptr},
  {"q_block", "tokens", "query rows of a tile", [](Recipe& r, View v) { r.q_block = parse_tile("q_block", v); },
   [](const Recipe& r) { return std::to_string(r.q_block); }},
  {"q_warp", "tokens", "query rows of a warp", [](Recipe& r, View v) { r.q_warp = parse_tile("q_warp", v); },
   [](const Recipe& r) { return std::to_string(r.q_warp); }},
  {"k_block", "tokens", "keys of a tile", [](Recipe& r, View v) { r.k_block = parse_tile("k_block", v); },
   [](const Recipe& r) { return std::to_string(r.k_block); }},
  {"k_warp", "tokens", "keys of a warp", [](Recipe& r, View v) { r.k_warp = parse_tile("k_warp", v); },
   [](const Recipe& r) { return std::to_string(r.k_warp); }},
  {"qk_accumulator", "exact, f32, sm90.wgmma, sm89.mma, sm80.mma, sm80.mma.f16, ...", "accumulator of Q K^T",
   [](Recipe& r, View v) { r.qk_accumulator = v; }, [](const Recipe& r) { return r.qk_accumulator; }},
  {"accumulator", "exact, f32, sm90.wgmma, sm89.mma, sm80.mma, sm80.mma.f16, ...", "accumulator of P V",
   [](Recipe& r, View v) { r.accumulator = v; }, [](const Recipe& r) { return r.accumulator; }},
  {"promotion", "tile, never, or steps", "instruction steps after which the partial sum is added to O in f32",
   [](Recipe& r, View v) { r.promotion = parse_promotion(v); },
   [](const Recipe& r) { return promotion_name(r.promotion); }},
  {"tile_order", "ascending, descending", "order in which tiles of keys are visited",
   [](Recipe& r, View v) { r.tile_order = parse_enum<TileOrder>(kTileOrder, "tile_order", v); },
   [](const Recipe& r) { return enum_name<TileOrder>(kTileOrder, r.tile_order); }},
  {"causal_align", "input, top_left, bottom_right", "diagonal of a causal mask; the reference keeps the dump's",
   [](Recipe& r, View v) { r.causal_align = parse_enum<CausalStart>(kCausalStart, "causal_align", v); },
   [](const Recipe& r) { return enum_name<CausalStart>(kCausalStart, r.causal_align); }},
  {"s_format", "exact, fp16, bf16, ...", "format that scores are rounded to before the softmax",
   [](Recipe& r, View v) { r.s_format = v == "exact" ? nullptr : parse_plain_format("s_format", v); },
   [](const Recipe& r) { return r.s_format == nullptr ? std::string("exact") : std::string(r.s_format->name); }},
  {"row_max", "after_mask, before_mask", "the scores whose maximum is subtracted: visible ones, or all of the tile",
   [](Recipe& r, View v) { r.row_max = parse_enum<RowMax>(kRowMax, "row_max", v); },
   [](const Recipe& r) { return enum_name<RowMax>(kRowMax, r.row_max); }},
  {"rescale_threshold", "0 to 100", "powers of two by which a new row maximum must exceed the running one to replace it",
   [](Recipe& r, View v) { r.rescale_threshold = parse_threshold(v); },
   [](const Recipe& r) { return fmt::format("{}", r.rescale_threshold); }},
  {"exp2", "exact, mufu, fa4-poly", "exponential of the softmax; the last two are functions of f32",
   [](Recipe& r, View v) { r.exp2 = parse_enum<Exp2>(kExp2, "exp2", v); },
   [](const Recipe& r) { return enum_name<Exp2>(kExp2, r.exp2); }},
  {"row_sum", "unrounded, rounded", "the P that the row sum adds",
   [](Recipe& r, View v) { r.row_sum = parse_enum<RowSum>(kRowSum, "row_sum", v); },
   [](const Recipe& r) { return enum_name<RowSum>(kRowSum, r.row_sum); }},
  {"row_sum_format", "fp32, bf16, fp16", "format that a tile's row sum is added in",
   [](Recipe& r, View v) { r.row_sum_format = parse_plain_format("row_sum_format", v); },
   [](const Recipe& r) { return std::string(r.row_sum_format->name); }},
  {"softmax", "f32, f64", "arithmetic outside the matrix products",
   [](Recipe& r, View v) { r.softmax = parse_enum<Softmax>(kSoftmax, "softmax", v); },
   [](const Recipe& r) { return enum_name<Softmax>(kSoftmax, r.softmax); }},
  {"o_format", "input, fp64, fp32, fp16, bf16", "format that O is rounded to",
   [](Recipe& r, View v) { r.o_format = v == "input" ? nullptr : parse_plain_format("o_format", v); },
   [](const Recipe& r) { return r.o_format == nullptr ? std::string("input") : std::string(r.o_format->name); }},
  {"exceptions", "REGEX[ heads A:B]; ...", "calls (and heads of them) that run under exception_recipe instead",
   [](Recipe& r, View v) { r.exceptions = v; }, [](const Recipe& r) { return r.exceptions; }},
  {"exception_recipe", "a recipe's name", "the recipe of the exceptions; O is rounded to this recipe's o_format",
   [](Recipe& r, View v) { r.exception_recipe = v; }, [](const Recipe& r) { return r.exception_recipe; }},
  QATTN_SOURCE_KEY(qk, "backward_qk_format", q, "Q and K of the scores that the backward pass computes again"),
  QATTN_PRODUCT_KEY(dv, dv_p, dv_do),
  QATTN_TILE_KEY(dv_p, p, "format of P in dV = P^T dO"),
  {"dv_p_granularity", "per_block, per_token, 1x16, 1x32", "what shares a scale of that P",
   [](Recipe& r, View v) { set_tile_granularity({&r.backward.dv_p}, "dv_p_granularity", v); },
   [](const Recipe& r) { return tile_granularity_name(r.backward.dv_p); }},
  QATTN_TILE_KEY(dv_do, q, "format of dO in dV = P^T dO"),
  QATTN_PRODUCT_KEY(dp, dp_do, dp_v),
  QATTN_TILE_KEY(dp_do, q, "format of dO in dP = dO V^T"),
  QATTN_SOURCE_KEY(dp_v, "dp_v_format", k, "V in dP = dO V^T"),
  QATTN_PRODUCT_KEY(dq, dq_ds, dq_k),
  QATTN_TILE_KEY(dq_ds, p, "format of dS in dQ = dS K"),
  QATTN_SOURCE_KEY(dq_k, "dq_k_format", k, "K in dQ = dS K"),
  QATTN_PRODUCT_KEY(dk, dk_ds, dk_q),
  QATTN_TILE_KEY(dk_ds, p, "format of dS in dK = dS^T Q"),
  QATTN_SOURCE_KEY(dk_q, "dk_q_format", q, "Q in dK = dS^T Q"),
  {"ds_granularity", "per_block, per_token, 1x16, 1x32", "what shares a scale of dS",
   [](Recipe& r, View v) { set_tile_granularity({&r.backward.dq_ds, &r.backward.dk_ds}, "ds_granularity", v); },
   [](const Recipe& r) { return tile_granularity_name(r.backward.dq_ds); }},
  {"delta_o", "o, o_prime", "output of delta = rowsum(dO O): O, or O' = P V with an unquantized P",
   [](Recipe& r, View v) { r.backward.delta_o_prime = parse_enum<bool>(kDelta, "delta_o", v); },
   [](const Recipe& r) { return enum_name<bool>(kDelta, r.backward.delta_o_prime); }},
  {"o_prime_p_format", "exact, bf16, fp16", "format that P is cast to in O'", set_o_prime_p, o_prime_p_name},
  {"backward_k_mean", "true, false", "dQ += rowsum(dS) mean(K) where K is smoothed",
   [](Recipe& r, View v) { r.backward.k_mean = parse_enum<bool>(kBool, "backward_k_mean", v); },
   [](const Recipe& r) { return bool_name(r.backward.k_mean); }},
  {"backward_q_mean", "true, false", "dK += colsum(dS) mean(Q) where Q is smoothed",
   [](Recipe& r, View v) { r.backward.q_mean = parse_enum<bool>(kBool, "backward_q_mean", v); },
   [](const Recipe& r) { return bool_name(r.backward.q_mean); }},
};
#undef QATTN_OPERAND_KEYS
#undef QATTN_TILE_KEY
#undef QATTN_SOURCE_KEY
#undef QATTN_PRODUCT_KEY
#undef QATTN_RULE_KEYS
// clang-format on

/// Levenshtein's distance, for "did you mean".
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t cost = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = std::exchange(row[j], cost);
    }
  }
  return row[b.size()];
}

[[noreturn]] void misfit(const Recipe& recipe, const std::string& reason) {
  throw Error(ErrorKind::usage, fmt::format("recipe '{}': {}", recipe.name, reason));
}

void validate_groups(const Recipe& recipe) {
  using quant::Granularity;
  if (recipe.q_block % recipe.q_warp != 0 || recipe.k_block % recipe.k_warp != 0) {
    misfit(recipe, fmt::format("q_block ({}) must be a multiple of q_warp ({}), k_block ({}) of k_warp ({})",
                               recipe.q_block, recipe.q_warp, recipe.k_block, recipe.k_warp));
  }
  const bool per_thread = (recipe.q.scaled() && recipe.q.granularity == Granularity::per_thread) ||
                          (recipe.k.scaled() && recipe.k.granularity == Granularity::per_thread);
  if (per_thread && (recipe.q_warp % 16 != 0 || recipe.k_warp % 8 != 0)) {
    misfit(recipe, "per_thread groups need q_warp a multiple of 16 and k_warp a multiple of 8 (m16n8 fragments)");
  }
  for (const OperandSpec* operand : {&recipe.q, &recipe.k}) {
    if (operand->scaled() && operand->granularity == Granularity::per_channel) {
      misfit(recipe, "q and k cannot have per_channel scales: Q K^T sums over channels");
    }
  }
  if (!recipe.v.scaled() || recipe.v.micro_scaled()) return;
  if (recipe.v.granularity != Granularity::per_channel && recipe.v.granularity != Granularity::per_tensor &&
      recipe.v.granularity != Granularity::per_block) {
    misfit(recipe, "v_granularity must be per_channel, per_tensor, per_block, 1x16 or 1x32");
  }
  if (recipe.v.granularity == Granularity::per_block && recipe.promotion != -1) {
    misfit(recipe, "v_granularity per_block needs promotion = tile: the scale of V changes with the tile");
  }
}

void validate_p(const Recipe& recipe) {
  const bool two_levels = recipe.p.micro_scaled() && recipe.p_second_level != SecondLevel::none;
  if ((two_levels || recipe.p.row_scaled()) && recipe.promotion != -1) {
    misfit(recipe, "p_second_level and p_granularity per_token need promotion = tile: P's scale changes with the tile");
  }
  if (recipe.p_normalized && recipe.row_sum == RowSum::rounded) {
    misfit(recipe, "p_normalized needs row_sum = unrounded: P is divided by the sum before it is rounded");
  }
  if (!recipe.v.scaled() || recipe.v.range <= quant::quantization_range(*recipe.v.format)) return;
  misfit(recipe, fmt::format("v_range {} is more than {} holds", recipe.v.range, recipe.v.format->name));
}

}  // namespace

std::span<const RecipeKey> recipe_keys() { return kKeys; }

void set(Recipe& recipe, std::string_view key, std::string_view value) {
  for (const RecipeKey& entry : kKeys) {
    if (entry.name == key) return entry.set(recipe, value);
  }
  const RecipeKey* nearest = kKeys;
  for (const RecipeKey& entry : kKeys) {
    if (distance(entry.name, key) < distance(nearest->name, key)) nearest = &entry;
  }
  throw Error(ErrorKind::usage,
              fmt::format("unknown recipe key '{}'; the nearest is '{}' (`qattn recipes --keys` lists "
                          "them all)",
                          key, nearest->name));
}

std::vector<std::pair<std::string, std::string>> resolved(const Recipe& recipe) {
  std::vector<std::pair<std::string, std::string>> keys;
  for (const RecipeKey& entry : kKeys) {
    if (entry.get != nullptr) keys.emplace_back(entry.name, entry.get(recipe));
  }
  return keys;
}

double resolved_p_scale(const Recipe& recipe) {
  if (!recipe.p.scaled()) return 1.0;
  if (recipe.p_scale > 0.0) return recipe.p_scale;
  if (recipe.p.micro_scaled() || recipe.p.row_scaled()) return 1.0;
  return static_cast<double>(quant::quantization_range(*recipe.p.format));
}

void validate(const Recipe& recipe) {
  validate_groups(recipe);
  validate_p(recipe);
  if (recipe.correction_format->bits > 32) misfit(recipe, "correction_format must have at most 32 bits");
  if (recipe.row_sum_format->bits > 32) misfit(recipe, "row_sum_format must have at most 32 bits");
  try {
    resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k);
    resolve_accumulator(recipe.accumulator, recipe.p, recipe.v);
  } catch (const Error& error) {
    misfit(recipe, error.what());
  }
}

std::string accumulator_evidence(const Recipe& recipe) {
  const auto text = [](const std::string& name, const OperandSpec& a, const OperandSpec& b) {
    const std::string used = describe(resolve_accumulator(name, a, b));
    if (name == "exact" || name == "f32" || used != describe(resolve_accumulator("exact", a, b))) return used;
    return fmt::format("{} ({} is not used: {})", used, name,
                       a.exact() || b.exact() ? "an operand is exact" : "one operand alone is micro-scaled");
  };
  return fmt::format("QK {}; PV {}", text(recipe.qk_accumulator, recipe.q, recipe.k),
                     text(recipe.accumulator, recipe.p, recipe.v));
}

}  // namespace qattn::attention
