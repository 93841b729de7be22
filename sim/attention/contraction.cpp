#include "attention/contraction.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "attention/dense_product.h"
#include "base/error.h"
#include "format/encode.h"

namespace qattn::attention {
namespace {

using Kind = Accumulator::Kind;

/// Codes of at most 8 bits: the sum of so many products stays below 2^31 whatever their signs are (255^2 < 2^16).
constexpr std::int64_t kExactIntegerDepth = std::int64_t{1} << 14;

/// "sm80.mma.f16" is the family "sm80.mma" with D type "f16"; without a type an f32 accumulator is meant.
std::pair<std::string_view, std::string_view> split_type(std::string_view name) {
  for (const std::string_view type : {std::string_view("f16"), std::string_view("f32")}) {
    if (name.size() > type.size() + 1 && name.ends_with(type) && name[name.size() - type.size() - 1] == '.') {
      return {name.substr(0, name.size() - type.size() - 1), type};
    }
  }
  return {name, "f32"};
}

bool is_family(std::string_view family) {
  const auto all = mma::instructions();
  return std::any_of(all.begin(), all.end(), [&](const mma::Instruction& i) { return i.family == family; });
}

/// Integer codes are decoded as integers, others by value.
template <class T>
Matrix<T> decoded(const format::Format& format, MatrixView<std::uint32_t> codes) {
  Matrix<T> values(codes.rows(), codes.cols());
  std::vector<float> row(static_cast<std::size_t>(codes.cols()));
  for (Eigen::Index i = 0; i < codes.rows(); ++i) {
    const auto* source = codes.data() + i * codes.outerStride();
    format::decode_span(format, {source, row.size()}, row);
    std::copy(row.begin(), row.end(), values.data() + i * values.cols());
  }
  return values;
}

Side plain_side(const Accumulator& accumulator, MatrixView<double> values) {
  Side side;
  if (accumulator.kind == Kind::exact) {
    side.doubles = values;
  } else {
    side.floats = values.cast<float>();
  }
  return side;
}

Side coded_side(const Accumulator& accumulator, const format::Format& format, MatrixView<std::uint32_t> codes) {
  Side side;
  if (accumulator.kind == Kind::exact) {
    side.doubles = decoded<double>(format, codes);
  } else {
    side.floats = decoded<float>(format, codes);
  }
  return side;
}

int block_of(const OperandSpec& operand) { return operand.granularity == quant::Granularity::block_1x16 ? 16 : 32; }

Accumulator block_scaled(std::string_view family, const OperandSpec& a, const OperandSpec& b) {
  const mma::Instruction* instruction = nullptr;
  if (a.scale_format == b.scale_format && block_of(a) == block_of(b)) {
    instruction = mma::find_block_scaled(family, *a.format, *b.format, *a.scale_format, block_of(a));
  }
  if (instruction != nullptr) return {Kind::instruction, instruction};
  throw Error(ErrorKind::usage,
              fmt::format("accumulator '{}' has no block-scaled instruction for {} (1x{}, {} scales) x {} (1x{}, {} "
                          "scales); sm100.tcgen05 and sm120.mma have those of NVFP4 and the MX formats",
                          family, a.format->name, block_of(a), a.scale_format->name, b.format->name, block_of(b),
                          b.scale_format->name));
}

/// Operand of an instruction: codes a row a line, with their block scales where the instruction takes them.
mma::Operand operand_of(const Accumulator& accumulator, mma::Side side, const MatrixCodes& codes,
                        const MatrixCodes& scales) {
  if (!accumulator.block_scaled()) return {*accumulator.instruction, side, codes};
  return {*accumulator.instruction, side, codes, scales};
}

}  // namespace

Accumulator resolve_accumulator(std::string_view name, const OperandSpec& a, const OperandSpec& b) {
  const bool known = name == "exact" || name == "f32";
  const auto [family, type] = split_type(name);
  if (!known && !is_family(family)) {
    throw Error(
        ErrorKind::usage,
        fmt::format("accumulator '{}' is not exact, f32 or an instruction family of `qattn instructions`", name));
  }
  if (name == "exact") return {Kind::exact, nullptr};
  if (name == "f32") return {Kind::f32, nullptr};
  if (a.micro_scaled() && b.micro_scaled() && !b.micro_axis) return block_scaled(name, a, b);
  if (a.exact() || b.exact() || a.micro_scaled() || b.micro_scaled()) return {Kind::exact, nullptr};
  const std::string_view d_type = a.integer() && b.integer() ? "s32" : type;
  const mma::Instruction* instruction = mma::find(family, d_type, *a.format, *b.format);
  if (instruction == nullptr) {
    throw Error(ErrorKind::usage,
                fmt::format("accumulator '{}' has no instruction for {} x {}", name, a.format->name, b.format->name));
  }
  return {d_type == "s32" ? Kind::integer : Kind::instruction, instruction};
}

std::string describe(const Accumulator& accumulator) {
  if (accumulator.instruction != nullptr) {
    return fmt::format("{} ({})", accumulator.instruction->name, mma::evidence_text(*accumulator.instruction));
  }
  return accumulator.kind == Kind::f32 ? "f32 sums" : "exact sums";
}

Side left_side(const Accumulator& accumulator, MatrixView<double> values) { return plain_side(accumulator, values); }
Side right_side(const Accumulator& accumulator, MatrixView<double> values) { return plain_side(accumulator, values); }

Side left_side(const Accumulator& accumulator, const format::Format& format, MatrixView<std::uint32_t> codes,
               const MatrixCodes& scales) {
  if (!accumulator.takes_codes()) return coded_side(accumulator, format, codes);
  Side side;
  side.operand.emplace(operand_of(accumulator, mma::Side::a, codes, scales));
  return side;
}

Side right_side(const Accumulator& accumulator, const format::Format& format, MatrixView<std::uint32_t> codes,
                const MatrixCodes& scales) {
  if (!accumulator.takes_codes()) return coded_side(accumulator, format, codes);
  Side side;
  side.operand.emplace(operand_of(accumulator, mma::Side::b, codes.transpose(), scales));
  return side;
}

PartialSum::PartialSum(const Accumulator& accumulator, std::int64_t rows, std::int64_t columns)
    : accumulator_(accumulator) {
  const Kind kind = accumulator.kind;
  if (kind == Kind::exact) doubles_ = MatrixD::Zero(rows, columns);
  if (kind == Kind::f32) floats_ = MatrixF::Zero(rows, columns);
  if (accumulator.takes_codes()) codes_ = MatrixCodes::Zero(rows, columns);
}

void PartialSum::clear() {
  doubles_.setZero();
  floats_.setZero();
  codes_.setZero();
  depth_ = 0;
}

void PartialSum::multiply(const mma::Operand& a, const mma::Operand& b) {
  use_ += mma::multiply_accumulate(*accumulator_.instruction, a, b, codes_, accumulator_.path);
}

/// What the integer codes hold goes to doubles before it could wrap; those stay absent until then.
void PartialSum::add_integers(const mma::Operand& a, const mma::Operand& b, std::int64_t first, std::int64_t last) {
  for (std::int64_t start = first; start < last; start += kExactIntegerDepth) {
    const std::int64_t end = std::min(start + kExactIntegerDepth, last);
    if (depth_ + end - start > kExactIntegerDepth) {
      const MatrixD held = codes_.cast<std::int32_t>().cast<double>();
      doubles_ = doubles_.size() == 0 ? held : MatrixD(doubles_ + held);
      codes_.setZero();
      depth_ = 0;
    }
    multiply(a.slice(start, end), b.slice(start, end));
    depth_ += end - start;
  }
}

void PartialSum::add(const Side& a, const Side& b, std::int64_t first, std::int64_t last) {
  const std::int64_t depth = last - first;
  switch (accumulator_.kind) {
    case Kind::exact:
      accumulate_product(a.doubles.middleCols(first, depth), b.doubles.middleRows(first, depth), doubles_);
      break;
    case Kind::f32:
      accumulate_product(a.floats.middleCols(first, depth), b.floats.middleRows(first, depth), floats_);
      break;
    case Kind::integer:
      add_integers(*a.operand, *b.operand, first, last);
      break;
    case Kind::instruction:
      multiply(a.operand->slice(first, last), b.operand->slice(first, last));
      break;
  }
}

template <class Real>
void PartialSum::read(Matrix<Real>& values) const {
  switch (accumulator_.kind) {
    case Kind::exact:
      values = doubles_.cast<Real>();
      break;
    case Kind::integer:
      if (doubles_.size() == 0) {
        values = codes_.cast<std::int32_t>().cast<Real>();
      } else {
        values = (doubles_ + codes_.cast<std::int32_t>().cast<double>()).cast<Real>();
      }
      break;
    case Kind::f32:
      values = floats_.cast<Real>();
      break;
    case Kind::instruction:
      values = decoded<Real>(*accumulator_.instruction->d, codes_);
      break;
  }
}

template void PartialSum::read(Matrix<float>&) const;
template void PartialSum::read(Matrix<double>&) const;

void PartialSum::rescale_row(std::int64_t row, double factor) {
  const auto f = static_cast<float>(factor);
  switch (accumulator_.kind) {
    case Kind::exact:
      for (Eigen::Index j = 0; j < doubles_.cols(); ++j) doubles_(row, j) *= factor;
      break;
    case Kind::f32:
      for (Eigen::Index j = 0; j < floats_.cols(); ++j) floats_(row, j) *= f;
      break;
    case Kind::integer:
      throw Error(ErrorKind::internal, "PartialSum: an integer sum cannot be rescaled");
    case Kind::instruction: {
      const format::Format& format = *accumulator_.instruction->d;
      const format::Policy to_nearest{format::Rounding::nearest_even, format::Overflow::inf_or_nan,
                                      format::Subnormals::keep};
      const float rounded = format::decode_float(format, format::encode(format, f, to_nearest));
      std::vector<float> values(static_cast<std::size_t>(codes_.cols()));
      const std::span<std::uint32_t> codes(codes_.data() + row * codes_.cols(), values.size());
      format::decode_span(format, codes, values);
      for (float& value : values) value *= rounded;
      format::encode_span(format, values, to_nearest, codes);
      break;
    }
  }
}

}  // namespace qattn::attention
