// Checks of dumps that tests make: right outputs, the verdict on changed ones, and what kernels returned on a GPU.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kernel_dump.h"
#include "io/vectors.h"
#include "lab/check_dump.h"
#include "lab/dump_set.h"
#include "lab/recipe_file.h"
#include "src/io/scratch.h"
#include "support/catch.h"

namespace qattn::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline lab::DumpCheckOptions relative_to(const std::string& recipe) {
  lab::DumpCheckOptions options;
  options.recipe = lab::load_recipe(recipe);
  return options;
}

inline lab::CheckResult check(const std::string& path, const lab::DumpCheckOptions& options) {
  return lab::check_dump(lab::DumpSet({{path}, "", std::nullopt}), options);
}

inline std::vector<PlainOutput> right_outputs(const std::vector<PlainHead>& heads, const ScoreChange& mask = nullptr) {
  std::vector<PlainOutput> outputs;
  for (const PlainHead& head : heads) outputs.push_back(plain_attention(head, mask));
  return outputs;
}

/// Three heads of 200 tokens: ragged in every tile size, and small enough to be quick.
inline const std::vector<PlainHead>& three_heads() {
  static const std::vector<PlainHead> heads = plain_heads(3, 200, 200, 32);
  return heads;
}

/// The verdict on `outputs` for three_heads() under fa2-fp16, or others.
inline lab::CheckResult verdict(const std::vector<PlainOutput>& outputs, const io::Attributes& attributes = {},
                                const std::vector<PlainHead>& heads = three_heads(),
                                const std::string& recipe = "fa2-fp16") {
  const io::testing::ScratchFolder folder;
  write_kernel_dump(folder / "dump.h5", heads, outputs, attributes);
  return check(folder / "dump.h5", relative_to(recipe));
}

inline const lab::Json& row_of(const lab::CheckResult& result, std::int64_t head, std::string_view output = "o") {
  const auto found = std::find_if(result.rows.begin(), result.rows.end(),
                                  [&](const lab::Json& row) { return row["head"] == head && row["output"] == output; });
  REQUIRE(found != result.rows.end());
  return *found;
}

/// The head fails, is named, and the sentence says `detail`.
inline void check_named(const lab::CheckResult& result, std::int64_t head, const std::string& name,
                        const std::string& detail) {
  CAPTURE(name, detail, result.details);
  CHECK_FALSE(result.passed);
  const lab::Json& row = row_of(result, head);
  CHECK(row["passed"] == false);
  CHECK(row["mismatches"].get<std::uint64_t>() > 0);
  CHECK(row["diagnosis"] == name);
  CHECK(std::any_of(result.details.begin(), result.details.end(), [&](const std::string& text) {
    return io::testing::contains(text, "head " + std::to_string(head) + ": o:") && io::testing::contains(text, detail);
  }));
}

inline ScoreChange hide(std::int64_t first, std::int64_t last) {
  return [=](std::int64_t, std::int64_t j, double score) { return j >= first && j < last ? -kInfinity : score; };
}

inline std::string vectors(const std::string& name) { return std::string(QATTN_SOURCE_DIR) + "/data/vectors/" + name; }

/// The first `tokens` tokens of real heads, one or more in each call.
inline std::vector<PlainHead> real_heads(const std::string& file, const std::string& calls, std::int64_t count,
                                         std::int64_t tokens) {
  const lab::DumpSet set({{std::string(QATTN_SOURCE_DIR) + "/data/real/" + file}, calls, lab::HeadRange{0, count}});
  std::vector<PlainHead> heads;
  for (const lab::SelectedCall& call : set.calls()) {
    for (std::int64_t head = 0; head < count; ++head) {
      const attention::Problem problem = set.read(call, 0, head)[0].problem;
      heads.push_back(
          {problem.q.topRows(tokens), problem.k.topRows(tokens), problem.v.topRows(tokens), problem.sm_scale});
    }
  }
  return heads;
}

/// What a kernel returned on a GPU, as a dump.
inline std::string recorded_dump(const io::testing::ScratchFolder& folder, const std::string& file,
                                 const std::string& name, const std::string& kernel) {
  const io::RecordedCase recorded = io::VectorReader(vectors(file)).recorded(name);
  const auto found = std::find_if(recorded.kernels.begin(), recorded.kernels.end(),
                                  [&](const io::RecordedKernel& each) { return each.name == kernel; });
  REQUIRE(found != recorded.kernels.end());
  io::Attributes attributes = io::override_attributes(recorded.attributes, found->attributes);
  attributes.erase("layout");
  const std::string path = folder / (name + kernel + ".h5");
  io::DumpWriter writer(path, attributes);
  writer.begin_call(name);
  for (const char* input : {"q", "k", "v"}) writer.write(name, input, recorded.tensor(input));
  for (const char* descale : {"q_descale", "k_descale", "v_descale"}) {
    if (recorded.has(descale)) writer.write(name, descale, recorded.tensor(descale));
  }
  for (const char* output : {"o", "lse"}) writer.write(name, output, found->tensors.at(output));
  writer.commit();
  return path;
}

}  // namespace qattn::testing
