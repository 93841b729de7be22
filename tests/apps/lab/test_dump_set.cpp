// Selecting calls and heads, and turning a head into a problem.
#include <cmath>
#include <limits>

#include "apps/tiny_dump.h"
#include "lab/dump_set.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::message_of;
using io::testing::ScratchFolder;
using testing::TinyShape;
using testing::write_tiny_dump;

TEST_CASE("Heads are given as ranges that exclude their end") {
  CHECK(lab::parse_heads("2:5").first == 2);
  CHECK(lab::parse_heads("2:5").last == 5);
  CHECK(lab::parse_heads(":4").first == 0);
  CHECK(lab::parse_heads("3:").last == std::numeric_limits<std::int64_t>::max());
  CHECK(lab::parse_heads("3").last == 4);
  for (const char* bad : {"", "a", "1:x", "3:3", "4:2", "-1:2", "1:2:3", "1.5"}) {
    CHECK_FALSE(message_of([&] { lab::parse_heads(bad); }, ErrorKind::usage).empty());
  }
}

TEST_CASE("Calls are searched for, heads cut, and a selection of nothing is refused") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"step_1/layer_00", "step_1/layer_10", "step_2/layer_00"});
  const lab::DumpSet some({{folder / "a.h5"}, "layer_0", lab::HeadRange{1, 9}});
  REQUIRE(some.calls().size() == 2);
  CHECK(some.calls()[0].label == "step_1/layer_00");
  CHECK(some.calls()[1].first_head == 1);
  CHECK(some.calls()[1].last_head == 2);
  CHECK(some.heads() == 2);
  CHECK(message_of(
            [&] {
              lab::DumpSet({{folder / "a.h5"}, "^layer", {}});
            },
            ErrorKind::usage)
            .find("layer_10") != std::string::npos);
  CHECK(message_of([&] { lab::DumpSet({{folder / "a.h5"}, "", lab::HeadRange{2, 3}}); }, ErrorKind::usage) != "");
  CHECK(message_of(
            [&] {
              lab::DumpSet({{folder / "a.h5"}, "(", {}});
            },
            ErrorKind::usage)
            .find("regular expression") != std::string::npos);
}

TEST_CASE("Several files are one set, and equal paths are told apart by their file") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"layer_00", "only_a"});
  write_tiny_dump(folder / "b.h5", {"layer_00"});
  const lab::DumpSet set({{folder.path()}, "", {}});
  REQUIRE(set.calls().size() == 3);
  CHECK(set.calls()[0].label == "a.h5:layer_00");
  CHECK(set.calls()[1].label == "only_a");
  CHECK(set.calls()[2].label == "b.h5:layer_00");
}

TEST_CASE("A head is read with its key-value head and the call's attributes") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"}, TinyShape{2, 4, 2, 5, 8}, testing::tiny_value,
                  {{"is_causal", true}, {"sm_scale", 0.25}, {"causal_align", std::string("bottom_right")}});
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const std::vector<lab::HeadProblem> head = set.read(set.calls()[0], 1, 3);
  REQUIRE(head.size() == 1);
  const attention::Problem& p = head[0].problem;
  CHECK(p.is_causal);
  CHECK(p.causal_align == attention::CausalAlign::bottom_right);
  CHECK(p.sm_scale == 0.25);
  const auto stored = [](const char* name, int batch, int h, int token, int channel) {
    const double x = testing::tiny_value(name, batch, h, token, channel);
    return format::decode(format::kFP16, format::encode(format::kFP16, x, {}));
  };
  CHECK(p.q(4, 7) == stored("q", 1, 3, 4, 7));
  CHECK(p.k(2, 1) == stored("k", 1, 1, 2, 1));
  CHECK(p.v(0, 3) == stored("v", 1, 1, 0, 3));
}

TEST_CASE("Packed sequences become problems of their own, a boolean mask becomes -Inf") {
  const ScratchFolder folder;
  const TinyShape shape{1, 1, 1, 6, 4};
  io::DumpWriter writer(folder / "a.h5");
  for (const char* call : {"masked", "packed"}) {
    writer.begin_call(call);
    for (const char* name : {"q", "k", "v"}) {
      writer.write(call, name, testing::tiny_tensor(name, 1, shape, testing::tiny_value, format::kFP16));
    }
  }
  writer.write_cu_seqlens("packed", {0, 2, 6}, {0, 5, 6});
  std::vector<std::uint8_t> attend(36, 1);
  attend[7] = 0;
  writer.write_boolean_mask("masked", {6, 6}, attend);
  writer.commit();
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  const std::vector<lab::HeadProblem> masked = set.read(set.calls()[0], 0, 0), packed = set.read(set.calls()[1], 0, 0);
  REQUIRE(masked.size() == 1);
  REQUIRE(masked[0].problem.mask);
  CHECK((*masked[0].problem.mask)(1, 1) == -std::numeric_limits<double>::infinity());
  CHECK((*masked[0].problem.mask)(1, 2) == 0.0);
  REQUIRE(packed.size() == 2);
  CHECK(packed[1].first_row == 2);
  CHECK(packed[1].problem.q.rows() == 4);
  CHECK(packed[1].problem.k.rows() == 1);
  CHECK(packed[1].problem.v(0, 2) == masked[0].problem.v(5, 2));
}

TEST_CASE("The first NaN or Inf of the inputs is located") {
  const ScratchFolder folder;
  write_tiny_dump(folder / "a.h5", {"c"}, {}, [](const std::string& name, auto b, auto h, auto token, auto channel) {
    if (name == "v" && token == 3 && channel == 5) return std::numeric_limits<double>::quiet_NaN();
    return testing::tiny_value(name, b, h, token, channel);
  });
  const lab::DumpSet set({{folder / "a.h5"}, "", {}});
  CHECK(lab::first_bad_input(set.read(set.calls()[0], 0, 0)) == "v[token 3, channel 5] is NaN");
  // Either may be what made the first NaN of an output.
  lab::HeadProblem part = set.read(set.calls()[0], 0, 0).front();
  part.problem.q(5, 1) = std::numeric_limits<double>::infinity();
  part.first_row = 40;
  part.first_key = 60;
  CHECK(lab::bad_inputs(part) == "q[token 45, channel 1] is Inf, v[token 63, channel 5] is NaN");
  write_tiny_dump(folder / "b.h5", {"c"});
  const lab::DumpSet good({{folder / "b.h5"}, "", {}});
  CHECK(lab::first_bad_input(good.read(good.calls()[0], 0, 0)).empty());
}

TEST_CASE("NaN and +Inf of an additive mask are located, and -Inf hides a key") {
  const ScratchFolder folder;
  const auto found = [&](double value) {
    const testing::TinyShape shape{1, 1, 1, 6, 16};
    io::DumpWriter writer(folder / "m.h5", {});
    writer.begin_call("c");
    for (const char* name : {"q", "k", "v"}) {
      writer.write("c", name, testing::tiny_tensor(name, 1, shape, testing::tiny_value, format::kFP16));
    }
    Tensor mask = make_tensor(format::kFP32, {6, 6});
    mask.set_code(2 * 6 + 4, format::encode(format::kFP32, value, {.overflow = format::Overflow::inf_or_nan}));
    writer.write("c", "mask", mask);
    writer.commit();
    const lab::DumpSet set({{folder / "m.h5"}, "", {}});
    return lab::first_bad_input(set.read(set.calls()[0], 0, 0));
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(found(std::numeric_limits<double>::quiet_NaN()) == "mask[row 2, column 4] is NaN");
  CHECK(found(infinity) == "mask[row 2, column 4] is Inf");
  CHECK(found(-infinity).empty());
  CHECK(found(-3.0).empty());
}
