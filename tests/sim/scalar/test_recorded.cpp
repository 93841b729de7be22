// The models against what an H200 returned: digests of all 2^32 inputs, and recorded vectors element by element.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/vectors.h"
#include "scalar/digest.h"
#include "scalar/replay.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::scalar;

namespace {

const std::string kVectors = QATTN_SOURCE_DIR "/data/vectors/";

const Function& function_of(const io::DigestCase& recorded) {
  return find(recorded.function, build_from_options(recorded.build));
}

std::vector<io::DigestCase> recorded_digests() {
  const io::VectorReader reader(kVectors + "scalar_digests.h5");
  std::vector<io::DigestCase> cases;
  for (const std::string& name : reader.cases()) cases.push_back(reader.digest(name));
  return cases;
}

/// Blocks that decide: around 1, the negative zeros and subnormals, the negative NaNs; then where the function's own
/// special ranges begin.
std::set<int> deciding_blocks(const Function& function) {
  std::set<int> blocks{0x3F, 0x80, 0xFF};
  switch (function.reference) {
    case Reference::exp2:
    case Reference::exp:
      blocks.insert({0x42, 0xC2, 0xC3});  // 32..128, and down to the subnormal results
      break;
    case Reference::log2:
    case Reference::log:
    case Reference::sqrt:
    case Reference::rsqrt:
      blocks.insert({0x00, 0x40});
      break;
    case Reference::reciprocal:
      blocks.insert({0x00, 0x7E, 0x7F});
      break;
    case Reference::tanh:
      blocks.insert({0x3B, 0x41, 0xBE});
      break;
    case Reference::identity:
    case Reference::magnitude:
    case Reference::relu:
      blocks.insert({0x3B, 0x43, 0x47, 0xC7});  // small results, and the overflows of S8, E4M3, E5M2 and FP16
      break;
  }
  return blocks;
}

std::vector<std::uint32_t> widened(const io::Codes& codes) {
  std::vector<std::uint32_t> values(static_cast<std::size_t>(codes.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint32_t>(codes[static_cast<std::int64_t>(i)]);
  }
  return values;
}

}  // namespace

TEST_CASE("the recorded digests' deciding blocks are the models', all 33 groups") {
  const std::vector<io::DigestCase> cases = recorded_digests();
  CHECK(cases.size() == 33);
  for (const io::DigestCase& recorded : cases) {
    INFO(recorded.name);
    const Function& function = function_of(recorded);
    std::string differing;
    for (const int block : deciding_blocks(function)) {
      const bool equal = digest_block(function, block) == recorded.digest.at(static_cast<std::size_t>(block));
      if (!equal) differing += " " + std::to_string(block);
    }
    CHECK(differing.empty());
  }
}

TEST_CASE("the recorded digests are the models' in all 256 blocks, all 33 groups", "[.][exhaustive]") {
  for (const io::DigestCase& recorded : recorded_digests()) {
    INFO(recorded.name);
    CHECK(differing_blocks(recorded.digest, digest(function_of(recorded))).empty());
  }
}

TEST_CASE("what the table calls measured has a recorded digest, under its name or that of the same model") {
  std::set<const Function*> recorded;
  std::set<std::uint32_t (*)(std::uint32_t)> models;
  for (const io::DigestCase& digest : recorded_digests()) {
    recorded.insert(&function_of(digest));
    models.insert(function_of(digest).plain);
    CHECK(function_of(digest).evidence == Evidence::measured);
  }
  CHECK(recorded.size() == 33);
  for (const Function& function : functions()) {
    INFO(function.name << " " << to_string(function.build));
    if (function.evidence == Evidence::measured) CHECK(models.count(function.plain) == 1);
  }
}

TEST_CASE("every one of the 2^23 recorded fractions of ex2 and mantissas of rcp is reproduced") {
  const io::VectorReader reader(kVectors + "scalar_vectors.h5");
  std::uint64_t elements = 0;
  for (const std::string& name : reader.cases()) {
    const io::ScalarCase recorded = reader.scalar(name);
    const std::vector<std::uint32_t> x = widened(recorded.x), y = widened(recorded.y);
    CHECK(std::set<std::uint32_t>(x.begin(), x.begin() + 1000).size() == 1000);
    const Replay result = replay(find(recorded.function), x, y);
    INFO(name);
    CHECK(result.mismatches == 0);
    CHECK(result.max_ulp == 0.0);
    elements += result.elements;
  }
  CHECK(elements == 16777216);
}

TEST_CASE("a digest tells two models apart in just the blocks in which they differ") {
  // ex2.approx with and without ftz part below -126, in the blocks of -32..-128 and -128..-512.
  const Function& ftz = find("ex2.approx.ftz.f32");
  const Function& kept = find("ex2.approx.f32");
  for (const int block : {0x00, 0x3F, 0xC1, 0xC4, 0xFF}) CHECK(digest_block(ftz, block) == digest_block(kept, block));
  for (const int block : {0xC2, 0xC3}) CHECK(digest_block(ftz, block) != digest_block(kept, block));
}

TEST_CASE("a digest does not depend on the number of threads, and reports its progress", "[.][exhaustive]") {
  const Function& function = find("cvt.rz.bf16.f32");
  std::vector<int> progress;
  const Digest one = digest(function, 1, [&](int done) { progress.push_back(done); });
  CHECK(progress.size() == 256);
  CHECK(std::is_sorted(progress.begin(), progress.end()));
  CHECK(progress.back() == 256);
  CHECK(digest(function, 7) == one);
}

TEST_CASE("digests of narrow functions and of wrong sizes are refused") {
  CHECK_THROWS_AS(digest_block(find("cvt.f32.f16"), 0), Error);
  CHECK_THROWS_AS(differing_blocks(std::vector<std::uint64_t>(255), Digest{}), Error);
  Digest changed{};
  changed[77] = 1;
  CHECK(differing_blocks(std::vector<std::uint64_t>(256), changed) == std::vector<int>{77});
}
