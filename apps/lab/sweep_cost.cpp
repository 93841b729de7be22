// Counting, and timing one small head.
#include "lab/sweep_cost.h"

#include <algorithm>
#include <chrono>

#include "attention/gradient.h"
#include "attention/pipeline.h"
#include "attention/reference.h"

namespace qattn::lab {
namespace {

constexpr Eigen::Index kLargestCalibration = 256;

/// (query, key) pairs of one head or sequence.
std::int64_t visible_pairs(const io::AttentionCall& call, std::int64_t queries, std::int64_t keys) {
  if (!call.is_causal) return queries * keys;
  const std::int64_t shift = call.causal_align == io::CausalAlign::bottom_right ? keys - queries : 0;
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < queries; ++i) pairs += std::clamp<std::int64_t>(i + 1 + shift, 0, keys);
  return pairs;
}

std::int64_t pairs_of(const io::AttentionCall& call) {
  if (call.segments.empty()) return visible_pairs(call, call.q_tokens, call.kv_tokens);
  std::int64_t pairs = 0;
  for (const io::Segment& s : call.segments) pairs += visible_pairs(call, s.q1 - s.q0, s.k1 - s.k0);
  return pairs;
}

/// The first head, or its first tokens when it is long.
attention::Problem small_problem(const DumpSet& dumps) {
  const SelectedCall& call = dumps.calls().front();
  std::vector<HeadProblem> parts = dumps.read(call, 0, call.first_head);
  attention::Problem problem = std::move(parts.front().problem);
  const Eigen::Index queries = std::min(problem.q.rows(), kLargestCalibration);
  const Eigen::Index keys = std::min(problem.k.rows(), kLargestCalibration);
  problem.q.conservativeResize(queries, Eigen::NoChange);
  problem.k.conservativeResize(keys, Eigen::NoChange);
  problem.v.conservativeResize(keys, Eigen::NoChange);
  problem.mask.reset();
  problem.is_causal = false;
  return problem;
}

/// Matrix products of a pass over a head.
std::int64_t products(bool backward) { return backward ? 7 : 2; }

template <class Action>
double nanoseconds(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::int64_t multiply_adds(const DumpSet& dumps, bool backward) {
  std::int64_t total = 0;
  for (const SelectedCall& call : dumps.calls()) {
    const std::int64_t heads = call.call->batch * (call.last_head - call.first_head);
    total += heads * pairs_of(*call.call) * products(backward) * call.call->head_dim;
  }
  return total;
}

std::int64_t head_bytes(const DumpSet& dumps) {
  std::int64_t largest = 0;
  for (const SelectedCall& selected : dumps.calls()) {
    const io::AttentionCall& call = *selected.call;
    // q, k, v, reference and output as float64; the operands twice as float32, before and after quantization.
    const std::int64_t values = call.head_dim * (3 * call.q_tokens + 2 * call.kv_tokens);
    const std::int64_t operands = call.head_dim * (call.q_tokens + 2 * call.kv_tokens);
    const std::int64_t mask = call.has("mask") ? call.q_tokens * call.kv_tokens : 0;
    largest = std::max(largest, 8 * (values + operands + mask));
  }
  return largest;
}

std::vector<double> calibrate(const DumpSet& dumps, std::span<const Trial> trials, bool backward) {
  const attention::Problem problem = small_problem(dumps);
  const format::Format& input = *dumps.calls().front().call->q_format;
  const double work = static_cast<double>(problem.q.rows() * problem.k.rows() * products(backward) * problem.q.cols());
  // Any upstream gradient costs the same.
  const MatrixD& upstream = problem.q;
  std::vector<double> rates;
  for (const Trial& trial : trials) {
    rates.push_back(nanoseconds([&] {
                      if (backward) {
                        attention::recipe_gradients({&problem, 1}, {&upstream, 1}, trial.recipe, input);
                      } else {
                        attention::run_recipe(problem, trial.recipe, input);
                      }
                    }) /
                    work);
  }
  rates.push_back(nanoseconds([&] {
                    if (backward) {
                      attention::reference_gradients({&problem, 1}, {&upstream, 1});
                    } else {
                      attention::reference_attention(problem);
                    }
                  }) /
                  work);
  return rates;
}

}  // namespace qattn::lab
