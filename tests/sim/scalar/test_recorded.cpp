// The models against what an H200 returned: digests of all 2^32 inputs, and recorded vectors element by element.
#include <algorithm>
#include <iterator>
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

/// A sanitizer build, tens of times slower, checks every fifth group in one of its blocks, by turns.
std::set<int> blocks_to_check(const Function& function, std::size_t turn) {
  const std::set<int> blocks = deciding_blocks(function);
#ifdef QATTN_SANITIZED
  if (turn % 5 != 0) return {};
  return {*std::next(blocks.begin(), static_cast<std::ptrdiff_t>(turn % blocks.size()))};
#else
  static_cast<void>(turn);
  return blocks;
#endif
}

std::vector<std::uint32_t> widened(const io::Codes& codes) {
  std::vector<std::uint32_t> values(static_cast<std::size_t>(codes.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint32_t>(codes[static_cast<std::int64_t>(i)]);
  }
  return values;
}

}  // namespace

TEST_CASE("the recorded digests' deciding blocks are the models', all 61 groups") {
  const std::vector<io::DigestCase> cases = recorded_digests();
  CHECK(cases.size() == 61);
  std::size_t turn = 0;
  for (const io::DigestCase& recorded : cases) {
    INFO(recorded.name);
    const Function& function = function_of(recorded);
    std::string differing;
    for (const int block : blocks_to_check(function, turn++)) {
      const bool equal = digest_block(function, block) == recorded.digest.at(static_cast<std::size_t>(block));
      if (!equal) differing += " " + std::to_string(block);
    }
    CHECK(differing.empty());
  }
}

TEST_CASE("the recorded digests are the models' in all 256 blocks, all 61 groups", "[.][exhaustive]") {
  for (const io::DigestCase& recorded : recorded_digests()) {
    INFO(recorded.name);
    CHECK(differing_blocks(recorded.digest, digest(function_of(recorded))).empty());
  }
}

TEST_CASE("what the table calls measured is recorded on all inputs, and the other way round") {
  std::set<const Function*> recorded;
  for (const io::DigestCase& digest : recorded_digests()) {
    recorded.insert(&function_of(digest));
  }
  CHECK(recorded.size() == 60);  // __int2float_rz is recorded in both builds
  const io::VectorReader narrow(kVectors + "scalar_narrow_vectors.h5");
  for (const std::string& name : narrow.cases()) recorded.insert(&find(narrow.scalar(name).function));
  for (const Function& function : functions()) {
    INFO(function.name << " " << to_string(function.build));
    if (function.evidence == Evidence::published) continue;  // fa4-poly: the operations were executed on the GPU
    CHECK((function.evidence == Evidence::measured) == (recorded.count(&function) == 1));
  }
}

TEST_CASE("every input of the functions of 8 and 16 bits gives what an H200 returned") {
  const io::VectorReader reader(kVectors + "scalar_narrow_vectors.h5");
  CHECK(reader.cases().size() == 25);
  for (const std::string& name : reader.cases()) {
    const io::ScalarCase recorded = reader.scalar(name);
    const Function& function = find(recorded.function);
    const std::vector<std::uint32_t> x = widened(recorded.x), y = widened(recorded.y);
    INFO(name);
    CHECK(x.size() == std::size_t{1} << function.input_bits());
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(x[i] == i);
    const Replay result = replay(function, x, y);
    CHECK(result.mismatches == 0);
    CHECK(result.max_ulp == 0.0);
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
