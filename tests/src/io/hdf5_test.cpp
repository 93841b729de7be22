// The HDF5 layer against a file that h5py 3 wrote (data/h5py_kinds.h5: every kind of attribute, of element and of
// chunking), so that reader and writer do not only agree with each other.
#include <cmath>
#include <thread>

#include "format/encode.h"
#include "io/hdf5_file.h"
#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;

std::vector<std::uint64_t> codes_of(const Hdf5Reader& file, const std::string& dataset) {
  const Array array = file.read_all(dataset);
  std::vector<std::uint64_t> codes;
  for (std::size_t i = 0; i < array.bytes.size() / array.info.element_bytes; ++i) {
    codes.push_back(array.code(static_cast<std::int64_t>(i)));
  }
  return codes;
}

using U = std::vector<std::uint64_t>;
const U kHalfs = {0x3c00, 0xc100, 0x3555, 0x7bff, 0x7c00, 0x7e00};
const U kSingles = {0x3f800000, 0xc0200000, 0x3eaaa000, 0x477fe000, 0x7f800000, 0x7fc00000};
const U kDoubles = {0x3ff0000000000000, 0xc004000000000000, 0x3fd5540000000000,
                    0x40effc0000000000, 0x7ff0000000000000, 0x7ff8000000000000};

TEST_CASE("attributes of every kind that h5py writes are read") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  const Attributes a = file.own_attributes("");
  CHECK(a.at("bool") == AttributeValue(true));
  CHECK(a.at("np_bool") == AttributeValue(false));
  CHECK(a.at("int") == AttributeValue(std::int64_t{7}));
  CHECK(a.at("u8") == AttributeValue(std::int64_t{200}));
  CHECK(a.at("neg") == AttributeValue(std::int64_t{-3}));
  CHECK(a.at("one") == AttributeValue(std::int64_t{5}));
  CHECK(a.at("be") == AttributeValue(std::int64_t{258}));
  CHECK(a.at("f64") == AttributeValue(0.1));
  CHECK(a.at("f32") == AttributeValue(0.25));
  CHECK(a.at("f16") == AttributeValue(1.5));
  CHECK(a.at("text") == AttributeValue(std::string("h\xc3\xa4llo")));
  CHECK(a.at("fixed") == AttributeValue(std::string("fixed")));
  CHECK(a.at("empty") == AttributeValue(std::string()));
  CHECK(a.at("array") == AttributeValue());
  CHECK(a.at("nothing") == AttributeValue());
  CHECK(a.size() == 15);
}

TEST_CASE("attributes are asked for by type and say what they should be") {
  const Attributes a = {{"yes", std::int64_t{1}},
                        {"two", std::int64_t{2}},
                        {"text", std::string("0.5")},
                        {"word", std::string("True")},
                        {"list", {}},
                        {"half", 0.5}};
  CHECK(find_bool(a, "yes", "f") == true);
  CHECK(find_bool(a, "word", "f") == true);
  CHECK(find_bool(a, "absent", "f") == std::nullopt);
  CHECK(find_number(a, "two", "f") == 2.0);
  CHECK(find_number(a, "text", "f") == 0.5);
  CHECK(find_text(a, "text", "f") == "0.5");
  CHECK(message_of([&] { find_bool(a, "two", "f: g"); }) ==
        "f: g: attribute 'two' must be a boolean (true or false, 0 or 1)");
  CHECK(contains(message_of([&] { find_number(a, "word", "f"); }), "must be a number"));
  CHECK(contains(message_of([&] { find_number(a, "list", "f"); }), "must be a number"));
  CHECK(contains(message_of([&] { find_integer(a, "half", "f"); }), "must be an integer"));
  CHECK(contains(message_of([&] { find_text(a, "half", "f"); }), "must be a string"));
  CHECK(contains(message_of([&] { require_text(a, "absent", "f"); }), "attribute 'absent' is missing"));
}

TEST_CASE("plain types name themselves, in either byte order, bit for bit") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  for (const std::string order : {"", "_be"}) {
    CHECK(file.info("plain/float16" + order).format == &format::kFP16);
    CHECK(file.info("plain/float32" + order).format == &format::kFP32);
    CHECK(file.info("plain/float64" + order).format == &format::kFP64);
    CHECK(codes_of(file, "plain/float16" + order) == kHalfs);
    CHECK(codes_of(file, "plain/float32" + order) == kSingles);
    CHECK(codes_of(file, "plain/float64" + order) == kDoubles);
  }
  CHECK(file.info("plain/int8").format == &format::kInt8);
  CHECK(codes_of(file, "plain/int8") == U{0x80, 0xff, 0, 1, 0x7f});
  for (const std::string order : {"", "be_"}) {
    CHECK(codes_of(file, "plain/" + order + "u2") == U{0, 1, 2, 0xffff});
    CHECK(codes_of(file, "plain/" + order + "u4") == U{0, 1, 2, 0xffffffff});
    CHECK(codes_of(file, "plain/" + order + "u8") == U{0, 1, 2, 0xffffffffffffffff});
    const auto integers = to_integers(file.read_all("plain/" + order + "i8"), "i8");
    CHECK(integers == std::vector<std::int64_t>{INT64_MIN, 1, 2, INT64_MAX});
  }
  CHECK(to_integers(file.read_all("plain/i2"), "i2") == std::vector<std::int64_t>{-32768, 1, 2, 32767});
  CHECK(contains(message_of([&] { to_integers(file.read_all("plain/u8"), "u8"); }), "out of range"));
  CHECK(to_booleans(file.read_all("plain/bool"), "bool") == std::vector<std::uint8_t>{1, 0, 1});
  CHECK(contains(message_of([&] { to_booleans(file.read_all("plain/u1"), "place"); }), "place: element 2 is 2"));
}

TEST_CASE("dtype names what integers and opaque elements are") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  const U bfloats = {0x3f80, 0xc020, 0x4049, 0x7f80, 0x7fc0};
  for (const char* name : {"bf16_u2", "bf16_i2", "bf16_opaque", "bf16_be"}) {
    const std::string dataset = std::string("named/") + name;
    INFO(dataset);
    CHECK(file.info(dataset).format == &format::kBF16);
    CHECK(codes_of(file, dataset) == bfloats);
  }
  CHECK(file.info("named/f16_u2").format == &format::kFP16);
  CHECK(codes_of(file, "named/f16_u2") == kHalfs);
  CHECK(file.info("named/fixed_dtype").format == &format::kFP16);
  CHECK(file.info("named/e8m0").format == &format::kE8M0);
  CHECK(file.info("named/int8_u1").format == &format::kInt8);
  const Tensor e4m3 = to_tensor(file.read_all("named/e4m3"), "e4m3");
  CHECK(e4m3.format == &format::kE4M3);
  CHECK(e4m3.shape == std::vector<std::int64_t>{16, 16});
  for (std::int64_t i = 0; i < 256; ++i) REQUIRE(e4m3.code(i) == static_cast<std::uint64_t>(i));
}

TEST_CASE("dtype may repeat a plain integer's own type, and no other's") {
  const auto resolved = [](std::size_t bytes, bool is_signed, const std::string& dtype) {
    ArrayInfo info{{4}, Storage::integer, bytes, is_signed, nullptr};
    resolve_format(info, dtype, "place");
    return info;
  };
  CHECK(resolved(4, true, "int32").format == nullptr);
  CHECK(resolved(8, false, "uint64").format == nullptr);
  CHECK(resolved(1, true, "int8").format == &format::kInt8);
  CHECK(resolved(1, false, "bool").storage == Storage::boolean);
  CHECK(contains(message_of([&] { resolved(4, true, "int64"); }), "place: unknown dtype 'int64'"));
  CHECK(contains(message_of([&] { resolved(4, true, "uint32"); }), "place: unknown dtype 'uint32'"));
}

TEST_CASE("four-bit codes are read one a byte and from packed bytes, low nibble first") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  const Tensor loose = to_tensor(file.read_all("named/int4"), "int4");
  CHECK(loose.format == &format::kInt4);
  CHECK(format::decode(*loose.format, loose.code(15)) == -1);
  for (const char* name : {"int4_packed", "e2m1_packed"}) {
    const Tensor packed = to_tensor(file.read_all(std::string("named/") + name), name);
    CHECK(packed.shape == std::vector<std::int64_t>{3, 4});
    const U expected = {0, 1, 2, 3, 0xe, 0xf, 0xc, 0xd, 0xf, 8, 0, 7};
    for (std::int64_t i = 0; i < 12; ++i) REQUIRE(packed.code(i) == expected[static_cast<std::size_t>(i)]);
  }
  CHECK(file.read("named/int4_packed", {1, 2}, {1, 2}).bytes == std::vector{std::byte{0xc}, std::byte{0xd}});
}

TEST_CASE("wrong datasets give one line that names file, dataset and what to do") {
  const std::string path = fixture("h5py_kinds.h5");
  const Hdf5Reader file(path);
  const auto complaint = [&](const std::string& dataset) {
    const std::string message = message_of([&] { to_tensor(file.read_all(dataset), path + ": " + dataset); });
    CHECK(message.substr(0, path.size() + dataset.size() + 4) == path + ": " + dataset + ": ");
    CHECK(!contains(message, "\n"));
    return message;
  };
  CHECK(contains(complaint("wrong/unknown"), "unknown dtype 'float9'; known are: float64 float32 float16 bfloat16"));
  CHECK(contains(complaint("wrong/narrow"), "dtype says bfloat16 but the elements are 1-byte unsigned integers"));
  CHECK(contains(complaint("wrong/contradiction"), "dtype says float64 but the elements are float32 numbers"));
  CHECK(contains(complaint("wrong/int4_signed"), "element 1 does not fit int4"));
  CHECK(contains(complaint("wrong/packing"), "unknown packing 'high_nibble_first'"));
  CHECK(contains(complaint("wrong/packed_e4m3"), "'packed' goes with dtype int4 or float4_e2m1fn only"));
  CHECK(contains(complaint("wrong/no_name"), "2-byte unsigned integers without a dtype; add the attribute 'dtype'"));
  CHECK(contains(complaint("wrong/numeric_dtype"), "attribute 'dtype' must be a string"));
  CHECK(contains(complaint("wrong/lzf"), "(HDF5: required filter 'lzf' is not registered)"));
  CHECK(contains(complaint("named/bf16_opaque_unnamed"), "2-byte opaque elements without a dtype"));
  CHECK(contains(complaint("plain/strings"), "holds strings, records or references"));
  CHECK(contains(complaint("plain/absent"), "cannot be opened as a dataset (HDF5: "));
  CHECK(contains(complaint("plain"), "cannot be opened as a dataset (HDF5: "));
}

TEST_CASE("groups are walked in the order of names, links that lead nowhere or back are skipped") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  std::vector<std::string> names;
  for (const auto& child : file.children("")) names.push_back(child.name);
  CHECK(names == std::vector<std::string>{"named", "plain", "slabs", "wrong"});
  for (const auto& child : file.children("wrong")) {
    if (child.name == "dangling") CHECK(child.kind == Hdf5Reader::Kind::other);
    if (child.name == "ring") CHECK(child.kind == Hdf5Reader::Kind::group);
  }
  CHECK(file.exists("plain/int8"));
  CHECK(!file.exists("plain/int9"));
  const auto arrays = file.arrays();
  const auto inside = [](const std::string& group) {
    return [group](const ArrayName& array) { return array.group == group; };
  };
  CHECK(std::count_if(arrays.begin(), arrays.end(), inside("wrong")) == 9);
  CHECK(std::count_if(arrays.begin(), arrays.end(), inside("slabs")) == 4);
  CHECK(std::none_of(arrays.begin(), arrays.end(), inside("wrong/ring")));
}

TEST_CASE("any block of any chunking is the block of the whole") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  for (const char* name : {"slabs/contiguous", "slabs/chunked", "slabs/big_endian"}) {
    const Array block = file.read(name, {1, 1, 2, 0}, {1, 2, 3, 4});
    CHECK(block.info.shape == std::vector<std::int64_t>{1, 2, 3, 4});
    std::int64_t i = 0;
    for (std::uint64_t h = 1; h < 3; ++h) {
      for (std::uint64_t n = 2; n < 5; ++n) {
        for (std::uint64_t d = 0; d < 4; ++d) REQUIRE(block.code(i++) == ((3 + h) * 5 + n) * 4 + d);
      }
    }
    CHECK(file.read(name, {0, 0, 0, 0}, {2, 0, 5, 4}).bytes.empty());
    CHECK(contains(message_of([&] { file.read(name, {0, 0, 0, 1}, {1, 1, 1, 4}); }), "outside of shape [2, 3, 5, 4]"));
    CHECK(contains(message_of([&] { file.read(name, {-1, 0, 0, 0}, {1, 1, 1, 4}); }), "outside of shape"));
    CHECK(contains(message_of([&] { file.read(name, {0, 0}, {1, 1}); }), "outside of shape"));
  }
  CHECK(file.read_all("slabs/scalar").code(0) == 0x40200000);
}

TEST_CASE("files that are no HDF5 files are refused with the reason") {
  const ScratchFolder folder;
  spill(folder / "text.h5", "this is no HDF5 file");
  spill(folder / "empty.h5", "");
  const auto complaint = [](const std::string& path) { return message_of([&] { const Hdf5Reader file(path); }); };
  CHECK(complaint(folder / "text.h5") ==
        (folder / "text.h5") + ": cannot be opened as an HDF5 file (HDF5: file signature not found)");
  CHECK(contains(complaint(folder / "empty.h5"), "cannot be opened as an HDF5 file"));
  CHECK(contains(complaint(folder / "absent.h5"), "absent.h5: cannot be opened: No such file or directory"));
  CHECK(contains(complaint(folder.path()), "is not a regular file"));
}

TEST_CASE("every format survives writing and reading, bit for bit") {
  const ScratchFolder folder;
  const std::string path = folder / "formats.h5";
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const format::Format* f : format::formats()) {
    if (f->dtype.empty()) continue;
    Tensor tensor = make_tensor(*f, {2, 3, 5, 7});
    const std::uint64_t mask = f->bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << f->bits) - 1;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.set_code(i, (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u >> 3) & mask);
    }
    tensors.emplace_back("deep/group/" + std::string(f->dtype), std::move(tensor));
  }
  REQUIRE(tensors.size() >= 10);
  {
    Hdf5Writer writer(path);
    for (const auto& [name, tensor] : tensors) {
      writer.create_dataset(name, *tensor.format, tensor.shape, {1, 1, 5, 7});
      writer.write(name, {0, 0, 0, 0}, tensor.shape, tensor.codes);
    }
    writer.commit();
  }
  const Hdf5Reader reader(path);
  for (const auto& [name, tensor] : tensors) {
    const Tensor back = to_tensor(reader.read_all(name), name);
    INFO(name);
    CHECK(back.format == tensor.format);
    CHECK(back.shape == tensor.shape);
    CHECK(back.codes == tensor.codes);
  }
}

TEST_CASE("attributes survive writing and reading") {
  const ScratchFolder folder;
  const Attributes written = {{"yes", true},
                              {"no", false},
                              {"int", std::int64_t{-5}},
                              {"f", 0.1},
                              {"text", std::string("\xc3\xbc\n")},
                              {"empty", std::string()}};
  Hdf5Writer writer(folder / "a.h5");
  writer.create_group("g/h");
  writer.set_attributes("g/h", written);
  writer.set_attribute("", "f", 0.5);
  writer.set_attribute("g", "yes", std::int64_t{0});
  writer.commit();
  const Hdf5Reader reader(folder / "a.h5");
  CHECK(reader.own_attributes("g/h") == written);
  CHECK(reader.attributes("g") == Attributes{{"f", 0.5}, {"yes", std::int64_t{0}}});
  CHECK(reader.attributes("g/h") == written);
}

TEST_CASE("the same calls give the same bytes") {
  const ScratchFolder folder;
  for (const char* name : {"1.h5", "2.h5"}) {
    Hdf5Writer writer(folder / name);
    writer.create_dataset("x/y", format::kBF16, {4, 4}, {2, 4});
    const std::vector<std::byte> bytes(32, std::byte{3});
    writer.write("x/y", {0, 0}, {4, 4}, bytes);
    writer.set_attribute("x", "text", std::string("t"));
    writer.commit();
    if (std::string(name) == "1.h5") ::sleep(1);
  }
  CHECK(slurp(folder / "1.h5") == slurp(folder / "2.h5"));
}

TEST_CASE("threads may read one file at once") {
  const Hdf5Reader file(fixture("h5py_kinds.h5"));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        if (codes_of(file, "plain/float16_be") != kHalfs || file.own_attributes("").size() != 15) ++wrong;
        if (message_of([&] { file.read_all("wrong/unknown"); }).empty()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace qattn::io
