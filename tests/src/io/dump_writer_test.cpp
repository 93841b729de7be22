// Dumps that are written and read back, right ones and wrong ones.
#include <hdf5.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "format/encode.h"
#include "io/dump.h"
#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;
using Shape = std::vector<std::int64_t>;

/// Codes that differ from element to element and from seed to seed; some are NaN in every format that has it.
Tensor patterned(const format::Format& format, const Shape& shape, std::uint64_t seed) {
  Tensor tensor = make_tensor(format, shape);
  const std::uint64_t mask = format.bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << format.bits) - 1;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.set_code(i, ((static_cast<std::uint64_t>(i) + seed) * 0x9E3779B97F4A7C15u >> 7) & mask);
  }
  return tensor;
}

/// Head [b, h] of a [B, H, N, D] tensor.
Tensor head_of(const Tensor& tensor, std::int64_t b, std::int64_t h) {
  Tensor head = make_tensor(*tensor.format, {tensor.shape[2], tensor.shape[3]});
  const std::int64_t first = (b * tensor.shape[1] + h) * head.elements();
  for (std::int64_t i = 0; i < head.elements(); ++i) head.set_code(i, tensor.code(first + i));
  return head;
}

/// A file with one call "c" of the given shapes.
void write_call(const std::string& path, const Shape& q, const Shape& k, const Shape& v,
                const Attributes& attributes = {}, const std::vector<std::pair<std::string, Tensor>>& more = {}) {
  DumpWriter writer(path);
  writer.begin_call("c", attributes);
  writer.write("c", "q", patterned(format::kFP16, q, 1));
  writer.write("c", "k", patterned(format::kFP16, k, 2));
  writer.write("c", "v", patterned(format::kFP16, v, 3));
  for (const auto& [name, tensor] : more) writer.write("c", name, tensor);
  writer.commit();
}

std::string complaint(const std::string& path) {
  const std::string message = message_of([&] { const DumpReader dump(path); });
  CHECK(!contains(message, "\n"));
  return message;
}

TEST_CASE("calls of every format survive writing and reading, NaN codes too") {
  const ScratchFolder folder;
  const std::string path = folder / "dump.h5";
  std::vector<std::string> names;
  {
    DumpWriter writer(path, {{"model", std::string("m")}, {"sm_scale", 0.5}, {"layout", std::string("NHD")}});
    for (const format::Format* f : format::formats()) {
      if (f->dtype.empty()) continue;
      const std::string call = "deep/" + std::string(f->name);
      names.push_back(call);
      writer.begin_call(call, {{"is_causal", true}});
      writer.write(call, "q", patterned(*f, {2, 4, 5, 8}, 1));
      writer.write(call, "k", patterned(*f, {2, 2, 7, 8}, 2));
      writer.create(call, "v", *f, {2, 2, 7, 8});
      const Tensor v = patterned(*f, {2, 2, 7, 8}, 3);
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 2; ++h) writer.write_head(call, "v", b, h, head_of(v, b, h));
      }
    }
    writer.commit();
  }
  std::sort(names.begin(), names.end());
  const DumpReader dump(path);
  REQUIRE(dump.calls().size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const AttentionCall& call = dump.calls()[i];
    INFO(call.path);
    CHECK(call.path == names[i]);
    CHECK((call.is_causal && call.sm_scale == 0.5 && find_text(call.attributes, "model", "") == "m"));
    for (const auto& [name, heads, seed] : {std::tuple("q", 4, 1), std::tuple("k", 2, 2), std::tuple("v", 2, 3)}) {
      const Shape shape = {2, heads, std::string(name) == "q" ? 5 : 7, 8};
      const Tensor whole = patterned(*call.q_format, shape, static_cast<std::uint64_t>(seed));
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
          CHECK(dump.read_head(call, name, b, h).codes == head_of(whole, b, h).codes);
        }
      }
    }
  }
}

TEST_CASE("attributes of parent groups hold until a nearer one overrides them") {
  const ScratchFolder folder;
  {
    DumpWriter writer(folder / "d.h5", {{"is_causal", true}, {"sm_scale", 0.5}});
    writer.begin_call("step", {{"sm_scale", 0.25}, {"causal_align", std::string("bottom_right")}});
    for (const std::string call : {"step/a", "step/b", "top"}) {
      writer.begin_call(call, call == "step/b"
                                  ? Attributes{{"is_causal", false}, {"head_dim_original", std::int64_t{3}}}
                                  : Attributes{});
      for (const char* name : {"q", "k", "v"}) writer.write(call, name, patterned(format::kBF16, {1, 1, 3, 4}, 0));
    }
    writer.commit();
  }
  const DumpReader dump(folder / "d.h5");
  const AttentionCall &a = dump.call("step/a"), &b = dump.call("step/b"), &top = dump.call("top");
  CHECK((a.is_causal && a.sm_scale == 0.25 && a.causal_align == CausalAlign::bottom_right));
  CHECK((!b.is_causal && b.sm_scale == 0.25 && b.head_dim_original == 3));
  CHECK((top.is_causal && top.sm_scale == 0.5 && top.causal_align == CausalAlign::top_left));
}

TEST_CASE("an absent scale is one over the root of the original head_dim") {
  const ScratchFolder folder;
  write_call(folder / "a.h5", {1, 1, 2, 128}, {1, 1, 2, 128}, {1, 1, 2, 128});
  CHECK(DumpReader(folder / "a.h5").calls()[0].sm_scale == 0.08838834764831843);
  write_call(folder / "b.h5", {1, 1, 2, 128}, {1, 1, 2, 128}, {1, 1, 2, 128},
             {{"head_dim_original", std::int64_t{72}}});
  CHECK(DumpReader(folder / "b.h5").calls()[0].sm_scale == 1 / std::sqrt(72.0));
}

/// Written with the C library alone: a call in the file itself, layout NHD, three dimensions, not chunked.
TEST_CASE("the NHD layout, with and without a batch, gives the same heads") {
  const ScratchFolder folder;
  const std::int64_t tokens = 3, heads = 2, dim = 4;
  for (const bool batched : {false, true}) {
    const std::string path = folder / (batched ? "4.h5" : "3.h5");
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const auto add_text = [&](const char* name, const std::string& text) {
      const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
      H5Tset_size(type, text.size());
      const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(attribute, type, text.data());
      H5Aclose(attribute), H5Sclose(space), H5Tclose(type);
    };
    add_text("schema", "qattn-dump/1");
    add_text("layout", "NHD");
    std::vector<float> values(static_cast<std::size_t>(tokens * heads * dim));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const std::vector<hsize_t> sizes = batched ? std::vector<hsize_t>{1, 3, 2, 4} : std::vector<hsize_t>{3, 2, 4};
    for (const char* name : {"q", "k", "v", "o"}) {
      const hid_t space = H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
      const hid_t dataset = H5Dcreate2(file, name, H5T_IEEE_F32BE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
      H5Dclose(dataset), H5Sclose(space);
    }
    H5Fclose(file);

    const DumpReader dump(path);
    const AttentionCall& call = dump.call("/");
    CHECK((call.batch == 1 && call.q_heads == 2 && call.q_tokens == 3 && call.head_dim == 4));
    CHECK(call.has_batch == batched);
    CHECK(call.has("o"));
    for (std::int64_t h = 0; h < heads; ++h) {
      const MatrixF head = decode_matrix_float(dump.read_head(call, "v", 0, h), 0, tokens, dim);
      for (std::int64_t n = 0; n < tokens; ++n) {
        for (std::int64_t d = 0; d < dim; ++d) {
          REQUIRE(head(n, d) == static_cast<float>((n * heads + h) * dim + d));
        }
      }
    }
  }
}

TEST_CASE("masks, boolean and additive, one for all heads or one each") {
  const ScratchFolder folder;
  const Shape q = {2, 4, 3, 8}, k = {2, 2, 5, 8};
  std::vector<std::uint8_t> attend(2 * 4 * 3 * 5);
  for (std::size_t i = 0; i < attend.size(); ++i) attend[i] = i % 3 == 1 || i % 7 == 0;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1, 3, 5}, Shape{2, 1, 3, 5}, Shape{1, 4, 3, 5}, Shape{2, 4, 3, 5}}) {
    for (const bool additive : {false, true}) {
      const std::string path = folder / "m.h5";
      const Tensor bias = patterned(format::kBF16, shape, 5);
      {
        DumpWriter writer(path);
        writer.begin_call("c");
        writer.write("c", "q", patterned(format::kFP16, q, 1));
        writer.write("c", "k", patterned(format::kFP16, k, 2));
        writer.write("c", "v", patterned(format::kFP16, k, 3));
        std::vector<std::uint8_t> part(attend.begin(), attend.begin() + bias.elements());
        additive ? writer.write("c", "mask", bias) : writer.write_boolean_mask("c", shape, part);
        writer.commit();
      }
      const DumpReader dump(path);
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 4; ++h) {
          const Mask mask = dump.read_mask(dump.calls()[0], b, h);
          CHECK(mask.bias.has_value() == additive);
          const bool rank4 = shape.size() == 4;
          const std::int64_t first = rank4 ? ((shape[0] == 1 ? 0 : b) * shape[1] + (shape[1] == 1 ? 0 : h)) * 15 : 0;
          for (std::int64_t i = 0; i < 15; ++i) {
            if (additive) {
              REQUIRE(mask.bias->code(i) == bias.code(first + i));
            } else {
              REQUIRE(mask.attend(i / 5, i % 5) == attend[static_cast<std::size_t>(first + i)]);
            }
          }
        }
      }
    }
  }
  write_call(folder / "w.h5", q, k, k, {}, {{"mask", patterned(format::kBF16, {2, 2, 3, 5}, 0)}});
  CHECK(contains(complaint(folder / "w.h5"),
                 "c/mask: has shape [2, 2, 3, 5]; it must be [3, 5] or [1 or 2, 1 or 4, 3, 5]"));
}

TEST_CASE("what a kernel returned and its scales are read beside q, k and v") {
  const ScratchFolder folder;
  const Shape q = {1, 4, 3, 8}, k = {1, 2, 5, 8};
  Tensor scales = make_tensor(format::kFP32, {1, 2});
  scales.set_code(0, 0x3f000000);  // 0.5
  write_call(folder / "d.h5", q, k, k, {},
             {{"o", patterned(format::kBF16, q, 4)},
              {"do", patterned(format::kBF16, q, 5)},
              {"lse", patterned(format::kFP32, {1, 4, 3}, 6)},
              {"k_descale", scales}});
  const DumpReader dump(folder / "d.h5");
  const AttentionCall& call = dump.calls()[0];
  CHECK(dump.read_head(call, "o", 0, 3).codes == head_of(patterned(format::kBF16, q, 4), 0, 3).codes);
  CHECK(dump.read_head(call, "do", 0, 2).format == &format::kBF16);
  const Tensor lse = dump.read_head(call, "lse", 0, 2);
  CHECK(lse.shape == Shape{3});
  for (std::int64_t n = 0; n < 3; ++n) CHECK(lse.code(n) == patterned(format::kFP32, {1, 4, 3}, 6).code(6 + n));
  CHECK(dump.descale(call, "k_descale", 0, 0) == 0.5);
  CHECK(contains(message_of([&] { dump.descale(call, "k_descale", 0, 1); }), "[0, 1] is no positive finite scale"));
}

TEST_CASE("packed sequences are checked and listed") {
  const ScratchFolder folder;
  const auto write = [&](const Shape& q, const Shape& k, const Shape& cu_q, const Shape& cu_k) {
    DumpWriter writer(folder / "p.h5");
    writer.begin_call("c");
    writer.write("c", "q", patterned(format::kFP16, q, 1));
    writer.write("c", "k", patterned(format::kFP16, k, 2));
    writer.write("c", "v", patterned(format::kFP16, k, 3));
    writer.write_cu_seqlens("c", cu_q, cu_k);
    writer.commit();
  };
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0, 2, 2, 6}, {0, 3, 3, 9});
  CHECK(DumpReader(folder / "p.h5").calls()[0].segments ==
        std::vector<Segment>{{0, 2, 0, 3}, {2, 2, 3, 3}, {2, 6, 3, 9}});
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0, 4, 2, 6}, {0, 3, 3, 9});
  CHECK(contains(complaint(folder / "p.h5"), "c/cu_seqlens_q: must rise from 0 to the number of tokens, 6"));
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0, 2, 6}, {0, 3, 8});
  CHECK(contains(complaint(folder / "p.h5"), "c/cu_seqlens_k: must rise from 0 to the number of tokens, 9"));
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0, 6}, {0, 3, 9});
  CHECK(contains(complaint(folder / "p.h5"), "differ in the number of sequences"));
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0, 3, 6}, {0, 0, 9});
  CHECK(contains(complaint(folder / "p.h5"), "sequence 0 has queries but no keys"));
  write({2, 2, 6, 8}, {2, 2, 9, 8}, {0, 6}, {0, 9});
  CHECK(contains(complaint(folder / "p.h5"), "need batch 1, not 2"));
  write({1, 2, 6, 8}, {1, 2, 9, 8}, {0}, {0});
  CHECK(contains(complaint(folder / "p.h5"), "has shape [1]; it must be [sequences + 1]"));
}

TEST_CASE("shapes that disagree are refused with the shapes") {
  const ScratchFolder folder;
  const std::string path = folder / "s.h5";
  const auto shapes = [&](const Shape& q, const Shape& k, const Shape& v) {
    write_call(path, q, k, v);
    const std::string message = complaint(path);
    CHECK(contains(message, path + ": c"));
    return message;
  };
  CHECK(contains(shapes({1, 4, 3, 8}, {1, 2, 5, 8}, {1, 2, 6, 8}),
                 "k and v must have the same shape; here q [1, 4, 3, 8]"));
  CHECK(contains(shapes({1, 4, 3, 8}, {1, 3, 5, 8}, {1, 3, 5, 8}), "q has 4 heads, no multiple of k's 3"));
  CHECK(contains(shapes({1, 4, 3, 8}, {1, 2, 5, 16}, {1, 2, 5, 16}), "q and k differ in head_dim"));
  CHECK(contains(shapes({2, 4, 3, 8}, {1, 2, 5, 8}, {1, 2, 5, 8}), "q and k differ in batch"));
  CHECK(contains(shapes({4, 3, 8}, {1, 2, 5, 8}, {1, 2, 5, 8}), "q and k differ in batch"));
  CHECK(contains(shapes({3, 8}, {5, 8}, {5, 8}), "c/q: has shape [3, 8]; it must be [batch, heads, tokens, head_dim]"));
  const Shape q = {1, 4, 3, 8}, k = {1, 2, 5, 8};
  const auto beside = [&](const std::string& name, const Shape& shape) {
    write_call(path, q, k, k, {}, {{name, patterned(format::kFP32, shape, 0)}});
    return complaint(path);
  };
  CHECK(
      contains(beside("o", {1, 4, 5, 8}), "c/o: has shape [1, 4, 5, 8]; with this q, k and v it must be [1, 4, 3, 8]"));
  CHECK(contains(beside("do", {1, 2, 3, 8}), "c/do: has shape"));
  CHECK(contains(beside("lse", {1, 4, 3, 1}), "it must be [1, 4, 3]"));
  CHECK(contains(beside("q_descale", {1, 4}), "it must be [1, 2]"));
}

TEST_CASE("attributes that make no sense are refused by name") {
  const ScratchFolder folder;
  const std::string path = folder / "a.h5";
  const auto with = [&](const std::string& name, const AttributeValue& value) {
    write_call(path, {1, 1, 3, 8}, {1, 1, 3, 8}, {1, 1, 3, 8}, {{name, value}});
    return complaint(path);
  };
  CHECK(contains(with("layout", std::string("NDH")), "c: unknown layout 'NDH'; known are: HND NHD"));
  CHECK(contains(with("causal_align", std::string("left")), "unknown causal_align 'left'"));
  CHECK(contains(with("is_causal", std::string("maybe")), "attribute 'is_causal' must be a boolean"));
  CHECK(contains(with("sm_scale", 0.0), "sm_scale must be a positive finite number"));
  CHECK(contains(with("sm_scale", std::nan("")), "sm_scale must be a positive finite number"));
  CHECK(contains(with("sm_scale", std::string("small")), "attribute 'sm_scale' must be a number"));
  CHECK(contains(with("head_dim_original", std::int64_t{9}), "head_dim_original is 9, but head_dim is 8"));
  CHECK(contains(with("head_dim_original", std::int64_t{0}), "head_dim_original is 0"));
}

TEST_CASE("files without calls, without schema or of another schema are refused") {
  const ScratchFolder folder;
  {
    DumpWriter writer(folder / "empty.h5");
    writer.begin_call("layer");
    writer.commit();
  }
  CHECK(
      contains(complaint(folder / "empty.h5"), "holds no attention call; a call is a group with datasets q, k and v"));
  {
    DumpWriter writer(folder / "half.h5");
    writer.begin_call("layer");
    writer.write("layer", "q", patterned(format::kFP16, {1, 1, 3, 8}, 0));
    writer.write("layer", "v", patterned(format::kFP16, {1, 1, 3, 8}, 0));
    writer.commit();
  }
  CHECK(contains(complaint(folder / "half.h5"), "half.h5: layer: dataset 'k' is missing"));
  for (const std::string schema : {"", "qattn-dump/2", "qattn-mma-vectors/1"}) {
    Hdf5Writer writer(folder / "schema.h5");
    if (!schema.empty()) writer.set_attribute("", "schema", schema);
    writer.commit();
    const std::string message = complaint(folder / "schema.h5");
    CHECK(contains(message, schema.empty() ? "has no attribute 'schema'" : "is a file of schema '" + schema + "'"));
    CHECK(contains(message, "schema = \"qattn-dump/1\""));
  }
  {
    Hdf5Writer writer(folder / "zero.h5");
    writer.set_attribute("", "schema", std::string(kDumpSchema));
    for (const char* name : {"q", "k", "v"}) writer.create_dataset(name, format::kFP16, {1, 1, 0, 8}, {});
    writer.commit();
  }
  CHECK(contains(complaint(folder / "zero.h5"), "has shape [1, 1, 0, 8]: nothing to attend; no size may be zero"));
}

TEST_CASE("a dump that cannot be written leaves no file and says why") {
  const ScratchFolder folder;
  spill(folder / "file", "x");
  CHECK(contains(message_of([&] { DumpWriter writer(folder / "file/d.h5"); }),
                 "d.h5: cannot be written: Not a directory"));
  CHECK(contains(message_of([&] { DumpWriter writer("/dev/full"); }), "/dev/full: cannot be written"));
  CHECK(contains(message_of([&] { DumpWriter writer("/proc/d.h5"); }), "/proc/d.h5: cannot be written"));
  {
    DumpWriter abandoned(folder / "abandoned.h5");
    abandoned.begin_call("c");
  }
  CHECK(folder.entries() == 1);
}

TEST_CASE("a disk that fills up while a dump is written leaves no file, and the library stays usable") {
  const ScratchFolder folder;
  spill(folder / "d.h5", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small = {20000, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = message_of([&] {
    write_call(folder / "d.h5", {4, 4, 64, 64}, {4, 4, 64, 64}, {4, 4, 64, 64});
  });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(contains(message, "d.h5"));
  CHECK(contains(message, "cannot be written (HDF5: "));
  CHECK(slurp(folder / "d.h5") == "old");
  CHECK(folder.entries() == 1);
  write_call(folder / "d.h5", {1, 1, 3, 8}, {1, 1, 3, 8}, {1, 1, 3, 8});
  CHECK(DumpReader(folder / "d.h5").calls().size() == 1);
}

}  // namespace
}  // namespace qattn::io
