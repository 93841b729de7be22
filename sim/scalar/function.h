// The table of functions of one argument: what each is called, how to evaluate it, and how far it is proved.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/format.h"
#include "scalar/mufu.h"

namespace qattn::scalar {

/// How CUDA code was compiled. A PTX instruction is the same in every build: its name decides, not the flag.
enum class Build : std::uint8_t {
  any,        ///< a PTX instruction, or a source of its own
  plain,      ///< nvcc without fast-math
  fast_math,  ///< nvcc --use_fast_math
};

/// What stands behind the claim that the bits are the GPU's.
enum class Evidence : std::uint8_t {
  measured,    ///< equal on an NVIDIA H200 for all inputs, 2^32 of them by digest
  ptx_manual,  ///< as the PTX ISA manual defines it (and, where CUDA 13.0's cuda_fp8.hpp, cuda_fp6.hpp and cuda_fp4.hpp
               ///< have the conversion, as their host code computes it), not recorded on hardware
  published,   ///< the operations of a published source
};

/// The mathematical function that errors are measured against.
enum class Reference : std::uint8_t { exp2, exp, log2, log, reciprocal, rsqrt, sqrt, tanh, identity, magnitude, relu };

/// The table-driven instruction inside, if any.
enum class Mufu : std::uint8_t { none, ex2, rcp, lg2, rsqrt, sqrt, tanh };

/// One function. Codes lie in the low bits of 32-bit words; higher bits of an input are ignored, of a result zero. A
/// packed cast (`x2`) is one element of it.
struct Function {
  std::string_view name;  ///< PTX or CUDA name
  Build build;
  const format::Format* input;
  const format::Format* output;  ///< TF32 results stand in a 32-bit register and have fp32 here
  std::uint32_t (*plain)(std::uint32_t x);
  /// The same bits for a whole span, by SIMD where the input has 32 bits (scalar/span.h); a plain loop for the at most
  /// 2^16 inputs of the others. Throws Error(internal) when the sizes differ.
  void (*span)(std::span<const std::uint32_t> x, std::span<std::uint32_t> y);
  Reference reference;
  Evidence evidence;
  Mufu mufu = Mufu::none;
  std::uint32_t (*argument)(std::uint32_t x) = nullptr;  ///< what MUFU is given; nullptr: x itself
  std::string_view note = {};
  /// What the result is rounded to where that is narrower than `output`: TF32.
  const format::Format* rounded_to = nullptr;

  int input_bits() const { return input->bits; }
  const format::Format& precision() const { return rounded_to != nullptr ? *rounded_to : *output; }
};

/// Two's complement in 32 bits, the input of the integer conversions.
inline constexpr format::Format kInt32{"int32", "int32", "s32", 32, 0, 31, 0, true, format::Specials::integer};

/// All functions, grouped as they are listed to users.
std::span<const Function> functions();

/// The function of this name in this build; where it does not depend on the build (Build::any) either finds it, and
/// Build::any finds a CUDA function as built without fast-math. nullptr if there is none.
const Function* find_or_null(std::string_view name, Build build = Build::any);
/// The same; throws Error(usage) that lists similar names.
const Function& find(std::string_view name, Build build = Build::any);

/// The build that a recording's `build` attribute (nvcc's options) stands for.
Build build_from_options(std::string_view nvcc_options);

std::string_view to_string(Build build);        ///< "any", "plain", "fast-math"
std::string_view to_string(Evidence evidence);  ///< "measured here", "PTX manual", "published"
std::string_view to_string(Reference reference);
std::string_view to_string(Mufu mufu);  ///< "MUFU.EX2", ...

}  // namespace qattn::scalar
