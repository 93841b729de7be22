// Attributes and tensors of a recorded case, as a call.
#include "kernels/recorded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "kernels/families.h"

namespace qattn::kernels {
namespace {

std::string place_of(const io::RecordedCase& recorded, const io::RecordedKernel& kernel) {
  return fmt::format("{}: {}/kernels/{}", recorded.file, recorded.name, kernel.name);
}

/// [B, Hkv] floats, or nothing when the case has none.
std::vector<float> descale_of(const io::RecordedCase& recorded, std::string_view name) {
  const auto found = recorded.tensors.find(name);
  if (found == recorded.tensors.end()) return {};
  const Tensor& tensor = found->second;
  if (tensor.format != &format::kFP32) {
    throw Error(ErrorKind::input, fmt::format("{}: {}/{}: has dtype {}; it must be float32", recorded.file,
                                              recorded.name, name, tensor.format->dtype));
  }
  const MatrixF values = decode_matrix_float(tensor, 0, 1, tensor.elements());
  return {values.data(), values.data() + values.size()};
}

attention::CausalAlign align_of(const std::string& text, const std::string& where) {
  if (text == "top_left") return attention::CausalAlign::top_left;
  if (text == "bottom_right") return attention::CausalAlign::bottom_right;
  throw Error(ErrorKind::input,
              fmt::format("{}: causal_align is '{}'; it must be top_left or bottom_right", where, text));
}

}  // namespace

Call call_of(const io::RecordedCase& recorded, const io::RecordedKernel& kernel) {
  const std::string where = place_of(recorded, kernel);
  Call call;
  call.q = recorded.tensor("q");
  call.k = recorded.tensor("k");
  call.v = recorded.tensor("v");
  if (recorded.has("do")) call.d_o = recorded.tensor("do");
  call.q_descale = descale_of(recorded, "q_descale");
  call.k_descale = descale_of(recorded, "k_descale");
  call.v_descale = descale_of(recorded, "v_descale");
  call.arguments = io::override_attributes(recorded.attributes, kernel.attributes);
  // The reader has brought the tensors to [B, H, N, D]; how they lay in memory is still the attribute's to say.
  const std::string layout = io::find_text(call.arguments, "layout", where).value_or("HND");
  call.layout = layout == "NHD" ? io::Layout::nhd : io::Layout::hnd;
  call.sm_scale = recorded.call.sm_scale;
  call.is_causal = io::find_bool(call.arguments, "is_causal", where).value_or(recorded.call.is_causal);
  if (const auto align = io::find_text(call.arguments, "causal_align", where))
    call.causal_align = align_of(*align, where);
  if (const auto arch = io::find_text(call.arguments, "arch", where)) call.arch = *arch;
  if (const auto count = io::find_integer(call.arguments, "sm_count", where)) {
    if (*count < 1 || *count > std::numeric_limits<int>::max()) {
      throw Error(ErrorKind::input, fmt::format("{}: sm_count is {}; it must be positive", where, *count));
    }
    call.sm_count = static_cast<int>(*count);
  }
  return call;
}

const Kernel& kernel_of(const io::RecordedCase& recorded, const io::RecordedKernel& kernel) {
  const std::string where = place_of(recorded, kernel);
  const io::Attributes attributes = io::override_attributes(recorded.attributes, kernel.attributes);
  std::optional<std::string> name = io::find_text(attributes, "kernel", where);
  if (!name && recorded.schema == io::kBackwardSchema) name = attn_qat_kernels()[0].name;
  if (!name) throw Error(ErrorKind::input, fmt::format("{}: has no attribute kernel", where));
  const Kernel* found = find_kernel_or_null(*name);
  if (found != nullptr) return *found;
  std::vector<std::string_view> known;
  for (const Kernel& each : kernels()) known.push_back(each.name);
  throw Error(ErrorKind::input,
              fmt::format("{}: unknown kernel '{}'; replayed are {}", where, *name, fmt::join(known, ", ")));
}

}  // namespace qattn::kernels
