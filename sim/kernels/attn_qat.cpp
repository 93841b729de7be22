// The order of operations stands in attn_qat.h.
#include "kernels/attn_qat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "format/encode.h"
#include "kernels/codes.h"
#include "kernels/families.h"
#include "kernels/forward.h"
#include "kernels/lanes.h"
#include "kernels/numbers.h"
#include "mma/tile.h"
#include "scalar/cast.h"

namespace qattn::kernels::attn_qat {
namespace {

using Eigen::Index;

constexpr std::string_view kName = "fastvideo.attn_qat";
constexpr Index kTile = 32;
constexpr Index kGroup = 16;         ///< elements that share an E4M3 scale
constexpr float kHidden = -1e6F;     ///< the score of a masked key
constexpr float kLargest = 2688.0F;  ///< 6 * 448, what a group's maximum is mapped to by a factor

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::usage, fmt::format("{}: {}", kName, why)); }

constexpr scalar::CastSpec kToBf16 = scalar::cast_spec(format::kBF16, scalar::Cast::rn);
constexpr scalar::CastSpec kToE4m3 = scalar::cast_spec(format::kE4M3, scalar::Cast::rn_satfinite);
constexpr scalar::CastSpec kToE2m1 = scalar::cast_spec(format::kE2M1, scalar::Cast::rn_satfinite);

std::uint32_t bf16_code(float x) { return scalar::cast(kToBf16, f32_bits(x)); }
float bf16_value(std::uint32_t code) { return f32_value(code << 16); }
float bf16(float x) { return bf16_value(bf16_code(x)); }

/// max.f32: the number where one of the two is NaN.
float larger(float a, float b) { return a > b || std::isnan(b) ? a : b; }

MatrixF bf16_values(const MatrixCodes& codes) { return codes.unaryExpr(&bf16_value); }
MatrixCodes bf16_codes(const MatrixF& x) { return x.unaryExpr(&bf16_code); }
MatrixCodes transposed(const MatrixCodes& codes) { return codes.transpose(); }

/// Where the columns of a tile go whose keys k mod 4 in {0, 1} enter the first product, the others the second.
MatrixCodes interleaved(const MatrixCodes& codes) {
  MatrixCodes result(codes.rows(), codes.cols());
  for (Index key = 0; key < codes.cols(); ++key) {
    const Index within = key % kTile;
    const Index place = within % 4 / 2 * (kTile / 2) + within / 4 * 2 + within % 2;
    result.col(key - within + place) = codes.col(key);
  }
  return result;
}

constexpr std::plus<float> kAdd;
constexpr auto kAddBf16 = [](float a, float b) { return bf16(a + b); };

/// A row of a tile as its threads hold it: 4 warps side by side, 4 lanes each, 2 columns a lane. `pair(column)` is what
/// a thread makes of its columns `column` and `column + 1`.
template <class Pair, class Add>
float tile_row_sum(Pair pair, bool far_lanes_first, bool far_warps_first, Add add) {
  std::array<float, 4> warps;
  for (std::size_t warp = 0; warp < 4; ++warp) {
    std::array<float, 4> lanes;
    for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] = pair(static_cast<Index>(8 * warp + 2 * lane));
    warps[warp] = butterfly(lanes, far_lanes_first, add);
  }
  return butterfly(warps, far_warps_first, add);
}

/// PTX's div.full.f32.
float div_full(float a, float b, const Arithmetic& arithmetic) {
  const float magnitude = std::fabs(b);
  const float k = magnitude > 0x1p126F ? 0.25F : magnitude < 0x1p-126F ? 0x1p24F : 1.0F;
  return arithmetic.rcp(k * b) * (k * a);
}

/// What a group's maximum is multiplied by before its scale is rounded, and the scale after.
struct Factor {
  float encode = 1;
  float decode = 1;
};

Factor factor_of(float largest, const Arithmetic& arithmetic) {
  const float encode = div_full(kLargest, larger(largest, 1e-8F), arithmetic);
  return {encode, div_full(1, encode, arithmetic)};
}

enum class FactorOf : std::uint8_t { nothing, row, tile };

/// Fake quantization of tiles of kTile rows by `tile_columns` columns.
struct FakeQuantizer {
  const Arithmetic& arithmetic;
  FactorOf factor_of_what;
  Index tile_columns;
  bool bf16_source;

  MatrixCodes operator()(const MatrixF& x) const {
    MatrixCodes codes(x.rows(), x.cols());
    for (Index row0 = 0; row0 < x.rows(); row0 += kTile) {
      for (Index column0 = 0; column0 < x.cols(); column0 += tile_columns) {
        const auto tile = x.block(row0, column0, kTile, tile_columns);
        Factor factor;
        if (factor_of_what == FactorOf::tile) factor = factor_of(largest(tile), arithmetic);
        for (Index row = 0; row < kTile; ++row) {
          if (factor_of_what == FactorOf::row) factor = factor_of(largest(tile.row(row)), arithmetic);
          for (Index column = column0; column < column0 + tile_columns; column += kGroup)
            group(&x(row0 + row, column), factor, &codes(row0 + row, column));
        }
      }
    }
    return codes;
  }

 private:
  template <class Block>
  static float largest(const Block& block) {
    float result = 0;
    for (Index i = 0; i < block.rows(); ++i) {
      for (Index j = 0; j < block.cols(); ++j) result = larger(result, std::fabs(block(i, j)));
    }
    return result;
  }

  std::uint32_t e2m1(float y) const {
    const std::uint32_t magnitude = f32_bits(y) & ~scalar::kSign;
    const bool forgotten = arithmetic.forget_shifted_bits && bf16_source;
    if (forgotten && magnitude > f32_bits(0.25F) && magnitude <= f32_bits(0.25F) + 3) return f32_bits(y) >> 31 << 3;
    return scalar::cast(kToE2m1, f32_bits(y));
  }

  void group(const float* x, const Factor& factor, std::uint32_t* codes) const {
    float amax = 0;
    for (Index i = 0; i < kGroup; ++i) amax = larger(amax, std::fabs(x[i]));
    const float sixth = arithmetic.multiply_by_sixth ? amax * (1.0F / 6.0F) : amax / 6.0F;
    const std::uint32_t scale_code = scalar::cast(kToE4m3, f32_bits(sixth * factor.encode));
    const float scale = format::decode_float(format::kE4M3, scale_code);
    const float inverse = div_full(1, scale * factor.decode, arithmetic);
    for (Index i = 0; i < kGroup; ++i) {
      const float element = format::decode_float(format::kE2M1, e2m1(x[i] * inverse));
      codes[i] = bf16_code(element * scale * factor.decode);
    }
  }
};

/// A call, worked out.
struct Plan {
  Options options;
  Arithmetic arithmetic;
  bool causal = false;
  Index heads = 0;  ///< over all batches
  Index q_tokens = 0, kv_tokens = 0, head_dim = 0;
  float scale = 0;
  float score_factor = 0;     ///< scale log2(e)
  std::vector<float> k_mean;  ///< [head_dim], empty without smooth_k
  int threads = 0;

  Index q_tiles() const { return ceil_div(q_tokens, kTile); }
  Index kv_tiles() const { return ceil_div(kv_tokens, kTile); }
  /// Unequal lengths have backward kernels of their own, which know no mask.
  bool cross() const { return q_tokens != kv_tokens; }
  bool causal_backward() const { return causal && !cross(); }

  FakeQuantizer p_quantizer() const {
    const FactorOf factor = options.two_level_p      ? FactorOf::row
                            : options.global_scale_p ? FactorOf::tile
                                                     : FactorOf::nothing;
    return {arithmetic, factor, kTile, false};
  }
  FakeQuantizer qkv_quantizer() const {
    return {arithmetic, options.global_scale_qkv ? FactorOf::tile : FactorOf::nothing, head_dim, true};
  }

  mma::Operand operand(mma::Side side, const MatrixView<std::uint32_t>& codes) const {
    return {*arithmetic.dot, side, codes};
  }
  /// Rows of `rows` by rows of `columns`, from zero.
  MatrixCodes product(const MatrixView<std::uint32_t>& rows, const mma::Operand& columns) const {
    MatrixCodes result = MatrixCodes::Zero(rows.rows(), columns.rows());
    mma::multiply_accumulate(*arithmetic.dot, operand(mma::Side::a, rows), columns, result);
    return result;
  }
  /// The product of one tile of each factor, columns [32 tile, 32 tile + 32), into the accumulator.
  void accumulate(const mma::Operand& a, Index a_tile, const mma::Operand& b, Index b_tile, MatrixCodes& c) const {
    const mma::Operand left = a.slice(a_tile * kTile, (a_tile + 1) * kTile);
    const mma::Operand right = b.slice(b_tile * kTile, (b_tile + 1) * kTile);
    if (arithmetic.chain_tiles) {
      mma::multiply_accumulate(*arithmetic.dot, left, right, c);
      return;
    }
    MatrixCodes partial = MatrixCodes::Zero(c.rows(), c.cols());
    mma::multiply_accumulate(*arithmetic.dot, left, right, partial);
    for (Index i = 0; i < c.size(); ++i) c.data()[i] = f32_bits(f32_value(c.data()[i]) + f32_value(partial.data()[i]));
  }
};

MatrixCodes scaled_bf16(const MatrixCodes& accumulator, float factor) {
  return accumulator.unaryExpr([factor](std::uint32_t code) { return bf16_code(f32_value(code) * factor); });
}

/// One head's q, k and v as bfloat16 codes, tokens padded with zeros to whole tiles.
struct HeadInputs {
  MatrixCodes q, k, v;
};

// ---- forward -------------------------------------------------------------------------------------------------------

class Forward {
 public:
  /// `trace`: the row of this head whose stages are wanted, or nullptr.
  Forward(const Plan& plan, const HeadInputs& inputs, RowTrace* trace)
      : plan_(plan),
        trace_(trace),
        q_(inputs.q),
        k_(plan.operand(mma::Side::b, inputs.k)),
        v_(plan.operand(mma::Side::b, transposed(inputs.v))),
        v_for_quantized_(
            plan.arithmetic.interleave_p_forward ? plan.operand(mma::Side::b, interleaved(transposed(inputs.v))) : v_),
        o(MatrixCodes::Zero(inputs.q.rows(), plan.head_dim)),
        high_precision_o(o),
        m(static_cast<std::size_t>(inputs.q.rows())) {
    parallel_for(plan.q_tiles(), plan.threads, [this](std::int64_t tile) { query_tile(tile); });
    // Loads beyond the last row give zeros.
    std::fill(m.begin() + plan.q_tokens, m.end(), 0.0F);
  }

 private:
  /// The state of 32 query rows.
  struct Rows {
    Index first;
    std::array<float, kTile> m, l;
    MatrixCodes o, high_precision_o;
  };

  void query_tile(Index tile) {
    const Index key_tiles = plan_.causal ? std::min(tile + 1, plan_.kv_tiles()) : plan_.kv_tiles();
    const MatrixCodes scores = plan_.product(q_.middleRows(tile * kTile, kTile), k_);
    Rows rows{tile * kTile, {}, {}, MatrixCodes::Zero(kTile, plan_.head_dim), {}};
    rows.high_precision_o = rows.o;
    rows.m.fill(-std::numeric_limits<float>::infinity());
    rows.l.fill(1);
    for (Index key_tile = 0; key_tile < key_tiles; ++key_tile) {
      const MatrixF p = softmax(rows, scores, key_tile, plan_.causal && key_tile == tile);
      add_values(rows, p, key_tile);
      if (traces(rows)) trace_tile(rows, scores, p, key_tile);
    }
    for (Index row = 0; row < kTile; ++row) finish(rows, row);
  }

  /// Moves the rows' maxima on and rescales what they hold; the tile's p.
  MatrixF softmax(Rows& rows, const MatrixCodes& scores, Index key_tile, bool diagonal) const {
    MatrixF p(kTile, kTile);
    std::array<float, kTile> rescale;
    for (Index row = 0; row < kTile; ++row) {
      float* x = &p(row, 0);
      const float largest = masked_scores(rows.first + row, scores, row, key_tile, diagonal, x);
      float& row_max = rows.m[static_cast<std::size_t>(row)];
      const float now = larger(row_max, diagonal ? largest : largest * plan_.score_factor);
      for (Index key = 0; key < kTile; ++key) x[key] = diagonal ? x[key] - now : exponent(x[key], now);
      rescale[static_cast<std::size_t>(row)] = std::exchange(row_max, now) - now;
    }
    plan_.arithmetic.ex2({p.data(), static_cast<std::size_t>(p.size())},
                         {p.data(), static_cast<std::size_t>(p.size())});
    plan_.arithmetic.ex2(rescale, rescale);
    for (Index row = 0; row < kTile; ++row) {
      const float factor = rescale[static_cast<std::size_t>(row)];
      for (MatrixCodes* held : {&rows.o, &rows.high_precision_o}) {
        for (Index column = 0; column < plan_.head_dim; ++column)
          (*held)(row, column) = f32_bits(f32_value((*held)(row, column)) * factor);
      }
      float& l = rows.l[static_cast<std::size_t>(row)];
      const float sum = row_sum(&p(row, 0));
      l = plan_.arithmetic.fuse_sum ? std::fma(l, factor, sum) : l * factor + sum;
    }
    return p;
  }

  /// One row of the tile's scores and their maximum; on the diagonal already times the factor, one fma with the mask.
  float masked_scores(Index query, const MatrixCodes& scores, Index row, Index key_tile, bool diagonal,
                      float* x) const {
    float largest = -std::numeric_limits<float>::infinity();
    for (Index i = 0; i < kTile; ++i) {
      const Index key = key_tile * kTile + i;
      const bool hidden = key >= plan_.kv_tokens || (diagonal && key > query);
      const float s = f32_value(scores(row, key));
      x[i] = diagonal ? std::fma(s, plan_.score_factor, hidden ? kHidden : 0.0F) : hidden ? kHidden : s;
      largest = larger(largest, x[i]);
    }
    return largest;
  }

  float exponent(float s, float row_max) const {
    return plan_.arithmetic.fuse_forward_exponent ? std::fma(s, plan_.score_factor, -row_max)
                                                  : s * plan_.score_factor - row_max;
  }

  float row_sum(const float* p) const {
    const Arithmetic& arithmetic = plan_.arithmetic;
    if (!arithmetic.sum_in_bf16) {
      return tile_row_sum([p](Index i) { return bf16(p[i]) + bf16(p[i + 1]); }, arithmetic.sum_far_lanes_first, true,
                          kAdd);
    }
    return tile_row_sum([p](Index i) { return kAddBf16(bf16(p[i]), bf16(p[i + 1])); }, arithmetic.sum_far_lanes_first,
                        true, kAddBf16);
  }

  void add_values(Rows& rows, const MatrixF& p, Index key_tile) const {
    const MatrixCodes quantized = plan_.p_quantizer()(p);
    const bool interleave = plan_.arithmetic.interleave_p_forward;
    plan_.accumulate(plan_.operand(mma::Side::a, interleave ? interleaved(quantized) : quantized), 0, v_for_quantized_,
                     key_tile, rows.o);
    plan_.accumulate(plan_.operand(mma::Side::a, bf16_codes(p)), 0, v_, key_tile, rows.high_precision_o);
  }

  bool traces(const Rows& rows) const { return trace_ != nullptr && trace_->row / kTile * kTile == rows.first; }

  void trace_tile(const Rows& rows, const MatrixCodes& scores, const MatrixF& p, Index key_tile) const {
    const Index row = trace_->row - rows.first;
    const auto add = [this, key_tile](std::string_view name, const auto& values) {
      trace_->stages.push_back({fmt::format("tile {} {}", key_tile, name), {values.begin(), values.end()}});
    };
    const auto one = [](float x) { return std::array{x}; };
    const auto numbers = [row](const MatrixCodes& codes, float (*number)(std::uint32_t)) {
      std::vector<float> result;
      for (Index i = 0; i < codes.cols(); ++i) result.push_back(number(codes(row, i)));
      return result;
    };
    add("scores", numbers(scores.middleCols(key_tile * kTile, kTile), f32_value));
    add("row maximum", one(rows.m[static_cast<std::size_t>(row)]));
    add("P", std::span(&p(row, 0), kTile));
    add("P quantized", numbers(plan_.p_quantizer()(p), bf16_value));
    add("row sum", one(rows.l[static_cast<std::size_t>(row)]));
    add("O", numbers(rows.o, f32_value));
    add("O of the unquantized P", numbers(rows.high_precision_o, f32_value));
  }

  void finish(const Rows& rows, Index row) {
    const Arithmetic& arithmetic = plan_.arithmetic;
    const Index query = rows.first + row;
    const float l = rows.l[static_cast<std::size_t>(row)];
    const auto divided = [&arithmetic, l](std::uint32_t code) {
      return bf16_code(arithmetic.divide_output ? f32_value(code) / l : div_full(f32_value(code), l, arithmetic));
    };
    for (Index column = 0; column < plan_.head_dim; ++column) {
      o(query, column) = divided(rows.o(row, column));
      high_precision_o(query, column) = divided(rows.high_precision_o(row, column));
    }
    m[static_cast<std::size_t>(query)] = rows.m[static_cast<std::size_t>(row)] + arithmetic.log2(l);
  }

  const Plan& plan_;
  RowTrace* trace_;
  const MatrixCodes& q_;
  mma::Operand k_, v_, v_for_quantized_;

 public:
  MatrixCodes o, high_precision_o;  ///< bfloat16 [padded query tokens, head_dim]
  std::vector<float> m;             ///< [padded query tokens], base 2
};

// ---- backward ------------------------------------------------------------------------------------------------------

/// rowsum(dO o): a thread adds 8 adjacent columns ascending, then the threads of a row exchange.
std::vector<float> row_dots(const MatrixCodes& d_o, const MatrixCodes& o, const Arithmetic& arithmetic) {
  std::vector<float> delta;
  std::vector<float> lanes(static_cast<std::size_t>(o.cols() / 8));
  for (Index row = 0; row < o.rows(); ++row) {
    for (Index column = 0; column < o.cols(); ++column) {
      const float term = bf16_value(d_o(row, column)) * bf16_value(o(row, column));  // exact
      float& lane = lanes[static_cast<std::size_t>(column / 8)];
      lane = column % 8 == 0 ? term : lane + term;
    }
    delta.push_back(butterfly(lanes, arithmetic.delta_far_lanes_first));
  }
  return delta;
}

class Backward {
 public:
  Backward(const Plan& plan, const HeadInputs& inputs, const MatrixCodes& d_o, const std::vector<float>& m,
           const std::vector<float>& delta)
      : plan_(plan),
        inputs_(inputs),
        d_o_codes_(d_o),
        m_(m),
        delta_(delta),
        q_(plan.operand(mma::Side::b, inputs.q)),
        k_(plan.operand(mma::Side::b, inputs.k)),
        v_(plan.operand(mma::Side::b, inputs.v)),
        d_o_(plan.operand(mma::Side::b, d_o)),
        q_transposed_(plan.operand(mma::Side::b, transposed(inputs.q))),
        k_transposed_(plan.operand(mma::Side::b, transposed(inputs.k))),
        d_o_transposed_(plan.operand(mma::Side::b, interleave() ? interleaved(transposed(d_o)) : transposed(d_o))),
        dq(MatrixCodes::Zero(inputs.q.rows(), plan.head_dim)),
        dk(MatrixCodes::Zero(inputs.k.rows(), plan.head_dim)),
        dv(dk) {
    parallel_for(plan.kv_tiles(), plan.threads, [this](std::int64_t tile) { key_program(tile); });
    parallel_for(plan.q_tiles(), plan.threads, [this](std::int64_t tile) { query_program(tile); });
  }

 private:
  /// Scores of a range of queries and keys, and what follows from them.
  struct Cells {
    MatrixF p, t, ds;  ///< t = dP - delta, ds = p t, both rounded to f32
  };

  bool interleave() const { return plan_.options.fake_quant_p_backward && plan_.arithmetic.interleave_p_backward; }

  Cells cells(const MatrixCodes& scores, const MatrixCodes& dp, Index query0, Index key0) const {
    Cells cells{MatrixF(scores.rows(), scores.cols()), MatrixF(scores.rows(), scores.cols()), {}};
    for (Index i = 0; i < scores.rows(); ++i) {
      const Index query = query0 + i;
      const float m = m_[static_cast<std::size_t>(query)], delta = delta_[static_cast<std::size_t>(query)];
      for (Index j = 0; j < scores.cols(); ++j) {
        cells.p(i, j) = exponent(f32_value(scores(i, j)), m, query, key0 + j);
        cells.t(i, j) = f32_value(dp(i, j)) - delta;
      }
    }
    const auto size = static_cast<std::size_t>(cells.p.size());
    plan_.arithmetic.ex2({cells.p.data(), size}, {cells.p.data(), size});
    const MatrixF p = plan_.arithmetic.ds_from_quantized_p ? bf16_values(plan_.p_quantizer()(cells.p)) : cells.p;
    cells.ds = p.cwiseProduct(cells.t);
    if (plan_.arithmetic.fuse_ds) fuse_ds(cells, dp, query0);
    return cells;
  }

  float exponent(float s, float m, Index query, Index key) const {
    const bool diagonal = plan_.causal_backward() && query / kTile == key / kTile;
    if (diagonal) return (key > query ? kHidden : s * plan_.score_factor) - m;
    return plan_.arithmetic.fuse_backward_exponent ? std::fma(s, plan_.score_factor, -m) : s * plan_.score_factor - m;
  }

  void fuse_ds(Cells& cells, const MatrixCodes& dp, Index query0) const {
    for (Index i = 0; i < dp.rows(); ++i) {
      const float delta = delta_[static_cast<std::size_t>(query0 + i)];
      for (Index j = 0; j < dp.cols(); ++j)
        cells.ds(i, j) = std::fma(cells.p(i, j), f32_value(dp(i, j)), -(cells.p(i, j) * delta));
    }
  }

  static std::vector<Index> ordered(std::vector<Index> tiles, bool ascending) {
    if (!ascending) std::reverse(tiles.begin(), tiles.end());
    return tiles;
  }

  static std::vector<Index> range(Index begin, Index end) {
    std::vector<Index> tiles;
    for (Index tile = begin; tile < end; ++tile) tiles.push_back(tile);
    return tiles;
  }

  /// dK and dV of 32 keys; with a mask from their own queries on.
  void key_program(Index tile) {
    const Index first = plan_.causal_backward() ? tile : 0;
    const auto keys = inputs_.k.middleRows(tile * kTile, kTile);
    const auto values = inputs_.v.middleRows(tile * kTile, kTile);
    const Cells cells =
        this->cells(transposed(plan_.product(keys, q_)), transposed(plan_.product(values, d_o_)), 0, tile * kTile);
    MatrixCodes p =
        transposed(plan_.options.fake_quant_p_backward ? plan_.p_quantizer()(cells.p) : bf16_codes(cells.p));
    if (interleave()) p = interleaved(p);
    const mma::Operand left_p = plan_.operand(mma::Side::a, p);
    const mma::Operand left_ds = plan_.operand(mma::Side::a, transposed(bf16_codes(cells.ds)));
    MatrixCodes dk_sum = MatrixCodes::Zero(kTile, plan_.head_dim), dv_sum = dk_sum;
    const std::vector<Index> queries = range(first, plan_.q_tiles());
    for (const Index query : ordered(queries, plan_.arithmetic.ascending_dv))
      plan_.accumulate(left_p, query, d_o_transposed_, query, dv_sum);
    for (const Index query : ordered(queries, plan_.arithmetic.ascending_dk))
      plan_.accumulate(left_ds, query, q_transposed_, query, dk_sum);
    dv.middleRows(tile * kTile, kTile) = scaled_bf16(dv_sum, 1);
    dk.middleRows(tile * kTile, kTile) = scaled_bf16(dk_sum, plan_.scale);
  }

  /// dQ of 32 queries; with a mask their own keys first, then those before.
  void query_program(Index tile) {
    const auto queries = inputs_.q.middleRows(tile * kTile, kTile);
    const auto gradients = d_o_codes_.middleRows(tile * kTile, kTile);
    const Cells cells = this->cells(plan_.product(queries, k_), plan_.product(gradients, v_), tile * kTile, 0);
    const mma::Operand left = plan_.operand(mma::Side::a, bf16_codes(cells.ds));
    std::vector<Index> keys = range(0, plan_.causal_backward() ? tile : plan_.kv_tiles());
    if (plan_.causal_backward()) keys.insert(keys.begin(), tile);
    MatrixCodes sum = MatrixCodes::Zero(kTile, plan_.head_dim);
    for (const Index key : ordered(keys, plan_.arithmetic.ascending_dq)) {
      plan_.accumulate(left, key, k_transposed_, key, sum);
      if (!plan_.k_mean.empty() && plan_.arithmetic.mean_term != MeanTerm::left_out) add_mean(cells, key, sum);
    }
    dq.middleRows(tile * kTile, kTile) = scaled_bf16(sum, plan_.scale);
  }

  void add_mean(const Cells& cells, Index key_tile, MatrixCodes& sum) const {
    for (Index row = 0; row < kTile; ++row) {
      const float r = row_sum(cells, row, key_tile * kTile);
      for (Index column = 0; column < plan_.head_dim; ++column) {
        const float mean = plan_.k_mean[static_cast<std::size_t>(column)], before = f32_value(sum(row, column));
        const float added = plan_.arithmetic.fuse_mean ? std::fma(r, mean, before) : r * mean + before;
        sum(row, column) = f32_bits(plan_.cross() ? bf16(r * mean) + before : added);
      }
    }
  }

  /// Of the tile's dS as f32; the kernel for unequal lengths has rounded it to bfloat16 before and adds in that.
  float row_sum(const Cells& cells, Index row, Index key0) const {
    const float *p = &cells.p(row, key0), *t = &cells.t(row, key0), *ds = &cells.ds(row, key0);
    const bool far_warps = plan_.arithmetic.mean_far_warps_first;
    if (plan_.cross()) {
      return tile_row_sum([ds](Index i) { return kAddBf16(bf16(ds[i]), bf16(ds[i + 1])); }, true, far_warps, kAddBf16);
    }
    switch (plan_.arithmetic.mean_term) {
      case MeanTerm::from_bf16:
        return tile_row_sum([ds](Index i) { return bf16(ds[i]) + bf16(ds[i + 1]); }, true, far_warps, kAdd);
      case MeanTerm::rounded_products:
        return tile_row_sum([ds](Index i) { return ds[i] + ds[i + 1]; }, true, far_warps, kAdd);
      default:
        return tile_row_sum([p, t](Index i) { return std::fma(p[i], t[i], p[i + 1] * t[i + 1]); }, true, far_warps,
                            kAdd);
    }
  }

  const Plan& plan_;
  const HeadInputs& inputs_;
  const MatrixCodes& d_o_codes_;
  const std::vector<float>& m_;
  const std::vector<float>& delta_;
  mma::Operand q_, k_, v_, d_o_, q_transposed_, k_transposed_, d_o_transposed_;

 public:
  MatrixCodes dq, dk, dv;  ///< bfloat16, padded
};

// ---- the call ------------------------------------------------------------------------------------------------------

struct Keyword {
  std::string_view name;      ///< the library's
  std::string_view recorded;  ///< the file formats'
  bool Options::*option;
};

constexpr Keyword kKeywords[] = {
    {"use_qat_qkv_backward", "qat_backward", &Options::qat_backward},
    {"fake_quant_P", "fake_quant_p_backward", &Options::fake_quant_p_backward},
    {"use_high_prec_o", "high_precision_o", &Options::high_precision_o},
    {"smooth_k", "smooth_k", &Options::smooth_k},
    {"two_level_quant_P", "two_level_p", &Options::two_level_p},
    {"use_global_sf_P", "global_scale", &Options::global_scale_p},
    {"use_global_sf_QKV", "global_scale", &Options::global_scale_qkv},
};

Options options_of(const io::Attributes& arguments) {
  const std::string where(kName);
  Options options;
  for (const Keyword& keyword : kKeywords) {
    for (const std::string_view name : {keyword.recorded, keyword.name}) {
      if (const auto given = io::find_bool(arguments, name, where)) options.*keyword.option = *given;
    }
  }
  if (io::find_bool(arguments, "smooth_q", where).value_or(false)) refuse("its library does not implement smooth_q");
  return options;
}

void check(const Call& call) {
  constexpr std::array<const format::Format*, 1> kFormats{&format::kBF16};
  check_call(call, kName, kFormats, 256);
  if (call.q_heads() != call.kv_heads()) {
    refuse(
        fmt::format("{} query heads share {} key heads; this kernel wants as many", call.q_heads(), call.kv_heads()));
  }
  constexpr std::array kHeadDims{32, 64, 128, 256};
  if (std::ranges::find(kHeadDims, call.head_dim()) == kHeadDims.end())
    refuse(fmt::format("head_dim is {}; it must be 32, 64, 128 or 256", call.head_dim()));
}

/// What keeps a call from being like those that were compared with a GPU; empty when it is.
std::string beyond_recordings(const Call& call, const Options& options) {
  std::string reasons;
  const auto add = [&reasons](bool is_beyond, const std::string& reason) {
    if (is_beyond) reasons += (reasons.empty() ? "" : ", ") + reason;
  };
  const bool defaults = options.smooth_k && options.two_level_p && options.global_scale_p && options.global_scale_qkv;
  const bool plain = !options.smooth_k && !options.two_level_p && !options.global_scale_p && !options.global_scale_qkv;
  const bool like_defaults = options.qat_backward && options.fake_quant_p_backward && !options.high_precision_o;
  const bool like_plain = options.qat_backward ? options.fake_quant_p_backward || options.high_precision_o
                                               : options.fake_quant_p_backward && !options.high_precision_o;
  add(call.arch != "sm90", call.arch);
  add(call.head_dim() != 64, fmt::format("head_dim {}", call.head_dim()));
  add(call.is_causal, "a causal mask");
  add(call.q_tokens() != call.kv_tokens(), "unequal lengths");
  add(call.q_tokens() % kTile != 0 || call.kv_tokens() % kTile != 0, "lengths that are no multiples of 32");
  add(call.batch() > 1, "a batch");
  add(!(defaults && like_defaults) && !(plain && like_plain), "this combination of options");
  return reasons;
}

Plan plan_of(const Call& call, const Arithmetic& arithmetic) {
  check(call);
  Plan plan;
  plan.options = options_of(call.arguments);
  plan.arithmetic = arithmetic;
  if (call.arch == "sm100" || call.arch == "sm120") refuse(call.arch + " runs another kernel, which is not replayed");
  if (plan.arithmetic.dot == nullptr)
    plan.arithmetic.dot = mma::find(call.arch + ".mma", "f32", format::kBF16, format::kBF16, 16);
  if (plan.arithmetic.dot == nullptr) refuse(call.arch + " has no m16n8k16 for bfloat16");
  plan.causal = call.is_causal;
  if (plan.causal && call.causal_align.value_or(attention::CausalAlign::top_left) != attention::CausalAlign::top_left)
    refuse("its causal mask is aligned top_left");
  plan.heads = call.batch() * call.q_heads();
  plan.q_tokens = call.q_tokens();
  plan.kv_tokens = call.kv_tokens();
  plan.head_dim = call.head_dim();
  plan.scale = static_cast<float>(call.sm_scale);
  plan.score_factor = plan.scale * 1.44269504F;
  plan.threads = call.threads;
  return plan;
}

/// Subtracts from K its mean over batches, heads and tokens, both rounded to bfloat16.
Tensor smooth(const Tensor& k, std::vector<float>& mean) {
  const Index columns = k.shape[3], rows = k.elements() / columns;
  const MatrixD values = decode_matrix(k, 0, rows, columns);
  for (Index column = 0; column < columns; ++column) {
    double sum = 0;
    for (Index row = 0; row < rows; ++row) sum += values(row, column);
    mean.push_back(bf16(static_cast<float>(sum / static_cast<double>(rows))));
  }
  Tensor result = k;
  for (Index i = 0; i < k.elements(); ++i) {
    const float x = bf16_value(static_cast<std::uint32_t>(k.code(i)));
    result.set_code(i, bf16_code(x - mean[static_cast<std::size_t>(i % columns)]));
  }
  return result;
}

class Replay {
 public:
  Replay(const Call& call, const Arithmetic& arithmetic) : call_(call), plan_(plan_of(call, arithmetic)), k_(call.k) {
    if (plan_.options.smooth_k) k_ = smooth(call.k, plan_.k_mean);
    const auto add = [this](const char* name, const Tensor& like) {
      tensor(name) = make_tensor(format::kBF16, like.shape);
    };
    for (const char* name : {"o", "saved/q", "saved/high_prec_o"}) add(name, call.q);
    for (const char* name : {"saved/k", "saved/v"}) add(name, call.k);
    tensor("saved/m") = make_tensor(format::kFP32, {call.batch(), call.q_heads(), call.q_tokens()});
    if (call.d_o) {
      add("dq", call.q);
      add("dk", call.k);
      add("dv", call.k);
    }
    for (Index head = 0; head < plan_.heads; ++head) replay(head);
    const std::string reasons = beyond_recordings(call, plan_.options);
    returned_.predicted = !reasons.empty();
    returned_.evidence = reasons.empty() ? "measured here (H200)"
                                         : fmt::format("predicted: as the published source; not compared: {}", reasons);
  }

  Returned take() { return std::move(returned_); }

 private:
  Tensor& tensor(const char* name) { return returned_.tensors[name]; }

  static MatrixCodes padded(const Tensor& tensor, Index head, Index rows) {
    const Index heads = tensor.shape[1];
    MatrixCodes codes = MatrixCodes::Zero(rows, tensor.shape[3]);
    codes.topRows(tensor.shape[2]) = head_codes(tensor, head / heads, head % heads);
    return codes;
  }

  /// Without the padding.
  void store(const char* name, Index head, const MatrixCodes& codes) {
    const Index size = tensor(name).shape[2] * tensor(name).shape[3];
    store_codes(tensor(name), head * size, {codes.data(), static_cast<std::size_t>(size)});
  }

  void replay(Index head) {
    const Index q_rows = plan_.q_tiles() * kTile, kv_rows = plan_.kv_tiles() * kTile;
    const HeadInputs given{padded(call_.q, head, q_rows), padded(k_, head, kv_rows), padded(call_.v, head, kv_rows)};
    const FakeQuantizer quantize = plan_.qkv_quantizer();
    const HeadInputs quantized{quantize(bf16_values(given.q)), quantize(bf16_values(given.k)),
                               quantize(bf16_values(given.v))};
    RowTrace* const trace = call_.trace;
    const bool traced = trace != nullptr && trace->batch * call_.q_heads() + trace->head == head;
    const Forward forward(plan_, quantized, traced ? trace : nullptr);
    store("o", head, forward.o);
    store("saved/high_prec_o", head, forward.high_precision_o);
    store("saved/q", head, quantized.q);
    store("saved/k", head, quantized.k);
    store("saved/v", head, quantized.v);
    std::vector<std::uint32_t> m(static_cast<std::size_t>(plan_.q_tokens));
    to_bits(std::span(forward.m).first(m.size()), m);
    for (std::uint32_t& code : m) code = scalar::is_nan(code) ? scalar::kNaN : code;
    store_codes(tensor("saved/m"), head * plan_.q_tokens, m);
    if (!call_.d_o) return;
    const MatrixCodes d_o = padded(*call_.d_o, head, q_rows);
    const MatrixCodes& o = plan_.options.high_precision_o ? forward.high_precision_o : forward.o;
    const Backward backward(plan_, plan_.options.qat_backward ? quantized : given, d_o, forward.m,
                            row_dots(d_o, o, plan_.arithmetic));
    store("dq", head, backward.dq);
    store("dk", head, backward.dk);
    store("dv", head, backward.dv);
  }

  const Call& call_;
  Plan plan_;
  Tensor k_;
  Returned returned_;
};

Returned run_as_compiled(const Call& call) { return run(call, Arithmetic{}); }

constexpr Kernel kKernels[] = {{kName, "FastVideo 2f3d407, Triton 3.6",
                                "Attn-QAT's training kernel: fake NVFP4 attention, forward and backward",
                                run_as_compiled,
                                "use_qat_qkv_backward qat_backward fake_quant_P fake_quant_p_backward use_high_prec_o "
                                "high_precision_o smooth_k two_level_quant_P two_level_p use_global_sf_P "
                                "use_global_sf_QKV global_scale"}};

}  // namespace

Returned run(const Call& call, const Arithmetic& arithmetic) {
  const FpEnvironment environment;
  return Replay(call, arithmetic).take();
}

}  // namespace qattn::kernels::attn_qat

namespace qattn::kernels {

std::span<const Kernel> attn_qat_kernels() { return attn_qat::kKernels; }

}  // namespace qattn::kernels
