// Whole tiles at SIMD speed: what the attention pipeline and the matrix product call.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "mma/instruction.h"
#include "tensor/matrix.h"

namespace qattn::mma {

/// Which factor of A B^T an operand is.
enum class Side : std::uint8_t { a, b };

/// How tiles are computed. `fast` and `plain` give the same bits.
enum class Path : std::uint8_t {
  fast,   ///< SIMD where the instruction has such a form
  plain,  ///< the engine of fused_dot.h, element by element
};

struct OperandStorage;

/// rows x k codes of one factor, decoded once for one instruction. Copies and slices share the decoded data.
class Operand {
 public:
  /// Reads `rows` x `k` codes (row-major, `stride` codes from row to row) of the instruction's A or B format; B is
  /// given transposed, one row a column of the product. Block-scaled instructions also take rows x ceil(k / block)
  /// scale codes. Throws Error(usage) when scales are missing or superfluous, or when the instruction's codes are wider
  /// than 32 bits (FP64: use execute()).
  Operand(const Instruction& instruction, Side side, const std::uint32_t* codes, Eigen::Index rows, Eigen::Index k,
          Eigen::Index stride, const std::uint32_t* scales = nullptr, Eigen::Index scale_stride = 0);
  Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes);
  Operand(const Instruction& instruction, Side side, const MatrixView<std::uint32_t>& codes,
          const MatrixView<std::uint32_t>& scales);

  /// Columns [k0, k1) of the codes. Both must be multiples of the instruction's K, k1 may also be k().
  Operand slice(Eigen::Index k0, Eigen::Index k1) const;

  Eigen::Index rows() const;
  Eigen::Index k() const { return k1_ - k0_; }
  const Instruction& instruction() const;

 private:
  friend struct TileMultiplication;
  std::shared_ptr<const OperandStorage> storage_;
  Eigen::Index k0_;
  Eigen::Index k1_;
};

/// How many steps (one output element, one instruction) each path computed.
struct PathUse {
  std::int64_t fast = 0;
  std::int64_t plain = 0;

  PathUse& operator+=(const PathUse& other) {
    fast += other.fast;
    plain += other.plain;
    return *this;
  }
};

using CodeTile = Eigen::Ref<MatrixCodes, 0, Eigen::OuterStride<>>;

/// D = C + A B^T as a serial chain of ceil(K / instruction.k) instructions through the accumulator, zero-padded at the
/// end. c [a.rows(), b.rows()] holds raw codes of the accumulator format (f32, f16 or s32): C on entry, D on exit. NaN
/// and Inf among the operands or in c, and f32 results near overflow, take the plain path element by element.
/// Both operands must have been decoded for `instruction`; throws Error(usage) otherwise, or when shapes disagree.
PathUse multiply_accumulate(const Instruction& instruction, const Operand& a, const Operand& b, CodeTile c,
                            Path path = Path::fast);

/// Whether the instruction has a SIMD form.
bool has_fast_path(const Instruction& instruction);

/// The SIMD target in use on this machine: "AVX3", "AVX2", "SSE4", ... (for provenance records).
std::string_view active_target();

}  // namespace qattn::mma
