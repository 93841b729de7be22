// Dumps with what a kernel returned, right and wrong, and a plain attention to make it with that shares no code with
// the product.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "apps/tiny_dump.h"
#include "attention/problem.h"
#include "format/encode.h"
#include "io/dump.h"

namespace qattn::testing {

/// One head; every value is one of FP16.
struct PlainHead {
  MatrixD q, k, v;
  double sm_scale = 1;
};

/// Changes scores[i][j], natural units, before softmax; -Inf hides a key.
using ScoreChange = std::function<double(std::int64_t i, std::int64_t j, double score)>;

struct PlainOutput {
  MatrixD o;
  std::vector<double> lse;
};

/// softmax(sm_scale q k^T) v, the textbook's way; `divide` false leaves out the division by the row sum.
inline PlainOutput plain_attention(const PlainHead& head, const ScoreChange& change = nullptr, bool divide = true) {
  PlainOutput out{MatrixD::Zero(head.q.rows(), head.v.cols()), {}};
  for (Eigen::Index i = 0; i < head.q.rows(); ++i) {
    std::vector<double> scores;
    double max = -std::numeric_limits<double>::infinity();
    for (Eigen::Index j = 0; j < head.k.rows(); ++j) {
      double score = 0;
      for (Eigen::Index c = 0; c < head.q.cols(); ++c) score += head.q(i, c) * head.k(j, c);
      score *= head.sm_scale;
      scores.push_back(change ? change(i, j, score) : score);
      max = std::max(max, scores.back());
    }
    double sum = 0;
    if (std::isfinite(max)) {
      for (std::size_t j = 0; j < scores.size(); ++j) {
        const double p = std::exp(scores[j] - max);
        sum += p;
        for (Eigen::Index c = 0; c < head.v.cols(); ++c) out.o(i, c) += p * head.v(static_cast<Eigen::Index>(j), c);
      }
      if (divide) out.o.row(i) /= sum;
    }
    out.lse.push_back(max + std::log(sum));
  }
  return out;
}

inline ScoreChange causal(std::int64_t offset) {
  return [offset](std::int64_t i, std::int64_t j, double score) {
    return j <= i + offset ? score : -std::numeric_limits<double>::infinity();
  };
}

inline MatrixD random_matrix(std::uint64_t stream, std::int64_t rows, std::int64_t columns) {
  MatrixD values(rows, columns);
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    const double x = 4 * random_unit(11, stream, static_cast<std::uint64_t>(i)) - 2;
    values.data()[i] = format::decode(format::kFP16, format::encode(format::kFP16, x, {}));
  }
  return values;
}

/// `count` different heads.
inline std::vector<PlainHead> plain_heads(std::size_t count, std::int64_t queries, std::int64_t keys,
                                          std::int64_t head_dim) {
  std::vector<PlainHead> heads;
  for (std::size_t h = 0; h < count; ++h) {
    heads.push_back({random_matrix(3 * h, queries, head_dim), random_matrix(3 * h + 1, keys, head_dim),
                     random_matrix(3 * h + 2, keys, head_dim), 1 / std::sqrt(static_cast<double>(head_dim))});
  }
  return heads;
}

/// The same as a problem without a mask.
inline attention::Problem problem_of(const PlainHead& head) {
  return {head.q, head.k, head.v, head.sm_scale, false, attention::CausalAlign::top_left, {}, {}};
}

/// [1, H, N, D] (or [B, H / B, N, D]) of matrices, rounded to `format`.
inline Tensor tensor_of(const std::vector<MatrixD>& heads, const format::Format& format, std::int64_t batch = 1) {
  const auto count = static_cast<std::int64_t>(heads.size());
  Tensor tensor = make_tensor(format, {batch, count / batch, heads[0].rows(), heads[0].cols()});
  std::int64_t index = 0;
  const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                  format::Subnormals::keep};
  for (const MatrixD& head : heads) {
    for (Eigen::Index i = 0; i < head.size(); ++i) {
      tensor.set_code(index++, format::encode(format, head.data()[i], to_nearest));
    }
  }
  return tensor;
}

/// One call "attention" with q, k, v in FP16, o in FP16 and lse in FP32; lse is left out where it is empty.
inline void write_kernel_dump(const std::string& path, const std::vector<PlainHead>& heads,
                              const std::vector<PlainOutput>& outputs, const io::Attributes& attributes = {},
                              std::int64_t batch = 1) {
  const auto pick = [&](MatrixD PlainHead::*field) {
    std::vector<MatrixD> all;
    for (const PlainHead& head : heads) all.push_back(head.*field);
    return tensor_of(all, format::kFP16, batch);
  };
  std::vector<MatrixD> o;
  for (const PlainOutput& output : outputs) o.push_back(output.o);
  io::DumpWriter writer(path, attributes);
  writer.begin_call("attention");
  writer.write("attention", "q", pick(&PlainHead::q));
  writer.write("attention", "k", pick(&PlainHead::k));
  writer.write("attention", "v", pick(&PlainHead::v));
  writer.write("attention", "o", tensor_of(o, format::kFP16, batch));
  if (!outputs[0].lse.empty()) {
    const auto count = static_cast<std::int64_t>(outputs.size());
    const auto rows = static_cast<std::int64_t>(outputs[0].lse.size());
    Tensor lse = make_tensor(format::kFP32, {batch, count / batch, rows});
    std::int64_t index = 0;
    for (const PlainOutput& output : outputs) {
      for (const double x : output.lse)
        lse.set_code(index++, format::encode(format::kFP32, x,
                                             {format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                              format::Subnormals::keep}));
    }
    writer.write("attention", "lse", lse);
  }
  writer.commit();
}

}  // namespace qattn::testing
