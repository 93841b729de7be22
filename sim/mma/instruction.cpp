// The table of matrix instructions. One row describes the shapes and operand types that share a rule; instructions()
// spells the rows out. Shapes and type lists are PTX's (ISA 9.0, mma, wgmma, tcgen05.mma) and AMD's CDNA ISA guides'.
#include "mma/instruction.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace qattn::mma {
namespace {

using format::Format;

struct TypeToken {
  std::string_view token;
  const Format* format;
};

constexpr Format kXF32{"xf32", "", "", 19, 8, 10, 127, true, format::Specials::ieee};

constexpr std::array kTypes{
    TypeToken{"f64", &format::kFP64},
    TypeToken{"f32", &format::kFP32},
    TypeToken{"tf32", &format::kTF32},
    TypeToken{"xf32", &kXF32},
    TypeToken{"f16", &format::kFP16},
    TypeToken{"bf16", &format::kBF16},
    TypeToken{"e4m3", &format::kE4M3},
    TypeToken{"e5m2", &format::kE5M2},
    TypeToken{"e4m3fnuz", &format::kE4M3Fnuz},
    TypeToken{"e5m2fnuz", &format::kE5M2Fnuz},
    TypeToken{"e3m2", &format::kE3M2},
    TypeToken{"e2m3", &format::kE2M3},
    TypeToken{"e2m1", &format::kE2M1},
    TypeToken{"ue8m0", &format::kE8M0},
    TypeToken{"ue4m3", &format::kUE4M3},
    TypeToken{"s8", &format::kInt8},
    TypeToken{"u8", &kUInt8},
    TypeToken{"s4", &format::kInt4},
    TypeToken{"u4", &kUInt4},
    TypeToken{"s32", &kInt32},
};

const Format* format_of(std::string_view token) {
  for (const TypeToken& type : kTypes) {
    if (type.token == token) return type.format;
  }
  throw Error(ErrorKind::internal, "instruction table: unknown type '" + std::string(token) + "'");
}

/// A rule with its parameters. Fusion is {L, F, e_zero, mantissa bits kept, rounding}.
struct Rule {
  Kind kind;
  Fusion fusion = {};
  bool flush_subnormals = false;
};

struct Source {
  Evidence evidence;
  std::string_view text;
};

/// A row of the table. Lists are separated by spaces, and a row stands for all combinations.
struct Row {
  std::string_view families;
  std::string_view shapes;  ///< "nN" stands for n = 8, 16, ..., 256
  std::string_view d;       ///< D's type, then C's where it differs
  std::string_view a;
  std::string_view b;
  const Rule& rule;
  const Source& source;
  std::string_view suffixes = "-";  ///< "-" none, ".satfinite", ".block16.ue4m3", ".1k"
};

constexpr Rounding kRz = Rounding::toward_zero;
constexpr Rounding kRne = Rounding::nearest_even;

constexpr Rule kVoltaF32{Kind::fused_dot, {4, 23, -131, 23, kRz}};
constexpr Rule kVoltaF16{Kind::fused_dot, {4, 23, -20, 10, kRne}};
constexpr Rule kTuringF32{Kind::fused_dot, {8, 24, -132, 23, kRz}};  // Ampere and Ada too: deeper shapes in two halves
constexpr Rule kTuringF16{Kind::fused_dot, {8, 24, -21, 10, kRne}};
constexpr Rule kAmpereTf32{Kind::fused_dot, {4, 24, -132, 23, kRz}};
constexpr Rule kAdaFp8F32{Kind::fused_dot, {16, 13, -132, 13, kRz}};
constexpr Rule kAdaFp8F16{Kind::fused_dot, {16, 13, -21, 10, kRne}};
constexpr Rule kHopperTf32{Kind::fused_dot, {8, 25, -133, 23, kRz}};
constexpr Rule kHopperF32{Kind::fused_dot, {16, 25, -133, 23, kRz}};
constexpr Rule kHopperF16{Kind::fused_dot, {16, 25, -21, 10, kRne}};
constexpr Rule kHopperMmaFp8F32{Kind::interleaved_dot, {16, 25, -133, 23, kRz}};
constexpr Rule kHopperMmaFp8F16{Kind::interleaved_dot, {16, 25, -21, 10, kRne}};
constexpr Rule kHopperFp8F32{Kind::fused_dot, {32, 13, -133, 13, kRz}};
constexpr Rule kHopperFp8F16{Kind::fused_dot, {32, 13, -133, 10, kRne}};
constexpr Rule kBlackwellF16{Kind::fused_dot, {16, 25, -133, 10, kRne}};
constexpr Rule kBlackwellMmaF16{Kind::fused_dot, {16, 25, -22, 10, kRne}};
constexpr Rule kBlackwellFp8F32{Kind::fused_dot, {32, 25, -133, 23, kRz}};
constexpr Rule kBlackwellFp8F16{Kind::fused_dot, {32, 25, -133, 10, kRne}};
constexpr Rule kBlackwellMmaFp8F16{Kind::fused_dot, {32, 25, -22, 10, kRne}};
constexpr Rule kBlackwellFp4{Kind::scaled_group_dot, {64, 35, -139, 23, kRz}};
constexpr Rule kFmaChain{Kind::fma_chain};
constexpr Rule kLateFmaChain{Kind::late_fma_chain};
constexpr Rule kSplit{Kind::split_dot};
constexpr Rule kInteger{Kind::integer_dot};
constexpr Rule kCdna1Pairs{Kind::amd_pairwise, {2, 0, 0, 23, kRne}};
constexpr Rule kCdna1Quads{Kind::amd_pairwise, {4, 0, 0, 23, kRne}};
constexpr Rule kCdna2Pairs{Kind::amd_pairwise, {2, 0, 0, 23, kRne}, true};
constexpr Rule kCdna2Quads{Kind::amd_pairwise, {4, 0, 0, 23, kRne}, true};
constexpr Rule kCdna3Xf32{Kind::amd_fused_dot, {4, 24, -126, 23, kRne}};
constexpr Rule kCdna3Half{Kind::amd_fused_dot, {8, 24, -126, 23, kRne}};
constexpr Rule kCdna3Fp8{Kind::amd_fused_dot, {16, 24, -126, 23, kRne}};

constexpr Source kH200{Evidence::measured, "NVIDIA H200, recorded vectors and digests"};
constexpr Source kMmaSim{Evidence::literature, "MMA-Sim, arXiv 2511.10909"};
constexpr Source kKhattak{Evidence::literature, "Khattak and Mikaitis, arXiv 2512.07004 v4"};
constexpr Source kMachineCode{Evidence::literature, "machine code of CUDA 13.0's ptxas"};
constexpr Source kPtx{Evidence::literature, "PTX ISA 9.0: exact integer dot product"};

constexpr std::string_view kFp8 = "e4m3 e5m2";
constexpr std::string_view kFp864 = "e4m3 e5m2 e3m2 e2m3 e2m1";
constexpr std::string_view kWrapOrClamp = "- .satfinite";
constexpr std::string_view kFrom75But90 = "sm75.mma sm80.mma sm89.mma sm100.mma sm120.mma";
constexpr std::string_view kFrom80But90 = "sm80.mma sm89.mma sm100.mma sm120.mma";

// clang-format off
constexpr Row kRows[] = {
    // Volta, Turing
    {"sm70.mma", "m8n8k4", "f32", "f16", "f16", kVoltaF32, kMmaSim},
    {"sm70.mma", "m8n8k4", "f32 f16", "f16", "f16", kVoltaF32, kMmaSim},
    {"sm70.mma", "m8n8k4", "f16", "f16", "f16", kVoltaF16, kMmaSim},
    {"sm75.mma", "m8n8k4 m16n8k8", "f32", "f16", "f16", kTuringF32, kMmaSim},
    {"sm75.mma", "m8n8k4", "f32 f16", "f16", "f16", kTuringF32, kMmaSim},
    {"sm75.mma", "m8n8k4 m16n8k8", "f16", "f16", "f16", kTuringF16, kMmaSim},
    // Ampere, Ada
    {"sm80.mma sm89.mma", "m16n8k4 m16n8k8", "f32", "tf32", "tf32", kAmpereTf32, kMmaSim},
    {"sm80.mma sm89.mma", "m16n8k8 m16n8k16", "f32", "f16", "f16", kTuringF32, kMmaSim},
    {"sm80.mma sm89.mma", "m16n8k8 m16n8k16", "f32", "bf16", "bf16", kTuringF32, kMmaSim},
    {"sm80.mma sm89.mma", "m16n8k8 m16n8k16", "f16", "f16", "f16", kTuringF16, kMmaSim},
    {kFrom80But90, "m8n8k4", "f32", "f16", "f16", kLateFmaChain, kMachineCode},
    {kFrom80But90, "m8n8k4", "f32 f16", "f16", "f16", kLateFmaChain, kMachineCode},
    {"sm89.mma", "m16n8k16 m16n8k32", "f32", kFp8, kFp8, kAdaFp8F32, kMmaSim},
    {"sm89.mma", "m16n8k16 m16n8k32", "f16", kFp8, kFp8, kAdaFp8F16, kMmaSim},
    // Hopper, mma.sync
    {"sm90.mma", "m16n8k4 m16n8k8", "f32", "tf32", "tf32", kHopperTf32, kH200},
    {"sm90.mma", "m16n8k8 m16n8k16", "f32", "f16", "f16", kHopperF32, kH200},
    {"sm90.mma", "m16n8k8 m16n8k16", "f32", "bf16", "bf16", kHopperF32, kH200},
    {"sm90.mma", "m16n8k8 m16n8k16", "f16", "f16", "f16", kHopperF16, kH200},
    {"sm90.mma", "m16n8k16 m16n8k32", "f32", kFp8, kFp8, kHopperMmaFp8F32, kH200},
    {"sm90.mma", "m16n8k16 m16n8k32", "f16", kFp8, kFp8, kHopperMmaFp8F16, kH200},
    {"sm90.mma", "m8n8k4", "f32", "f16", "f16", kLateFmaChain, kH200},
    {"sm90.mma", "m8n8k4", "f32 f16", "f16", "f16", kLateFmaChain, kH200},
    {"sm90.mma", "m8n8k4", "f16", "f16", "f16", kSplit, kH200},
    // Hopper, wgmma
    {"sm90.wgmma", "m64nNk8", "f32", "tf32", "tf32", kHopperTf32, kH200},
    {"sm90.wgmma", "m64nNk16", "f32", "f16", "f16", kHopperF32, kH200},
    {"sm90.wgmma", "m64nNk16", "f32", "bf16", "bf16", kHopperF32, kH200},
    {"sm90.wgmma", "m64nNk16", "f16", "f16", "f16", kHopperF16, kH200},
    {"sm90.wgmma", "m64nNk32", "f32", kFp8, kFp8, kHopperFp8F32, kH200},
    {"sm90.wgmma", "m64nNk32", "f16", kFp8, kFp8, kHopperFp8F16, kH200},
    // Blackwell and RTX Blackwell, mma.sync; on sm100 FP8 is unpacked to FP16 as on Hopper
    {"sm100.mma sm120.mma", "m16n8k4 m16n8k8", "f32", "tf32", "tf32", kHopperTf32, kMmaSim},
    {"sm100.mma sm120.mma", "m16n8k8 m16n8k16", "f32", "f16", "f16", kHopperF32, kMmaSim},
    {"sm100.mma sm120.mma", "m16n8k8 m16n8k16", "f32", "bf16", "bf16", kHopperF32, kMmaSim},
    {"sm100.mma sm120.mma", "m16n8k8 m16n8k16", "f16", "f16", "f16", kBlackwellMmaF16, kMmaSim},
    {"sm100.mma", "m16n8k32", "f32", kFp8, kFp8, kHopperMmaFp8F32, kKhattak},
    {"sm100.mma", "m16n8k32", "f16", kFp8, kFp8, kHopperMmaFp8F16, kKhattak},
    {"sm100.mma", "m16n8k16", "f32", kFp8, kFp8, kHopperMmaFp8F32, kMachineCode},
    {"sm100.mma", "m16n8k16", "f16", kFp8, kFp8, kHopperMmaFp8F16, kMachineCode},
    {"sm120.mma", "m16n8k16", "f32", kFp8, kFp8, kBlackwellFp8F32, kMmaSim},
    {"sm120.mma", "m16n8k16", "f16", kFp8, kFp8, kBlackwellMmaFp8F16, kMmaSim},
    {"sm120.mma", "m16n8k32", "f32", kFp864, kFp864, kBlackwellFp8F32, kMmaSim},
    {"sm120.mma", "m16n8k32", "f16", kFp864, kFp864, kBlackwellMmaFp8F16, kMmaSim},
    {"sm120.mma", "m16n8k32", "f32", kFp864, kFp864, kBlackwellFp8F32, kMmaSim, ".block32.ue8m0"},
    {"sm120.mma", "m16n8k64", "f32", "e2m1", "e2m1", kBlackwellFp4, kMmaSim,
     ".block32.ue8m0 .block16.ue8m0 .block32.ue4m3 .block16.ue4m3"},
    // Blackwell, tcgen05
    {"sm100.tcgen05", "m64nNk8 m128nNk8", "f32", "tf32", "tf32", kHopperTf32, kMmaSim},
    {"sm100.tcgen05", "m64nNk16 m128nNk16", "f32", "f16 bf16", "f16 bf16", kHopperF32, kMmaSim},
    {"sm100.tcgen05", "m64nNk16 m128nNk16", "f16", "f16", "f16", kBlackwellF16, kMmaSim},
    {"sm100.tcgen05", "m64nNk32 m128nNk32", "f32", kFp864, kFp864, kBlackwellFp8F32, kMmaSim},
    {"sm100.tcgen05", "m64nNk32 m128nNk32", "f16", kFp864, kFp864, kBlackwellFp8F16, kMmaSim},
    {"sm100.tcgen05", "m128nNk32", "f32", kFp864, kFp864, kBlackwellFp8F32, kMmaSim, ".block32.ue8m0"},
    {"sm100.tcgen05", "m128nNk64", "f32", "e2m1", "e2m1", kBlackwellFp4, kMmaSim,
     ".block32.ue8m0 .block16.ue8m0 .block16.ue4m3"},
    // FP64
    {kFrom80But90, "m8n8k4", "f64", "f64", "f64", kFmaChain, kMmaSim},
    {"sm90.mma", "m8n8k4 m16n8k4 m16n8k8 m16n8k16", "f64", "f64", "f64", kFmaChain, kH200},
    // Integers
    {kFrom75But90, "m8n8k16", "s32", "s8 u8", "s8 u8", kInteger, kPtx, kWrapOrClamp},
    {kFrom75But90, "m8n8k32", "s32", "s4 u4", "s4 u4", kInteger, kPtx, kWrapOrClamp},
    {kFrom80But90, "m16n8k16 m16n8k32", "s32", "s8 u8", "s8 u8", kInteger, kPtx, kWrapOrClamp},
    {kFrom80But90, "m16n8k32 m16n8k64", "s32", "s4 u4", "s4 u4", kInteger, kPtx, kWrapOrClamp},
    {"sm90.mma", "m8n8k16 m16n8k16 m16n8k32", "s32", "s8 u8", "s8 u8", kInteger, kH200, kWrapOrClamp},
    {"sm90.mma", "m8n8k32 m16n8k32 m16n8k64", "s32", "s4 u4", "s4 u4", kInteger, kH200, kWrapOrClamp},
    {"sm90.wgmma", "m64nNk32", "s32", "s8 u8", "s8 u8", kInteger, kH200, kWrapOrClamp},
    {"sm100.tcgen05", "m64nNk32 m128nNk32", "s32", "s8 u8", "s8 u8", kInteger, kPtx, kWrapOrClamp},
    // AMD
    {"cdna1.mfma cdna2.mfma cdna3.mfma", "m32n32k1 m32n32k2 m16n16k1 m16n16k4 m4n4k1", "f32", "f32", "f32",
     kFmaChain, kMmaSim},
    {"cdna1.mfma", "m32n32k4 m32n32k8 m16n16k4 m16n16k16 m4n4k4", "f32", "f16", "f16", kCdna1Quads, kMmaSim},
    {"cdna1.mfma", "m32n32k2 m32n32k4 m16n16k2 m16n16k8 m4n4k2", "f32", "bf16", "bf16", kCdna1Pairs, kMmaSim},
    {"cdna2.mfma", "m32n32k4 m32n32k8 m16n16k4 m16n16k16 m4n4k4", "f32", "f16", "f16", kCdna2Quads, kMmaSim},
    {"cdna2.mfma", "m32n32k2 m32n32k4 m16n16k2 m16n16k8 m4n4k2", "f32", "bf16", "bf16", kCdna2Pairs, kMmaSim},
    {"cdna2.mfma", "m32n32k4 m32n32k8 m16n16k4 m16n16k16 m4n4k4", "f32", "bf16", "bf16", kCdna2Quads, kMmaSim, ".1k"},
    {"cdna2.mfma cdna3.mfma", "m16n16k4 m4n4k4", "f64", "f64", "f64", kFmaChain, kMmaSim},
    {"cdna3.mfma", "m32n32k4 m16n16k8", "f32", "xf32", "xf32", kCdna3Xf32, kMmaSim},
    {"cdna3.mfma", "m32n32k4 m32n32k8 m16n16k4 m16n16k16 m4n4k4", "f32", "f16", "f16", kCdna3Half, kMmaSim},
    {"cdna3.mfma", "m32n32k4 m32n32k8 m16n16k4 m16n16k16 m4n4k4", "f32", "bf16", "bf16", kCdna3Half, kMmaSim},
    {"cdna3.mfma", "m32n32k16 m16n16k32", "f32", "e4m3fnuz e5m2fnuz", "e4m3fnuz e5m2fnuz", kCdna3Fp8, kMmaSim},
};
// clang-format on

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

struct Shape {
  int m = 0, n = 0, k = 0;  ///< n = 0 for "nN"
};

/// "m64n128k32" or "m64nNk32"; nothing when the text is no shape.
std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  for (const auto& [letter, value] : {std::pair{'m', &shape.m}, {'n', &shape.n}, {'k', &shape.k}}) {
    if (text.empty() || text.front() != letter) return std::nullopt;
    text.remove_prefix(1);
    if (letter == 'n' && !text.empty() && text.front() == 'N') {
      text.remove_prefix(1);
      continue;
    }
    std::size_t digits = 0;
    for (; digits < text.size() && digits < 4 && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
      *value = *value * 10 + (text[digits] - '0');
    }
    if (digits == 0) return std::nullopt;
    text.remove_prefix(digits);
  }
  return text.empty() ? std::optional(shape) : std::nullopt;
}

Instruction make_instruction(const Row& row, std::string_view family, std::string_view shape_text, std::string_view a,
                             std::string_view b, std::string_view suffix) {
  const Shape shape = parse_shape(shape_text).value();
  const std::vector<std::string_view> results = split(row.d, ' ');
  Instruction x{};
  x.family = family;
  x.name = x.family + '.' + std::string(shape_text);
  for (const std::string_view token : {results.front(), a, b}) (x.name += '.') += token;
  if (results.size() > 1) (x.name += '.') += results.back();
  x.name += suffix;
  x.m = shape.m;
  x.n = shape.n == 0 ? 256 : shape.n;
  x.k = shape.k;
  x.n_min = shape.n == 0 ? 8 : shape.n;
  x.n_step = shape.n == 0 ? 8 : shape.n;
  x.a = format_of(a);
  x.b = format_of(b);
  x.c = format_of(results.back());
  x.d = format_of(results.front());
  for (const std::string_view token : split(suffix, '.')) {
    if (token == "block16" || token == "block32") {
      x.block = token == "block16" ? 16 : 32;
    } else if (token == "ue8m0" || token == "ue4m3") {
      x.scale = format_of(token);
    }
  }
  x.kind = row.rule.kind;
  x.fusion = row.rule.fusion;
  // The two passes of an interleaved instruction share its K.
  x.fusion.group = x.kind == Kind::interleaved_dot ? x.k / 2 : std::min(x.fusion.group, x.k);
  x.saturate = suffix == ".satfinite";
  x.flush_subnormals = row.rule.flush_subnormals;
  x.evidence = row.source.evidence;
  x.source = row.source.text;
  return x;
}

std::vector<Instruction> build_table() {
  std::vector<Instruction> table;
  for (const Row& row : kRows) {
    for (const std::string_view family : split(row.families, ' ')) {
      for (const std::string_view shape : split(row.shapes, ' ')) {
        for (const std::string_view a : split(row.a, ' ')) {
          for (const std::string_view b : split(row.b, ' ')) {
            for (const std::string_view suffix : split(row.suffixes, ' ')) {
              table.push_back(make_instruction(row, family, shape, a, b, suffix == "-" ? "" : suffix));
            }
          }
        }
      }
    }
  }
  // Rows stand in the order in which a reader wants them; the list goes by architecture.
  std::stable_sort(table.begin(), table.end(), [](const Instruction& x, const Instruction& y) {
    const auto rank = [](const Instruction& i) {
      const std::string arch = i.family.substr(0, i.family.find('.'));
      return std::pair(arch.starts_with("sm") ? 0 : 1, std::pair(arch.size(), arch));
    };
    return rank(x) < rank(y);
  });
  return table;
}

using Index = std::unordered_map<std::string_view, const Instruction*>;

const std::vector<Instruction>& table() {
  static const std::vector<Instruction> instance = build_table();
  return instance;
}

const Index& index() {
  static const Index instance = [] {
    Index names;
    for (const Instruction& instruction : table()) {
      if (!names.emplace(instruction.name, &instruction).second) {
        throw Error(ErrorKind::internal, "instruction table: '" + instruction.name + "' stands twice");
      }
    }
    return names;
  }();
  return instance;
}

std::size_t common_prefix(std::string_view x, std::string_view y) {
  const auto end = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first;
  return static_cast<std::size_t>(end - x.begin());
}

}  // namespace

std::span<const Instruction> instructions() { return table(); }

const Instruction* find_instruction_or_null(std::string_view name) {
  if (const auto hit = index().find(name); hit != index().end()) return hit->second;
  // Not a literal name: put "nN" in place of the width and ask whether the entry comes in it.
  const std::vector<std::string_view> parts = split(name, '.');
  if (parts.size() < 3) return nullptr;
  const std::optional<Shape> shape = parse_shape(parts[2]);
  if (!shape || shape->n == 0) return nullptr;
  std::string generic(parts[0]);
  (generic += '.') += parts[1];
  generic += ".m" + std::to_string(shape->m) + "nNk" + std::to_string(shape->k);
  for (std::size_t i = 3; i < parts.size(); ++i) (generic += '.') += parts[i];
  const auto hit = index().find(generic);
  return hit != index().end() && hit->second->accepts_n(shape->n) ? hit->second : nullptr;
}

const Instruction& find_instruction(std::string_view name) {
  if (const Instruction* hit = find_instruction_or_null(name)) return *hit;
  const auto nearest = std::max_element(table().begin(), table().end(), [&](const auto& x, const auto& y) {
    return common_prefix(x.name, name) < common_prefix(y.name, name);
  });
  throw Error(ErrorKind::usage, "unknown instruction '" + std::string(name) + "': the nearest is '" + nearest->name +
                                    "'; `qattn instructions` lists all");
}

const Instruction* find(std::string_view family, std::string_view d_type, const Format& a, const Format& b, int k) {
  const Instruction* best = nullptr;
  for (const Instruction& x : table()) {
    if (x.family != family || type_token(*x.d) != d_type || x.c != x.d || x.scale != nullptr || x.saturate) continue;
    if (x.a->name != a.name || x.b->name != b.name || (k != 0 && x.k != k)) continue;
    if (best == nullptr || x.k > best->k) best = &x;
  }
  return best;
}

const Instruction* find_block_scaled(std::string_view family, const Format& a, const Format& b, const Format& scale,
                                     int block) {
  const Format& unsigned_scale = &scale == &format::kE4M3 ? format::kUE4M3 : scale;
  const Instruction* best = nullptr;
  for (const Instruction& x : table()) {
    if (x.family != family || x.scale == nullptr || x.block != block || x.d != &format::kFP32) continue;
    if (x.scale->name != unsigned_scale.name || x.a->name != a.name || x.b->name != b.name) continue;
    if (best == nullptr || x.k > best->k) best = &x;
  }
  return best;
}

std::string evidence_text(const Instruction& instruction) {
  if (instruction.evidence == Evidence::measured) return "measured here";
  return "from the literature (" + std::string(instruction.source) + ")";
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::fused_dot:
      return "fused dot";
    case Kind::scaled_group_dot:
      return "scaled group dot";
    case Kind::interleaved_dot:
      return "two interleaved fused dots, rounded add";
    case Kind::fma_chain:
      return "fma chain";
    case Kind::late_fma_chain:
      return "fma chain from zero, rounded add";
    case Kind::split_dot:
      return "rounded sums of two pairs";
    case Kind::integer_dot:
      return "integer dot";
    case Kind::amd_fused_dot:
      return "AMD fused dot";
    case Kind::amd_pairwise:
      return "AMD pairwise sum";
  }
  return "";
}

std::string_view type_token(const Format& format) {
  for (const TypeToken& type : kTypes) {
    if (type.format->name == format.name) return type.token;
  }
  return format.name;
}

}  // namespace qattn::mma
