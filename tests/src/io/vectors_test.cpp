// Vector files: written with our writer or, where there is none, with the HDF5 layer as the file formats describe.
#include "io/vectors.h"

#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;
using Shape = std::vector<std::int64_t>;

Codes counted(const Shape& shape, std::size_t element_bytes, std::uint64_t seed) {
  Codes codes = make_codes(shape, element_bytes);
  for (std::int64_t i = 0; i < codes.size(); ++i)
    codes.set(i, (seed + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15u);
  return codes;
}

bool same(const Codes& a, const Codes& b) {
  return a.shape == b.shape && a.element_bytes == b.element_bytes && a.bytes == b.bytes;
}

InstructionCase block_scaled() {
  InstructionCase c;
  c.name = "deep/scaled";
  c.instruction = "sm120.mma.m16n8k64.f32.e2m1.e2m1.block16.ue4m3";
  c.gpu = "a GPU";
  c.attributes = {{"seed", std::int64_t{5}}, {"note", std::string("n")}};
  c.a = counted({3, 16, 64}, 1, 1);
  c.b = counted({3, 8, 64}, 1, 2);
  c.c = counted({3, 16, 8}, 4, 3);
  c.d = counted({3, 16, 8}, 4, 4);
  c.scale_a = counted({3, 16, 4}, 1, 5);
  c.scale_b = counted({3, 8, 4}, 1, 6);
  return c;
}

TEST_CASE("instruction vectors survive writing and reading") {
  const ScratchFolder folder;
  const InstructionCase written = block_scaled();
  InstructionCase plain = written;
  plain.name = "a_plain";
  plain.instruction = "cdna2.mfma.m16n16k4.f64.f64.f64";
  plain.scale_a.reset();
  plain.scale_b.reset();
  plain.c = counted({3, 16, 8}, 8, 7);
  VectorWriter writer(folder / "v.h5", kInstructionSchema);
  writer.add(written);
  writer.add(plain);
  writer.commit();

  CHECK(schema(folder / "v.h5") == kInstructionSchema);
  const VectorReader reader(folder / "v.h5");
  REQUIRE(reader.cases() == std::vector<std::string>{"a_plain", "deep/scaled"});
  const InstructionCase read = reader.instruction("deep/scaled");
  CHECK((read.instruction == written.instruction && read.gpu == "a GPU"));
  CHECK(find_integer(read.attributes, "seed", "") == 5);
  CHECK((read.n == 3 && read.rows == 16 && read.columns == 8 && read.depth == 64));
  CHECK((same(read.a, written.a) && same(read.b, written.b) && same(read.c, written.c) && same(read.d, written.d)));
  CHECK((same(*read.scale_a, *written.scale_a) && same(*read.scale_b, *written.scale_b)));
  const InstructionCase read_plain = reader.instruction("a_plain");
  CHECK((!read_plain.scale_a && same(read_plain.c, plain.c)));
  CHECK(contains(message_of([&] { reader.scalar("a_plain"); }), "is a file of schema 'qattn-mma-vectors/1', not of"));
  CHECK(contains(message_of([&] { const DumpReader dump(folder / "v.h5"); }), "an attention dump has schema"));
}

TEST_CASE("instruction vectors whose shapes disagree are refused") {
  const ScratchFolder folder;
  const auto complaint = [&](auto change) {
    InstructionCase c = block_scaled();
    change(c);
    VectorWriter writer(folder / "v.h5", kInstructionSchema);
    writer.add(c);
    writer.commit();
    return message_of([&] { VectorReader(folder / "v.h5").instruction("deep/scaled"); });
  };
  CHECK(complaint([](InstructionCase&) {}).empty());
  CHECK(contains(complaint([](auto& c) {
                   c.b = counted({3, 8, 32}, 1, 0);
                 }),
                 "deep/scaled: a must be [n, M, K] and b [n, N, K]"));
  CHECK(contains(complaint([](auto& c) { c.c = counted({3, 8, 16}, 4, 0); }), "deep/scaled/c: has shape [3, 8, 16]"));
  CHECK(contains(complaint([](auto& c) { c.d = counted({2, 16, 8}, 4, 0); }), "deep/scaled/d: has shape [2, 16, 8]"));
  CHECK(contains(complaint([](auto& c) { c.a = counted({3, 16}, 1, 0); }), "it must have 3 dimensions"));
  CHECK(contains(complaint([](auto& c) { c.scale_a = counted({3, 16, 5}, 1, 0); }), "scale_a: has shape [3, 16, 5]"));
  CHECK(contains(complaint([](auto& c) { c.scale_b = counted({3, 16, 4}, 1, 0); }), "scale_b: has shape [3, 16, 4]"));
}

TEST_CASE("scalar vectors and digests survive writing and reading") {
  const ScratchFolder folder;
  ScalarCase scalar;
  scalar.name = "ex2";
  scalar.function = "ex2.approx.ftz.f32";
  scalar.gpu = "g";
  scalar.x = counted({300000}, 4, 1);
  scalar.y = counted({300000}, 2, 2);
  {
    VectorWriter writer(folder / "s.h5", kScalarSchema);
    writer.add(scalar);
    writer.commit();
  }
  const ScalarCase back = VectorReader(folder / "s.h5").scalar("ex2");
  CHECK((back.function == scalar.function && same(back.x, scalar.x) && same(back.y, scalar.y)));

  DigestCase digest{"expf.fast_math", "expf", "g", "nvcc --use_fast_math", {}, {}};
  for (std::uint64_t i = 0; i < 256; ++i) digest.digest.push_back(~(i * i * i));
  {
    VectorWriter writer(folder / "d.h5", kDigestSchema);
    writer.add(digest);
    writer.commit();
  }
  const DigestCase read = VectorReader(folder / "d.h5").digest("expf.fast_math");
  CHECK((read.function == "expf" && read.build == digest.build && read.digest == digest.digest));

  scalar.y = counted({299999}, 2, 2);
  digest.digest.pop_back();
  VectorWriter scalars(folder / "s.h5", kScalarSchema), digests(folder / "d.h5", kDigestSchema);
  scalars.add(scalar), digests.add(digest);
  CHECK(message_of([&] { digests.add(scalar); }, ErrorKind::internal) != "");
  scalars.commit(), digests.commit();
  CHECK(contains(message_of([&] { VectorReader(folder / "s.h5").scalar("ex2"); }), "x and y must be equally long"));
  CHECK(contains(message_of([&] { VectorReader(folder / "d.h5").digest("expf.fast_math"); }),
                 "must be 256 unsigned integers"));
}

/// Writes a tensor of bfloat16 codes that count up from `first`.
void put(Hdf5Writer& writer, const std::string& path, const Shape& shape, std::uint64_t first,
         const format::Format& format = format::kBF16) {
  Tensor tensor = make_tensor(format, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.set_code(i, first + static_cast<std::uint64_t>(i));
  writer.create_dataset(path, format, shape, shape);
  writer.write(path, Shape(shape.size(), 0), shape, tensor.codes);
}

TEST_CASE("codes of vectors that are not stored as unsigned integers, or in another width, are refused") {
  const ScratchFolder folder;
  const auto complaint = [&](const format::Format& format) {
    Hdf5Writer writer(folder / "s.h5");
    writer.set_attributes("", {{"schema", std::string(kScalarSchema)}});
    writer.create_group("f");
    writer.set_attributes("f", {{"function", std::string("cvt.f32.bf16")}});
    put(writer, "f/x", {4}, 0, format);
    put(writer, "f/y", {4}, 0, format::kBF16);
    writer.commit();
    return message_of([&] { VectorReader(folder / "s.h5").scalar("f"); });
  };
  CHECK(contains(complaint(format::kFP32), "s.h5: f/x: holds float32 numbers; it must hold unsigned integers"));
  CHECK(contains(complaint(format::kInt8), "s.h5: f/x: holds 1-byte signed integers; it must hold unsigned integers"));
  CHECK(complaint(format::kBF16).empty());
  const Codes codes = counted({4}, 2, 0);
  CHECK(message_of([&] { check_width(codes, format::kBF16, "w"); }).empty());
  CHECK(contains(message_of([&] { check_width(codes, format::kTF32, "f: c/x"); }),
                 "f: c/x: holds 2-byte unsigned integers; codes of tf32 are 4-byte unsigned integers"));
}

TEST_CASE("kernel and backward vectors are read with what was computed on the way, in the HND layout") {
  const ScratchFolder folder;
  {
    Hdf5Writer writer(folder / "k.h5");
    writer.set_attributes("", {{"schema", std::string(kKernelSchema)}, {"gpu", std::string("g")}});
    writer.create_group("c0");
    writer.set_attributes("c0", {{"layout", std::string("NHD")}, {"is_causal", true}, {"sm_scale", 0.25}});
    put(writer, "c0/q", {1, 3, 4, 8}, 0);
    put(writer, "c0/k", {1, 5, 2, 8}, 1000);
    put(writer, "c0/v", {1, 5, 2, 8}, 2000);
    put(writer, "c0/k_mean", {1, 2, 1, 8}, 3000);
    put(writer, "c0/quantized/sm90/per_thread/q_int8", {1, 3, 4, 8}, 0, format::kInt8);
    put(writer, "c0/kernels/sage/o", {1, 3, 4, 8}, 4000);
    put(writer, "c0/kernels/sage/lse", {1, 4, 3}, 5000, format::kFP32);
    writer.set_attributes("c0/kernels/sage", {{"kernel", std::string("sageattn_x")}, {"smooth_k", true}});
    put(writer, "c0/kernels/aten/o", {1, 3, 4, 8}, 6000);
    put(writer, "c0/kernels/aten/dk", {1, 5, 2, 8}, 7000);
    writer.commit();
  }
  const VectorReader reader(folder / "k.h5");
  REQUIRE(reader.cases() == std::vector<std::string>{"c0"});
  const RecordedCase c = reader.recorded("c0");
  CHECK((c.call.q_heads == 4 && c.call.kv_heads == 2 && c.call.q_tokens == 3 && c.call.kv_tokens == 5));
  CHECK((c.call.is_causal && c.call.sm_scale == 0.25 && find_text(c.attributes, "gpu", "") == "g"));
  CHECK(c.tensor("q").shape == Shape{1, 4, 3, 8});
  CHECK(c.tensor("q").code((2 * 3 + 1) * 8 + 5) == (1 * 4 + 2) * 8 + 5);  // head 2, token 1, channel 5
  CHECK(c.tensor("v").code((1 * 5 + 4) * 8) == 2000 + (4 * 2 + 1) * 8);
  CHECK(c.tensor("k_mean").shape == Shape{1, 2, 1, 8});
  CHECK(c.tensor("quantized/sm90/per_thread/q_int8").shape == Shape{1, 3, 4, 8});
  REQUIRE(c.kernels.size() == 2);
  CHECK((c.kernels[0].name == "aten" && c.kernels[1].name == "sage" && c.kernels[1].has("lse")));
  CHECK(c.kernels[1].tensors.at("o").code((2 * 3 + 1) * 8 + 5) == 4000 + (1 * 4 + 2) * 8 + 5);
  CHECK(c.kernels[0].tensors.at("dk").shape == Shape{1, 2, 5, 8});
  CHECK(find_text(c.kernels[1].attributes, "kernel", "") == "sageattn_x");
  CHECK(contains(message_of([&] { c.tensor("do"); }), "k.h5: c0: dataset 'do' is missing"));
}

TEST_CASE("kernel and GEMM vectors whose shapes disagree are refused") {
  const ScratchFolder folder;
  const auto complaint = [&](std::string_view schema, auto fill) {
    {
      Hdf5Writer writer(folder / "k.h5");
      writer.set_attribute("", "schema", std::string(schema));
      fill(writer);
      writer.commit();
    }
    return message_of([&] { VectorReader(folder / "k.h5").recorded("c"); });
  };
  const auto inputs = [](Hdf5Writer& writer) {
    for (const char* name : {"c/q", "c/k", "c/v"}) put(writer, name, {1, 2, 3, 8}, 0);
  };
  CHECK(complaint(kBackwardSchema, [&](auto& w) { inputs(w), put(w, "c/kernels/x/dq", {1, 2, 3, 8}, 0); }).empty());
  CHECK(contains(complaint(kKernelSchema, inputs), "c: has no group kernels/<name>"));
  CHECK(contains(complaint(kKernelSchema,
                           [&](auto& w) {
                             inputs(w), put(w, "c/kernels/x/o", {1, 3, 2, 8}, 0);
                           }),
                 "c/kernels/x/o: has shape [1, 3, 2, 8]; it must be [1, 2, 3, 8]"));
  CHECK(contains(complaint(kKernelSchema,
                           [&](auto& w) {
                             inputs(w), put(w, "c/kernels/x/lse", {1, 2, 4}, 0);
                           }),
                 "c/kernels/x/lse: has shape"));
  CHECK(contains(complaint(kKernelSchema,
                           [&](auto& w) {
                             put(w, "c/q", {1, 2, 3, 8}, 0), put(w, "c/kernels/x/o", {1}, 0);
                           }),
                 "c: dataset 'k' is missing"));
  const auto gemm = [](Hdf5Writer& writer, const Shape& b, const Shape& d) {
    put(writer, "c/a", {4, 16}, 0, format::kE4M3);
    put(writer, "c/b", b, 0, format::kE4M3);
    put(writer, "c/kernels/fast/d", d, 0, format::kFP32);
  };
  CHECK(complaint(kGemmSchema, [&](auto& w) { gemm(w, {6, 16}, {4, 6}); }).empty());
  CHECK(contains(complaint(kGemmSchema,
                           [&](auto& w) {
                             gemm(w, {6, 15}, {4, 6});
                           }),
                 "c: a must be [M, K] and b [N, K]"));
  CHECK(contains(complaint(kGemmSchema,
                           [&](auto& w) {
                             gemm(w, {6, 16}, {6, 4});
                           }),
                 "c/kernels/fast/d: has shape [6, 4]"));
}

TEST_CASE("schemas are told apart, and files without cases are refused") {
  CHECK(schema(real_dump("kwt1_qkv.h5")) == kDumpSchema);
  CHECK(schema(fixture("numpy_stored.npz")) == kDumpSchema);
  CHECK(contains(message_of([] { VectorReader reader(real_dump("kwt1_qkv.h5")); }),
                 "is a file of schema 'qattn-dump/1', no vector file"));
  CHECK(contains(message_of([] { schema(fixture("h5py_kinds.h5")); }), "has no attribute 'schema'"));
  CHECK(contains(message_of([] { schema("/nonexistent.h5"); }), "/nonexistent.h5: cannot be opened: No such file"));
  const ScratchFolder folder;
  VectorWriter writer(folder / "v.h5", kScalarSchema);
  writer.commit();
  CHECK(contains(message_of([&] { VectorReader reader(folder / "v.h5"); }), "holds no case"));
}

}  // namespace
}  // namespace qattn::io
