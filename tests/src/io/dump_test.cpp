// Real dumps: sizes, attributes and values against what h5py read from the same files.
#include "io/dump.h"

#include <cmath>

#include "format/encode.h"
#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;

std::uint64_t sum_of_codes(const Tensor& tensor) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) sum += tensor.code(i);
  return sum;
}

TEST_CASE("the Keyword Transformer's dump is read as h5py reads it") {
  const DumpReader dump(real_dump("kwt1_qkv.h5"));
  REQUIRE(dump.calls().size() == 12);
  const AttentionCall& first = dump.calls().front();
  CHECK(first.path == "layer_00");
  CHECK(dump.calls().back().path == "layer_11");
  CHECK(first.file == real_dump("kwt1_qkv.h5"));
  CHECK((first.batch == 10 && first.q_heads == 1 && first.kv_heads == 1));
  CHECK((first.q_tokens == 99 && first.kv_tokens == 99 && first.head_dim == 64 && first.head_dim_original == 64));
  CHECK(!first.is_causal);
  CHECK(first.causal_align == CausalAlign::top_left);
  CHECK(first.sm_scale == 0.125);
  CHECK((first.q_format == &format::kFP16 && first.k_format == &format::kFP16 && first.v_format == &format::kFP16));
  CHECK(first.datasets == std::vector<std::string>{"k", "q", "v"});
  CHECK(find_text(first.attributes, "model", "")->substr(0, 25) == "Keyword Transformer KWT-1");
  CHECK(first.segments.empty());

  const Tensor q = dump.read_head(first, "q", 0, 0);
  CHECK(q.shape == std::vector<std::int64_t>{99, 64});
  CHECK(sum_of_codes(q) == 185241247);
  CHECK((q.code(0) == 0x345d && q.code(1) == 0xb5c8 && q.code(2) == 0xb4a4 && q.code(98 * 64 + 63) == 0xb591));
  const Tensor k = dump.read_head(dump.call("layer_11"), "k", 9, 0);
  CHECK(sum_of_codes(k) == 174929934);
  CHECK(k.code(98 * 64 + 63) == 0xb457);
  CHECK(sum_of_codes(dump.read_head(dump.call("layer_01"), "v", 0, 0)) == 193073774);
}

TEST_CASE("the SmolLM2 dumps, grouped heads and causal, are read as h5py reads them") {
  const DumpReader dump(real_dump("smollm2_1.h5"));
  REQUIRE(dump.calls().size() == 3);
  const AttentionCall& call = dump.call("layer_12");
  CHECK((call.batch == 1 && call.q_heads == 9 && call.kv_heads == 3 && call.q_tokens == 1024));
  CHECK(call.is_causal);
  CHECK((call.kv_head(0) == 0 && call.kv_head(2) == 0 && call.kv_head(3) == 1 && call.kv_head(8) == 2));
  const Tensor k = dump.read_head(call, "k", 0, 2);
  CHECK(sum_of_codes(k) == 2119301876);
  CHECK((k.code(0) == 0x987c && k.code(1) == 0x269f && k.code(1024 * 64 - 1) == 0xb809));
  const DumpReader second(real_dump("smollm2_2.h5"));
  CHECK(sum_of_codes(second.read_head(second.call("layer_29"), "k", 0, 2)) == 2045880282);
}

TEST_CASE("indices and names out of range are the caller's mistakes") {
  const DumpReader dump(real_dump("smollm2_1.h5"));
  const AttentionCall& call = dump.calls().front();
  const auto complaint = [&](const char* dataset, std::int64_t batch, std::int64_t head) {
    return message_of([&] { dump.read_head(call, dataset, batch, head); }, ErrorKind::usage);
  };
  CHECK(contains(complaint("q", 0, 9), "layer_00: head 9 is out of range; the call has 9"));
  CHECK(contains(complaint("k", 0, 3), "head 3 is out of range; the call has 3"));
  CHECK(contains(complaint("q", 1, 0), "batch 1 is out of range; the call has 1"));
  CHECK(contains(complaint("q", 0, -1), "head -1 is out of range"));
  CHECK(contains(message_of([&] { dump.read_head(call, "lse", 0, 0); }), "layer_00/lse: the call has no such dataset"));
  CHECK(contains(message_of([&] { dump.read_mask(call, 0, 0); }), "layer_00/mask: the call has no mask"));
  CHECK(contains(message_of([&] { dump.call("layer_99"); }, ErrorKind::usage), "no call 'layer_99'"));
  CHECK(dump.descale(call, "q_descale", 0, 0) == 1.0);
}

TEST_CASE("folders give their dumps sorted, and what is no dump is refused") {
  const auto files = dump_files({std::string(QATTN_SOURCE_DIR) + "/data/real"});
  REQUIRE(files.size() >= 3);
  CHECK(std::is_sorted(files.begin(), files.end()));
  CHECK(dump_files({real_dump("smollm2_2.h5"), real_dump("kwt1_qkv.h5"), real_dump("../real/smollm2_2.h5")}) ==
        std::vector<std::string>{real_dump("smollm2_2.h5"), real_dump("kwt1_qkv.h5")});
  const ScratchFolder folder;
  CHECK(contains(message_of([&] { dump_files({folder.path()}); }), "holds no dump (*.h5"));
  CHECK(contains(message_of([&] { dump_files({folder / "absent"}); }), "does not exist"));
  spill(folder / "b.H5", "");
  spill(folder / "a.npz", "");
  spill(folder / "notes.txt", "");
  spill(folder / ".hidden.h5", "");
  std::filesystem::create_directory(folder / "folder.h5");
  CHECK(dump_files({folder.path()}) == std::vector<std::string>{folder / "a.npz", folder / "b.H5"});
}

}  // namespace
}  // namespace qattn::io
