// The order of operations stands in fa2_backward.h.
#include "kernels/fa2_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "kernels/atomic_sum.h"
#include "kernels/codes.h"
#include "kernels/forward.h"
#include "kernels/lanes.h"
#include "kernels/numbers.h"
#include "mma/tile.h"
#include "scalar/cast.h"
#include "scalar/constants.h"

namespace qattn::kernels {
namespace {

using Eigen::Index;
using scalar::constants::kLog2E;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The library's kernels: the first head_dim that is large enough.
struct TileSizes {
  int head_dim;
  int queries, keys;
  int small_queries, small_keys;  ///< on cards with 99 KiB of shared memory
};

constexpr TileSizes kTileSizes[] = {{32, 128, 128, 128, 128}, {64, 128, 128, 64, 128}, {96, 64, 128, 64, 128},
                                    {128, 64, 128, 64, 64},   {192, 64, 64, 64, 64},   {256, 64, 64, 64, 32}};

const TileSizes& tile_sizes(std::int64_t head_dim) {
  const auto found =
      std::ranges::find_if(kTileSizes, [head_dim](const TileSizes& sizes) { return head_dim <= sizes.head_dim; });
  if (found == std::end(kTileSizes))
    throw Error(ErrorKind::usage,
                fmt::format("FlashAttention-2's backward pass: head_dim is {}; at most 256", head_dim));
  return *found;
}

/// A factor of a matrix product, with its codes where a rule is tried out.
struct Operand {
  mma::Operand decoded;
  MatrixCodes codes;

  Operand columns(Index first, Index count) const {
    return {decoded.slice(first, first + count),
            codes.size() == 0 ? codes : MatrixCodes(codes.middleCols(first, count))};
  }
};

/// A call, worked out.
struct Plan {
  const Call& call;
  Fa2Backward arithmetic;
  scalar::CastSpec rounding;
  Index query_tile = 0, key_tile = 0;
  Index page = 0;  ///< columns that a row's threads hold at a time
  float scale = 0;
  float score_factor = 0;

  Plan(const Call& given, const Fa2Backward& choices)
      : call(given), arithmetic(choices), rounding(scalar::cast_spec(*given.q.format, scalar::Cast::rn)) {
    const TileSizes& sizes = tile_sizes(call.head_dim());
    const bool small = call.arch == "sm89" || call.arch == "sm120";
    const int queries = small ? sizes.small_queries : sizes.queries, keys = small ? sizes.small_keys : sizes.keys;
    query_tile = arithmetic.query_tile != 0 ? arithmetic.query_tile : queries;
    key_tile = arithmetic.key_tile != 0 ? arithmetic.key_tile : keys;
    page = sizes.head_dim % 64 == 0 ? 64 : 32;
    scale = static_cast<float>(call.sm_scale);
    score_factor = static_cast<float>(static_cast<double>(scale) * 1.4426950408889634074);
    if (arithmetic.dot == nullptr) arithmetic.dot = &instruction_of(call, "mma", *call.q.format, 16);
  }

  Index query_tiles() const { return ceil_div(call.q_tokens(), query_tile); }
  Index key_tiles() const { return ceil_div(call.kv_tokens(), key_tile); }
  /// Keys that a query sees lie before this one.
  Index visible_end(Index query) const {
    return call.is_causal ? std::min(call.kv_tokens(), query + 1 + call.kv_tokens() - call.q_tokens())
                          : call.kv_tokens();
  }
  /// The first query tile that a key tile meets.
  Index first_query_tile(Index key) const {
    if (!call.is_causal) return 0;
    return std::max<Index>(0, key * key_tile + call.q_tokens() - call.kv_tokens()) / query_tile;
  }
  /// The key tiles that add to a query tile are 0 ... this - 1.
  Index key_tiles_of(Index query) const {
    Index count = 0;
    while (count < key_tiles() && first_query_tile(count) <= query) ++count;
    return count;
  }

  std::uint32_t rounded(float x) const { return scalar::cast(rounding, f32_bits(x)); }
  Operand operand(mma::Side side, const MatrixView<std::uint32_t>& codes) const {
    return {{*arithmetic.dot, side, codes}, arithmetic.rule ? MatrixCodes(codes) : MatrixCodes()};
  }
  void accumulate(const Operand& a, const Operand& b, MatrixCodes& c) const {
    if (arithmetic.rule) {
      arithmetic.rule(*arithmetic.dot, a.codes, b.codes, c);
    } else {
      mma::multiply_accumulate(*arithmetic.dot, a.decoded, b.decoded, c);
    }
  }
  MatrixCodes product(const Operand& a, const Operand& b) const {
    MatrixCodes result = MatrixCodes::Zero(a.decoded.rows(), b.decoded.rows());
    accumulate(a, b, result);
    return result;
  }
};

/// Rows of zeros behind the last, up to whole tiles.
MatrixCodes padded(const MatrixCodes& codes, Index tile, Index tiles) {
  MatrixCodes result = MatrixCodes::Zero(tile * tiles, codes.cols());
  result.topRows(codes.rows()) = codes;
  return result;
}

/// One factor whose tiles of rows are multiplied whole, and which is also read along its rows (a sum over tokens).
struct Factor {
  std::vector<Operand> tiles;  ///< [tile, head_dim]
  Operand tokens;              ///< [head_dim, tokens]

  Factor(const Plan& plan, mma::Side side, const MatrixCodes& codes, Index tile)
      : tokens(plan.operand(mma::Side::b, MatrixCodes(codes.transpose()))) {
    for (Index row = 0; row < codes.rows(); row += tile)
      tiles.push_back(plan.operand(side, codes.middleRows(row, tile)));
  }
  Operand tokens_of(Index index, Index tile) const { return tokens.columns(index * tile, tile); }
};

/// The terms of dQ of one head: for each query tile the f32 blocks [key tile][query][column].
using HeadTerms = std::vector<std::vector<float>>;

/// One query head.
class HeadGradients {
 public:
  HeadGradients(const Plan& plan, Index batch, Index head, const Returned& forward)
      : plan_(plan),
        q_(plan, mma::Side::b, queries(plan.call.q, batch, head), plan.query_tile),
        d_o_(plan, mma::Side::b, queries(*plan.call.d_o, batch, head), plan.query_tile),
        k_(plan, mma::Side::a, keys(plan.call.k, batch, head), plan.key_tile),
        v_(plan, mma::Side::a, keys(plan.call.v, batch, head), plan.key_tile),
        lse_(static_cast<std::size_t>(plan.query_tiles() * plan.query_tile), kInf),
        delta_(lse_.size(), 0.0f),
        dk(plan.key_tiles() * plan.key_tile, plan.call.head_dim()),
        dv(dk.rows(), dk.cols()) {
    const Tensor& lse = forward.tensors.at("lse");
    const Index first = (batch * plan.call.q_heads() + head) * plan.call.q_tokens();
    for (Index i = 0; i < plan.call.q_tokens(); ++i) {
      const float row = f32_value(static_cast<std::uint32_t>(lse.code(first + i)));
      lse_[static_cast<std::size_t>(i)] = row == -kInf ? 0.0f : row * kLog2E;
    }
    set_delta(
        decode_matrix_float(*plan.call.d_o, first * plan.call.head_dim(), plan.call.q_tokens(), plan.call.head_dim()),
        decode_matrix_float(forward.tensors.at("o"), first * plan.call.head_dim(), plan.call.q_tokens(),
                            plan.call.head_dim()));
    for (Index query = 0; query < plan.query_tiles(); ++query)
      terms.emplace_back(static_cast<std::size_t>(plan.key_tiles_of(query) * plan.query_tile * plan.call.head_dim()));
    parallel_for(plan.key_tiles(), plan.call.threads, [this](std::int64_t key) { key_block(key); });
  }

 private:
  MatrixCodes queries(const Tensor& tensor, Index batch, Index head) const {
    return padded(head_codes(tensor, batch, head), plan_.query_tile, plan_.query_tiles());
  }
  MatrixCodes keys(const Tensor& tensor, Index batch, Index head) const {
    const Index kv_head = head / (plan_.call.q_heads() / plan_.call.kv_heads());
    return padded(head_codes(tensor, batch, kv_head), plan_.key_tile, plan_.key_tiles());
  }

  void set_delta(const MatrixF& d_o, const MatrixF& o) {
    std::vector<float> lanes(static_cast<std::size_t>(plan_.page / 8));
    for (Index row = 0; row < o.rows(); ++row) {
      std::ranges::fill(lanes, 0.0f);
      for (Index column = 0; column < o.cols(); ++column)
        lanes[static_cast<std::size_t>(column % plan_.page / 8)] += d_o(row, column) * o(row, column);  // exact
      delta_[static_cast<std::size_t>(row)] = butterfly(lanes, plan_.arithmetic.delta_far_lanes_first);
    }
  }

  void key_block(Index key) {
    MatrixCodes dk_sum = MatrixCodes::Zero(plan_.key_tile, plan_.call.head_dim()), dv_sum = dk_sum;
    const Index first = plan_.first_query_tile(key), last = plan_.query_tiles() - 1;
    for (Index step = 0; step <= last - first; ++step) {
      const Index query = plan_.arithmetic.descending_queries ? last - step : first + step;
      pair(query, key, dk_sum, dv_sum);
    }
    const auto finished = [this](const MatrixCodes& sum, float factor) {
      return sum.unaryExpr([this, factor](std::uint32_t x) { return plan_.rounded(f32_value(x) * factor); }).eval();
    };
    dk.middleRows(key * plan_.key_tile, plan_.key_tile) = finished(dk_sum, plan_.scale);
    dv.middleRows(key * plan_.key_tile, plan_.key_tile) = finished(dv_sum, 1);
  }

  /// One pair of tiles; everything is held transposed, a row a key.
  void pair(Index query, Index key, MatrixCodes& dk_sum, MatrixCodes& dv_sum) {
    const auto q = static_cast<std::size_t>(query), k = static_cast<std::size_t>(key);
    MatrixCodes p = probabilities(query, key, plan_.product(k_.tiles[k], q_.tiles[q]));
    const MatrixCodes ds = score_gradients(query, p, plan_.product(v_.tiles[k], d_o_.tiles[q]));
    p = p.unaryExpr([this](std::uint32_t x) { return plan_.rounded(f32_value(x)); }).eval();
    plan_.accumulate(plan_.operand(mma::Side::a, p), d_o_.tokens_of(query, plan_.query_tile), dv_sum);
    plan_.accumulate(plan_.operand(mma::Side::a, ds), q_.tokens_of(query, plan_.query_tile), dk_sum);
    const MatrixCodes dq =
        plan_.product(plan_.operand(mma::Side::a, MatrixCodes(ds.transpose())), k_.tokens_of(key, plan_.key_tile));
    const auto size = static_cast<std::size_t>(dq.size());
    from_bits({dq.data(), size}, std::span(terms[q]).subspan(k * size, size));
  }

  /// The bits of P from the scores.
  MatrixCodes probabilities(Index query_tile, Index key_tile, MatrixCodes scores) const {
    for (Index i = 0; i < scores.cols(); ++i) {
      const Index query = query_tile * plan_.query_tile + i;
      const Index visible = plan_.visible_end(query) - key_tile * plan_.key_tile;
      const float lse = lse_[static_cast<std::size_t>(query)];
      for (Index j = 0; j < scores.rows(); ++j) {
        const float s = j < visible ? f32_value(scores(j, i)) : -kInf;
        const float x =
            plan_.arithmetic.fuse_exponent ? std::fma(s, plan_.score_factor, -lse) : s * plan_.score_factor - lse;
        scores(j, i) = f32_bits(x);
      }
    }
    const std::span<std::uint32_t> all(scores.data(), static_cast<std::size_t>(scores.size()));
    plan_.arithmetic.ex2(all, all);
    return scores;
  }

  MatrixCodes score_gradients(Index query_tile, const MatrixCodes& p, MatrixCodes dp) const {
    for (Index j = 0; j < dp.rows(); ++j) {
      for (Index i = 0; i < dp.cols(); ++i) {
        const float delta = delta_[static_cast<std::size_t>(query_tile * plan_.query_tile + i)];
        const float weight =
            plan_.arithmetic.ds_from_rounded_p ? half_precision(f32_value(p(j, i))) : f32_value(p(j, i));
        const float gradient = f32_value(dp(j, i));
        dp(j, i) = plan_.rounded(plan_.arithmetic.fuse_ds ? std::fma(weight, gradient, -(weight * delta))
                                                          : weight * (gradient - delta));
      }
    }
    return dp;
  }

  float half_precision(float x) const { return format::decode_float(*plan_.call.q.format, plan_.rounded(x)); }

  const Plan& plan_;
  Factor q_, d_o_, k_, v_;
  std::vector<float> lse_;    ///< RN(lse log2(e)); Inf for rows that are not there
  std::vector<float> delta_;  ///< 0 there

 public:
  MatrixCodes dk, dv;  ///< 16-bit codes [padded keys, head_dim]
  HeadTerms terms;
};

/// The sums over key tiles that are dQ.
class QuerySums {
 public:
  QuerySums(const Plan& plan, std::vector<HeadTerms> terms)
      : terms_(std::move(terms)),

        rounding_(plan.rounding),
        scale_(plan.scale),
        tokens_(plan.call.q_tokens()),
        head_dim_(plan.call.head_dim()),
        query_tile_(plan.query_tile) {}

  /// How many key tiles add to element `index` of [B, Hq, Nq, D].
  std::size_t tiles(Index index) const { return block_of(index).size() / block_size(); }

  std::uint32_t code(Index index, const AdditionOrder& order) const {
    const Index row = index / head_dim_ % tokens_ % query_tile_;
    const float* terms = block_of(index).data() + row * head_dim_ + index % head_dim_;
    return scalar::cast(rounding_, f32_bits(atomic_sum(terms, block_size(), order) * scale_));
  }

  bool reachable(Index index, std::uint64_t wanted) const {
    const FpEnvironment environment;
    return std::ranges::any_of(addition_orders(tiles(index)), [this, index, wanted](const AdditionOrder& order) {
      return code(index, order) == wanted;
    });
  }

 private:
  std::size_t block_size() const { return static_cast<std::size_t>(query_tile_ * head_dim_); }
  const std::vector<float>& block_of(Index index) const {
    const Index row = index / head_dim_;
    return terms_[static_cast<std::size_t>(row / tokens_)][static_cast<std::size_t>(row % tokens_ / query_tile_)];
  }

  std::vector<HeadTerms> terms_;  ///< by batch and head
  scalar::CastSpec rounding_;
  float scale_;
  Index tokens_, head_dim_, query_tile_;
};

void set_query_gradient(const Call& call, std::shared_ptr<const QuerySums> sums, Returned& returned) {
  Tensor dq = make_tensor(*call.q.format, call.q.shape);
  std::size_t most = 0;
  std::int64_t fixed = 0;
  for (std::int64_t i = 0; i < dq.elements(); ++i) {
    const std::size_t tiles = sums->tiles(i);
    most = std::max(most, tiles);
    if (tiles <= 2) ++fixed;
    dq.set_code(i, sums->code(i, addition_orders(tiles).front()));
  }
  returned.tensors["dq"] = std::move(dq);
  if (most <= 2) return;
  OrderFree& order_free = returned.order_free["dq"];
  order_free.fixed = fixed;
  order_free.orders = describe_orders(most) + (call.is_causal ? " or fewer key tiles" : " key tiles");
  order_free.reachable = [sums = std::move(sums)](std::int64_t index, std::uint64_t code) {
    return sums->reachable(index, code);
  };
}

/// A group's 16-bit gradients added as torch.sum adds a dimension that is not the innermost: element i goes to running
/// sum i mod 4, the four are added ascending.
MatrixCodes group_sum(const Plan& plan, std::span<const MatrixCodes> heads) {
  if (heads.size() == 1) return heads[0];
  MatrixCodes result(heads[0].rows(), heads[0].cols());
  for (Index i = 0; i < result.size(); ++i) {
    std::array<float, 4> sums{};
    for (std::size_t head = 0; head < heads.size(); ++head)
      sums[head % 4] += format::decode_float(*plan.call.q.format, heads[head].data()[i]);
    result.data()[i] = plan.rounded(((sums[0] + sums[1]) + sums[2]) + sums[3]);
  }
  return result;
}

void store_keys(Tensor& tensor, Index kv_head, const MatrixCodes& codes) {
  const Index size = tensor.shape[2] * tensor.shape[3];
  store_codes(tensor, kv_head * size, {codes.data(), static_cast<std::size_t>(size)});
}

void state_backward_evidence(const Call& call, Returned& returned) {
  std::string reasons;
  const auto add = [&reasons](bool is_beyond, std::string_view reason) {
    if (is_beyond) reasons.append(reasons.empty() ? "" : ", ").append(reason);
  };
  add(call.head_dim() != 64 && call.head_dim() != 128, fmt::format("head_dim {}", call.head_dim()));
  add(call.q_heads() != call.kv_heads(), "grouped heads");
  add(call.q_tokens() != call.kv_tokens(), "unequal lengths");
  add(call.batch() > 1, "a batch");
  if (reasons.empty()) return;
  if (!returned.predicted) returned.evidence = "o, lse measured here (H200)";
  returned.predicted = true;
  returned.evidence += fmt::format("; gradients predicted: not compared with {}", reasons);
}

}  // namespace

void ex2_approx(scalar::Codes32 x, std::span<std::uint32_t> y) {
  scalar::apply(scalar::SimdFunction::ex2_approx, x, y);
}

void add_fa2_backward(const Call& call, Returned& returned, const Fa2Backward& arithmetic) {
  const FpEnvironment environment;
  if (!call.d_o) throw Error(ErrorKind::usage, "FlashAttention-2's backward pass: the call has no do");
  const Plan plan(call, arithmetic);
  Tensor dk = make_tensor(*call.k.format, call.k.shape), dv = dk;
  std::vector<HeadTerms> terms;
  const Index group = call.q_heads() / call.kv_heads();
  for (Index kv_head = 0; kv_head < call.batch() * call.kv_heads(); ++kv_head) {
    std::vector<MatrixCodes> dk_of_heads, dv_of_heads;
    for (Index member = 0; member < group; ++member) {
      HeadGradients head(plan, kv_head / call.kv_heads(), kv_head % call.kv_heads() * group + member, returned);
      dk_of_heads.push_back(std::move(head.dk));
      dv_of_heads.push_back(std::move(head.dv));
      terms.push_back(std::move(head.terms));
    }
    store_keys(dk, kv_head, group_sum(plan, dk_of_heads));
    store_keys(dv, kv_head, group_sum(plan, dv_of_heads));
  }
  returned.tensors["dk"] = std::move(dk);
  returned.tensors["dv"] = std::move(dv);
  set_query_gradient(call, std::make_shared<const QuerySums>(plan, std::move(terms)), returned);
  state_backward_evidence(call, returned);
}

}  // namespace qattn::kernels
