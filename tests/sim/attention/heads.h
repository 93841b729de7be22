// Small seeded heads for the tests of attention.
#pragma once

#include <cmath>

#include "attention/problem.h"
#include "attention/recipe.h"
#include "base/elementary.h"
#include "base/random.h"
#include "format/encode.h"

namespace qattn::attention::testing {

/// Nearly normal (the sum of twelve uniform numbers, Irwin-Hall), which is enough for test data.
inline double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  double sum = -6.0;
  for (std::uint64_t i = 0; i < 12; ++i) sum += random_unit(seed, stream, 12 * index + i);
  return sum;
}

/// `rows` x `columns` normal values times sigma plus a bias per channel, rounded to FP16.
inline MatrixD normal_matrix(std::uint64_t seed, std::int64_t rows, std::int64_t columns, double sigma = 1.0,
                             double bias = 0.0) {
  MatrixD x(rows, columns);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto channel = static_cast<std::uint64_t>(i % columns);
    const double value = sigma * normal(seed, 1, static_cast<std::uint64_t>(i)) + bias * normal(seed, 2, channel);
    x.data()[i] = format::decode(format::kFP16, format::encode(format::kFP16, value, format::Policy{}));
  }
  return x;
}

inline Problem make_problem(std::uint64_t seed, std::int64_t queries, std::int64_t keys, std::int64_t head_dim,
                            bool is_causal = false, double k_bias = 0.0) {
  Problem problem;
  problem.q = normal_matrix(seed, queries, head_dim);
  problem.k = normal_matrix(seed + 1000, keys, head_dim, 1.0, k_bias);
  problem.v = normal_matrix(seed + 2000, keys, head_dim, 1.0, 0.5);
  problem.sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  problem.is_causal = is_causal;
  return problem;
}

/// A recipe from keys and values.
inline Recipe make_recipe(std::initializer_list<std::pair<std::string_view, std::string_view>> keys) {
  Recipe recipe;
  recipe.name = "test";
  for (const auto& [key, value] : keys) set(recipe, key, value);
  return recipe;
}

}  // namespace qattn::attention::testing
