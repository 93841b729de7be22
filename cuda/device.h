// The GPU at hand, and memory on it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace qattn::gpu {

/// Throws Error(internal) that names the step and CUDA's reason unless `status` (a cudaError_t) is 0.
void check_cuda(int status, const std::string& what);

struct Device {
  int capability = 0;        ///< 10 major + minor
  std::string architecture;  ///< as instruction names begin: "sm90"
  std::string description;   ///< for files: "NVIDIA H200 (sm_90a), driver 580.159.03, CUDA 13.0"
};

/// The first CUDA device. Throws Error(input) when there is none or when it is older than Ampere.
const Device& device();

/// Waits for the kernels that were started; errors that happened in them come out here.
void synchronize(const std::string& what);

/// Memory for cudaFree(). Throws Error(input) when the device has not so much of it free.
void* allocate_on_device(std::size_t bytes);

/// Bytes in the device's memory.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  explicit DeviceBuffer(std::span<const std::byte> content);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  void fill_with_zeros();
  /// Copies the first bytes out; waits for the kernels before.
  void read(std::span<std::byte> target) const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace qattn::gpu
