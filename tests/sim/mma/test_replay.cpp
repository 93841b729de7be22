// Recorded vectors: every one comes out bit for bit, and would not if a rule were any other.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "format/encode.h"
#include "mma/gemm.h"
#include "mma/replay.h"
#include "oracle.h"
#include "support/catch.h"

namespace qattn::mma {
namespace {

const std::string kVectors = std::string(QATTN_SOURCE_DIR) + "/data/vectors/";

/// Every file of instruction vectors in the tree.
std::vector<std::string> instruction_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kVectors)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() == ".h5" && io::schema(path) == io::kInstructionSchema) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<io::InstructionCase> recorded_cases() {
  std::vector<io::InstructionCase> cases;
  for (const std::string& file : instruction_files()) {
    const io::VectorReader reader(file);
    for (const std::string& name : reader.cases()) cases.push_back(reader.instruction(name));
  }
  return cases;
}

std::vector<std::uint64_t> codes(const io::Codes& from, std::int64_t offset, std::int64_t n) {
  std::vector<std::uint64_t> list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(from[offset + i]);
  return list;
}

/// Whether some recorded output contradicts the mutated oracle.
bool caught(const Instruction& x, const std::vector<const io::InstructionCase*>& cases, Mutation mutation) {
  for (const io::InstructionCase* v : cases) {
    for (std::int64_t output = 0; output < v->d.size(); ++output) {
      const std::int64_t product = output / (v->rows * v->columns);
      const std::int64_t row = output / v->columns;
      const std::int64_t column = product * v->columns + output % v->columns;
      const std::vector<std::uint64_t> a = codes(v->a, row * v->depth, v->depth);
      const std::vector<std::uint64_t> b = codes(v->b, column * v->depth, v->depth);
      if (oracle_dot(x, {a, b, v->c[output]}, mutation) != v->d[output]) return true;
    }
  }
  return false;
}

std::vector<Mutation> mutations_of(const Instruction& x) {
  if (x.kind == Kind::fma_chain) {
    return {Mutation::descending_k, Mutation::rounded_products, Mutation::accumulator_late, Mutation::truncated_output,
            Mutation::flushed_operands};
  }
  if (x.kind == Kind::late_fma_chain) {  // f16 products are exact in f32
    return {Mutation::descending_k, Mutation::accumulator_inside, Mutation::truncated_output,
            Mutation::flushed_operands};
  }
  if (x.kind == Kind::split_dot) {
    return {Mutation::swapped_halves, Mutation::accumulator_late, Mutation::truncated_output,
            Mutation::flushed_operands};
  }
  std::vector<Mutation> list{Mutation::one_bit_less,     Mutation::one_bit_more,         Mutation::normalised_product,
                             Mutation::nearest_cut,      Mutation::halved_groups,        Mutation::accumulator_late,
                             Mutation::flushed_operands, Mutation::accumulator_unaligned};
  const bool cut_output = x.fusion.rounding == Rounding::toward_zero;
  list.push_back(cut_output ? Mutation::nearest_output : Mutation::truncated_output);
  if (cut_output && x.fusion.mantissa_bits < x.d->mantissa_bits) list.push_back(Mutation::full_mantissa);
  if (x.kind == Kind::interleaved_dot) {
    list.insert(list.end(), {Mutation::doubled_group, Mutation::halves_in_order, Mutation::swapped_halves,
                             Mutation::accumulator_inside});
  }
  return list;
}

MatrixCodes code_matrix(const Tensor& tensor) {
  MatrixCodes result(tensor.shape[0], tensor.shape[1]);
  for (Eigen::Index i = 0; i < result.size(); ++i) result.data()[i] = static_cast<std::uint32_t>(tensor.code(i));
  return result;
}

io::InstructionCase first_case(const std::string& file, const std::string& name) {
  return io::VectorReader(kVectors + file).instruction(name);
}

}  // namespace

TEST_CASE("every recorded instruction output comes out bit for bit on both paths") {
  std::int64_t elements = 0;
  for (const io::InstructionCase& vectors : recorded_cases()) {
    for (const Path path : {Path::fast, Path::plain}) {
      const ReplayResult result = replay(vectors, path);
      INFO(result.case_name << " " << result.name << "\n" << (result.first ? result.first->detail : ""));
      CHECK(result.mismatches == 0);
      CHECK(result.elements == vectors.d.size());
      elements += result.elements;
    }
  }
  CHECK(elements >= 2 * 230000);
}

TEST_CASE("the recorded outputs catch every change of a rule") {
  const std::vector<io::InstructionCase> all = recorded_cases();
  std::map<const Instruction*, std::vector<const io::InstructionCase*>> cases;
  for (const io::InstructionCase& vectors : all) cases[&find_instruction(vectors.instruction)].push_back(&vectors);
  int checked = 0;
  for (const auto& [x, vectors] : cases) {
    if (x->kind == Kind::integer_dot) continue;
    for (const Mutation mutation : mutations_of(*x)) {
      INFO(x->name << ": " << mutation_name(mutation));
      CHECK(caught(*x, vectors, mutation));
      ++checked;
    }
  }
  CHECK(checked >= 350);
}

TEST_CASE("the recorded integer outputs catch wrapping for clamping and the wrong sign") {
  const auto wrong = [](const io::InstructionCase& vectors, const auto& change) {
    Instruction x = find_instruction(vectors.instruction);
    change(x);
    return replay(x, vectors, Path::plain).mismatches > 0;
  };
  for (const io::InstructionCase& vectors : recorded_cases()) {
    const Instruction& x = find_instruction(vectors.instruction);
    if (x.kind != Kind::integer_dot) continue;
    INFO(vectors.name);
    // No sum of mmai_s4sat_near_limit leaves the range of s32.
    if (vectors.name.ends_with("near_limit") && vectors.name != "mmai_s4sat_near_limit") {
      CHECK(wrong(vectors, [](Instruction& i) { i.saturate = !i.saturate; }));
    }
    const bool bytes = x.a->bits == 8;
    const auto other_sign = [&](const format::Format& f) {
      return f.has_sign ? (bytes ? &kUInt8 : &kUInt4) : (bytes ? &format::kInt8 : &format::kInt4);
    };
    CHECK(wrong(vectors, [&](Instruction& i) { i.a = other_sign(*x.a); }));
    CHECK(wrong(vectors, [&](Instruction& i) { i.b = other_sign(*x.b); }));
  }
}

TEST_CASE("a wrong output is counted, measured and explained") {
  io::InstructionCase vectors = first_case("mma_vectors.h5", "wg_e4m3_normal_near");
  const std::int64_t at = (2 * vectors.rows + 5) * vectors.columns + 3;
  vectors.d.set(at, vectors.d[at] ^ 0x400);
  for (const Path path : {Path::fast, Path::plain}) {
    const ReplayResult result = replay(vectors, path);
    CHECK(result.mismatches == 1);
    CHECK(result.max_ulp == 0x400);
    CHECK(result.evidence == "measured here");
    REQUIRE(result.first);
    CHECK(result.first->index == std::vector<std::int64_t>{2, 5, 3});
    CHECK(result.first->expected == (result.first->computed ^ 0x400));
    CHECK(result.first->detail.find("e_max") != std::string::npos);
  }
}

TEST_CASE("cases that do not fit their instruction are refused by name") {
  const io::InstructionCase good = first_case("mma_vectors.h5", "wg_e4m3_normal_near");
  const auto refused = [&](const auto& change) {
    io::InstructionCase bad = good;
    change(bad);
    try {
      replay(bad);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::input &&
             std::string(error.what()).find("wg_e4m3_normal_near") != std::string::npos;
    }
    return false;
  };
  CHECK(refused([](io::InstructionCase& v) { v.instruction = "sm90.wgmma.m64n8k32.f32.e4m3.e9m9"; }));
  CHECK(refused([](io::InstructionCase& v) { v.instruction = "sm90.wgmma.m64n8k16.f32.f16.f16"; }));
  CHECK(refused([](io::InstructionCase& v) { v.instruction = "sm90.mma.m16n8k32.f32.e4m3.e4m3"; }));
  CHECK(refused([](io::InstructionCase& v) { v.instruction = "sm120.mma.m16n8k32.f32.e4m3.e4m3.block32.ue8m0"; }));
}

TEST_CASE("ulp distances") {
  CHECK(ulp_distance(format::kFP32, 0x3F800000, 0x3F800003) == 3);
  CHECK(ulp_distance(format::kFP32, 0x80000001, 0x00000001) == 2);
  CHECK(ulp_distance(format::kFP32, 0x80000000, 0) == 0);
  CHECK(ulp_distance(format::kFP16, 0x7FFF, 0x7E00) == 0);
  CHECK(ulp_distance(format::kFP16, 0x7FFF, 0x3C00) == ~std::uint64_t{0});
  CHECK(ulp_distance(kInt32, 0x80000000, 0x7FFFFFFF) == 0xFFFFFFFF);
}

TEST_CASE("cuBLASLt's FP8 products come out bit for bit") {
  const io::VectorReader reader(kVectors + "gemm_vectors.h5");
  std::int64_t elements = 0;
  for (const std::string& name : reader.cases()) {
    for (const Path path : {Path::fast, Path::plain}) {
      for (const ReplayResult& result : replay_gemm(reader.recorded(name), path)) {
        INFO(name << " " << result.name << "\n" << (result.first ? result.first->detail : ""));
        CHECK(result.mismatches == 0);
        elements += result.elements;
      }
    }
  }
  CHECK(elements == 2 * 8 * 32 * 32);
}

TEST_CASE("a wrong element of a product is explained by its chains and its last instruction") {
  io::RecordedCase recorded = io::VectorReader(kVectors + "gemm_vectors.h5").recorded("gemm_2");
  for (io::RecordedKernel& kernel : recorded.kernels) {
    Tensor& d = kernel.tensors.at("d");
    d.set_code(5 * 32 + 7, d.code(5 * 32 + 7) ^ 1);
  }
  for (const ReplayResult& result : replay_gemm(recorded)) {
    INFO(result.name);
    REQUIRE(result.mismatches == 1);
    REQUIRE(result.first);
    CHECK(result.first->index == std::vector<std::int64_t>{5, 7});
    const std::string& text = result.first->detail;
    const bool fast = result.name.starts_with("fast");
    CHECK((text.find("chain over k 0..4095:") != std::string::npos) == fast);
    CHECK((text.find("chain over k 3968..4095:") != std::string::npos) == !fast);
    for (const char* part : {"last instruction, k 4064..4095", "a[31] b[31]", "e_max", "sum before", "output 0x"}) {
      CHECK(text.find(part) != std::string::npos);
    }
    // The f32 result of one chain is the last instruction's output.
    if (result.name == "fast_float32") {
      const std::string output = text.substr(text.rfind("output 0x") + 9, 8);
      CHECK(std::stoull(output, nullptr, 16) == result.first->computed);
    }
  }
}

TEST_CASE("a recorded product is split as its file says") {
  io::RecordedCase recorded = io::VectorReader(kVectors + "gemm_vectors.h5").recorded("gemm_2");
  const auto mismatches = [&](std::int64_t slice) {
    std::int64_t count = 0;
    for (io::RecordedKernel& kernel : recorded.kernels) kernel.attributes["slice"] = slice;
    for (const ReplayResult& result : replay_gemm(recorded)) count += result.mismatches;
    return count;
  };
  CHECK(mismatches(0) == 0);
  CHECK(mismatches(4096) == 0);
  CHECK(mismatches(1024) > 0);
  CHECK_THROWS_AS(mismatches(1000), Error);
}

TEST_CASE("16384 products are six chains of 2816, each from zero, added in f32") {
  // Positive data, as cuBLASLt was seen to split them: 17 significant bits and a mean loss of 4.5 %.
  MatrixCodes a(4, 16384);
  MatrixCodes b(8, 16384);
  const format::Policy policy{format::Rounding::nearest_even, format::Overflow::saturate, format::Subnormals::keep};
  const auto fill = [&](MatrixCodes& codes, std::uint64_t stream) {
    for (Eigen::Index i = 0; i < codes.size(); ++i) {
      double normal = -6;  // near enough: the sum of twelve uniform numbers
      for (std::uint64_t part = 0; part < 12; ++part) {
        normal += random_unit(4, stream, 12 * static_cast<std::uint64_t>(i) + part);
      }
      codes.data()[i] = static_cast<std::uint32_t>(format::encode(format::kE4M3, std::abs(normal), policy));
    }
  };
  fill(a, 1);
  fill(b, 2);
  const GemmPlan split = cublaslt_fp8_plan(format::kE4M3, format::kE4M3, true, a.cols(), format::kFP32);
  const MatrixCodes d = gemm(split, a, b);
  GemmPlan chain = split;
  chain.slice = 0;
  MatrixF sum = MatrixF::Zero(d.rows(), d.cols());
  for (Eigen::Index k = 0; k < a.cols(); k += 2816) {
    const Eigen::Index width = std::min<Eigen::Index>(2816, a.cols() - k);
    const MatrixCodes part = gemm(chain, a.middleCols(k, width), b.middleCols(k, width));
    sum += part.unaryExpr([](std::uint32_t code) { return std::bit_cast<float>(code); });
  }
  double loss = 0;
  bool more_than_a_chain_holds = false;
  for (Eigen::Index i = 0; i < d.rows(); ++i) {
    for (Eigen::Index j = 0; j < d.cols(); ++j) {
      CHECK(d(i, j) == std::bit_cast<std::uint32_t>(sum(i, j)));
      more_than_a_chain_holds |= (d(i, j) & 0x3FF) != 0;
      double exact = 0;
      for (Eigen::Index k = 0; k < a.cols(); ++k) {
        exact += format::decode(format::kE4M3, a(i, k)) * format::decode(format::kE4M3, b(j, k));
      }
      loss += (1 - static_cast<double>(sum(i, j)) / exact) / static_cast<double>(d.size());
    }
  }
  CHECK(more_than_a_chain_holds);
  CHECK(loss > 0.040);
  CHECK(loss < 0.050);
  CHECK(gemm(chain, a, b) != d);
  chain.slice = 5632;
  CHECK(gemm(chain, a, b) != d);
}

TEST_CASE("the recorded products catch another promotion interval, split and order of K") {
  const io::VectorReader reader(kVectors + "gemm_vectors.h5");
  const io::RecordedCase recorded = reader.recorded("gemm_2");
  const MatrixCodes a = code_matrix(recorded.tensor("a"));
  const MatrixCodes b = code_matrix(recorded.tensor("b"));
  const auto kernel = [&](std::string_view name) {
    for (const io::RecordedKernel& one : recorded.kernels) {
      if (one.name == name) return code_matrix(one.tensors.at("d"));
    }
    throw Error(ErrorKind::input, "no such kernel");
  };
  const MatrixCodes fast = kernel("fast_float32");
  const MatrixCodes accurate = kernel("accurate_float32");
  const auto differs = [&](const MatrixCodes& expected, int interval, std::int64_t slice, KOrder order) {
    GemmPlan plan = cublaslt_fp8_plan(format::kE4M3, format::kE4M3, true, a.cols(), format::kFP32);
    plan.promotion_interval = interval;
    plan.slice = slice;
    plan.k_order = order;
    return (gemm(plan, a, b).array() != expected.array()).any();
  };
  CHECK(!differs(fast, 0, 0, KOrder::ascending));
  CHECK(!differs(accurate, 4, 0, KOrder::ascending));
  for (const int interval : {1, 2, 3, 5, 8}) CHECK(differs(accurate, interval, 0, KOrder::ascending));
  CHECK(differs(fast, 4, 0, KOrder::ascending));
  CHECK(differs(fast, 0, 2048, KOrder::ascending));
  CHECK(differs(fast, 0, 0, KOrder::descending));
}

TEST_CASE("fast accumulation shrinks positive sums of 4096 products by about 7 %, promotion by under 0.1 %") {
  const io::RecordedCase recorded = io::VectorReader(kVectors + "gemm_vectors.h5").recorded("gemm_2");
  const MatrixCodes a = code_matrix(recorded.tensor("a"));
  const MatrixCodes b = code_matrix(recorded.tensor("b"));
  const auto mean_loss = [&](bool fast) {
    const MatrixCodes d = gemm(cublaslt_fp8_plan(format::kE4M3, format::kE4M3, fast, a.cols(), format::kFP32), a, b);
    double loss = 0;
    for (Eigen::Index i = 0; i < d.rows(); ++i) {
      for (Eigen::Index j = 0; j < d.cols(); ++j) {
        double exact = 0;  // multiples of 2^-18 below 2^31: every sum is exact
        for (Eigen::Index k = 0; k < a.cols(); ++k) {
          exact += format::decode(format::kE4M3, a(i, k)) * format::decode(format::kE4M3, b(j, k));
        }
        loss += 1 - format::decode(format::kFP32, d(i, j)) / exact;
      }
    }
    return loss / static_cast<double>(d.size());
  };
  const double fast = mean_loss(true);
  const double accurate = mean_loss(false);
  CHECK(fast > 0.06);
  CHECK(fast < 0.08);
  CHECK(accurate > 4e-4);
  CHECK(accurate < 1e-3);
}

}  // namespace qattn::mma
