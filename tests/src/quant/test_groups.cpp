// Scale groups against an enumeration of the m16n8 fragments that a warp's threads hold.
#include <map>
#include <set>

#include "base/error.h"
#include "quant/groups.h"
#include "support/catch.h"

using namespace qattn::quant;
using qattn::Error;

namespace {

constexpr std::array kTilings{kSm80Tiling, kSm90Tiling, Tiling{"sm80, 16-row warps", 128, 16, 64, 64}};

// The token positions that a lane holds of a tile of `warp` tokens: as rows of S (queries) or columns of S (keys).
// Accumulator registers c0..c3 of lane l: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1.
std::set<std::int64_t> held_by(int lane, Operand operand, int warp) {
  std::set<std::int64_t> held;
  const int fragment = operand == Operand::q ? 16 : 8;
  for (int start = 0; start < warp; start += fragment) {
    for (int reg = 0; reg < 4; ++reg) {
      const int row = lane / 4 + (reg >= 2 ? 8 : 0);
      const int column = lane % 4 * 2 + reg % 2;
      held.insert(start + (operand == Operand::q ? row : column));
    }
  }
  return held;
}

// Every set of tokens that some lane holds, in the order of the lanes, over the warps of `tokens` tokens.
std::vector<std::set<std::int64_t>> fragment_groups(Operand operand, const Tiling& tiling, std::int64_t tokens) {
  const int warp = operand == Operand::q ? tiling.q_warp : tiling.k_warp;
  std::vector<std::set<std::int64_t>> groups;
  for (std::int64_t start = 0; start < tokens; start += warp) {
    std::vector<std::set<std::int64_t>> seen;
    for (int lane = 0; lane < 32; ++lane) {
      const auto held = held_by(lane, operand, warp);
      if (std::find(seen.begin(), seen.end(), held) == seen.end()) seen.push_back(held);
    }
    for (const auto& positions : seen) {
      std::set<std::int64_t> group;
      for (const std::int64_t position : positions)
        if (start + position < tokens) group.insert(start + position);
      groups.push_back(group);
    }
  }
  return groups;
}

std::set<std::int64_t> rows_of(const GroupMap& map, std::int64_t group) {
  const auto rows = map.member_rows(group);
  return {rows.begin(), rows.end()};
}

GroupSpec spec_of(Granularity granularity, Operand operand, const Tiling& tiling = kSm89Tiling) {
  return {.granularity = granularity, .operand = operand, .tiling = tiling};
}

}  // namespace

TEST_CASE("per_thread groups are the sets of tokens that lanes hold, for 1 to 300 tokens") {
  for (const Tiling& tiling : kTilings) {
    for (const Operand operand : {Operand::q, Operand::k}) {
      for (std::int64_t tokens = 1; tokens <= 300; ++tokens) {
        const GroupMap map(spec_of(Granularity::per_thread, operand, tiling), tokens, 64);
        const auto expected = fragment_groups(operand, tiling, tokens);
        REQUIRE(map.groups() == static_cast<std::int64_t>(expected.size()));
        for (std::int64_t g = 0; g < map.groups(); ++g)
          REQUIRE(rows_of(map, g) == expected[static_cast<std::size_t>(g)]);
      }
    }
  }
}

TEST_CASE("A thread's accumulators need one scale of Q and one of K") {
  for (const Tiling& tiling : kTilings) {
    const GroupMap q(spec_of(Granularity::per_thread, Operand::q, tiling), tiling.q_block, 128);
    const GroupMap k(spec_of(Granularity::per_thread, Operand::k, tiling), tiling.k_block, 128);
    for (int lane = 0; lane < 32; ++lane) {
      std::set<std::int64_t> q_indices, k_indices;
      for (const auto row : held_by(lane, Operand::q, tiling.q_warp)) q_indices.insert(q.index(row, 5));
      for (const auto key : held_by(lane, Operand::k, tiling.k_warp)) k_indices.insert(k.index(key, 5));
      CHECK(q_indices.size() == 1);
      CHECK(k_indices.size() == 1);
    }
  }
}

TEST_CASE("SageAttention2's printed groups: Q 8k + i, K 8k + 2i and 8k + 2i + 1") {
  const GroupMap q(spec_of(Granularity::per_thread, Operand::q), 128, 64);
  CHECK(q.groups() == 32);
  CHECK(describe_group(q, 0) == "rows {0,8,16,24}");
  CHECK(describe_group(q, 5) == "rows {5,13,21,29}");
  CHECK(describe_group(q, 8) == "rows {32,40,48,56}");
  CHECK(describe_group(q, 31) == "rows {103,111,119,127}");
  const GroupMap k(spec_of(Granularity::per_thread, Operand::k), 64, 64);
  CHECK(k.groups() == 4);
  CHECK(describe_group(k, 0) == "rows {0,1,8,9,16,17,24,25,32,33,40,41,48,49,56,57}");
  CHECK(describe_group(k, 3) == "rows {6,7,14,15,22,23,30,31,38,39,46,47,54,55,62,63}");
  const GroupMap q90(spec_of(Granularity::per_thread, Operand::q, kSm90Tiling), 64, 64);
  CHECK(q90.groups() == 32);
  CHECK(describe_group(q90, 9) == "rows {17,25}");
  const GroupMap k90(spec_of(Granularity::per_thread, Operand::k, kSm90Tiling), 128, 64);
  CHECK(k90.groups() == 4);
  CHECK(k90.member_rows(1).size() == 32);
}

TEST_CASE("Every granularity partitions every matrix") {
  for (const Granularity granularity : granularities()) {
    for (const Operand operand : {Operand::q, Operand::k, Operand::v, Operand::p}) {
      const bool of_a_warp = granularity == Granularity::per_warp || granularity == Granularity::per_thread;
      if (of_a_warp && (operand == Operand::v || operand == Operand::p)) continue;
      for (const std::int64_t rows : {1, 7, 16, 33, 130}) {
        for (const std::int64_t columns : {1, 16, 40, 130}) {
          const GroupMap map(spec_of(granularity, operand), rows, columns);
          std::map<std::int64_t, std::int64_t> sizes;
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c) ++sizes[map.index(r, c)];
          REQUIRE(sizes.begin()->first == 0);
          REQUIRE(sizes.rbegin()->first < map.groups());
          std::int64_t members = 0;
          for (std::int64_t g = 0; g < map.groups(); ++g) {
            const auto size = static_cast<std::int64_t>(map.member_rows(g).size() * map.member_columns(g).size());
            REQUIRE(size == sizes[g]);
            REQUIRE((describe_group(map, g) == "empty") == (size == 0));
            if (granularity != Granularity::per_thread) REQUIRE(size > 0);
            members += size;
          }
          REQUIRE(members == rows * columns);
        }
      }
    }
  }
}

TEST_CASE("Group counts of a 300 x 64 head") {
  const auto count = [](Granularity granularity, Operand operand, const Tiling& tiling = kSm89Tiling) {
    return GroupMap(spec_of(granularity, operand, tiling), 300, 64).groups();
  };
  CHECK(count(Granularity::per_tensor, Operand::q) == 1);
  CHECK(count(Granularity::per_channel, Operand::v) == 64);
  CHECK(count(Granularity::per_token, Operand::q) == 300);
  CHECK(count(Granularity::per_block, Operand::q) == 3);
  CHECK(count(Granularity::per_block, Operand::k) == 5);
  CHECK(count(Granularity::per_block, Operand::q, kSm90Tiling) == 5);
  CHECK(count(Granularity::per_block, Operand::k, kSm90Tiling) == 3);
  CHECK(count(Granularity::per_warp, Operand::q) == 10);
  CHECK(count(Granularity::per_warp, Operand::k) == 5);
  CHECK(count(Granularity::per_warp, Operand::q, kSm90Tiling) == 19);
  CHECK(count(Granularity::block_1x16, Operand::q) == 300 * 4);
  CHECK(count(Granularity::block_1x32, Operand::k) == 300 * 2);
  CHECK(count(Granularity::block_1x16, Operand::v) == 19 * 64);
  CHECK(count(Granularity::block_1x32, Operand::v) == 10 * 64);
  CHECK(GroupMap(spec_of(Granularity::per_block, Operand::p), 300, 200).groups() == 3 * 4);
}

TEST_CASE("Micro-scaled blocks run along the contraction axis unless told otherwise") {
  const GroupMap q(spec_of(Granularity::block_1x16, Operand::q), 4, 40);
  CHECK(describe_group(q, 5) == "rows {1}, columns {32..39}");
  const GroupMap v(spec_of(Granularity::block_1x16, Operand::v), 40, 4);
  CHECK(describe_group(v, 9) == "rows {32..39}, columns {1}");
  GroupSpec transposed = spec_of(Granularity::block_1x16, Operand::k);
  transposed.micro_axis = Axis::rows;
  CHECK(describe_group(GroupMap(transposed, 40, 4), 9) == "rows {32..39}, columns {1}");
}

TEST_CASE("Names are found and unknown ones are refused with the known ones") {
  for (const Granularity granularity : granularities()) CHECK(find_granularity(name(granularity)) == granularity);
  CHECK(granularities().size() == 8);
  CHECK(find_tiling("sm90").q_warp == 16);
  CHECK_THROWS_WITH(find_granularity("per_thing"),
                    Catch::Matchers::Contains("per_thread") && Catch::Matchers::Contains("1x32"));
  CHECK_THROWS_WITH(find_tiling("sm75"), Catch::Matchers::Contains("sm80 sm89 sm90"));
}

TEST_CASE("Groups that no kernel defines are refused") {
  CHECK_THROWS_AS(GroupMap(spec_of(Granularity::per_thread, Operand::v), 64, 64), Error);
  CHECK_THROWS_AS(GroupMap(spec_of(Granularity::per_warp, Operand::p), 64, 64), Error);
  CHECK_THROWS_AS(GroupMap(spec_of(Granularity::per_block, Operand::q, {"half warps", 128, 8, 64, 64}), 64, 64), Error);
  CHECK_THROWS_AS(GroupMap(spec_of(Granularity::per_block, Operand::q, {"ragged", 100, 32, 64, 64}), 64, 64), Error);
}
