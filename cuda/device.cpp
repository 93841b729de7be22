#include "device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace qattn::gpu {
namespace {

/// "580.159.03", or nothing where the driver does not tell.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line, word;
  std::getline(file, line);
  for (std::istringstream words(line); words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) return word;
  }
  return "";
}

/// Chips of one generation share their instructions: 8.6 and 8.7 are sm80 in the table, 12.1 is sm120.
std::string architecture(int capability) {
  if (capability == 89) return "sm89";
  return fmt::format("sm{}", capability / 10 * 10);
}

Device open_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    const char* reason = status != cudaSuccess ? cudaGetErrorString(status) : "the count is 0";
    throw Error(ErrorKind::input,
                fmt::format("no CUDA device: {}; this program measures a GPU of sm_80 or later", reason));
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "asking for the device's properties");
  int runtime = 0;
  check_cuda(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  Device device;
  device.capability = properties.major * 10 + properties.minor;
  if (device.capability < 80) {
    throw Error(ErrorKind::input,
                fmt::format("CUDA device {} is sm_{}; sm_80 or later is needed", properties.name, device.capability));
  }
  device.architecture = architecture(device.capability);
  const std::string driver = driver_version();
  device.description =
      fmt::format("{} (sm_{}{}){}, CUDA {}.{}", properties.name, device.capability, device.capability >= 90 ? "a" : "",
                  driver.empty() ? "" : ", driver " + driver, runtime / 1000, runtime % 1000 / 10);
  return device;
}

}  // namespace

void check_cuda(int status, const std::string& what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::internal,
              fmt::format("CUDA: {}: {}", what, cudaGetErrorString(static_cast<cudaError_t>(status))));
}

const Device& device() {
  static const Device instance = open_device();
  return instance;
}

void synchronize(const std::string& what) { check_cuda(cudaDeviceSynchronize(), what); }

void* allocate_on_device(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorKind::input,
                fmt::format("CUDA device: a head needs {} bytes of its memory, which it has not free; try one thread, "
                            "or fewer tokens",
                            bytes));
  }
  check_cuda(status, fmt::format("allocating {} bytes", bytes));
  return memory;
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : data_(allocate_on_device(bytes)), bytes_(bytes) {}

DeviceBuffer::DeviceBuffer(std::span<const std::byte> content) : DeviceBuffer(content.size()) {
  check_cuda(cudaMemcpy(data_, content.data(), content.size(), cudaMemcpyHostToDevice), "copying to the device");
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceBuffer::fill_with_zeros() { check_cuda(cudaMemset(data_, 0, bytes_), "clearing memory"); }

void DeviceBuffer::read(std::span<std::byte> target) const {
  if (target.size() > bytes_) throw Error(ErrorKind::internal, "a read beyond the end of a device buffer");
  check_cuda(cudaMemcpy(target.data(), data_, target.size(), cudaMemcpyDeviceToHost), "copying from the device");
}

}  // namespace qattn::gpu
