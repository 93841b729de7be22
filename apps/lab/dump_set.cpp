// Selecting calls and turning a head of a dump into problems.
#include "lab/dump_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <regex>

#include "base/error.h"

namespace qattn::lab {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> parse_index(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::regex compile(const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    throw Error(ErrorKind::usage, fmt::format("--calls: '{}' is no regular expression (ECMAScript syntax)", pattern));
  }
}

/// Two files may hold the same path; then the file's name tells them apart.
void label_calls(std::vector<SelectedCall>& calls, const std::vector<std::string>& files) {
  std::map<std::string, int> uses;
  for (const SelectedCall& call : calls) ++uses[call.call->path];
  for (SelectedCall& call : calls) {
    call.label = call.call->path;
    if (uses[call.label] > 1) {
      call.label = fmt::format("{}:{}", std::filesystem::path(files[call.file]).filename().string(), call.label);
    }
  }
}

MatrixD additive_mask(const io::Mask& mask) {
  if (mask.bias) return decode_matrix(*mask.bias, 0, mask.bias->shape.at(0), mask.bias->shape.at(1));
  const double hidden = -std::numeric_limits<double>::infinity();
  return mask.attend.unaryExpr([&](std::uint8_t attend) { return attend != 0 ? 0.0 : hidden; });
}

HeadProblem cut(const HeadProblem& whole, const io::Segment& segment) {
  const std::int64_t queries = segment.q1 - segment.q0, keys = segment.k1 - segment.k0;
  HeadProblem part{whole.problem, segment.q0, segment.k0};
  part.problem.q = whole.problem.q.middleRows(segment.q0, queries);
  part.problem.k = whole.problem.k.middleRows(segment.k0, keys);
  part.problem.v = whole.problem.v.middleRows(segment.k0, keys);
  for (MatrixD& other : part.problem.group_q) other = MatrixD(other.middleRows(segment.q0, queries));
  if (whole.problem.mask) part.problem.mask = whole.problem.mask->block(segment.q0, segment.k0, queries, keys);
  return part;
}

std::string first_bad(const MatrixD& values, std::string_view name, std::int64_t first_token) {
  for (Eigen::Index row = 0; row < values.rows(); ++row) {
    for (Eigen::Index column = 0; column < values.cols(); ++column) {
      const double x = values(row, column);
      if (std::isfinite(x)) continue;
      return fmt::format("{}[token {}, channel {}] is {}", name, first_token + row, column,
                         std::isnan(x) ? "NaN" : "Inf");
    }
  }
  return "";
}

/// As first_bad(), in the additive mask, where -Inf hides a key.
std::string first_bad_in_mask(const HeadProblem& part) {
  const MatrixD& mask = *part.problem.mask;
  for (Eigen::Index row = 0; row < mask.rows(); ++row) {
    for (Eigen::Index column = 0; column < mask.cols(); ++column) {
      const double x = mask(row, column);
      if (std::isfinite(x) || x < 0) continue;
      return fmt::format("mask[row {}, column {}] is {}", part.first_row + row, part.first_key + column,
                         std::isnan(x) ? "NaN" : "Inf");
    }
  }
  return "";
}

}  // namespace

HeadRange parse_heads(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string first = text.substr(0, colon);
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto a = first.empty() && colon != std::string::npos ? 0 : parse_index(first);
  const auto b = colon == std::string::npos ? (a ? std::optional(*a + 1) : a)
                 : last.empty()             ? std::optional(kNoLimit)
                                            : parse_index(last);
  if (!a || !b || *a >= *b) {
    throw Error(ErrorKind::usage, fmt::format("--heads: '{}' is to be A:B with A < B (heads A to B - 1)", text));
  }
  return {*a, *b};
}

DumpSet::DumpSet(const DumpSelection& selection) : files_(io::dump_files(selection.inputs)) {
  const std::regex wanted = compile(selection.calls);
  std::vector<std::string> seen;
  for (const std::string& file : files_) readers_.emplace_back(file);
  for (std::size_t f = 0; f < files_.size(); ++f) {
    for (const io::AttentionCall& call : readers_[f].calls()) {
      seen.push_back(call.path);
      if (!std::regex_search(call.path, wanted)) continue;
      const HeadRange heads = selection.heads.value_or(HeadRange{0, kNoLimit});
      if (heads.first >= call.q_heads) continue;
      calls_.push_back({f, &call, "", heads.first, std::min(heads.last, call.q_heads)});
    }
  }
  if (calls_.empty()) {
    throw Error(ErrorKind::usage, fmt::format("--calls '{}' and --heads leave nothing; the calls are {}",
                                              selection.calls, fmt::join(seen, ", ")));
  }
  label_calls(calls_, files_);
}

std::int64_t DumpSet::heads() const {
  std::int64_t count = 0;
  for (const SelectedCall& call : calls_) count += call.call->batch * (call.last_head - call.first_head);
  return count;
}

std::vector<HeadProblem> DumpSet::read(const SelectedCall& selected, std::int64_t batch, std::int64_t head,
                                       bool with_group) const {
  const io::AttentionCall& call = *selected.call;
  HeadProblem whole;
  whole.problem.q = read_tensor(selected, "q", batch, head);
  whole.problem.k = read_tensor(selected, "k", batch, call.kv_head(head));
  whole.problem.v = read_tensor(selected, "v", batch, call.kv_head(head));
  whole.problem.q_codes = input_codes(selected, "q", batch, head);
  whole.problem.k_codes = input_codes(selected, "k", batch, call.kv_head(head));
  whole.problem.v_codes = input_codes(selected, "v", batch, call.kv_head(head));
  for (std::int64_t other = 0; with_group && other < call.q_heads; ++other) {
    if (other == head || call.kv_head(other) != call.kv_head(head)) continue;
    whole.problem.group_q.push_back(read_tensor(selected, "q", batch, other));
  }
  whole.problem.sm_scale = call.sm_scale;
  whole.problem.is_causal = call.is_causal;
  whole.problem.causal_align = call.causal_align == io::CausalAlign::top_left ? attention::CausalAlign::top_left
                                                                              : attention::CausalAlign::bottom_right;
  if (call.has("mask")) whole.problem.mask = additive_mask(readers_[selected.file].read_mask(call, batch, head));
  if (call.segments.empty()) return {std::move(whole)};
  std::vector<HeadProblem> parts;
  for (const io::Segment& segment : call.segments) {
    if (segment.q0 < segment.q1 && segment.k0 < segment.k1) parts.push_back(cut(whole, segment));
  }
  return parts;
}

MatrixD DumpSet::read_tensor(const SelectedCall& selected, const std::string& dataset, std::int64_t batch,
                             std::int64_t head) const {
  const io::DumpReader& reader = readers_[selected.file];
  const Tensor tensor = reader.read_head(*selected.call, dataset, batch, head);
  MatrixD values = decode_matrix(tensor, 0, tensor.shape.at(0), tensor.shape.at(1));
  const std::int64_t kv_head = dataset == "q" ? selected.call->kv_head(head) : head;
  const double factor = reader.descale(*selected.call, dataset + "_descale", batch, kv_head);
  if (factor != 1.0) values *= factor;
  return values;
}

attention::InputCodes DumpSet::input_codes(const SelectedCall& selected, const std::string& dataset, std::int64_t batch,
                                           std::int64_t head) const {
  const io::AttentionCall& call = *selected.call;
  const format::Format* format = dataset == "q" ? call.q_format : dataset == "k" ? call.k_format : call.v_format;
  if (format == nullptr || format->bits > 8) return {};
  return {format, descale(selected, dataset + "_descale", batch, dataset == "q" ? call.kv_head(head) : head)};
}

Tensor DumpSet::read_codes(const SelectedCall& selected, const std::string& dataset, std::int64_t batch,
                           std::int64_t head) const {
  return readers_[selected.file].read_head(*selected.call, dataset, batch, head);
}

double DumpSet::descale(const SelectedCall& selected, const std::string& dataset, std::int64_t batch,
                        std::int64_t kv_head) const {
  return readers_[selected.file].descale(*selected.call, dataset, batch, kv_head);
}

std::string bad_inputs(const HeadProblem& part) {
  std::string all;
  for (const std::string& found :
       {first_bad(part.problem.q, "q", part.first_row), first_bad(part.problem.k, "k", part.first_key),
        first_bad(part.problem.v, "v", part.first_key), part.problem.mask ? first_bad_in_mask(part) : ""}) {
    if (!found.empty()) all += (all.empty() ? "" : ", ") + found;
  }
  return all;
}

std::string first_bad_input(const std::vector<HeadProblem>& head) {
  for (const HeadProblem& part : head) {
    if (std::string found = bad_inputs(part); !found.empty()) return found;
  }
  return "";
}

}  // namespace qattn::lab
