#include "operand_cases.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "format/encode.h"
#include "lab/recipe_file.h"
#include "lab/synth_distribution.h"

namespace qattn::gpu {
namespace {

/// Rows [first, first + rows) of a tensor.
InputMatrix rows_of(const Tensor& tensor, std::int64_t first, std::int64_t rows, double descale) {
  const std::int64_t columns = tensor.shape.at(1);
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * tensor.element_bytes();
  const std::span<const std::byte> codes(tensor.codes);
  return {tensor.format,
          codes.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(rows) * row_bytes), rows,
          columns, descale};
}

MatrixD values_of(const Tensor& tensor, double descale) {
  MatrixD values = decode_matrix(tensor, 0, tensor.shape.at(0), tensor.shape.at(1));
  if (descale != 1.0) values *= descale;
  return values;
}

// ---- synthetic heads
// -------------------------------------------------------------------------------------------------

constexpr std::array<std::int64_t, 12> kLengths = {1, 2, 63, 64, 65, 127, 128, 129, 191, 500, 1000, 4096};
constexpr std::array<std::string_view, 4> kDistributions = {"channel-bias", "fa3-outlier", "cogvideox-like", "normal"};

struct InputKind {
  const format::Format* format;
  double descale;
};

constexpr std::array<InputKind, 6> kInputs = {{{&format::kFP16, 1.0},
                                               {&format::kBF16, 1.0},
                                               {&format::kFP32, 1.0},
                                               {&format::kFP64, 1.0},
                                               {&format::kE4M3, 0.0371},
                                               {&format::kE5M2, 0.0113}}};

/// The values, saturated in the format, with token and channel 1 made zero where `with_zeros` says so.
Tensor encoded(MatrixD values, const InputKind& kind, bool with_zeros) {
  if (with_zeros && values.rows() > 1) values.row(1).setZero();
  if (with_zeros) values.col(1).setZero();
  Tensor tensor = make_tensor(*kind.format, {values.rows(), values.cols()});
  for (std::int64_t i = 0; i < values.size(); ++i) {
    tensor.set_code(i, format::encode(*kind.format, values.data()[i] / kind.descale, {}));
  }
  return tensor;
}

/// Three query heads on one key/value head; as many queries as keys, or 100 more.
HeadTensors draw_head(std::uint64_t seed, std::size_t number, std::int64_t tokens, std::int64_t head_dim,
                      const InputKind& kind) {
  const lab::Distribution& distribution = lab::find_distribution(kDistributions[number % kDistributions.size()]);
  const lab::SynthValues values = lab::resolve_values(distribution, {}, head_dim);
  const bool with_zeros = number % 3 == 2;
  const auto draw = [&](std::string_view tensor, std::int64_t head, std::int64_t rows) {
    const lab::SynthHead drawn{seed, static_cast<std::int64_t>(number), tensor, 0, head, rows, head_dim};
    return encoded(distribution.draw(drawn, values), kind, with_zeros);
  };
  const std::int64_t queries = number % 5 == 4 ? tokens + 100 : tokens;
  std::vector<Tensor> q;
  for (std::int64_t head = 0; head < 3; ++head) q.push_back(draw("q", head, queries));
  return {std::move(q), draw("k", 0, tokens), draw("v", 0, tokens), kind.descale};
}

// ---- recipes
// ---------------------------------------------------------------------------------------------------------

struct Choice {
  std::string_view key;
  std::vector<std::string_view> values;
};

/// Everything that preparation reads. Tilings come before single sizes.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {"scale_place", {"logits", "q", "qk"}},
      {"query_heads", {"one", "group"}},
      {"rotation", {"none", "none", "hadamard"}},
      {"rotation_seed", {"0", "7"}},
      {"balance", {"none", "none", "smoothquant"}},
      {"smoothing", {"none", "k", "q", "qk"}},
      {"smooth_v", {"true", "false"}},
      {"correction", {"smoothed_k", "quantized_k"}},
      {"correction_format", {"fp32", "fp16", "bf16"}},
      {"q_format", {"int8", "int4", "e4m3", "e5m2", "fp16", "bf16"}},
      {"k_format", {"int8", "int4", "e4m3", "e5m2", "fp16", "bf16"}},
      {"v_format", {"e4m3", "e5m2", "int8", "fp16", "bf16"}},
      {"q_granularity", {"per_thread", "per_warp", "per_block", "per_token", "per_tensor"}},
      {"k_granularity", {"per_thread", "per_warp", "per_block", "per_token", "per_tensor"}},
      {"v_granularity", {"per_channel", "per_tensor", "per_block"}},
      {"q_scale_rule", {"amax", "reciprocal", "triton_eps"}},
      {"k_scale_rule", {"amax", "reciprocal", "triton_eps"}},
      {"v_scale_rule", {"amax", "reciprocal", "triton_eps"}},
      {"v_range", {"auto", "2.25", "4.5"}},
      {"rounding", {"nearest_even", "half_away"}},
      {"zero_scale", {"one", "epsilon", "propagate"}},
      {"scaling", {"divide", "reciprocal"}},
      {"tiling", {"sm80", "sm89", "sm90"}},
      {"q_warp", {"16", "32"}},
  };
  return all;
}

}  // namespace

HeadTensors::HeadTensors(const lab::DumpSet& dumps, const lab::SelectedCall& call, std::int64_t batch,
                         std::int64_t head) {
  const std::int64_t kv_head = call.call->kv_head(head);
  q_.push_back(dumps.read_codes(call, "q", batch, head));
  for (std::int64_t other = 0; other < call.call->q_heads; ++other) {
    const bool shares = other != head && call.call->kv_head(other) == kv_head;
    if (shares) q_.push_back(dumps.read_codes(call, "q", batch, other));
  }
  k_ = dumps.read_codes(call, "k", batch, kv_head);
  v_ = dumps.read_codes(call, "v", batch, kv_head);
  q_descale_ = dumps.descale(call, "q_descale", batch, kv_head);
  k_descale_ = dumps.descale(call, "k_descale", batch, kv_head);
  v_descale_ = dumps.descale(call, "v_descale", batch, kv_head);
}

HeadTensors::HeadTensors(std::vector<Tensor> q, Tensor k, Tensor v, double descale)
    : q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      q_descale_(descale),
      k_descale_(descale),
      v_descale_(descale) {}

HeadInput HeadTensors::input(const lab::HeadProblem& part) const {
  const std::int64_t queries = part.problem.q.rows(), keys = part.problem.k.rows();
  HeadInput input;
  input.q = rows_of(q_.front(), part.first_row, queries, q_descale_);
  input.k = rows_of(k_, part.first_key, keys, k_descale_);
  input.v = rows_of(v_, part.first_key, keys, v_descale_);
  for (std::size_t i = 1; i < q_.size(); ++i) {
    input.group_q.push_back(rows_of(q_[i], part.first_row, queries, q_descale_));
  }
  input.sm_scale = part.problem.sm_scale;
  return input;
}

attention::Problem HeadTensors::problem(double sm_scale) const {
  attention::Problem problem;
  problem.q = values_of(q_.front(), q_descale_);
  problem.k = values_of(k_, k_descale_);
  problem.v = values_of(v_, v_descale_);
  for (std::size_t i = 1; i < q_.size(); ++i) problem.group_q.push_back(values_of(q_[i], q_descale_));
  problem.sm_scale = sm_scale;
  return problem;
}

void for_each_case(const lab::DumpSet& dumps, const std::function<void(const OperandCase&)>& visit) {
  for (const lab::SelectedCall& call : dumps.calls()) {
    const std::string file = std::filesystem::path(dumps.files()[call.file]).filename().string();
    for (std::int64_t batch = 0; batch < call.call->batch; ++batch) {
      for (std::int64_t head = call.first_head; head < call.last_head; ++head) {
        const HeadTensors tensors(dumps, call, batch, head);
        for (const lab::HeadProblem& part : dumps.read(call, batch, head, true)) {
          visit({file, fmt::format("{}, batch {}, head {}, row {}", call.label, batch, head, part.first_row),
                 tensors.input(part), &part.problem});
        }
      }
    }
  }
}

void for_each_synthetic_case(std::uint64_t seed, const std::function<void(const OperandCase&)>& visit) {
  std::size_t number = 0;
  for (const std::int64_t tokens : kLengths) {
    for (const std::int64_t head_dim : {std::int64_t{64}, std::int64_t{128}}) {
      for (const InputKind& kind : kInputs) {
        const HeadTensors tensors = draw_head(seed, number, tokens, head_dim, kind);
        const lab::HeadProblem part{tensors.problem(1.0 / std::sqrt(static_cast<double>(head_dim)))};
        visit({fmt::format("{} tokens", tokens),
               fmt::format("{} {}, head_dim {}", kind.format->name, kDistributions[number % kDistributions.size()],
                           head_dim),
               tensors.input(part), &part.problem});
        ++number;
      }
    }
  }
}

std::vector<attention::Recipe> random_recipes(std::uint64_t seed, int count) {
  attention::Recipe base = lab::load_recipe("sage2-8b");
  base.qk_accumulator = "exact";
  base.accumulator = "exact";
  std::vector<attention::Recipe> recipes;
  for (std::uint64_t draw = 0; draw < static_cast<std::uint64_t>(count); ++draw) {
    attention::Recipe recipe = base;
    recipe.name = fmt::format("draw {}", draw);
    std::vector<lab::Override> overrides;
    for (std::size_t i = 0; i < choices().size(); ++i) {
      const Choice& choice = choices()[i];
      const std::string_view value = choice.values[random_bits(seed, draw, i) % choice.values.size()];
      overrides.emplace_back(choice.key, value);
    }
    recipe = lab::with_overrides(recipe, overrides);
    attention::validate(recipe);
    check_preparable(recipe);
    recipes.push_back(std::move(recipe));
  }
  return recipes;
}

}  // namespace qattn::gpu
