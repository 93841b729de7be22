// The table of matrix instructions: which architecture has which, by which rule each computes, and how that is known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/format.h"

namespace qattn::mma {

/// How an instruction forms one output element.
enum class Kind : std::uint8_t {
  fused_dot,         ///< NVIDIA: products and accumulator aligned to the largest exponent, cut, summed, rounded once
  scaled_group_dot,  ///< NVIDIA MXFP4/NVFP4: exact dot products of 16, scaled, then fused as above
  interleaved_dot,   ///< Hopper's FP8 mma.sync: two fused FP16 dot products from zero, then a rounded add of C
  fma_chain,         ///< one correctly rounded fused multiply-add after the other, k ascending, from C
  late_fma_chain,    ///< the same in f32 from zero, then a rounded add of C: Volta's m8n8k4 on later GPUs
  split_dot,         ///< rounded f32 sums of two pairs, C after the first pair: the same shape with f16 results
  integer_dot,       ///< exact, then modulo 2^32 or clamped to s32
  amd_fused_dot,     ///< AMD CDNA3: products cut and summed, then aligned with C rounding down
  amd_pairwise,      ///< AMD CDNA1/2: a tree of rounded f32 additions, then a rounded add of C
};

/// Output rounding of the fused kinds.
enum class Rounding : std::uint8_t { toward_zero, nearest_even };

/// How an entry is known; every program output that uses an entry repeats it.
enum class Evidence : std::uint8_t { measured, literature };

/// Parameters of the fused kinds. A product's exponent is the sum of its operands' exponents (subnormals: the format's
/// smallest), not renormalised; e_max is the largest exponent of the nonzero terms and of `exponent_floor`; terms are
/// cut toward zero to `fraction_bits` below 2^e_max. (Fasi et al., PeerJ CS 7:e330; MMA-Sim, arXiv 2511.10909.)
struct Fusion {
  int group = 1;           ///< L: products summed at once; longer K is a chain of groups through the accumulator
  int fraction_bits = 0;   ///< F
  int exponent_floor = 0;  ///< e_max is never below this
  int mantissa_bits = 23;  ///< kept in the output, at most the accumulator format's own
  Rounding rounding = Rounding::toward_zero;
};

/// One instruction of one architecture.
struct Instruction {
  std::string name;    ///< `sm90.wgmma.m64nNk32.f32.e4m3.e4m3`; "nN" where the instruction comes in many widths
  std::string family;  ///< `sm90.wgmma`
  int m, n, k;         ///< n: the largest width where it varies
  int n_min, n_step;   ///< legal widths: n_min, n_min + n_step, ..., n
  const format::Format* a;
  const format::Format* b;
  const format::Format* c;
  const format::Format* d;
  const format::Format* scale;  ///< nullptr unless block-scaled
  int block;                    ///< elements of K that share a scale; 0 unless block-scaled
  Kind kind;
  Fusion fusion;
  bool saturate;          ///< integer kind: clamp to s32 instead of wrapping
  bool flush_subnormals;  ///< amd_pairwise: subnormal operands, partial sums and results become zero
  Evidence evidence;
  std::string_view source;  ///< where the rule was measured or published

  /// Integer forms wider than 32 come in steps of 16 (PTX ISA, wgmma and tcgen05 shapes).
  bool accepts_n(int width) const {
    const int step = kind == Kind::integer_dot && width > 32 ? 16 : n_step;
    return width >= n_min && width <= n && width % step == 0;
  }
};

/// Operand formats of instructions that no file stores under a dtype of its own.
inline constexpr format::Format kUInt8{"u8", "", "", 8, 0, 8, 0, false, format::Specials::integer};
inline constexpr format::Format kUInt4{"u4", "", "", 4, 0, 4, 0, false, format::Specials::integer};
inline constexpr format::Format kInt32{"s32", "", "", 32, 0, 31, 0, true, format::Specials::integer};

/// Every instruction, ordered by architecture.
std::span<const Instruction> instructions();

/// The instruction with this name, any legal N in it (`sm90.wgmma.m64n128k32.f32.e4m3.e4m3`, or the "nN" form).
/// Throws Error(usage) that says what is near.
const Instruction& find_instruction(std::string_view name);

/// The same, or nullptr.
const Instruction* find_instruction_or_null(std::string_view name);

/// The instruction of `family` ("sm90.wgmma", "sm89.mma", "cdna3.mfma") that multiplies `a` by `b` into `d_type`
/// ("f32", "f16", "s32", "f64"), C having D's type, without block scales and saturation. `k` picks the depth; 0 takes
/// the deepest, the one that libraries use. nullptr when there is none.
const Instruction* find(std::string_view family, std::string_view d_type, const format::Format& a,
                        const format::Format& b, int k = 0);

/// The block-scaled instruction of `family` that multiplies `a` by `b` into f32, with one scale of `scale` (E8M0, or
/// E4M3, whose codes without a sign are UE4M3's) for each `block` elements of K; of several depths the deepest. nullptr
/// when there is none.
const Instruction* find_block_scaled(std::string_view family, const format::Format& a, const format::Format& b,
                                     const format::Format& scale, int block);

/// "measured here" or "from the literature (<source>)".
std::string evidence_text(const Instruction& instruction);

/// The kind as users read it: "fused dot", "integer dot", ...
std::string_view kind_name(Kind kind);

/// The token that instruction names use for a format: "e4m3", "f16", "s8", ...
std::string_view type_token(const format::Format& format);

}  // namespace qattn::mma
