// From recordings to calls.
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/recorded.h"
#include "support/catch.h"

namespace qattn::kernels {
namespace {

const std::string kVectors = std::string(QATTN_SOURCE_DIR) + "/data/vectors/";

io::RecordedCase recorded(const std::string& file, const std::string& name) {
  return io::VectorReader(kVectors + file).recorded(name);
}

TEST_CASE("a recorded case becomes the call that its library got") {
  const io::RecordedCase grouped = recorded("fa3_vectors.h5", "d_h4k2n777d128c");
  const Call call = call_of(grouped, grouped.kernels.at(0));
  CHECK(call.q.format == &format::kE4M3);
  CHECK(call.q.shape == std::vector<std::int64_t>{1, 4, 777, 128});
  CHECK(call.kv_heads() == 2);
  CHECK(call.k_descale.size() == 2);
  CHECK(call.v_descale.size() == 2);
  CHECK(call.v_descale[0] != call.v_descale[1]);
  CHECK(call.is_causal);
  CHECK(call.causal_align == attention::CausalAlign::bottom_right);
  CHECK(call.arch == "sm90");
  CHECK_FALSE(call.d_o.has_value());

  const io::RecordedCase training = recorded("fa2_vectors.h5", "fa2_0");
  const Call with_gradient = call_of(training, training.kernels.at(0));
  CHECK(with_gradient.d_o.has_value());
  CHECK_FALSE(with_gradient.causal_align.has_value());
  CHECK_FALSE(with_gradient.is_causal);
  CHECK(with_gradient.q_descale.empty());
  CHECK(with_gradient.sm_scale == 0.125);
}

TEST_CASE("a kernel's own attributes come before its case's, and the layout in memory is kept") {
  io::RecordedCase made = recorded("fa2_vectors.h5", "fa2_0");
  io::RecordedKernel kernel = made.kernels.at(0);
  made.attributes["layout"] = std::string("NHD");
  made.attributes["arch"] = std::string("sm80");
  kernel.attributes["arch"] = std::string("sm89");
  kernel.attributes["sm_count"] = std::int64_t{128};
  kernel.attributes["causal_align"] = std::string("bottom_right");
  kernel.attributes["smooth_k"] = false;
  const Call call = call_of(made, kernel);
  CHECK(call.layout == io::Layout::nhd);
  CHECK(call.arch == "sm89");
  CHECK(call.sm_count == 128);
  CHECK(call.causal_align == attention::CausalAlign::bottom_right);
  CHECK(io::find_bool(call.arguments, "smooth_k", "") == false);
}

TEST_CASE("attributes that make no sense name file, case and kernel") {
  const io::RecordedCase made = recorded("fa2_vectors.h5", "fa2_0");
  const auto message = [&](const std::string& name, const io::AttributeValue& value) {
    io::RecordedKernel kernel = made.kernels.at(0);
    kernel.attributes[name] = value;
    try {
      call_of(made, kernel);
      kernel_of(made, kernel);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::input);
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [name, value] :
       std::multimap<std::string, io::AttributeValue>{{"sm_count", std::int64_t{0}},
                                                      {"sm_count", std::string("many")},
                                                      {"causal_align", std::string("middle")},
                                                      {"kernel", std::string("nobody's")}}) {
    const std::string text = message(name, value);
    INFO(name << ": " << text);
    CHECK(text.find("fa2_vectors.h5: fa2_0/kernels/flash_attention_2") != std::string::npos);
  }
}

}  // namespace
}  // namespace qattn::kernels
