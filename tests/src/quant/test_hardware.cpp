// SageAttention's per-thread quantizer as it ran on an H200: means, scales and codes bit for bit.
#include <hdf5.h>

#include <bit>
#include <string>
#include <vector>

#include "quant/quantize.h"
#include "quant/smooth.h"
#include "support/catch.h"

using namespace qattn;
using namespace qattn::quant;

namespace {

// One head's slice of a recorded [1, heads, ...] dataset.
template <class T>
std::vector<T> read_head(hid_t file, const std::string& path, hid_t type, std::size_t head) {
  const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
  REQUIRE(dataset >= 0);
  const hid_t space = H5Dget_space(dataset);
  hsize_t shape[4] = {};
  REQUIRE(H5Sget_simple_extent_dims(space, shape, nullptr) >= 3);
  std::vector<T> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  REQUIRE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()) >= 0);
  H5Sclose(space);
  H5Dclose(dataset);
  const std::size_t n = all.size() / shape[1];
  return {all.begin() + static_cast<std::ptrdiff_t>(head * n),
          all.begin() + static_cast<std::ptrdiff_t>((head + 1) * n)};
}

MatrixF read_half(hid_t file, const std::string& path, std::size_t head, std::int64_t channels) {
  const auto codes = read_head<std::uint16_t>(file, path, H5T_NATIVE_UINT16, head);
  MatrixF x(static_cast<std::int64_t>(codes.size()) / channels, channels);
  for (std::size_t i = 0; i < codes.size(); ++i) x.data()[i] = format::decode_float(format::kFP16, codes[i]);
  return x;
}

void require_recorded(hid_t file, const std::string& group, char letter, std::size_t head, const Quantized& quantized) {
  const std::string path = group + "/" + letter;
  const auto codes = read_head<std::int8_t>(file, path + "_int8", H5T_NATIVE_INT8, head);
  const auto scales = read_head<std::uint32_t>(file, path + "_scale", H5T_NATIVE_UINT32, head);
  const Matrix<std::int8_t> ours = integer_codes(quantized);
  REQUIRE(codes == std::vector<std::int8_t>(ours.data(), ours.data() + ours.size()));
  REQUIRE(scales.size() >= quantized.scales.size());
  for (std::size_t g = 0; g < scales.size(); ++g) {
    // The kernel also has scales for the warps that fill the last block; their groups are empty.
    const float expected = g < quantized.scales.size() ? quantized.scales[g] : 1e-7f;
    REQUIRE(scales[g] == std::bit_cast<std::uint32_t>(expected));
  }
}

}  // namespace

TEST_CASE("Every recorded per-thread scale and INT8 code of Q and K, and the mean of K, is reproduced") {
  const std::string name = std::string(QATTN_SOURCE_DIR) + "/data/vectors/kernel_vectors_1.h5";
  const hid_t file = H5Fopen(name.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  REQUIRE(file >= 0);
  QuantizerSpec spec;
  spec.rule = &find_scale_rule("triton_eps");
  spec.rounding = format::Rounding::nearest_away;
  for (const std::string call : {"c0", "c2"}) {
    for (const char* tiling : {"sm89", "sm90"}) {
      for (std::size_t head = 0; head < 2; ++head) {
        const std::string group = call + "/quantized/" + tiling + "/per_thread";
        spec.groups = {.granularity = Granularity::per_thread, .operand = Operand::q, .tiling = find_tiling(tiling)};
        require_recorded(file, group, 'q', head, quantize(read_half(file, call + "/q", head, 64), spec));
        spec.groups.operand = Operand::k;
        const SmoothSpec in_half{.block_rows = 0, .mean_format = &format::kFP16, .result_format = &format::kFP16};
        const Smoothed k = smooth(read_half(file, call + "/k", head, 64), in_half);
        REQUIRE(k.means == read_half(file, call + "/k_mean", head, 64));
        require_recorded(file, group, 'k', head, quantize(k.centred, spec));
      }
    }
  }
  H5Fclose(file);
}
