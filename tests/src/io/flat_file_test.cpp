// npz and safetensors: files that numpy 2 and the safetensors library 0.8 wrote (data/numpy_*.npz,
// data/library.safetensors), with values that Python printed from the same arrays; then hostile ones made by hand.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "io/dump.h"
#include "io/npz.h"
#include "io/safetensors.h"
#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;
using Shape = std::vector<std::int64_t>;

std::vector<std::uint64_t> row(const Tensor& tensor, std::int64_t index) {
  std::vector<std::uint64_t> codes;
  for (std::int64_t d = 0; d < tensor.shape[1]; ++d) codes.push_back(tensor.code(index * tensor.shape[1] + d));
  return codes;
}

std::uint64_t sum_of_heads(const DumpReader& dump, const AttentionCall& call, const char* name, std::int64_t heads) {
  std::uint64_t sum = 0;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Tensor head = dump.read_head(call, name, b, h);
      for (std::int64_t i = 0; i < head.elements(); ++i) sum += head.code(i);
    }
  }
  return sum;
}

using U = std::vector<std::uint64_t>;
const U kLastQ = {0xb910, 0xba77, 0xb5dc, 0xaf58, 0xbd9b, 0xa87e, 0xbeac, 0x3d92};   // q[1, 3, 4]
const U kLastK = {0x388a, 0x3f7f, 0x3cca, 0x3bee, 0x252a, 0x3bde, 0xbbbb, 0x3a02};   // k[1, 1, 6]
const U kFirstV = {0xbad6, 0x39a4, 0x3f95, 0x362f, 0x34f9, 0x3f71, 0xa5ce, 0xb4f2};  // v[0, 1, 0]

void check_numpy_call(const DumpReader& dump, const AttentionCall& call) {
  INFO(call.path);
  CHECK((call.batch == 2 && call.q_heads == 4 && call.kv_heads == 2 && call.q_tokens == 5 && call.kv_tokens == 7));
  CHECK((call.head_dim == 8 && call.q_format == &format::kFP16));
  CHECK(row(dump.read_head(call, "q", 1, 3), 4) == kLastQ);
  CHECK(row(dump.read_head(call, "k", 1, 1), 6) == kLastK);
  CHECK(row(dump.read_head(call, "v", 0, 1), 0) == kFirstV);
  CHECK(sum_of_heads(dump, call, "q", 4) == 10144871);
  CHECK(sum_of_heads(dump, call, "k", 2) == 6479490);
  CHECK(sum_of_heads(dump, call, "v", 2) == 7093458);
}

TEST_CASE("an archive of numpy.savez is a dump, its scalar entries are attributes") {
  const DumpReader dump(fixture("numpy_stored.npz"));
  REQUIRE(dump.calls().size() == 1);
  const AttentionCall& call = dump.call("/");
  check_numpy_call(dump, call);
  CHECK((call.is_causal && call.sm_scale == 0.3));
  CHECK(find_text(call.attributes, "model", "") == "tiny \xc3\xbc");
}

TEST_CASE("numpy.savez_compressed, NHD, Fortran order and big-endian elements give the same heads") {
  const DumpReader dump(fixture("numpy_deflated.npz"));
  REQUIRE(dump.calls().size() == 2);
  const AttentionCall &b0 = dump.call("b0"), &b1 = dump.call("b1");
  check_numpy_call(dump, b0);
  check_numpy_call(dump, b1);
  CHECK((b0.is_causal && b0.sm_scale == 0.25 && b0.causal_align == CausalAlign::top_left));
  CHECK((!b1.is_causal && b1.sm_scale == 0.25 && b1.causal_align == CausalAlign::bottom_right));
}

TEST_CASE("two-byte void elements are bfloat16 only when an entry says so") {
  const DumpReader dump(fixture("numpy_bfloat16.npz"));
  CHECK(dump.calls()[0].q_format == &format::kBF16);
  CHECK(row(dump.read_head(dump.calls()[0], "q", 1, 3), 4) ==
        U{0xbf22, 0xbf4f, 0xbebc, 0xbdeb, 0xbfb3, 0xbd10, 0xbfd6, 0x3fb2});
  const std::string message = message_of([] { const DumpReader unnamed(fixture("numpy_bfloat16_unnamed.npz")); });
  CHECK(contains(message, "numpy_bfloat16_unnamed.npz: q: holds 2-byte opaque elements without a dtype"));
  CHECK(contains(message, "np.savez(..., dtype='bfloat16')"));
}

TEST_CASE("a file of the safetensors library is a dump, its metadata are attributes") {
  const DumpReader dump(fixture("library.safetensors"));
  std::vector<std::string> paths;
  for (const AttentionCall& call : dump.calls()) paths.push_back(call.path);
  REQUIRE(paths == std::vector<std::string>{"bf16", "f8", "half", "packed"});

  const AttentionCall& half = dump.call("half");
  CHECK((half.q_format == &format::kFP16 && !half.is_causal && half.sm_scale == 0.125 && half.prefix == "half."));
  CHECK(row(dump.read_head(half, "q", 0, 3), 4) == U{0xbb1b, 0xb7ca, 0x264c, 0xb513, 0x343a, 0x39fb, 0x3939, 0xad99});
  CHECK(sum_of_heads(dump, half, "q", 4) == 4983418);
  CHECK(find_text(half.attributes, "model", "") == "tiny");
  const Mask mask = dump.read_mask(half, 0, 3);
  for (int i = 0; i < 35; ++i) REQUIRE(mask.attend(i / 7, i % 7) == (i % 7 <= i / 7 ? 1 : 0));

  const AttentionCall& bf16 = dump.call("bf16");
  CHECK((bf16.q_format == &format::kBF16 && bf16.is_causal && !bf16.has_batch && bf16.batch == 1));
  CHECK(row(dump.read_head(bf16, "v", 0, 1), 6) == U{0x3fa1, 0xbdd5, 0x3f07, 0xbf7a, 0xbe40, 0xbee4, 0x3f34, 0xbf7d});

  const AttentionCall& f8 = dump.call("f8");
  CHECK(f8.k_format == &format::kE4M3);
  CHECK(row(dump.read_head(f8, "k", 0, 1), 6) == U{0xac, 0xb8, 0xaf, 0xbb, 0xbd, 0xb7, 0xb3, 0xa9});

  const AttentionCall& packed = dump.call("packed");
  CHECK((packed.q_format == &format::kFP32 && packed.v_format == &format::kFP64));
  CHECK(packed.segments == std::vector<Segment>{{0, 2, 0, 2}, {2, 5, 2, 5}});
  CHECK(decode_matrix(dump.read_head(packed, "v", 0, 1), 0, 5, 8)(1, 2) == -0.0924072265625);
  CHECK(decode_matrix(dump.read_head(packed, "q", 0, 3), 0, 5, 8)(4, 7) == -0.08746337890625);
}

// ---- safetensors made by hand ----

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string safetensors(const std::string& header, std::size_t data_bytes) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\1');
}

std::string safetensors_complaint(const std::string& bytes) {
  const ScratchFolder folder;
  spill(folder / "f.safetensors", bytes);
  const std::string message = message_of([&] { const DumpReader dump(folder / "f.safetensors"); });
  CHECK(!contains(message, "\n"));
  return message;
}

TEST_CASE("hostile safetensors headers are refused before anything is allocated") {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return safetensors(R"({"q":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                       16);
  };
  CHECK(contains(safetensors_complaint(""), "shorter than its header"));
  CHECK(contains(safetensors_complaint(little_endian(~std::uint64_t{0}, 8)), "its header claims 18446744073709551615"));
  CHECK(contains(safetensors_complaint(little_endian(100, 8) + "{}"), "its header claims 100 bytes"));
  CHECK(contains(safetensors_complaint(safetensors("[1, 2]", 0)), "its header is no JSON object"));
  CHECK(contains(safetensors_complaint(safetensors("{\"q\"", 0)), "its header is no JSON object"));
  CHECK(contains(safetensors_complaint(safetensors(std::string(100000, '['), 0)), "its header is no JSON object"));
  CHECK(contains(safetensors_complaint(safetensors("{\"q\": 3}", 0)), "it needs dtype, shape and data_offsets"));
  CHECK(contains(safetensors_complaint(safetensors("{\"__metadata__\": 3}", 0)), "must be a JSON object of strings"));
  CHECK(contains(safetensors_complaint(safetensors("{}", 0)), "holds no attention call"));
  CHECK(contains(safetensors_complaint(entry("F16", "[1,1,2,4]", "[0,32]")), "truncated or damaged"));
  CHECK(contains(safetensors_complaint(entry("F16", "[1,1,2,4]", "[8,0]")), "truncated or damaged"));
  CHECK(contains(safetensors_complaint(entry("F16", "[1,1,2,4]", "[0,15]")), "does not take the 15 bytes"));
  CHECK(contains(safetensors_complaint(entry("F16", "[-1,1,2,4]", "[0,16]")), "must be non-negative integers"));
  CHECK(contains(safetensors_complaint(entry("F16", "[1.5,1,2,4]", "[0,16]")), "must be non-negative integers"));
  CHECK(contains(safetensors_complaint(entry("F16", "[4294967296,4294967296,2,4]", "[0,16]")), "is impossible"));
  CHECK(contains(safetensors_complaint(entry("F64", "[4611686018427387904]", "[0,16]")), "is impossible"));
  CHECK(contains(safetensors_complaint(entry("F16", "[18446744073709551615,0]", "[0,16]")), "must be non-negative"));
  CHECK(contains(
      safetensors_complaint(safetensors(
          R"({"q":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"k":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
          16)),
      "k: overlaps 'q'"));
  const std::string unknown =
      R"({"q":{"dtype":"F3","shape":[1,1,2,4],"data_offsets":[0,8]},"k":{"dtype":"F16","shape":[1,1,1,4],"data_offsets":[8,16]},)"
      R"("v":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  CHECK(
      contains(safetensors_complaint(safetensors(unknown, 17)), "q: unknown dtype 'F3'; known are: F64 F32 F16 BF16"));
}

TEST_CASE("a safetensors file cut anywhere is refused") {
  const std::string whole = slurp(fixture("library.safetensors"));
  const ScratchFolder folder;
  for (std::size_t size = 0; size < whole.size(); size += size < 1200 ? 1 : 97) {
    spill(folder / "cut.safetensors", whole.substr(0, size));
    INFO(size);
    REQUIRE(!message_of([&] { const DumpReader dump(folder / "cut.safetensors"); }).empty());
  }
}

// ---- npz made by hand ----

struct Member {
  std::string name, data;
  bool deflate = false;
};

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header += std::string(63 - (header.size() + 10) % 64, ' ') + "\n";
  return "\x93NUMPY" + std::string("\x01\x00", 2) + little_endian(header.size(), 2) + header + data;
}

std::string deflate_raw(const std::string& data) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, data.size()), '\0'), in = data;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// A ZIP archive; with `zip64` sizes and offsets stand in the 64-bit fields alone.
std::string zip(const std::vector<Member>& members, bool zip64 = false) {
  std::string file, directory;
  for (const Member& member : members) {
    const std::string stored = member.deflate ? deflate_raw(member.data) : member.data;
    const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(member.data.data()), member.data.size());
    const auto sized = [&](std::uint64_t value) { return little_endian(zip64 ? 0xffffffff : value, 4); };
    const std::string common = little_endian(member.deflate ? 8 : 0, 2) + little_endian(0, 4) + little_endian(crc, 4) +
                               sized(stored.size()) + sized(member.data.size()) + little_endian(member.name.size(), 2);
    std::string extra = little_endian(0x5455, 2) + little_endian(1, 2) + "x";
    if (zip64) {
      extra += little_endian(1, 2) + little_endian(24, 2) + little_endian(member.data.size(), 8) +
               little_endian(stored.size(), 8) + little_endian(file.size(), 8);
    }
    directory += little_endian(0x02014b50, 4) + little_endian(45, 2) + little_endian(45, 2) + little_endian(0, 2) +
                 common + little_endian(extra.size(), 2) + little_endian(0, 2) + little_endian(0, 8) +
                 sized(file.size()) + member.name + extra;
    file += little_endian(0x04034b50, 4) + little_endian(45, 2) + little_endian(0, 2) + common + little_endian(0, 2) +
            member.name + stored;
  }
  const std::size_t offset = file.size();
  file += directory;
  if (zip64) {
    const std::size_t end = file.size();
    file += little_endian(0x06064b50, 4) + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
            little_endian(0, 8) + little_endian(members.size(), 8) + little_endian(members.size(), 8) +
            little_endian(directory.size(), 8) + little_endian(offset, 8);
    file += little_endian(0x07064b50, 4) + little_endian(0, 4) + little_endian(end, 8) + little_endian(1, 4);
  }
  const std::uint64_t count = zip64 ? 0xffff : members.size();
  return file + little_endian(0x06054b50, 4) + little_endian(0, 4) + little_endian(count, 2) + little_endian(count, 2) +
         little_endian(zip64 ? 0xffffffff : directory.size(), 4) + little_endian(zip64 ? 0xffffffff : offset, 4) +
         little_endian(0, 2);
}

std::vector<Member> three(const std::string& array, bool deflate = false) {
  return {{"q.npy", array, deflate}, {"k.npy", array, deflate}, {"v.npy", array, deflate}};
}

std::string npz_complaint(const std::string& bytes) {
  const ScratchFolder folder;
  spill(folder / "f.npz", bytes);
  const std::string message = message_of([&] {
    const DumpReader dump(folder / "f.npz");
    dump.read_head(dump.calls()[0], "q", 0, 0);
  });
  CHECK(!contains(message, "\n"));
  return message;
}

TEST_CASE("zip64 fields and deflated members beyond one buffer are read") {
  std::string data;
  for (std::uint32_t i = 0; i < 300000; ++i) data += static_cast<char>(i * i >> 5 & 0xff);
  const std::string array = npy("|i1", "(1, 1, 3000, 100)", data);
  for (const bool zip64 : {false, true}) {
    for (const bool deflate : {false, true}) {
      const ScratchFolder folder;
      spill(folder / "f.npz", zip(three(array, deflate), zip64));
      const DumpReader dump(folder / "f.npz");
      const Tensor q = dump.read_head(dump.calls()[0], "q", 0, 0);
      CHECK(std::string(reinterpret_cast<const char*>(q.codes.data()), q.codes.size()) == data);
    }
  }
}

TEST_CASE("hostile archives and arrays are refused before anything is allocated") {
  const std::string good = npy("<f2", "(1, 1, 2, 4)", std::string(16, 'x'));
  CHECK(npz_complaint(zip(three(good))).empty());
  CHECK(contains(npz_complaint(""), "is no ZIP archive or is truncated"));
  CHECK(contains(npz_complaint(std::string(100000, 'x')), "is no ZIP archive or is truncated"));
  CHECK(contains(npz_complaint(zip({})), "holds no attention call"));
  CHECK(contains(npz_complaint(zip(three(npy("<f2", "(1, 1, 2, 5)", std::string(16, 'x'))))),
                 "does not take the 144 bytes"));
  CHECK(contains(npz_complaint(zip(three(npy("<f2", "(4294967296, 4294967296, 2, 4)", "")))), "is impossible"));
  CHECK(contains(npz_complaint(zip(three(npy("<f2", "(99999999999999999999,)", "")))), "damaged npy header"));
  CHECK(contains(npz_complaint(zip(three(npy("<f2", "(1, -1, 2, 4)", "")))), "damaged npy header"));
  CHECK(contains(npz_complaint(zip(three(npy("<f2", "1", "")))), "damaged npy header"));
  CHECK(contains(npz_complaint(zip(three(npy("|O", "(1, 1, 2, 4)", "")))), "has elements of type '|O'"));
  CHECK(contains(npz_complaint(zip(three(npy("<c8", "(1, 1, 2, 4)", "")))), "has elements of type '<c8'"));
  CHECK(contains(npz_complaint(zip(three(npy("<f16", "(1, 1, 2, 4)", "")))), "has elements of type '<f16'"));
  CHECK(contains(npz_complaint(zip(three(npy("<u2", "(1, 1, 2, 4)", std::string(16, 'x'))))),
                 "2-byte unsigned integers without a dtype"));
  CHECK(contains(npz_complaint(zip(three("no array"))), "is no npy array"));
  CHECK(contains(npz_complaint(zip({{"q.npy", good}, {"q.npy", good}})), "q.npy: is there twice"));

  std::string checksum = zip(three(good));
  checksum[30 + 5 + good.size() - 1] ^= 1;  // the last byte of q
  CHECK(contains(npz_complaint(checksum), "q.npy: is damaged: its checksum does not match"));
  const auto patched = [&](std::size_t offset_in_entry, const std::string& value) {
    std::string bytes = zip(three(good, true));
    bytes.replace(bytes.find("PK\x01\x02") + offset_in_entry, value.size(), value);
    return bytes;
  };
  CHECK(contains(npz_complaint(patched(24, little_endian(0xfffffffe, 4))), "claims 4294967294 bytes out of"));
  CHECK(contains(npz_complaint(patched(24, little_endian(100000, 4))), "truncated or damaged"));
  CHECK(contains(npz_complaint(patched(20, little_endian(0x7fffffff, 4))), "truncated or damaged"));
  CHECK(contains(npz_complaint(patched(42, little_endian(0x7fffffff, 4))), "is truncated: it ends at byte"));
  CHECK(contains(npz_complaint(patched(42, little_endian(3, 4))), "has no local header"));
  CHECK(contains(npz_complaint(patched(10, little_endian(14, 2))), "is compressed in an unknown way"));
  CHECK(contains(npz_complaint(patched(8, little_endian(1, 2))), "is encrypted"));
  CHECK(contains(npz_complaint(patched(28, little_endian(0xffff, 2))), "damaged ZIP archive"));
}

TEST_CASE("an archive whose header claims more heads than it has bytes is refused when it is opened") {
  const ScratchFolder folder;
  const std::string values(16, 'x');
  for (const bool deflate : {false, true}) {
    std::vector<Member> members = three(npy("<f2", "(1, 1, 2, 4)", values), deflate);
    members[0].data = npy("<f2", "(1, 1099511627776, 2, 4)", values);
    spill(folder / "f.npz", zip(members));
    const std::string message = message_of([&] { const DumpReader dump(folder / "f.npz"); });
    CHECK(contains(message, "f.npz: q: shape [1, 1099511627776, 2, 4] of '<f2' does not take the 144 bytes it has"));
  }
}

TEST_CASE("an archive cut anywhere is refused, and no flipped byte of an array goes unseen") {
  const ScratchFolder folder;
  for (const char* name : {"numpy_stored.npz", "numpy_deflated.npz"}) {
    const std::string whole = slurp(fixture(name));
    for (std::size_t size = 0; size < whole.size(); size += 7) {
      spill(folder / "cut.npz", whole.substr(0, size));
      INFO(name << " " << size);
      REQUIRE(!message_of([&] { const DumpReader dump(folder / "cut.npz"); }).empty());
    }
    const auto read_everything = [&] {
      const DumpReader dump(folder / "flipped.npz");
      U sums;
      for (const AttentionCall& call : dump.calls()) {
        for (const char* array : {"q", "k", "v"})
          sums.push_back(sum_of_heads(dump, call, array, array[0] == 'q' ? 4 : 2));
      }
      return sums;
    };
    spill(folder / "flipped.npz", whole);
    const U expected = read_everything();
    for (std::size_t i = 0; i < whole.size(); i += 3) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
      spill(folder / "flipped.npz", bytes);
      U sums;
      if (message_of([&] { sums = read_everything(); }).empty()) {
        // Seen or harmless: a flip in a name may hide a scalar entry, but codes that are read are the right ones.
        INFO(name << " " << i);
        for (const std::uint64_t sum : sums) REQUIRE(std::count(expected.begin(), expected.end(), sum) > 0);
      }
    }
  }
}

// ---- Dumps that are larger than what reading them takes ----

constexpr std::int64_t kHeads = 24, kTokens = 8192, kChannels = 64;
constexpr std::int64_t kHeadElements = kTokens * kChannels;
constexpr double kHeadMegabytes = static_cast<double>(kHeadElements) * 2 / (1 << 20);

std::uint64_t large_code(std::int64_t head, std::int64_t i) {
  return static_cast<std::uint64_t>((head * 100003 + i / 7) & 0x3ff);
}

/// [1, heads, tokens, channels] as FP16; in NHD [1, tokens, heads, channels].
std::string large_array(bool nhd) {
  std::string bytes(static_cast<std::size_t>(2 * kHeads * kHeadElements), '\0');
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t i = 0; i < kHeadElements; ++i) {
      const std::int64_t token = i / kChannels, channel = i % kChannels;
      const std::int64_t place = nhd ? (token * kHeads + head) * kChannels + channel : head * kHeadElements + i;
      const std::uint64_t code = large_code(head, i);
      bytes[static_cast<std::size_t>(2 * place)] = static_cast<char>(code & 0xff);
      bytes[static_cast<std::size_t>(2 * place + 1)] = static_cast<char>(code >> 8);
    }
  }
  return bytes;
}

void write_hdf5(const std::string& path, Layout layout) {
  DumpWriter writer(path, {}, layout);
  writer.begin_call("a");
  Tensor head = make_tensor(format::kFP16, {kTokens, kChannels});
  for (const char* name : {"q", "k", "v"}) {
    writer.create("a", name, format::kFP16, {1, kHeads, kTokens, kChannels});
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kHeadElements; ++i) head.set_code(i, large_code(h, i));
      writer.write_head("a", name, 0, h, head);
    }
  }
  writer.commit();
}

void write_safetensors(const std::string& path, const std::string& array) {
  std::string header = "{";
  for (std::size_t i = 0; i < 3; ++i) {
    header += std::string(i == 0 ? "\"" : ",\"") + "qkv"[i] + "\":{\"dtype\":\"F16\",\"shape\":[1,24,8192,64]," +
              "\"data_offsets\":[" + std::to_string(i * array.size()) + "," + std::to_string((i + 1) * array.size()) +
              "]}";
  }
  header += "}";
  std::ofstream file(path, std::ios::binary);
  file << little_endian(header.size(), 8) << header;
  for (int i = 0; i < 3; ++i) file << array;
}

void write_npz(const std::string& path, bool nhd, bool deflate) {
  const std::string shape = nhd ? "(1, 8192, 24, 64)" : "(1, 24, 8192, 64)";
  std::vector<Member> members = three(npy("<f2", shape, large_array(nhd)), deflate);
  if (nhd) members.push_back({"layout.npy", npy("<U3", "()", std::string("N\0\0\0H\0\0\0D\0\0\0", 12))});
  spill(path, zip(members));
}

/// Reads heads of all three arrays one by one, the last ones first; whether all codes are right.
bool heads_are_right(const std::string& path, std::int64_t stride) {
  const DumpReader dump(path);
  for (std::int64_t h = kHeads - 1; h >= 0; h -= stride) {
    for (const char* name : {"q", "k", "v"}) {
      const Tensor head = dump.read_head(dump.calls()[0], name, 0, h);
      for (std::int64_t i = 0; i < kHeadElements; ++i) {
        if (head.code(i) != large_code(h, i)) return false;
      }
    }
  }
  return true;
}

/// The peak of the resident set, in MB, of a child process in which `body` is true; negative when it is not.
double peak_megabytes(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) return -1;
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

#ifdef QATTN_SANITIZED
constexpr bool kMemoryIsOurs = false;  // a sanitizer keeps what was freed, and its own shadow
#else
constexpr bool kMemoryIsOurs = true;
#endif

TEST_CASE("a dump is read head by head in memory that does not grow with it") {
  struct Kind {
    const char* file;
    std::function<void(const std::string&)> write;
    std::int64_t stride;  ///< of the heads read; a compressed array in NHD order is gone through for each
  };
  const Kind kinds[] = {
      {"a.h5", [](const std::string& path) { write_hdf5(path, Layout::hnd); }, 1},
      {"nhd.h5", [](const std::string& path) { write_hdf5(path, Layout::nhd); }, 1},
      {"a.safetensors", [](const std::string& path) { write_safetensors(path, large_array(false)); }, 1},
      {"stored.npz", [](const std::string& path) { write_npz(path, false, false); }, 1},
      {"deflated.npz", [](const std::string& path) { write_npz(path, false, true); }, 1},
      {"nhd.npz", [](const std::string& path) { write_npz(path, true, true); }, 8},
  };
  const ScratchFolder folder;
  for (const Kind& kind : kinds) {
    INFO(kind.file);
    const std::string path = folder / kind.file;
    // Written in a child too, whose freed memory does not serve the reader.
    REQUIRE(peak_megabytes([&] { return kind.write(path), true; }) > 0);
    const double idle = peak_megabytes([] { return true; });
    const double reading = peak_megabytes([&] { return heads_are_right(path, kind.stride); });
    REQUIRE(reading > 0);
    // An array has 24 MB, the dump 72.
    CHECK((!kMemoryIsOurs || reading - idle < 10 * kHeadMegabytes));
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace qattn::io
