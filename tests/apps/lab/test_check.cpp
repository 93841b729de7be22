// check_vectors: recordings that agree pass, a single changed code fails and is located, other files are refused.
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/error.h"
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
    lab::check_vectors(options);
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
  REQUIRE(result.details.size() == 1);
  CHECK(result.details[0].find("e_max") != std::string::npos);
}

TEST_CASE("files, cases and blocks that cannot be checked are refused by name") {
  lab::CheckOptions options;
  options.files = {std::string(QATTN_SOURCE_DIR) + "/data/real/kwt1_qkv.h5"};
  CHECK(error_of(options, ErrorKind::input).find("kwt1_qkv.h5") != std::string::npos);
  options.files = {vectors("kernel_vectors_1.h5")};
  CHECK(error_of(options, ErrorKind::input).find("qattn-kernel-vectors/1") != std::string::npos);
  options.files = {vectors("mma_vectors.h5")};
  options.cases = "no such case";
  CHECK(error_of(options, ErrorKind::usage).find("no such case") != std::string::npos);
  options.cases = "(";
  CHECK(error_of(options, ErrorKind::usage).find("regular expression") != std::string::npos);
  options.cases = "";
  options.last_block = 300;
  CHECK(error_of(options, ErrorKind::usage).find("--blocks") != std::string::npos);
}
