#include "kernels/sage_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "format/encode.h"
#include "kernels/codes.h"
#include "kernels/numbers.h"
#include "scalar/span.h"

namespace qattn::kernels::sage {
namespace {

using Eigen::Index;

constexpr int kThreads = 4;
constexpr format::Policy kNearest{.overflow = format::Overflow::inf_or_nan};

std::size_t thread_of(std::size_t column) { return column % 8 / 2; }

float rounded(float x, const format::Format& type) {
  return format::decode_float(type, format::encode(type, x, kNearest));
}

std::span<float> row_of(MatrixF& matrix, Index row) {
  return {matrix.row(row).data(), static_cast<std::size_t>(matrix.cols())};
}

/// The bits of floats as codes, and back.
MatrixCodes bits_of(const MatrixF& x) {
  MatrixCodes codes(x.rows(), x.cols());
  const auto count = static_cast<std::size_t>(x.size());
  to_bits({x.data(), count}, {codes.data(), count});
  return codes;
}

/// Codes of an accumulator (f32, f16) as floats, exactly.
MatrixF values_of(const MatrixCodes& codes, const format::Format& type) {
  MatrixF x(codes.rows(), codes.cols());
  const auto count = static_cast<std::size_t>(codes.size());
  if (type.bits == 32) {
    from_bits({codes.data(), count}, {x.data(), count});
  } else {
    format::decode_span(type, {codes.data(), count}, {x.data(), count});
  }
  return x;
}

/// Floats that `type` holds, as its codes.
MatrixCodes codes_of(const MatrixF& x, const format::Format& type) {
  MatrixCodes codes = bits_of(x);
  if (type.bits == 32) return codes;
  const std::span<std::uint32_t> all(codes.data(), static_cast<std::size_t>(codes.size()));
  scalar::apply(scalar::cast_spec(type, scalar::Cast::rn), all, all);
  return codes;
}

std::vector<float> to_vector(std::span<const float> values) { return {values.begin(), values.end()}; }

/// One block of queries on its way over the tiles.
class BlockReplay {
 public:
  BlockReplay(const Form& form, const QHead& q, const KvHead& kv, std::int64_t block, float gain, mma::Path path,
              const BlockTrace& trace)
      : form_(form),
        q_(q),
        kv_(kv),
        first_row_(block * form.tiling.q_block),
        rows_(std::min<Index>(form.tiling.q_block, q.tokens - first_row_)),
        columns_(form.tiling.k_block),
        gain_(gain),
        path_(path),
        trace_(trace),
        queries_(*form.qk, mma::Side::a, q.q.codes.middleRows(first_row_, rows_)),
        x_(rows_, columns_),
        max_(static_cast<std::size_t>(rows_), form.start),
        rescale_(static_cast<std::size_t>(rows_)),
        sums_(static_cast<std::size_t>(rows_), ThreadSums{1, 1, 1, 1}),
        o_(MatrixF::Zero(rows_, kv.v->rows())) {}

  void tile(std::int64_t index, bool dequantized, std::int64_t diagonal);
  Block finish(const format::Format& type);

 private:
  void logits(std::int64_t index, bool dequantized, std::int64_t diagonal);
  void row_max_and_exponents(Index row, std::span<const float> thread_gain);
  MatrixCodes rounded_p() const;
  void add_ones(const MatrixCodes& p);
  void add_pv(std::int64_t index, const MatrixCodes& p);
  std::array<float, kThreads> dequantization(Index row, std::int64_t first_key) const;

  bool traced() const { return trace_.stages != nullptr; }
  void record(std::string name, std::vector<float> values) const {
    if (traced()) trace_.stages->push_back({std::move(name), std::move(values)});
  }

  const Form& form_;
  const QHead& q_;
  const KvHead& kv_;
  Index first_row_, rows_, columns_;
  float gain_;
  mma::Path path_;
  BlockTrace trace_;
  mma::Operand queries_;
  MatrixF x_;  ///< the tile: X, then its exponents, then P
  std::vector<float> max_, rescale_;
  std::vector<ThreadSums> sums_;
  MatrixF o_;
};

/// dq of each thread's columns.
std::array<float, kThreads> BlockReplay::dequantization(Index row, std::int64_t first_key) const {
  const float q_scale = q_.q.scales[static_cast<std::size_t>(q_.q.groups.index(first_row_ + row, 0))];
  std::array<float, kThreads> dq{};
  for (int t = 0; t < kThreads; ++t) {
    const auto group = static_cast<std::size_t>(kv_.k.groups.index(first_key + 2 * t, 0));
    dq[static_cast<std::size_t>(t)] = q_scale * kv_.k.scales[group];
  }
  return dq;
}

/// Steps 1 to 3, but for ex2. `diagonal` is the query of row 0 where the mask is causal, far away otherwise.
void BlockReplay::logits(std::int64_t index, bool dequantized, std::int64_t diagonal) {
  const std::int64_t first_key = index * columns_;
  MatrixCodes scores = MatrixCodes::Zero(rows_, columns_);
  mma::multiply_accumulate(*form_.qk, queries_, kv_.k_tiles[static_cast<std::size_t>(index)], scores, path_);
  for (Index row = 0; row < rows_; ++row) {
    const std::array<float, kThreads> dq = dequantization(row, first_key);
    std::array<float, kThreads> thread_gain{};
    for (std::size_t t = 0; t < dq.size(); ++t) thread_gain[t] = dequantized ? gain_ : gain_ * dq[t];
    const std::span<float> x = row_of(x_, row);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(static_cast<std::int32_t>(scores(row, static_cast<Index>(i))));
    }
    const bool here = traced() && row == trace_.row;
    if (here) record(fmt::format("tile {} integer scores", index), to_vector(x));
    std::vector<float> real;  // what a plain tile never computes, for the trace
    if (here && !dequantized) {
      for (std::size_t i = 0; i < x.size(); ++i) real.push_back(x[i] * dq[thread_of(i)]);
    }
    if (dequantized) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] *= dq[thread_of(i)];
    }
    const std::int64_t visible = std::min(kv_.tokens, diagonal + row + 1) - first_key;
    for (auto i = static_cast<std::size_t>(std::max<std::int64_t>(visible, 0)); i < x.size(); ++i) x[i] = form_.hidden;
    if (here) record(fmt::format("tile {} dequantized scores", index), dequantized ? to_vector(x) : real);
    row_max_and_exponents(row, thread_gain);
    if (here) record(fmt::format("tile {} row max", index), {max_[static_cast<std::size_t>(row)]});
  }
}

void BlockReplay::row_max_and_exponents(Index row, std::span<const float> thread_gain) {
  const std::span<float> x = row_of(x_, row);
  std::array<float, 8> largest{};
  std::copy_n(x.begin(), 8, largest.begin());
  for (std::size_t i = 8; i < x.size(); i += 8) {
    for (std::size_t k = 0; k < 8; ++k) largest[k] = std::max(largest[k], x[i + k]);
  }
  float& max = max_[static_cast<std::size_t>(row)];
  const float before = max;
  for (std::size_t t = 0; t < kThreads; ++t) {
    const float own = std::max(largest[2 * t], largest[2 * t + 1]);
    max = std::max(max, form_.scaled_max(own, thread_gain[t], form_.offset));
  }
  rescale_[static_cast<std::size_t>(row)] = before - max;
  std::array<float, 8> of_columns{};  // the threads' columns repeat every 8
  for (std::size_t i = 0; i < of_columns.size(); ++i) of_columns[i] = thread_gain[thread_of(i)];
  std::array<float, 128> gain;
  for (std::size_t i = 0; i < x.size(); i += 8) std::copy_n(of_columns.begin(), 8, gain.begin() + i);
  form_.exponents(x, std::span<const float>(gain.data(), x.size()), -max, x);
}

/// P's codes, the columns in V's order.
MatrixCodes BlockReplay::rounded_p() const {
  const bool fp8 = form_.p_format == &format::kE4M3;
  MatrixCodes natural = bits_of(x_);
  const std::span<std::uint32_t> all(natural.data(), static_cast<std::size_t>(natural.size()));
  scalar::apply(scalar::cast_spec(*form_.p_format, fp8 ? scalar::Cast::rn_satfinite : scalar::Cast::rn), all, all);
  if (!fp8) return natural;
  MatrixCodes stored(rows_, columns_);
  for (Index first = 0; first < natural.size(); first += 16) {
    const std::uint32_t* from = natural.data() + first;
    for (std::size_t i = 0; i < 16; ++i) stored.data()[first + static_cast<Index>(i)] = from[kStoredToken[i]];
  }
  return stored;
}

/// The row sum as a matrix product: d = RN(d rescale) is its accumulator, a column of ones its other operand.
void BlockReplay::add_ones(const MatrixCodes& p) {
  const mma::Instruction& instruction = *form_.row_sum;
  const auto one = static_cast<std::uint32_t>(format::encode(*instruction.b, 1.0f, kNearest));
  MatrixCodes d(rows_, 1);
  for (Index row = 0; row < rows_; ++row) {
    const auto i = static_cast<std::size_t>(row);
    d(row, 0) = std::bit_cast<std::uint32_t>(sums_[i][0] * rescale_[i]);
  }
  mma::multiply_accumulate(instruction, mma::Operand(instruction, mma::Side::a, p),
                           mma::Operand(instruction, mma::Side::b, MatrixCodes::Constant(1, columns_, one)), d, path_);
  for (Index row = 0; row < rows_; ++row) sums_[static_cast<std::size_t>(row)][0] = std::bit_cast<float>(d(row, 0));
}

void BlockReplay::add_pv(std::int64_t index, const MatrixCodes& p) {
  const format::Format& accumulator = *form_.pv->d;
  if (form_.in_place) {
    for (Index row = 0; row < rows_; ++row) form_.rescale(row_of(o_, row), rescale_[static_cast<std::size_t>(row)]);
  }
  MatrixCodes chain = form_.in_place ? codes_of(o_, accumulator) : MatrixCodes::Zero(rows_, o_.cols());
  mma::multiply_accumulate(*form_.pv, mma::Operand(*form_.pv, mma::Side::a, p),
                           kv_.v->slice(index * columns_, (index + 1) * columns_), chain, path_);
  MatrixF partial = values_of(chain, accumulator);
  if (traced()) record(fmt::format("tile {} partial sums", index), to_vector(row_of(partial, trace_.row)));
  if (form_.in_place) {
    o_ = std::move(partial);
    return;
  }
  for (Index row = 0; row < rows_; ++row) {
    form_.rescale_add(row_of(o_, row), rescale_[static_cast<std::size_t>(row)], row_of(partial, row));
  }
}

void BlockReplay::tile(std::int64_t index, bool dequantized, std::int64_t diagonal) {
  logits(index, dequantized, diagonal);
  const auto traced_row = static_cast<std::size_t>(trace_.row);
  form_.ex2(rescale_, rescale_);
  const std::span<float> all(x_.data(), static_cast<std::size_t>(x_.size()));
  form_.ex2(all, all);
  if (traced()) {
    record(fmt::format("tile {} rescale", index), {rescale_[traced_row]});
    record(fmt::format("tile {} P", index), to_vector(row_of(x_, trace_.row)));
  }
  const MatrixCodes p = rounded_p();
  if (traced()) {
    MatrixF values = values_of(p.row(trace_.row), *form_.p_format);
    record(fmt::format("tile {} rounded P, in V's order", index), to_vector(row_of(values, 0)));
  }
  if (form_.row_sum != nullptr) {
    add_ones(p);
  } else {
    for (Index row = 0; row < rows_; ++row) {
      const auto i = static_cast<std::size_t>(row);
      form_.add_row(row_of(x_, row), rescale_[i], sums_[i]);
    }
  }
  if (traced()) record(fmt::format("tile {} row sum", index), {form_.total(sums_[traced_row])});
  add_pv(index, p);
  if (traced()) record(fmt::format("tile {} O", index), to_vector(row_of(o_, trace_.row)));
}

Block BlockReplay::finish(const format::Format& type) {
  Block block{std::move(o_), std::vector<float>(static_cast<std::size_t>(rows_))};
  for (Index row = 0; row < rows_; ++row) {
    const auto i = static_cast<std::size_t>(row);
    const float sum = form_.total(sums_[i]);
    const float reciprocal = form_.rcp(sum);
    block.lse2[i] = form_.lg2(sum) + max_[i];
    const std::span<float> o = row_of(block.o, row);
    for (std::size_t c = 0; c < o.size(); ++c) {
      o[c] = form_.output(o[c], reciprocal, kv_.v_scale[c], kv_.v_mean[c], type);
    }
    if (traced() && row == trace_.row) {
      record("row sum", {sum});
      record("O", to_vector(o));
      record("lse, base 2", {block.lse2[i]});
    }
  }
  return block;
}

}  // namespace

float fused_max(float x, float gain, float offset) { return std::fma(x, gain, -offset); }

void add_thread_sums(std::span<const float> p, float rescale, ThreadSums& sums) {
  const auto of_16 = [&](std::size_t first, std::size_t t) {
    const float* x = p.data() + first + 2 * t;
    return ((x[0] + x[1]) + x[8]) + x[9];
  };
  for (std::size_t t = 0; t < kThreads; ++t) sums[t] = std::fma(sums[t], rescale, of_16(0, t));
  for (std::size_t first = 16; first < p.size(); first += 16) {
    for (std::size_t t = 0; t < kThreads; ++t) sums[t] += of_16(first, t);
  }
}

float total_of_threads(const ThreadSums& sums) { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }

void add_triton_sum(std::span<const float> p, float rescale, ThreadSums& sums) {
  ThreadSums own{p[0], p[2], p[4], p[6]};
  for (std::size_t t = 0; t < kThreads; ++t) own[t] += p[2 * t + 1];
  for (std::size_t first = 8; first < p.size(); first += 8) {
    for (std::size_t t = 0; t < kThreads; ++t) own[t] = (own[t] + p[first + 2 * t]) + p[first + 2 * t + 1];
  }
  sums[0] = std::fma(sums[0], rescale, (own[0] + own[2]) + (own[1] + own[3]));
}

float first_sum(const ThreadSums& sums) { return sums[0]; }

void rescale_half(std::span<float> o, float factor) {
  const float half_factor = rounded(factor, format::kFP16);
  const scalar::CastSpec half = scalar::cast_spec(format::kFP16, scalar::Cast::rn);
  std::vector<std::uint32_t> codes(o.size());
  for (std::size_t i = 0; i < o.size(); ++i) codes[i] = std::bit_cast<std::uint32_t>(o[i] * half_factor);
  scalar::apply(half, codes, codes);
  format::decode_span(format::kFP16, codes, o);
}

float scaled_output(float o, float reciprocal, float v_scale, float, const format::Format&) {
  return flush_subnormal(flush_subnormal(o * reciprocal) * flush_subnormal(v_scale));
}

float scaled_smooth_output(float o, float reciprocal, float v_scale, float v_mean, const format::Format&) {
  return flush_subnormal(std::fma(flush_subnormal(o * reciprocal), flush_subnormal(v_scale), v_mean));
}

float flushed_output(float o, float reciprocal, float, float, const format::Format&) {
  return flush_subnormal(o * reciprocal);
}

float plain_output(float o, float reciprocal, float, float, const format::Format&) { return o * reciprocal; }

float half_output(float o, float reciprocal, float, float, const format::Format&) {
  return rounded(flush_subnormal(o * reciprocal), format::kFP16);
}

float half_smooth_output(float o, float reciprocal, float, float v_mean, const format::Format& type) {
  return rounded(half_output(o, reciprocal, 0, 0, type), type) + v_mean;
}

Block attend(const Form& form, const QHead& q, const KvHead& kv, std::int64_t block, bool is_causal, float gain,
             const format::Format& type, mma::Path path, const BlockTrace& trace) {
  BlockReplay replay(form, q, kv, block, gain, path, trace);
  const std::int64_t first = block * form.tiling.q_block;
  // The end of the whole block counts, also where the queries end before it.
  const std::int64_t keys = is_causal ? std::min(kv.tokens, first + form.tiling.q_block) : kv.tokens;
  const std::int64_t tiles = (keys + form.tiling.k_block - 1) / form.tiling.k_block;
  const std::int64_t diagonal = is_causal ? first : kv.tokens;
  for (std::int64_t i = 0; i < tiles; ++i) replay.tile(i, i >= tiles - form.dequantized_tiles, diagonal);
  return replay.finish(type);
}

}  // namespace qattn::kernels::sage
