// Gradients of attention: exact in float64, and those of a recipe.
#pragma once

#include <span>
#include <vector>

#include "attention/problem.h"
#include "attention/recipe.h"

namespace qattn::attention {

/// What the query heads of one key/value head give, forward and backward. One matrix a query head for o [Nq, dv] and
/// dq [Nq, d]; dk [Nk, d] and dv [Nk, dv] are sums over the heads, in their order.
struct Gradients {
  std::vector<MatrixD> o;
  std::vector<MatrixD> dq;
  MatrixD dk;
  MatrixD dv;
};

/// Exact gradients of sum(upstream_h * attention(heads_h)) over the heads: with P the softmax and
/// delta_i = sum_c upstream(i, c) o(i, c), dV = P^T upstream, dS = P * (upstream V^T - delta), dQ = sm_scale dS K,
/// dK = sm_scale dS^T Q. `heads` are the query heads of one group: the same k, v and masks but for an additive one.
/// upstream[h] is [Nq, dv]. Rows stream over the keys: memory is O(N d). Every sum is float64 in ascending order (of
/// channels, keys, queries, heads), so the bits are the same everywhere. A query that sees no key has gradient zero.
/// o is reference_attention()'s for finite inputs; a NaN or Inf spreads to whatever it meets. Throws Error(input) when
/// shapes disagree.
Gradients reference_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream);

/// What a recipe's forward and backward pass give; the order of operations is in gradient_recipe.cpp, step by step.
/// `input_format` is the format of q in the dump. o, dq, dk and dv are numbers of the recipe's output format; the sum
/// over heads is rounded to it once. The same for every machine and thread count. Throws Error(usage) as validate()
/// does.
Gradients recipe_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream, const Recipe& recipe,
                           const format::Format& input_format);

/// The same with a recipe a head: head h gives what recipes[h] gives, forward and backward. Throws Error(usage) unless
/// there is one a head and all have one output format, to which the sums over the heads are rounded.
Gradients recipe_gradients(std::span<const Problem> heads, std::span<const MatrixD> upstream,
                           std::span<const Recipe* const> recipes, const format::Format& input_format);

/// Throws Error(input) unless there is one upstream gradient a head, each of its head's output's shape, and all heads
/// have the shapes of the first.
void check_shapes(std::span<const Problem> heads, std::span<const MatrixD> upstream);

}  // namespace qattn::attention
