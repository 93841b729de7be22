// Replays.
#include "mma/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "mma/fused_dot.h"
#include "mma/gemm.h"
#include "mma/unpacked.h"

namespace qattn::mma {
namespace {

using Eigen::Index;

CodeMatrix matrix(const io::Codes& codes, Index offset, Index rows, Index columns) {
  CodeMatrix result(rows, columns);
  for (Index i = 0; i < result.size(); ++i) result.data()[i] = codes[offset + i];
  return result;
}

/// Product number t of the case.
struct Product {
  CodeMatrix a, b, c, scale_a, scale_b;

  Product(const io::InstructionCase& v, Index t)
      : a(matrix(v.a, t * v.rows * v.depth, v.rows, v.depth)),
        b(matrix(v.b, t * v.columns * v.depth, v.columns, v.depth)),
        c(matrix(v.c, t * v.rows * v.columns, v.rows, v.columns)) {
    if (v.scale_a) scale_a = scales(*v.scale_a, t, v.rows);
    if (v.scale_b) scale_b = scales(*v.scale_b, t, v.columns);
  }

  static CodeMatrix scales(const io::Codes& codes, Index t, Index rows) {
    const Index blocks = codes.shape.back();
    return matrix(codes, t * rows * blocks, rows, blocks);
  }

  CodeMatrix compute(const Instruction& x, Path path) const {
    if (path == Path::plain || !has_fast_path(x) || x.d->bits > 32) return execute(x, a, b, c, scale_a, scale_b);
    MatrixCodes d = c.cast<std::uint32_t>();
    multiply_accumulate(x, operand(x, Side::a, a, scale_a), operand(x, Side::b, b, scale_b), d);
    return d.cast<std::uint64_t>();
  }

  static Operand operand(const Instruction& x, Side side, const CodeMatrix& codes, const CodeMatrix& scales) {
    const MatrixCodes narrow = codes.cast<std::uint32_t>();
    if (x.scale == nullptr) return Operand(x, side, narrow);
    const MatrixCodes narrow_scales = scales.cast<std::uint32_t>();
    return Operand(x, side, narrow, narrow_scales);
  }

  std::string explain(const Instruction& x, Index i, Index j) const {
    const auto row = [](const CodeMatrix& from, Index r) {
      return std::span(from.data() + (from.rows() == 0 ? 0 : r * from.cols()),
                       from.rows() == 0 ? 0 : static_cast<std::size_t>(from.cols()));
    };
    const DotOperands operands{row(a, i), row(b, j), c(i, j), row(scale_a, i), row(scale_b, j)};
    Trace trace;
    dot(x, operands, &trace);
    std::string text = fmt::format("  a {:#x}\n  b {:#x}\n  c {:#x}\n", fmt::join(operands.a, " "),
                                   fmt::join(operands.b, " "), operands.c);
    if (x.scale != nullptr) {
      text += fmt::format("  scale_a {:#x}\n  scale_b {:#x}\n", fmt::join(operands.scale_a, " "),
                          fmt::join(operands.scale_b, " "));
    }
    return text + to_text(x, trace);
  }
};

void check_shape(const Instruction& x, const io::InstructionCase& v) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::input, fmt::format("case {}: {} {}", v.name, x.name, what));
  };
  if (v.depth != x.k) fail(fmt::format("has K = {}, the recording {}", x.k, v.depth));
  if (v.rows > x.m || v.columns > x.n) {
    fail(fmt::format("is at most {} x {}, the recording {} x {}", x.m, x.n, v.rows, v.columns));
  }
  if (x.scale == nullptr) return;
  const std::int64_t blocks = x.k / x.block;
  if (!v.scale_a || !v.scale_b) fail("needs scale_a and scale_b");
  if (v.scale_a->size() != v.n * v.rows * blocks || v.scale_b->size() != v.n * v.columns * blocks) {
    fail(fmt::format("needs {} scales a row", blocks));
  }
}

void check_widths(const Instruction& x, const io::InstructionCase& v) {
  io::check_width(v.a, *x.a, v.name + "/a");
  io::check_width(v.b, *x.b, v.name + "/b");
  io::check_width(v.c, *x.c, v.name + "/c");
  io::check_width(v.d, *x.d, v.name + "/d");
  if (x.scale == nullptr) return;
  io::check_width(*v.scale_a, *x.scale, v.name + "/scale_a");
  io::check_width(*v.scale_b, *x.scale, v.name + "/scale_b");
}

void count(ReplayResult& result, const format::Format& format, std::uint64_t computed, std::uint64_t expected) {
  ++result.elements;
  if (computed == expected) return;
  ++result.mismatches;
  result.max_ulp = std::max(result.max_ulp, ulp_distance(format, computed, expected));
}

}  // namespace

std::uint64_t ulp_distance(const format::Format& format, std::uint64_t x, std::uint64_t y) {
  if (format.specials == format::Specials::integer) {
    const std::int64_t difference = unpack_integer(format, x) - unpack_integer(format, y);
    return static_cast<std::uint64_t>(difference < 0 ? -difference : difference);
  }
  const bool x_nan = unpack(format, x).kind == Unpacked::Class::nan;
  const bool y_nan = unpack(format, y).kind == Unpacked::Class::nan;
  if (x_nan != y_nan) return std::numeric_limits<std::uint64_t>::max();
  if (x_nan) return 0;
  const std::uint64_t sign = std::uint64_t{1} << (format.bits - 1);
  const std::uint64_t x_magnitude = x & (sign - 1);
  const std::uint64_t y_magnitude = y & (sign - 1);
  if (((x ^ y) & sign) != 0) return x_magnitude + y_magnitude;
  return x_magnitude > y_magnitude ? x_magnitude - y_magnitude : y_magnitude - x_magnitude;
}

ReplayResult replay(const Instruction& x, const io::InstructionCase& v, Path path) {
  check_shape(x, v);
  check_widths(x, v);
  ReplayResult result;
  result.name = v.instruction;
  result.case_name = v.name;
  result.evidence = evidence_text(x);
  for (Index t = 0; t < v.n; ++t) {
    const Product product(v, t);
    const CodeMatrix d = product.compute(x, path);
    for (Index i = 0; i < v.rows; ++i) {
      for (Index j = 0; j < v.columns; ++j) {
        const std::uint64_t expected = v.d[(t * v.rows + i) * v.columns + j];
        count(result, *x.d, d(i, j), expected);
        if (d(i, j) != expected && !result.first) {
          result.first = Mismatch{{t, i, j}, expected, d(i, j), product.explain(x, i, j)};
        }
      }
    }
  }
  return result;
}

ReplayResult replay(const io::InstructionCase& vectors, Path path) {
  const Instruction* x = find_instruction_or_null(vectors.instruction);
  if (x == nullptr) {
    throw Error(ErrorKind::input, fmt::format("case {}: unknown instruction '{}'; `qattn instructions` lists all",
                                              vectors.name, vectors.instruction));
  }
  return replay(*x, vectors, path);
}

std::vector<ReplayResult> replay_gemm(const io::RecordedCase& recorded, Path path) {
  const auto codes = [](const Tensor& tensor) {
    MatrixCodes result(tensor.shape.at(0), tensor.shape.at(1));
    for (Index i = 0; i < result.size(); ++i) result.data()[i] = static_cast<std::uint32_t>(tensor.code(i));
    return result;
  };
  const Tensor& a = recorded.tensor("a");
  const Tensor& b = recorded.tensor("b");
  const MatrixCodes a_codes = codes(a);
  const MatrixCodes b_codes = codes(b);
  std::vector<ReplayResult> results;
  for (const io::RecordedKernel& kernel : recorded.kernels) {
    const Tensor& expected = kernel.tensors.at("d");
    const std::string where = fmt::format("{}, {}/kernels/{}", recorded.file, recorded.name, kernel.name);
    const bool fast = io::find_bool(kernel.attributes, "use_fast_accum", where).value_or(false);
    GemmPlan plan = cublaslt_fp8_plan(*a.format, *b.format, fast, a_codes.cols(), *expected.format);
    plan.slice = io::find_integer(kernel.attributes, "slice", where).value_or(plan.slice);
    if (plan.slice < 0 || plan.slice % plan.instruction->k != 0) {
      throw Error(ErrorKind::input,
                  fmt::format("{}: slice {} is not a multiple of {}", where, plan.slice, plan.instruction->k));
    }
    const MatrixCodes d = gemm(plan, a_codes, b_codes, path);
    ReplayResult result;
    result.name = kernel.name;
    result.case_name = recorded.name;
    result.evidence = evidence_text(*plan.instruction);
    for (Index i = 0; i < d.size(); ++i) {
      const std::uint64_t want = expected.code(i);
      const std::uint64_t have = d.data()[i];
      count(result, *plan.output, have, want);
      if (have == want || result.first) continue;
      const Index row = i / d.cols();
      const Index column = i % d.cols();
      result.first = Mismatch{{row, column}, want, have, explain(plan, a_codes.row(row), b_codes.row(column))};
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace qattn::mma
