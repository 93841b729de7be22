#include "emulator/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "attention/contraction.h"
#include "attention/scores.h"
#include "base/error.h"
#include "base/fp_environment.h"
#include "format/encode.h"
#include "quant/scale.h"

namespace qattn::emulator {
namespace {

using attention::Accumulator;
using attention::Recipe;

[[noreturn]] void refuse(const Recipe& recipe, std::string_view key, std::string_view reason) {
  throw Error(ErrorKind::usage,
              fmt::format("recipe '{}': {}: not on the CUDA device: {}; leave out --device", recipe.name, key, reason));
}

/// Whether it is the scaled group dot of kernels: NVFP4 and MXFP4 into f32.
bool is_grouped(const mma::Instruction& x) {
  return x.kind == mma::Kind::scaled_group_dot && x.k == 64 && x.d == &format::kFP32 && x.c == x.d &&
         x.a == &format::kE2M1 && x.b == &format::kE2M1 && x.fusion.rounding == mma::Rounding::toward_zero;
}

void check_sum(const Recipe& recipe, std::string_view key, const Accumulator& accumulator) {
  if (accumulator.kind != Accumulator::Kind::instruction || has_engine(*accumulator.instruction)) return;
  refuse(recipe, key,
         fmt::format("{} is a {}", accumulator.instruction->name, mma::kind_name(accumulator.instruction->kind)));
}

Sum sum_of(const Accumulator& accumulator) {
  switch (accumulator.kind) {
    case Accumulator::Kind::exact:
      return Sum::f64;
    case Accumulator::Kind::f32:
      return Sum::f32;
    case Accumulator::Kind::integer:
      return Sum::integer;
    case Accumulator::Kind::instruction:
      break;
  }
  return is_grouped(*accumulator.instruction) ? Sum::grouped : Sum::fused;
}

template <class T>
std::vector<std::byte> bytes_of(const T* values, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  if (count != 0) std::memcpy(bytes.data(), values, bytes.size());
  return bytes;
}

/// One side of a product that takes no codes.
std::vector<std::byte> plain_bytes(const attention::Side& side) {
  if (side.doubles.size() != 0) return bytes_of(side.doubles.data(), static_cast<std::size_t>(side.doubles.size()));
  return bytes_of(side.floats.data(), static_cast<std::size_t>(side.floats.size()));
}

/// What the device takes of an operand [rows, columns] with an instruction: packed elements, with their blocks' scales
/// where there are any. `columns` may be more than there are codes: the rest pads.
class Elements {
 public:
  /// Blocks lie along the rows, or along the columns.
  Elements(const mma::Instruction& instruction, const FusedEngine& engine, const attention::Stored& stored,
           bool blocks_along_rows)
      : instruction_(instruction), engine_(engine), stored_(stored), blocks_along_rows_(blocks_along_rows) {}

  std::vector<std::byte> row_major(std::int64_t columns) const {
    return words(columns, [columns](std::int64_t i, std::int64_t j) { return i * columns + j; });
  }
  std::vector<std::byte> transposed(std::int64_t columns) const {
    return words(columns, [rows = stored_.codes.rows()](std::int64_t i, std::int64_t j) { return j * rows + i; });
  }

 private:
  template <class Place>
  std::vector<std::byte> words(std::int64_t columns, const Place& place) const {
    const MatrixCodes& codes = stored_.codes;
    const bool grouped = is_grouped(instruction_);
    std::vector<std::uint32_t> all(static_cast<std::size_t>(codes.rows() * columns),
                                   grouped ? kPackedZeroGroup : kPackedZero);
    for (std::int64_t i = 0; i < codes.rows(); ++i) {
      for (std::int64_t j = 0; j < codes.cols(); ++j) {
        all[static_cast<std::size_t>(place(i, j))] = word(codes(i, j), i, j, grouped);
      }
    }
    return bytes_of(all.data(), all.size());
  }
  std::uint32_t word(std::uint32_t code, std::int64_t i, std::int64_t j, bool grouped) const {
    if (instruction_.scale == nullptr) return packed(element_of(*stored_.format, code, engine_.interleaved));
    const std::int64_t block = instruction_.block;
    const std::uint32_t scale =
        blocks_along_rows_ ? stored_.block_scales(i, j / block) : stored_.block_scales(j, i / block);
    const float value = format::decode_float(*instruction_.scale, scale);
    if (grouped) return packed(scaled_element(value, instruction_.scale->mantissa_bits, code));
    return packed(times_power(element_of(*stored_.format, code, engine_.interleaved), value));
  }

  const mma::Instruction& instruction_;
  const FusedEngine& engine_;
  const attention::Stored& stored_;
  bool blocks_along_rows_;
};

bool by_instruction(Sum sum) { return sum == Sum::fused || sum == Sum::grouped; }

/// Both sides of Q K.
void plan_scores(const Recipe& recipe, const attention::Operands& operands, std::int64_t channels, Plan& plan) {
  const Accumulator accumulator = attention::resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k);
  Product& product = plan.head.qk;
  product.sum = sum_of(accumulator);
  product.depth = static_cast<int>(channels);
  if (by_instruction(product.sum)) {
    product.engine = make_engine(*accumulator.instruction);
    const int step = product.engine.depth;
    product.depth = (product.depth + step - 1) / step * step;
    plan.operands.q = Elements(*accumulator.instruction, product.engine, operands.q, true).row_major(product.depth);
    plan.operands.k = Elements(*accumulator.instruction, product.engine, operands.k, true).transposed(product.depth);
    return;
  }
  const std::int64_t queries = plan.head.queries, keys = plan.head.keys;
  plan.operands.q = plain_bytes(attention::left_tile(accumulator, operands.q, 0, queries));
  plan.operands.k = plain_bytes(attention::right_tile(accumulator, operands.k, 0, keys, true));
}

ScaleRule rule_of(const quant::ScaleRule& rule) {
  constexpr std::array kNames = {"amax", "reciprocal", "triton_eps", "e8m0_floor", "e8m0_ceil", "e8m0_nearest"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), rule.name);
  if (found == kNames.end()) {
    throw Error(ErrorKind::internal, fmt::format("scale rule '{}' is not on the CUDA device", rule.name));
  }
  return static_cast<ScaleRule>(found - kNames.begin());
}

/// Where the device has the format of P's scales.
std::optional<ScaleFormat> scale_format_of(const Recipe& recipe) {
  if (recipe.p.row_scaled() || recipe.p.scale_format == &format::kFP32) return ScaleFormat::fp32;
  if (recipe.p.scale_format == &format::kE4M3) return ScaleFormat::e4m3;
  if (recipe.p.scale_format == &format::kE8M0) return ScaleFormat::e8m0;
  return std::nullopt;
}

ScaledP scaled_p(const Recipe& recipe) {
  const quant::QuantizerSpec quantizer = attention::quantizer_spec(recipe, recipe.p, quant::Operand::p);
  ScaledP scaled;
  scaled.block = recipe.p.row_scaled() ? 0 : recipe.p.granularity == quant::Granularity::block_1x16 ? 16 : 32;
  scaled.rule = rule_of(*quantizer.rule);
  scaled.range = quantizer.range > 0 ? quantizer.range : quant::quantization_range(*quantizer.format);
  scaled.format = scale_format_of(recipe).value();
  scaled.unrounded_divisor = quantizer.unrounded_divisor;
  scaled.multiplies = quantizer.scaling == quant::Scaling::reciprocal;
  if (quantizer.outer) {
    scaled.outer = *quantizer.outer == quant::Granularity::per_token ? OuterScale::row : OuterScale::tile;
    scaled.outer_span = static_cast<float>(format::max_finite(*quantizer.scale_format)) * scaled.range;
  }
  return scaled;
}

/// V, and how P is stored.
void plan_values(const Recipe& recipe, const attention::Operands& operands, Plan& plan) {
  const Accumulator accumulator = attention::resolve_accumulator(recipe.accumulator, recipe.p, recipe.v);
  Head& head = plan.head;
  head.pv.sum = sum_of(accumulator);
  const bool stepped = accumulator.step() > 0 && recipe.promotion > 0;
  head.promotion = stepped ? recipe.promotion : 0;
  head.promotes_every_tile = accumulator.kind == Accumulator::Kind::integer || recipe.promotion < 0 ||
                             (accumulator.step() == 0 && recipe.promotion > 0);
  if (by_instruction(head.pv.sum)) {
    head.pv.engine = make_engine(*accumulator.instruction);
    const Elements v(*accumulator.instruction, head.pv.engine, operands.v, false);
    plan.operands.v = v.row_major(operands.v.codes.cols());
  } else {
    plan.operands.v = plain_bytes(attention::right_tile(accumulator, operands.v, 0, head.keys, false));
  }
  plan.operands.v_scale = operands.v.row_scale;
  head.p_scale = static_cast<float>(attention::resolved_p_scale(recipe));
  if (recipe.p.exact()) return;
  head.stored_p = head.pv.sum == Sum::fused     ? StoredP::element
                  : head.pv.sum == Sum::grouped ? StoredP::group
                                                : StoredP::decoded;
  head.p_format = *recipe.p.format;
  // Narrow formats saturate, casts go to Inf.
  head.p =
      make_encoding(*recipe.p.format, recipe.p.scaled() ? format::Overflow::saturate : format::Overflow::inf_or_nan);
  head.scales_p = recipe.p.micro_scaled() || recipe.p.row_scaled();
  if (head.scales_p) head.scaled_p = scaled_p(recipe);
}

/// The additive mask times log2(e); hidden keys have a code of their own.
std::vector<float> mask_of(const MatrixD& mask) {
  std::vector<float> addends;
  addends.reserve(static_cast<std::size_t>(mask.size()));
  for (Eigen::Index i = 0; i < mask.size(); ++i) {
    const double value = mask.data()[i];
    const bool hides = value == -std::numeric_limits<double>::infinity();
    addends.push_back(hides ? std::bit_cast<float>(kHiddenKey) : static_cast<float>(attention::mask_addend(value)));
  }
  return addends;
}

void plan_softmax(const attention::Problem& problem, const Recipe& recipe, const attention::Operands& operands,
                  Plan& plan) {
  Head& head = plan.head;
  head.logit_scale = static_cast<float>(attention::logit_scale(operands.score_scale));
  head.rescale_threshold = static_cast<float>(recipe.rescale_threshold);
  head.exponential = recipe.exp2 == attention::Exp2::exact  ? Exponential::exact
                     : recipe.exp2 == attention::Exp2::mufu ? Exponential::mufu
                                                            : Exponential::fa4;
  head.max_before_mask = recipe.row_max == attention::RowMax::before_mask;
  head.normalized = recipe.p_normalized;
  head.rounded_sums = recipe.row_sum == attention::RowSum::rounded;
  head.narrow_sums = recipe.row_sum_format != &format::kFP32;
  if (head.narrow_sums) head.sums = make_encoding(*recipe.row_sum_format, format::Overflow::inf_or_nan);
  head.rounds_scores = recipe.s_format != nullptr;
  if (head.rounds_scores) head.scores = make_encoding(*recipe.s_format, format::Overflow::inf_or_nan);
  plan.operands.q_scale = operands.q.row_scale;
  plan.operands.k_scale = operands.k.row_scale;
  plan.operands.correction.assign(operands.correction.data(), operands.correction.data() + operands.correction.size());
  if (problem.mask) plan.operands.mask = mask_of(*problem.mask);
}

}  // namespace

bool has_engine(const mma::Instruction& x) {
  if (is_grouped(x)) return true;
  const bool kind = x.kind == mma::Kind::fused_dot || x.kind == mma::Kind::interleaved_dot;
  const bool scales = x.scale != nullptr && x.scale != &format::kE8M0;
  if (!kind || x.c != x.d || scales || x.k > 32) return false;
  const bool half = x.d == &format::kFP16;
  const bool rounding = x.fusion.rounding == (half ? mma::Rounding::nearest_even : mma::Rounding::toward_zero);
  const int group = x.fusion.group;
  const bool groups = (group == 4 || group == 8 || group == 16 || group == 32) && x.k % group == 0;
  return rounding && groups && (half ? x.fusion.mantissa_bits == 10 : x.d == &format::kFP32) &&
         x.fusion.fraction_bits >= x.a->mantissa_bits + x.b->mantissa_bits;
}

FusedEngine make_engine(const mma::Instruction& x) {
  if (!has_engine(x)) throw Error(ErrorKind::internal, x.name + ": not for the engines of the CUDA device");
  FusedEngine engine;
  engine.depth = x.k;
  engine.group = x.fusion.group;
  engine.fraction_bits = x.fusion.fraction_bits;
  engine.exponent_floor = x.fusion.exponent_floor;
  engine.mantissa_bits = x.fusion.mantissa_bits;
  engine.product_shift = x.fusion.fraction_bits - x.a->mantissa_bits - x.b->mantissa_bits;
  if (is_grouped(x)) engine.product_shift -= 2 * x.scale->mantissa_bits;
  engine.half = x.d == &format::kFP16;
  engine.interleaved = x.kind == mma::Kind::interleaved_dot;
  return engine;
}

void check_supported(const Recipe& recipe) {
  if (recipe.softmax == attention::Softmax::f64) refuse(recipe, "softmax = f64", "its softmax is f32");
  const bool narrow_sums = recipe.row_sum_format != &format::kFP32;
  if (narrow_sums && recipe.k_block > kMostNarrowKeys) {
    refuse(recipe, "row_sum_format", fmt::format("its narrow row sums are those of tiles of {} keys", kMostNarrowKeys));
  }
  const bool scales_p = recipe.p.micro_scaled() || recipe.p.row_scaled();
  if (scales_p && recipe.row_sum == attention::RowSum::rounded) {
    refuse(recipe, "row_sum = rounded", "its sums do not add weights with scales of their own");
  }
  if (scales_p && std::int64_t{recipe.q_block} * recipe.k_block > std::numeric_limits<int>::max()) {
    refuse(recipe, "q_block, k_block", "a tile of scaled P has at most 2^31 - 1 elements");
  }
  if (scales_p && !scale_format_of(recipe)) refuse(recipe, "p_scale_format", "its scales are fp32, e4m3 or e8m0");
  for (const auto& [key, format] : {std::pair("s_format", recipe.s_format), std::pair("p_format", recipe.p.format),
                                    std::pair("row_sum_format", recipe.row_sum_format)}) {
    if (format == nullptr || (format->bits <= 32 && format->has_sign)) continue;
    refuse(recipe, fmt::format("{} = {}", key, format->name), "its numbers have a sign and at most 32 bits");
  }
  check_sum(recipe, "qk_accumulator", attention::resolve_accumulator(recipe.qk_accumulator, recipe.q, recipe.k));
  const Accumulator pv = attention::resolve_accumulator(recipe.accumulator, recipe.p, recipe.v);
  check_sum(recipe, "accumulator", pv);
  if (pv.kind == Accumulator::Kind::exact && recipe.p.micro_scaled() && recipe.p.scale_format == &format::kFP32) {
    refuse(recipe, "p_scale_format = fp32", "exact sums take P in 24 bits, its scales among them");
  }
}

void check_size(std::int64_t queries, std::int64_t keys, std::int64_t channels) {
  for (const auto& [count, name] :
       {std::pair(queries, "queries"), std::pair(keys, "keys"), std::pair(channels, "channels")}) {
    if (count <= kMostColumns) continue;
    throw Error(ErrorKind::usage, fmt::format("a head of {} {}: not on the CUDA device: it takes at most {}; leave out "
                                              "--device",
                                              count, name, kMostColumns));
  }
}

Plan make_plan(const attention::Problem& problem, const Recipe& recipe, const attention::Operands& operands) {
  const FpEnvironment environment;
  check_size(problem.q.rows(), problem.k.rows(), std::max(problem.q.cols(), problem.v.cols()));
  Plan plan;
  Head& head = plan.head;
  head.queries = static_cast<int>(problem.q.rows());
  head.keys = static_cast<int>(problem.k.rows());
  head.value_channels = static_cast<int>(problem.v.cols());
  head.q_block = recipe.q_block;
  head.k_block = recipe.k_block;
  head.is_causal = problem.is_causal;
  head.descending = recipe.tile_order == attention::TileOrder::descending;
  const bool bottom = attention::causal_alignment(problem, recipe) == attention::CausalAlign::bottom_right;
  head.causal_offset = bottom ? head.keys - head.queries : 0;
  plan_softmax(problem, recipe, operands, plan);
  plan_scores(recipe, operands, problem.q.cols(), plan);
  plan_values(recipe, operands, plan);
  return plan;
}

}  // namespace qattn::emulator
