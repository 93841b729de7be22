#include "lab/device.h"

#include "base/error.h"
#include "options.h"

namespace qattn::cli {

void add_device_option(CLI::App& command, std::string& name) {
  command
      .add_option("--device", name,
                  "where the recipes run, with the same bits: cpu, or cuda, the first CUDA device (sm_80 and later); "
                  "cuda has no gradients, no softmax = f64, row sums narrower than fp32 in tiles of at most 64 keys "
                  "alone, and these accumulators: exact, f32, integers, NVIDIA's fused and block-scaled dot products")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

std::unique_ptr<lab::Device> open_device(const std::string& name) {
  if (name == "cpu") return nullptr;
#ifdef QATTN_CUDA
  return lab::open_cuda_device();
#else
  throw Error(ErrorKind::usage, "--device cuda: this build has no CUDA");
#endif
}

}  // namespace qattn::cli
