// check_vectors: recordings that agree pass, a single changed code fails and is located, other files are refused.
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "io/hdf5_file.h"
#include "io/vectors.h"
#include "lab/check.h"
#include "support/catch.h"

using namespace qattn;

namespace {

std::string vectors(const std::string& name) { return std::string(QATTN_SOURCE_DIR) + "/data/vectors/" + name; }

/// A file that is removed again.
struct ScratchFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("qattn_check_" + std::to_string(getpid()) + ".h5")).string();
  ~ScratchFile() { std::filesystem::remove(path); }
};

std::string error_of(const lab::CheckOptions& options, ErrorKind kind) {
  try {
    lab::require_comparison(lab::check_vectors(options));
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("recorded instructions, products, functions and digests pass, each under its kind") {
  lab::CheckOptions options;
  options.files = {vectors("mma_vectors.h5"), vectors("gemm_vectors.h5"), vectors("scalar_narrow_vectors.h5"),
                   vectors("scalar_digests.h5")};
  options.cases = "^(mma_e4m3_f16|gemm_0|rcp.rn.f32$|ex2.*f16)";
  options.first_block = 63;
  options.last_block = 64;
  const lab::CheckResult result = lab::check_vectors(options);
  CHECK(result.passed);
  CHECK(result.details.empty());
  std::set<std::string> kinds;
  for (const lab::Json& row : result.rows) {
    CHECK(row["mismatches"] == 0);
    CHECK(row["elements"].get<std::int64_t>() > 0);
    CHECK(row["first"].is_null());
    kinds.insert(row["kind"].get<std::string>() + " " + row["output"].get<std::string>());
  }
  CHECK(kinds == std::set<std::string>{"gemm d", "instruction d", "scalar digest", "scalar y"});
}

TEST_CASE("one changed code fails the check and is located") {
  const io::VectorReader reader(vectors("mma_vectors.h5"));
  io::InstructionCase changed = reader.instruction(reader.cases().front());
  const std::int64_t index = changed.d.size() / 2 + 3;
  changed.d.set(index, changed.d[index] ^ 1);
  const ScratchFile file;
  io::VectorWriter writer(file.path, io::kInstructionSchema);
  writer.add(changed);
  writer.commit();
  lab::CheckOptions options;
  options.files = {file.path};
  const lab::CheckResult result = lab::check_vectors(options);
  CHECK_FALSE(result.passed);
  REQUIRE(result.rows.size() == 1);
  CHECK(result.rows[0]["mismatches"] == 1);
  CHECK(result.rows[0]["max_ulp"] == 1);
  const std::int64_t per_product = changed.rows * changed.columns;
  const lab::Json where = {index / per_product, index % per_product / changed.columns, index % changed.columns};
  CHECK(result.rows[0]["first"]["index"] == where);
  CHECK(result.rows[0]["first"]["operands"].get<std::string>().find("e_max") != std::string::npos);
  REQUIRE(result.details.size() == 1);
  CHECK(result.details[0].find("e_max") != std::string::npos);
}

TEST_CASE("an instruction that is not known and codes of another width are errors of the file, by case") {
  const io::VectorReader reader(vectors("mma_vectors.h5"));
  const io::InstructionCase recorded = reader.instruction(reader.cases().front());
  const auto complaint = [&](const auto& change) {
    io::InstructionCase changed = recorded;
    change(changed);
    const ScratchFile file;
    io::VectorWriter writer(file.path, io::kInstructionSchema);
    writer.add(changed);
    writer.commit();
    lab::CheckOptions options;
    options.files = {file.path};
    const std::string message = error_of(options, ErrorKind::input);
    CHECK(message.starts_with(file.path + ": "));
    return message;
  };
  const auto unknown = complaint([](io::InstructionCase& c) { c.instruction = "sm99.mma"; });
  CHECK(unknown.find("case " + recorded.name + ": unknown instruction 'sm99.mma'") != std::string::npos);
  const auto wide = complaint([](io::InstructionCase& c) { c.d = io::make_codes(c.d.shape, 8); });
  CHECK(wide.find(recorded.name + "/d: holds 8-byte unsigned integers; codes of ") != std::string::npos);
}

TEST_CASE("files, cases and blocks that cannot be checked are refused by name") {
  lab::CheckOptions options;
  options.files = {std::string(QATTN_SOURCE_DIR) + "/data/real/kwt1_qkv.h5"};
  CHECK(error_of(options, ErrorKind::input).find("kwt1_qkv.h5") != std::string::npos);
  options.files = {vectors("mma_vectors.h5")};
  options.cases = "no such case";
  CHECK(error_of(options, ErrorKind::usage).find("no such case") != std::string::npos);
  options.cases = "(";
  CHECK(error_of(options, ErrorKind::usage).find("regular expression") != std::string::npos);
  options.cases = "";
  options.last_block = 300;
  CHECK(error_of(options, ErrorKind::usage).find("--blocks") != std::string::npos);
}

namespace {

/// Kernel vectors with one case "case_a" of one head of four tokens, FP16, whose kernel "group" is called `kernel`.
void write_kernel_vectors(const std::string& path, const std::string& kernel, const std::string& output = "o") {
  io::Hdf5Writer writer(path);
  writer.set_attributes("", {{"schema", std::string(io::kKernelSchema)}, {"layout", std::string("HND")}});
  const std::vector<std::int64_t> shape = {1, 1, 4, 64}, origin = {0, 0, 0, 0};
  const std::vector<std::byte> zeros(4 * 64 * 2);
  for (const std::string& name : {std::string("q"), std::string("k"), std::string("v"), "kernels/group/" + output}) {
    const std::string dataset = "case_a/" + name;
    const bool rows_only = name == "kernels/group/lse";
    const std::vector<std::int64_t> extents = rows_only ? std::vector<std::int64_t>{1, 1, 4} : shape;
    writer.create_codes(dataset, rows_only ? 4 : 2, extents, extents);
    writer.write(dataset, {origin.begin(), origin.begin() + std::ssize(extents)}, extents,
                 {zeros.begin(), zeros.begin() + (rows_only ? 16 : std::ssize(zeros))});
    writer.set_attribute(dataset, "dtype", std::string(rows_only ? "float32" : "float16"));
  }
  writer.set_attribute("case_a/kernels/group", "kernel", kernel);
  writer.commit();
}

}  // namespace

TEST_CASE("kernel and backward vectors pass from q, k and v alone, intermediates and gradients included") {
  lab::CheckOptions options;
  options.files = {vectors("kernel_vectors_1.h5"), vectors("backward_vectors.h5")};
  options.cases = "^(c0|q0)$";
  options.kernels = "^(sm90_fp8_per_thread|defaults) ";
  const lab::CheckResult result = lab::check_vectors(options);
  CAPTURE(result.details, result.remarks);
  CHECK(result.passed);
  std::set<std::string> seen;
  for (const lab::Json& row : result.rows) {
    CHECK(row["mismatches"] == 0);
    CHECK(row["evidence"].get<std::string>().find("H200") != std::string::npos);
    seen.insert(row["kind"].get<std::string>() + " " + row["output"].get<std::string>());
    if (row["kind"] != "backward") continue;
    CHECK(row["cos_sim"].get<double>() > 0.999);
    CHECK(row["rel_l2"].get<double>() < 0.01);
  }
  for (const char* row : {"kernel o", "kernel lse", "kernel quantized/sm90/per_thread/q_int8", "backward o",
                          "backward dq", "backward dk", "backward dv"}) {
    CAPTURE(row);
    CHECK(seen.count(row) == 1);
  }
}

TEST_CASE("a kernel on another architecture is a prediction, and one that exists on Hopper alone is skipped") {
  lab::CheckOptions options;
  options.files = {vectors("kernel_vectors_1.h5")};
  options.cases = "^c0$";
  options.kernels = "^(sm90_fp8_per_thread|sm89_fp8_per_warp_fp32) ";
  options.arch = "sm89";
  const lab::CheckResult result = lab::check_vectors(options);
  REQUIRE_FALSE(result.rows.empty());
  for (const lab::Json& row : result.rows) {
    CHECK(row["name"] == "sm89_fp8_per_warp_fp32");
    CHECK(row["evidence"].get<std::string>().rfind("predicted", 0) == 0);
  }
  REQUIRE(result.skipped.size() == 1);
  CHECK(result.skipped[0].name == "c0/sm90_fp8_per_thread");
  CHECK(result.skipped[0].file == options.files[0]);
  CHECK(result.skipped[0].reason.find("c0 (sm90_fp8_per_thread) skipped: ") != std::string::npos);
}

TEST_CASE("a check that compares nothing is an error: unknown architecture, no such kernel, all skipped") {
  lab::CheckOptions options;
  options.files = {vectors("kernel_vectors_1.h5")};
  options.cases = "^c0$";
  options.arch = "sm999";
  CHECK(error_of(options, ErrorKind::usage).find("--arch 'sm999' is none of ") != std::string::npos);
  options.arch = "";
  options.kernels = "zzz";
  CHECK(error_of(options, ErrorKind::usage).find("no kernel matches 'zzz'") != std::string::npos);
  options.kernels = "^sm90_fp8_per_thread ";
  options.arch = "sm89";
  const std::string message = error_of(options, ErrorKind::usage);
  CHECK(message.find("nothing was compared, all 1 were skipped") != std::string::npos);
}

TEST_CASE("a damaged file, and a kernel without o, are errors beside what passes in other files") {
  const ScratchFile file;
  lab::CheckOptions options;
  options.files = {"no_such_file.h5", vectors("sdpa_vectors.h5")};
  options.cases = "^s6$";
  const lab::CheckResult result = lab::check_vectors(options);
  CHECK(result.passed);
  CHECK(result.status() == 3);
  CHECK(result.rows.size() == 4);
  REQUIRE(result.errors.size() == 1);
  CHECK(result.errors[0].file == "no_such_file.h5");

  write_kernel_vectors(file.path, "aten._scaled_dot_product_efficient_attention", "lse");
  options.files = {file.path};
  options.cases = "";
  CHECK(error_of(options, ErrorKind::input).find("case_a/kernels/group: holds no 'o'") != std::string::npos);
}

TEST_CASE("a kernel that is not known is an error of the file that names file, case, group, kernel and what is known") {
  const ScratchFile file;
  write_kernel_vectors(file.path, "no_such_kernel");
  lab::CheckOptions options;
  options.files = {file.path};
  const std::string message = error_of(options, ErrorKind::input);
  for (const char* part : {"case_a/kernels/group", "no_such_kernel", "aten._scaled_dot_product_cudnn_attention"}) {
    CAPTURE(message, part);
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(message.find(file.path) != std::string::npos);
}

TEST_CASE("a recorded output that differs from the replay fails and shows the stages of its row") {
  const ScratchFile file;
  // Zeros for q, k and v give zeros for o, so that a recorded 1 is wrong.
  write_kernel_vectors(file.path, "aten._scaled_dot_product_efficient_attention");
  lab::CheckOptions options;
  options.files = {file.path};
  CHECK(lab::check_vectors(options).passed);
  options.files = {vectors("sdpa_vectors.h5")};
  options.cases = "^s6$";
  options.kernels = "^efficient ";
  options.arch = "sm80";
  const lab::CheckResult ampere = lab::check_vectors(options);
  CHECK_FALSE(ampere.passed);
  REQUIRE_FALSE(ampere.details.empty());
  CHECK(ampere.details[0].find("stages of batch") != std::string::npos);
}
