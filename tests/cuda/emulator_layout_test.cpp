// A head's plan and its place in the device's memory; no GPU is needed.
#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention/operands.h"
#include "base/error.h"
#include "base/random.h"
#include "emulator/layout.h"
#include "emulator/plan.h"
#include "lab/recipe_file.h"
#include "support/catch.h"

namespace {

using namespace qattn;
using emulator::Head;
using emulator::Plan;
using emulator::Upload;

constexpr std::size_t kAlignment = 256;

MatrixD drawn(std::int64_t rows, std::int64_t columns, std::uint64_t stream) {
  MatrixD x(rows, columns);
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    x.data()[i] = random_unit(3, stream, static_cast<std::uint64_t>(i)) - 0.5;
  }
  return x;
}

attention::Problem problem_of(std::int64_t queries, std::int64_t keys, std::int64_t channels, bool masked) {
  attention::Problem problem;
  problem.q = drawn(queries, channels, 0);
  problem.k = drawn(keys, channels, 1);
  problem.v = drawn(keys, channels, 2);
  problem.sm_scale = 0.125;
  if (masked) problem.mask = MatrixD::Zero(queries, keys);
  return problem;
}

Plan plan_of(const std::string& recipe, const attention::Problem& problem) {
  const attention::Recipe loaded = lab::load_recipe(recipe);
  return emulator::make_plan(problem, loaded, attention::prepare_operands(problem, loaded));
}

/// A part of the memory as kernels index it.
struct Extent {
  std::string name;
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

/// What head.h says of each pointer's shape, for launches of `rows` rows.
std::vector<Extent> extents_of(const Head& head, std::size_t rows) {
  const auto queries = static_cast<std::size_t>(head.queries), keys = static_cast<std::size_t>(head.keys);
  const auto channels = static_cast<std::size_t>(head.value_channels);
  const auto block = static_cast<std::size_t>(head.q_block);
  const std::size_t tiles =
      (keys + static_cast<std::size_t>(head.k_block) - 1) / static_cast<std::size_t>(head.k_block);
  const auto element = [](emulator::Sum sum) { return sum == emulator::Sum::f64 ? sizeof(double) : sizeof(float); };
  const std::size_t qk = element(head.qk.sum), pv = element(head.pv.sum);
  const auto depth = static_cast<std::size_t>(head.qk.depth);
  return {{"q", head.qk.left, queries * depth * qk},
          {"k", head.qk.right, depth * keys * qk},
          {"v", head.pv.right, keys * channels * pv},
          {"q_scale", head.q_scale, queries * 4},
          {"k_scale", head.k_scale, keys * 4},
          {"v_scale", head.v_scale, keys * 4},
          {"correction", head.correction, (queries + block - 1) / block * keys * 4},
          {"mask", head.mask, queries * keys * 4},
          {"p_tiles", head.p_tiles, rows * keys * 4},
          {"tile_max", head.tile_max, tiles * rows * 4},
          {"subtracted", head.subtracted, tiles * rows * 4},
          {"rescale", head.rescale, tiles * rows * 4},
          {"tile_sum", head.tile_sum, tiles * rows * 4},
          {"row_factor", head.row_factor, tiles * rows * 4},
          {"tile_largest", head.tile_largest, tiles * ((rows + block - 1) / block) * 4},
          {"row_max", head.row_max, queries * 4},
          {"row_sum", head.row_sum, queries * 4},
          {"o", head.o, queries * channels * 4}};
}

/// Every part that the head has lies in the memory, aligned, and none overlaps another.
void check_layout(const Plan& plan, std::size_t rows) {
  std::vector<std::byte> memory(emulator::memory_of(plan, rows) + kAlignment);
  auto* const aligned = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(memory.data()) + kAlignment - 1) / kAlignment * kAlignment);
  std::byte* const end = aligned + emulator::memory_of(plan, rows);
  Head head = plan.head;
  const std::vector<Upload> uploads = emulator::place(plan, rows, aligned, head);
  std::vector<Extent> parts;
  for (const Extent& part : extents_of(head, rows)) {
    if (part.begin != nullptr) parts.push_back(part);
  }
  const auto begin_of = [](const Extent& part) { return static_cast<const std::byte*>(part.begin); };
  std::sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) { return begin_of(a) < begin_of(b); });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    INFO(parts[i].name << " of " << rows << " rows a launch");
    CHECK(parts[i].bytes > 0);
    CHECK(begin_of(parts[i]) >= aligned);
    CHECK(static_cast<std::size_t>(begin_of(parts[i]) - aligned) % kAlignment == 0);
    CHECK(begin_of(parts[i]) + parts[i].bytes <= (i + 1 < parts.size() ? begin_of(parts[i + 1]) : end));
  }
  // Uploads fill the operands and nothing else.
  for (const Upload& upload : uploads) {
    const auto part = std::find_if(parts.begin(), parts.end(), [&](const Extent& x) { return x.begin == upload.to; });
    REQUIRE(part != parts.end());
    INFO(part->name);
    CHECK(upload.bytes == part->bytes);
    std::memcpy(upload.to, upload.from, upload.bytes);
  }
  CHECK(uploads.size() ==
        parts.size() - 8 - (head.row_factor != nullptr ? 1 : 0) - (head.tile_largest != nullptr ? 1 : 0));
}

TEST_CASE("cuda emulator: every part of a head has its own memory, as long as kernels index it") {
  struct Case {
    std::string recipe;
    bool factors;  ///< P's scales have a second level, or are one a row
  };
  const std::vector<Case> cases = {{"sage2-8b", false},        {"sage2-4b", false},    {"sage1-B", false},
                                   {"fp8-tensor", false},      {"sagebwd-int8", true}, {"sage3-nvfp4", true},
                                   {"fp4-nvfp4-global", true}, {"sage3-mxfp8", false}};
  struct Size {
    std::int64_t queries, keys, channels;
  };
  for (const Case& item : cases) {
    const attention::Recipe recipe = lab::load_recipe(item.recipe);
    for (const Size& size : {Size{1, 1, 16}, Size{65, 63, 64}, Size{300, 129, 80}}) {
      for (const bool masked : {false, true}) {
        const Plan plan = plan_of(item.recipe, problem_of(size.queries, size.keys, size.channels, masked));
        INFO(item.recipe << " " << size.queries << " x " << size.keys << " x " << size.channels);
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{100000}, std::size_t{1} << 30}) {
          check_layout(plan, emulator::rows_of_launch(plan.head, bytes));
        }
        Head head = plan.head;
        std::vector<std::byte> memory(emulator::memory_of(plan, 1));
        emulator::place(plan, 1, memory.data(), head);
        CHECK((head.mask != nullptr) == masked);
        CHECK((head.row_factor != nullptr) == item.factors);
        CHECK((head.tile_largest != nullptr) == (recipe.p.micro_scaled() || recipe.p.row_scaled()));
        CHECK((head.correction != nullptr) == attention::smooths_q(recipe));
      }
    }
  }
}

Head video_layer() {
  Head head;
  head.queries = head.keys = 17776;
  head.value_channels = 64;
  head.q_block = 128;
  head.k_block = 64;
  return head;
}

TEST_CASE("cuda emulator: rows of a launch are whole blocks of queries, and P fits what it may take") {
  Head head = video_layer();
  CHECK(emulator::rows_of_launch(head, std::size_t{2} << 30) == 17776);
  CHECK(emulator::rows_of_launch(head, std::size_t{1} << 30) == 14976);  // 117 blocks; 118 are too many
  CHECK(emulator::rows_of_launch(head, std::size_t{1} << 20) == 128);
  CHECK(emulator::rows_of_launch(head, 0) == 128);
  head.queries = 100;
  CHECK(emulator::rows_of_launch(head, 0) == 100);
  head.queries = head.keys = static_cast<int>(emulator::kMostColumns);
  CHECK(emulator::rows_of_launch(head, std::size_t{2} << 30) == 128);
  CHECK(emulator::rows_of_launch(head, std::size_t{8} << 30) == 512);
}

TEST_CASE("cuda emulator: the memory of long heads is counted in 64 bits") {
  Plan plan;
  plan.head = video_layer();
  // P, four numbers a row and tile (278 tiles), two a row, and O.
  const std::size_t n = 17776;
  const std::size_t expected = (n * n + 4 * 278 * n + 2 * n + n * 64) * 4;
  const std::size_t bytes = emulator::memory_of(plan, n);
  CHECK(bytes >= expected);
  CHECK(bytes < expected + 8 * kAlignment);
  plan.head.queries = plan.head.keys = static_cast<int>(emulator::kMostColumns);
  CHECK(emulator::memory_of(plan, 4096) > std::size_t{4096} * emulator::kMostColumns * 4);
}

TEST_CASE("cuda emulator: a head that no grid covers is refused before anything is made of it") {
  const auto refusal = [](std::int64_t queries, std::int64_t keys, std::int64_t channels) -> std::string {
    try {
      emulator::check_size(queries, keys, channels);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  const std::int64_t most = emulator::kMostColumns;
  CHECK(refusal(most, most, most).empty());
  CHECK(refusal(most + 1, 1, 1) ==
        "a head of 4194241 queries: not on the CUDA device: it takes at most 4194240; leave "
        "out --device");
  CHECK(refusal(1, most + 1, 1).find("4194241 keys") != std::string::npos);
  CHECK(refusal(1, 1, std::numeric_limits<std::int64_t>::max()).find("channels") != std::string::npos);
  attention::Recipe recipe = lab::load_recipe("sage3-nvfp4");
  for (const char* key : {"q_block", "q_warp", "k_block", "k_warp"}) attention::set(recipe, key, "65536");
  CHECK_THROWS_AS(emulator::check_supported(recipe), Error);
}

TEST_CASE("cuda emulator: a plan is the same under any rounding mode of the caller") {
  const attention::Problem problem = problem_of(65, 63, 64, true);
  const Plan nearest = plan_of("sage3-nvfp4", problem);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const Plan plan = plan_of("sage3-nvfp4", problem);
    std::fesetround(FE_TONEAREST);
    CHECK(plan.head.logit_scale == nearest.head.logit_scale);
    CHECK(plan.head.scaled_p.outer_span == nearest.head.scaled_p.outer_span);
    CHECK(plan.head.p_scale == nearest.head.p_scale);
    CHECK(plan.operands.mask == nearest.operands.mask);
  }
}

}  // namespace
