// The reports of `qattn info`.
#include "lab/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "io/instruction_digests.h"
#include "io/vectors.h"
#include "lab/runner.h"
#include "quant/predict.h"

namespace qattn::lab {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A tensor of a call and the groups that the published kernels give it.
struct Role {
  std::string name;
  quant::GroupSpec groups;
  std::int64_t smooth_rows;  ///< tokens that share a mean; 0: all
};

std::vector<Role> roles() {
  using quant::Granularity;
  using quant::Operand;
  return {{"q", {Granularity::per_block, Operand::q}, quant::kSm89Tiling.q_block},
          {"k", {Granularity::per_block, Operand::k}, 0},
          {"v", {Granularity::per_channel, Operand::v}, 0}};
}

/// One head of one tensor, or the heads of a call put together.
struct TensorStatistics {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  std::int64_t nan_count = 0, inf_count = 0;
  std::optional<metric::Location> first_bad;
  double bias_energy = kNaN;   ///< mean over heads
  double largest_bias = kNaN;  ///< worst head
  std::int64_t bias_head = -1, bias_channel = -1;
  std::int64_t outlier_channels = 0;  ///< most in a head
  double largest_to_median = kNaN;    ///< worst head: largest channel amax over the median one
  double smoothing_gain = kNaN;       ///< mean over heads
  std::int64_t heads = 0;

  void merge(const TensorStatistics& other);
};

/// `total` + `x` where both count; NaN stands for nothing known yet, and a NaN of a later head stays NaN.
double add_known(double total, double x, bool is_first) { return is_first ? x : total + x; }

void TensorStatistics::merge(const TensorStatistics& other) {
  const bool is_first = heads == 0;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  nan_count += other.nan_count;
  inf_count += other.inf_count;
  if (!first_bad) first_bad = other.first_bad;
  bias_energy = add_known(bias_energy, other.bias_energy, is_first);
  smoothing_gain = add_known(smoothing_gain, other.smoothing_gain, is_first);
  if (is_first || other.largest_bias > largest_bias) {
    largest_bias = other.largest_bias;
    bias_head = other.bias_head;
    bias_channel = other.bias_channel;
  }
  outlier_channels = std::max(outlier_channels, other.outlier_channels);
  if (is_first || other.largest_to_median > largest_to_median) largest_to_median = other.largest_to_median;
  heads += other.heads;
}

void scan_values(const MatrixF& x, std::int64_t batch, std::int64_t head, TensorStatistics& s) {
  for (Eigen::Index row = 0; row < x.rows(); ++row) {
    for (Eigen::Index column = 0; column < x.cols(); ++column) {
      const double value = static_cast<double>(x(row, column));
      if (std::isfinite(value)) {
        s.min = std::min(s.min, value);
        s.max = std::max(s.max, value);
        continue;
      }
      ++(std::isnan(value) ? s.nan_count : s.inf_count);
      if (!s.first_bad) s.first_bad = metric::Location{batch, head, row, column};
    }
  }
}

TensorStatistics statistics_of(const MatrixF& x, const Role& role, std::int64_t batch, std::int64_t head) {
  TensorStatistics s;
  s.heads = 1;
  scan_values(x, batch, head, s);
  const quant::ChannelStatistics channels = quant::channel_statistics(x);
  s.bias_energy = channels.bias_energy;
  s.largest_bias = channels.largest_bias;
  s.bias_head = head;
  s.bias_channel = channels.most_biased_channel;
  s.outlier_channels = static_cast<std::int64_t>(channels.outlier_channels.size());
  s.largest_to_median = channels.largest_amax / channels.median_amax;
  s.smoothing_gain = quant::smoothing_gain(x, role.groups, role.smooth_rows);
  return s;
}

/// The heads of a tensor that the selection covers: all query heads of it, or the key/value heads that they use.
std::pair<std::int64_t, std::int64_t> head_range(const SelectedCall& call, const Role& role) {
  if (role.name == "q") return {call.first_head, call.last_head};
  return {call.call->kv_head(call.first_head), call.call->kv_head(call.last_head - 1) + 1};
}

/// One head of one tensor of one call.
struct HeadOfTensor {
  std::size_t call;
  std::size_t role;
  std::int64_t batch, head;
};

std::vector<HeadOfTensor> heads_of(const DumpSet& dumps, const std::vector<Role>& all) {
  std::vector<HeadOfTensor> heads;
  for (std::size_t c = 0; c < dumps.calls().size(); ++c) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      const auto [first, last] = head_range(dumps.calls()[c], all[r]);
      for (std::int64_t batch = 0; batch < dumps.calls()[c].call->batch; ++batch) {
        for (std::int64_t head = first; head < last; ++head) heads.push_back({c, r, batch, head});
      }
    }
  }
  return heads;
}

/// body(index, values) for every head, in any order, on several threads.
template <class Body>
void for_each_head(const DumpSet& dumps, const std::vector<Role>& all, const std::vector<HeadOfTensor>& heads,
                   int threads, const Body& body) {
  parallel_for(static_cast<std::int64_t>(heads.size()), threads, [&](std::int64_t i) {
    const HeadOfTensor& h = heads[static_cast<std::size_t>(i)];
    const MatrixD values = dumps.read_tensor(dumps.calls()[h.call], all[h.role].name, h.batch, h.head);
    const MatrixF narrow = values.cast<float>();
    body(static_cast<std::size_t>(i), narrow);
  });
}

std::vector<std::int64_t> shape_of(const io::AttentionCall& call, const std::string& tensor) {
  return {call.batch, tensor == "q" ? call.q_heads : call.kv_heads, tensor == "q" ? call.q_tokens : call.kv_tokens,
          call.head_dim};
}

std::string_view dtype_of(const io::AttentionCall& call, const std::string& tensor) {
  return (tensor == "q" ? call.q_format : tensor == "k" ? call.k_format : call.v_format)->dtype;
}

Json number_or_null(double x) { return std::isfinite(x) ? Json(x) : Json(); }

Json dump_row(const DumpSet& dumps, const SelectedCall& selected, const Role& role, const TensorStatistics& s) {
  const io::AttentionCall& call = *selected.call;
  const double heads = static_cast<double>(s.heads);
  Json row = {{"call", call.path}, {"tensor", role.name}, {"shape", shape_of(call, role.name)}};
  row["dtype"] = dtype_of(call, role.name);
  row["is_causal"] = call.is_causal;
  row["sm_scale"] = call.sm_scale;
  row["min"] = number_or_null(s.min);
  row["max"] = number_or_null(s.max);
  row["nan_count"] = s.nan_count;
  row["inf_count"] = s.inf_count;
  row["first_bad"] = location_json(s.first_bad);
  row["bias_energy"] = s.bias_energy / heads;
  row["largest_bias"] = s.largest_bias;
  row["bias_head"] = s.bias_head;
  row["bias_channel"] = s.bias_channel;
  row["outlier_channels"] = s.outlier_channels;
  row["largest_to_median"] = s.largest_to_median;
  row["smoothing_gain"] = s.smoothing_gain / heads;
  row["file"] = dumps.files()[selected.file];
  return row;
}

std::string call_note(const SelectedCall& selected) {
  const io::AttentionCall& call = *selected.call;
  return fmt::format("{}: {} queries, {} keys, {} query heads on {} key-value heads, head_dim {}{}{}{}", selected.label,
                     call.q_tokens, call.kv_tokens, call.q_heads, call.kv_heads, call.head_dim,
                     call.is_causal ? ", causal" : "",
                     call.segments.empty() ? "" : fmt::format(", {} packed sequences", call.segments.size()),
                     call.has("mask") ? ", masked" : "");
}

void describe_sources(const DumpSet& dumps, Report& report) {
  for (const SelectedCall& call : dumps.calls()) {
    for (const char* key : {"model", "input", "source", "licence"}) {
      const auto text = io::find_text(call.call->attributes, key, dumps.files()[call.file]);
      if (!text) continue;
      std::string note = fmt::format("{}: {}", key, *text);
      if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end()) report.notes.push_back(note);
    }
  }
  for (const SelectedCall& call : dumps.calls()) report.notes.push_back(call_note(call));
}

Json instruction_row(const io::InstructionCase& c) {
  return {{"case", c.name},
          {"name", c.instruction},
          {"gpu", c.gpu},
          {"shape", fmt::format("{} of {}x{}x{}", c.n, c.rows, c.columns, c.depth)},
          {"elements", c.d.size()}};
}

Json recorded_row(const io::RecordedCase& c) {
  std::vector<std::string> kernels, inputs;
  std::int64_t elements = 0;
  for (const io::RecordedKernel& kernel : c.kernels) {
    kernels.push_back(kernel.name);
    for (const auto& [name, tensor] : kernel.tensors) elements += tensor.elements();
  }
  for (const char* name : {"q", "k", "v", "a", "b"}) {
    if (c.has(name)) inputs.push_back(fmt::format("{} {}", name, fmt::join(c.tensor(name).shape, "x")));
  }
  return {{"case", c.name},
          {"name", kernels},
          {"gpu", io::find_text(c.attributes, "gpu", c.name).value_or("")},
          {"shape", fmt::format("{}", fmt::join(inputs, ", "))},
          {"elements", elements}};
}

Json vector_row(const io::VectorReader& file, const std::string& name) {
  if (file.schema() == io::kInstructionSchema) return instruction_row(file.instruction(name));
  if (file.schema() == io::kScalarSchema) {
    const io::ScalarCase c = file.scalar(name);
    return {{"case", c.name},
            {"name", c.function},
            {"gpu", c.gpu},
            {"shape", fmt::format("{}", fmt::join(c.x.shape, "x"))},
            {"elements", c.y.size()}};
  }
  if (file.schema() == io::kDigestSchema) {
    const io::DigestCase c = file.digest(name);
    return {{"case", c.name},
            {"name", c.function},
            {"gpu", c.gpu},
            {"shape", "all 2^32 inputs"},
            {"elements", std::int64_t{1} << 32}};
  }
  return recorded_row(file.recorded(name));
}

}  // namespace

Report inspect_dump(const DumpSet& dumps, int threads) {
  const std::vector<Role> all = roles();
  const std::vector<HeadOfTensor> heads = heads_of(dumps, all);
  std::vector<TensorStatistics> of_head(heads.size());
  for_each_head(dumps, all, heads, threads, [&](std::size_t i, const MatrixF& x) {
    of_head[i] = statistics_of(x, all[heads[i].role], heads[i].batch, heads[i].head);
  });
  Report report;
  report.columns = {{"call", "call"},
                    {"tensor", ""},
                    {"shape", "shape"},
                    {"dtype", "dtype"},
                    {"min", "min"},
                    {"max", "max"},
                    {"nan_count", "NaN"},
                    {"inf_count", "Inf"},
                    {"bias_energy", "bias energy"},
                    {"largest_bias", "largest bias"},
                    {"outlier_channels", "outlier ch."},
                    {"largest_to_median", "max/median ch."},
                    {"smoothing_gain", "smoothing gain"}};
  for (std::size_t first = 0; first < heads.size();) {
    TensorStatistics together;
    std::size_t i = first;
    for (; i < heads.size() && heads[i].call == heads[first].call && heads[i].role == heads[first].role; ++i) {
      together.merge(of_head[i]);
    }
    report.rows.push_back(dump_row(dumps, dumps.calls()[heads[first].call], all[heads[first].role], together));
    first = i;
  }
  for (const auto& [key, value] : report.rows.front().items()) report.csv_keys.push_back(key);
  describe_sources(dumps, report);
  report.notes.push_back(
      "bias energy: share of the energy in channel means, mean over heads; largest bias: a channel's "
      "|mean| over the spread of the head, worst head");
  report.notes.push_back(
      "smoothing gain: amax after / before taking means out (Q and K in 128x64 blocks, V per channel), "
      "mean over heads; 1 buys nothing");
  return report;
}

Report inspect_blocks(const DumpSet& dumps, std::string_view format, int threads) {
  const std::vector<Role> all = roles();
  const std::vector<HeadOfTensor> heads = heads_of(dumps, all);
  Report report;
  report.rows.resize(heads.size());
  for_each_head(dumps, all, heads, threads, [&](std::size_t i, const MatrixF& x) {
    const HeadOfTensor& h = heads[i];
    const quant::BlockStatistics s =
        quant::block_statistics(x, quant::micro_scaled(format, all[h.role].groups.operand));
    const SelectedCall& call = dumps.calls()[h.call];
    report.rows[i] = {{"call", call.call->path},
                      {"batch", h.batch},
                      {"head", h.head},
                      {"tensor", all[h.role].name},
                      {"format", format},
                      {"blocks", s.blocks},
                      {"zero_blocks", s.zero_blocks},
                      {"smallest_scale", s.smallest_scale},
                      {"median_scale", s.median_scale},
                      {"largest_scale", s.largest_scale},
                      {"log2_range", s.log2_range},
                      {"distinct_scales", s.distinct_scales},
                      {"saturated_blocks", s.saturated_blocks},
                      {"underflow_blocks", s.underflow_blocks},
                      {"lost_blocks", s.lost_blocks},
                      {"nonfinite_blocks", s.nonfinite_blocks},
                      {"elements", s.elements.elements},
                      {"saturated", s.elements.saturated},
                      {"underflowed", s.elements.underflowed},
                      {"file", dumps.files()[call.file]}};
  });
  for (const auto& [key, value] : report.rows.front().items()) report.csv_keys.push_back(key);
  for (const char* key : {"call", "batch", "head", "tensor", "blocks", "zero_blocks", "smallest_scale", "median_scale",
                          "largest_scale", "log2_range", "saturated_blocks", "underflow_blocks", "lost_blocks"}) {
    report.columns.push_back({key, key});
  }
  return report;
}

namespace {

/// Digests of instructions; `elements` counts blocks of 2^20 outputs.
void add_digest_rows(const std::string& file, Report& report) {
  for (const io::InstructionDigestCase& recorded : io::read_instruction_digests(file)) {
    report.rows.push_back({{"case", recorded.name},
                           {"name", recorded.instruction},
                           {"shape", recorded.families},
                           {"elements", recorded.sums.size()},
                           {"gpu", recorded.gpu}});
  }
  report.notes.push_back(fmt::format("{}: {} cases of {}", file, report.rows.size(), io::kInstructionDigestSchema));
}

}  // namespace

Report inspect_vectors(const std::string& file) {
  Report report;
  report.columns = {{"case", "case"}, {"name", "name"}, {"shape", "shape"}, {"elements", "elements"}, {"gpu", "gpu"}};
  if (io::schema(file) == io::kInstructionDigestSchema) {
    add_digest_rows(file, report);
    return report;
  }
  const io::VectorReader reader(file);
  for (const std::string& name : reader.cases()) report.rows.push_back(vector_row(reader, name));
  report.notes.push_back(fmt::format("{}: {} cases of {}", file, report.rows.size(), reader.schema()));
  return report;
}

Report inspect_groups(const quant::GroupSpec& spec, std::int64_t tokens, std::int64_t channels) {
  const quant::GroupMap map(spec, tokens, channels);
  Report report;
  report.columns = {{"group", "scale"}, {"members", "members"}, {"elements", "elements"}};
  report.csv_keys = {"operand", "granularity", "tiling", "group", "members", "elements"};
  for (std::int64_t group = 0; group < map.groups(); ++group) {
    const std::size_t elements = map.member_rows(group).size() * map.member_columns(group).size();
    report.rows.push_back({{"operand", quant::name(spec.operand)},
                           {"granularity", quant::name(spec.granularity)},
                           {"tiling", spec.tiling.name},
                           {"group", group},
                           {"members", quant::describe_group(map, group)},
                           {"elements", elements}});
  }
  return report;
}

}  // namespace qattn::lab
