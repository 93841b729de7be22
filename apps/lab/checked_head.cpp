#include "lab/checked_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "attention/pipeline.h"
#include "base/fp_environment.h"
#include "format/encode.h"

namespace qattn::lab {
namespace {

/// sm_scale * q . mean(K) of each query: what smoothing K takes from every score of the row.
std::vector<double> mean_shift(const attention::Problem& problem) {
  const std::int64_t keys = problem.k.rows();
  std::vector<double> mean(static_cast<std::size_t>(problem.k.cols()), 0.0);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += problem.k(j, static_cast<Eigen::Index>(c));
  }
  std::vector<double> shift;
  for (std::int64_t i = 0; i < problem.q.rows(); ++i) {
    double dot = 0;
    for (std::size_t c = 0; c < mean.size(); ++c) dot += problem.q(i, static_cast<Eigen::Index>(c)) * mean[c];
    shift.push_back(problem.sm_scale * dot / static_cast<double>(keys));
  }
  return shift;
}

void append(std::vector<double>& rows, std::int64_t first, const std::vector<double>& values) {
  std::copy(values.begin(), values.end(), rows.begin() + first);
}

}  // namespace

CheckedHead check_head(const DumpSet& dumps, const Piece& piece, const attention::Recipe* recipe) {
  const FpEnvironment environment;
  const SelectedCall& selected = dumps.calls()[piece.call];
  const io::AttentionCall& call = *selected.call;
  const std::int64_t queries = call.q_tokens, channels = call.head_dim_original;
  CheckedHead head;
  head.piece = piece;
  const bool with_group = recipe != nullptr && recipe->query_heads == attention::QueryHeads::group;
  head.parts = dumps.read(selected, piece.batch, piece.head, with_group);
  head.codes = dumps.read_codes(selected, "o", piece.batch, piece.head);
  head.o = MatrixD::Zero(queries, channels);
  const MatrixD all = decode_matrix(head.codes, 0, queries, call.head_dim);
  head.reference = MatrixD::Zero(queries, channels);
  head.emulated = MatrixD::Zero(recipe == nullptr ? 0 : queries, channels);
  const std::vector<double> zeros(static_cast<std::size_t>(queries), 0.0);
  // Rows that belong to no sequence see no key.
  const std::vector<double> none(zeros.size(), -std::numeric_limits<double>::infinity());
  head.lse = {none, none, recipe == nullptr ? std::vector<double>() : none, zeros};
  for (const HeadProblem& part : head.parts) {
    const std::int64_t rows = part.problem.q.rows();
    head.o.middleRows(part.first_row, rows) = all.block(part.first_row, 0, rows, channels);
    const attention::Output exact = attention::reference_attention(part.problem);
    head.reference.middleRows(part.first_row, rows) = exact.o.leftCols(channels);
    append(head.lse.reference, part.first_row, exact.lse);
    append(head.lse.mean_shift, part.first_row, mean_shift(part.problem));
    if (recipe == nullptr) continue;
    const attention::Output own = attention::run_recipe(part.problem, *recipe, *call.q_format);
    head.emulated.middleRows(part.first_row, rows) = own.o.leftCols(channels);
    append(head.lse.emulated, part.first_row, own.lse);
  }
  head.has_lse = call.has("lse");
  if (!head.has_lse) return head;
  const Tensor lse = dumps.read_codes(selected, "lse", piece.batch, piece.head);
  for (const HeadProblem& part : head.parts) {
    for (std::int64_t i = part.first_row; i < part.first_row + part.problem.q.rows(); ++i) {
      head.lse.recorded[static_cast<std::size_t>(i)] = format::decode(*lse.format, lse.code(i));
    }
  }
  return head;
}

bool all_finite(const CheckedHead& head) {
  return head.o.allFinite() && head.reference.allFinite() && head.emulated.allFinite();
}

metric::Accuracy accuracy_of(const CheckedHead& head, const MatrixD& values) {
  metric::Accuracy accuracy(head.format());
  for (const HeadProblem& part : head.parts) {
    const std::int64_t rows = part.problem.q.rows();
    absorb(accuracy, head.format(), values.middleRows(part.first_row, rows),
           head.reference.middleRows(part.first_row, rows), head.channels(),
           {head.piece.batch, head.piece.head, part.first_row, 0});
  }
  return accuracy;
}

double shared_error(const CheckedHead& head) { return shared_error(head, head.emulated); }

double shared_error(const CheckedHead& head, const MatrixD& emulated) {
  const FpEnvironment environment;
  double shared = 0, square = 0;
  for (Eigen::Index i = 0; i < head.o.size(); ++i) {
    const double r = head.reference.data()[i], loss = emulated.data()[i] - r;
    shared += (head.o.data()[i] - r) * loss;
    square += loss * loss;
  }
  return square > 0 ? std::clamp(shared / square, 0.0, 1.0) : 0.0;
}

std::string place_of(const DumpSet& dumps, const Piece& piece) {
  return fmt::format("{}, batch {}, head {}", dumps.calls()[piece.call].label, piece.batch, piece.head);
}

}  // namespace qattn::lab
