// One head of a dump with what a kernel returned for it, beside float64 attention and an emulation.
#pragma once

#include <vector>

#include "attention/recipe.h"
#include "lab/dump_set.h"
#include "lab/lse_convention.h"
#include "lab/measurement.h"
#include "tensor/tensor.h"

namespace qattn::lab {

/// Matrices are [q_tokens, channels] without the channels that only pad head_dim; rows that belong to no sequence of a
/// packed call are zero in all of them.
struct CheckedHead {
  Piece piece;
  std::vector<HeadProblem> parts;
  Tensor codes;                  ///< o as the dump has it, [q_tokens, head_dim]
  MatrixD o;                     ///< its values
  MatrixD reference;             ///< float64
  MatrixD emulated;              ///< the recipe's output
  std::vector<MatrixD> related;  ///< those of its relatives (relatives.h); empty until something looks wrong
  bool has_lse = false;
  LseRows lse;  ///< recorded only if has_lse

  std::int64_t channels() const { return o.cols(); }
  const format::Format& format() const { return *codes.format; }
};

/// Reads the head and runs the reference and `recipe` on it; with a nullptr nothing is emulated.
CheckedHead check_head(const DumpSet& dumps, const Piece& piece, const attention::Recipe* recipe);

/// Whether o, the reference and the recipe's output are finite throughout.
bool all_finite(const CheckedHead& head);

/// What `values` (of the head's o, or others of its shape) are off float64, part by part.
metric::Accuracy accuracy_of(const CheckedHead& head, const MatrixD& values);

/// The share s in [0, 1] of the recipe's own error e - r that o - r has: s (e - r) is nearest to o - r. Of a kernel of
/// the recipe's arithmetic it is near 1, of a much finer one near 0.
double shared_error(const CheckedHead& head);
/// The same of another recipe's output.
double shared_error(const CheckedHead& head, const MatrixD& emulated);

/// "layer_18, batch 0, head 3".
std::string place_of(const DumpSet& dumps, const Piece& piece);

}  // namespace qattn::lab
