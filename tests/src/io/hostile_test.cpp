// Damaged HDF5 dumps: cut and flipped ones give an Error or the right codes, never a crash.
#include <algorithm>

#include "base/random.h"
#include "io/dump.h"
#include "scratch.h"
#include "support/catch.h"

/// HDF5 itself leaks memory when it meets damaged metadata. LeakSanitizer asks for this by name; without it nobody
/// does.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace qattn::io {
namespace {

using namespace testing;

/// Reads every head of every call; the sum of a call's codes by dataset.
std::vector<std::uint64_t> read_everything(const std::string& path) {
  std::vector<std::uint64_t> sums;
  const DumpReader dump(path);
  for (const AttentionCall& call : dump.calls()) {
    for (const char* dataset : {"q", "k", "v"}) {
      std::uint64_t sum = 0;
      for (std::int64_t b = 0; b < call.batch; ++b) {
        for (std::int64_t h = 0; h < (dataset[0] == 'q' ? call.q_heads : call.kv_heads); ++h) {
          const Tensor head = dump.read_head(call, dataset, b, h);
          for (std::int64_t i = 0; i < head.elements(); ++i) sum += head.code(i);
        }
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

TEST_CASE("a real dump cut at any place is refused in one line that names the file") {
  const std::string whole = slurp(real_dump("kwt1_qkv.h5"));
  const ScratchFolder folder;
  const std::string path = folder / "cut.h5";
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < 4096; size += 61) sizes.push_back(size);
  for (std::size_t size = 4096; size < whole.size(); size += 90001) sizes.push_back(size);
  for (std::size_t cut = 1; cut < 2000; cut *= 3) sizes.push_back(whole.size() - cut);
  for (const std::size_t size : sizes) {
    spill(path, whole.substr(0, size));
    const std::string message = message_of([&] { read_everything(path); });
    INFO(size << ": " << message);
    REQUIRE(message.substr(0, path.size()) == path);
    REQUIRE(!contains(message, "\n"));
  }
}

/// A small dump with everything that HDF5 puts into a file: nested groups, attributes, chunks, filters.
std::string small_dump(const ScratchFolder& folder) {
  DumpWriter writer(folder / "small.h5", {{"model", std::string("m")}, {"is_causal", true}});
  for (const std::string call : {"a/x", "b"}) {
    writer.begin_call(call, {{"sm_scale", 0.25}});
    for (const char* dataset : {"q", "k", "v"}) {
      Tensor tensor = make_tensor(format::kBF16, {2, 2, 9, 16});
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        tensor.set_code(i, mix64(static_cast<std::uint64_t>(i)) & 0xffff);
      writer.write(call, dataset, tensor);
    }
  }
  writer.commit();
  return slurp(folder / "small.h5");
}

TEST_CASE("a small dump with a flipped bit gives an Error or the right codes") {
  const ScratchFolder folder;
  const std::string whole = small_dump(folder);
  const std::string path = folder / "flipped.h5";
  spill(path, whole);
  const auto expected = read_everything(path);
  std::size_t refused = 0, tried = 0;
  for (std::uint64_t trial = 0; trial < 1500; ++trial) {
    const std::size_t place = random_bits(1, 0, trial) % whole.size();
    std::string bytes = whole;
    bytes[place] = static_cast<char>(bytes[place] ^ (1 << random_bits(1, 1, trial) % 8));
    spill(path, bytes);
    ++tried;
    std::vector<std::uint64_t> sums;
    const std::string message = message_of([&] { sums = read_everything(path); });
    INFO("byte " << place << ": " << message);
    if (message.empty()) {
      REQUIRE(sums == expected);
    } else {
      REQUIRE(message.substr(0, path.size()) == path);
      ++refused;
    }
  }
  CHECK(tried > 900);
  CHECK(refused > tried / 2);
}

TEST_CASE("flipped bytes in a compressed head are refused by the checksum") {
  const ScratchFolder folder;
  const std::string whole = small_dump(folder);
  const std::string path = folder / "flipped.h5";
  const std::size_t stream = whole.find("\x78\x5e");  // zlib's header at the level that the writer uses
  REQUIRE(stream != std::string::npos);
  for (std::size_t i = 40; i < 300; i += 20) {
    std::string bytes = whole;
    bytes[stream + i] = static_cast<char>(bytes[stream + i] ^ 0x20);
    spill(path, bytes);
    const std::string message = message_of([&] { read_everything(path); });
    INFO(i << ": " << message);
    REQUIRE(contains(message,
                     "cannot be read; it is truncated, damaged or compressed in a way that this HDF5 lacks (HDF5: "
                     "inflate() failed)"));
  }
}

}  // namespace
}  // namespace qattn::io
