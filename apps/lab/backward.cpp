// Reading a group of heads, running a recipe forward and backward, comparing.
#include "lab/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/random.h"
#include "format/encode.h"
#include "lab/exceptions.h"
#include "lab/synth_random.h"

namespace qattn::lab {
namespace {

using attention::Gradients;
using attention::Recipe;

enum Output : std::size_t { kO, kDq, kDk, kDv };

std::int64_t group_size(const io::AttentionCall& call) { return call.q_heads / call.kv_heads; }

/// What tells one head's random numbers from another's: its call's path, batch and head mixed in one after the other.
std::uint64_t upstream_stream(const io::AttentionCall& call, std::int64_t batch, std::int64_t head) {
  std::uint64_t stream = 0;
  for (const char c : call.path) stream = mix64(stream) ^ static_cast<std::uint64_t>(static_cast<unsigned char>(c));
  for (const std::int64_t part : {batch, head}) stream = mix64(stream) ^ static_cast<std::uint64_t>(part);
  return mix64(stream);
}

/// The other query heads of the group, for recipes whose scales are over all of them.
void add_group_queries(std::vector<attention::Problem>& heads) {
  for (std::size_t h = 0; h < heads.size(); ++h) {
    for (std::size_t other = 0; other < heads.size(); ++other) {
      if (other != h) heads[h].group_q.push_back(heads[other].q);
    }
  }
}

}  // namespace

std::vector<Piece> groups_of(const DumpSet& dumps) {
  std::vector<Piece> groups;
  for (const Piece& piece : pieces_of(dumps)) {
    const std::int64_t size = group_size(*dumps.calls()[piece.call].call);
    const Piece group{piece.call, piece.batch, piece.head / size * size};
    const bool is_known = !groups.empty() && groups.back().call == group.call && groups.back().batch == group.batch &&
                          groups.back().head == group.head;
    if (!is_known) groups.push_back(group);
  }
  return groups;
}

std::vector<std::pair<std::size_t, std::int64_t>> group_outputs(const SelectedCall& selected, const Piece& group) {
  const io::AttentionCall& call = *selected.call;
  std::vector<std::pair<std::size_t, std::int64_t>> outputs;
  for (std::int64_t head = group.head; head < group.head + group_size(call); ++head) {
    if (head < selected.first_head || head >= selected.last_head) continue;
    outputs.emplace_back(kO, head);
    outputs.emplace_back(kDq, head);
  }
  outputs.emplace_back(kDk, call.kv_head(group.head));
  outputs.emplace_back(kDv, call.kv_head(group.head));
  return outputs;
}

MatrixD upstream_gradient(const DumpSet& dumps, const SelectedCall& selected, std::int64_t batch, std::int64_t head,
                          std::uint64_t seed) {
  const io::AttentionCall& call = *selected.call;
  if (call.has("do")) return dumps.read_tensor(selected, "do", batch, head);
  const FpEnvironment environment;
  const std::uint64_t stream = upstream_stream(call, batch, head);
  MatrixD upstream(call.q_tokens, call.head_dim);
  for (std::int64_t i = 0; i < upstream.size(); ++i) {
    const double x = random_normal(seed, stream, static_cast<std::uint64_t>(i));
    upstream.data()[i] = format::decode(*call.q_format, format::encode(*call.q_format, x, {}));
  }
  return upstream;
}

GroupMeasurement::GroupMeasurement(const DumpSet& dumps, const Piece& group, std::uint64_t seed)
    : selected_(dumps.calls()[group.call]), call_(*selected_.call), group_(group) {
  for (std::int64_t head = group.head; head < group.head + group_size(call_); ++head) {
    const MatrixD upstream = upstream_gradient(dumps, selected_, group.batch, head, seed);
    std::vector<HeadProblem> problems = dumps.read(selected_, group.batch, head);
    parts_.resize(problems.size());
    for (std::size_t i = 0; i < problems.size(); ++i) {
      Part& part = parts_[i];
      part.first_row = problems[i].first_row;
      part.first_key = problems[i].first_key;
      part.upstream.emplace_back(upstream.middleRows(part.first_row, problems[i].problem.q.rows()));
      part.heads.push_back(std::move(problems[i].problem));
    }
  }
  for (Part& part : parts_) add_group_queries(part.heads);
}

const Gradients& GroupMeasurement::reference_gradients(std::size_t part, const Recipe* reference) {
  const std::string key = reference == nullptr ? "" : recipe_key(*reference);
  const auto found = references_.find({part, key});
  if (found != references_.end()) return found->second;
  const Part& p = parts_[part];
  Gradients gradients =
      reference == nullptr ? attention::reference_gradients(p.heads, p.upstream) : gradients_of(p, *reference);
  return references_.emplace(std::pair(part, key), std::move(gradients)).first->second;
}

Gradients GroupMeasurement::gradients_of(const Part& part, const Recipe& recipe) const {
  const Exceptions exceptions(recipe);
  std::vector<const Recipe*> recipes;
  for (std::size_t h = 0; h < part.heads.size(); ++h) {
    recipes.push_back(&exceptions.effective(call_.path, group_.head + static_cast<std::int64_t>(h)));
  }
  return attention::recipe_gradients(part.heads, part.upstream, recipes, *call_.q_format);
}

std::vector<Measured> GroupMeasurement::measure(const Recipe& recipe, const Recipe* reference) {
  const format::Format& format = output_format(recipe, call_);
  const std::int64_t channels = std::min(call_.head_dim_original, call_.head_dim);
  std::vector<Measured> measured;
  for (const auto& [output, head] : group_outputs(selected_, group_)) {
    measured.push_back({output, head, metric::Accuracy(format)});
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Gradients& exact = reference_gradients(i, reference);
    const Gradients ours = gradients_of(parts_[i], recipe);
    const auto matrix = [](const Gradients& g, std::size_t output, std::size_t index) -> const MatrixD& {
      if (output == kO) return g.o[index];
      if (output == kDq) return g.dq[index];
      return output == kDk ? g.dk : g.dv;
    };
    for (Measured& m : measured) {
      const bool by_query = m.output == kO || m.output == kDq;
      const auto index = static_cast<std::size_t>(by_query ? m.head - group_.head : 0);
      absorb(m.accuracy, format, matrix(ours, m.output, index), matrix(exact, m.output, index), channels,
             {group_.batch, m.head, by_query ? parts_[i].first_row : parts_[i].first_key, 0});
    }
  }
  return measured;
}

std::string GroupMeasurement::first_bad_input() const {
  for (const Part& part : parts_) {
    for (std::size_t h = 0; h < part.heads.size(); ++h) {
      const std::string found = lab::first_bad_input({{part.heads[h], part.first_row, part.first_key}});
      if (!found.empty()) return found;
      if (!part.upstream[h].allFinite()) return "do holds NaN or Inf";
    }
  }
  return "";
}

}  // namespace qattn::lab
