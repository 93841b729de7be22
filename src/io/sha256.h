// SHA-256 (FIPS 180-4), for the provenance of inputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qattn::io {

/// Absorbs bytes piece by piece; the digest depends on their concatenation alone.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. Ends the computation.
  std::string finish();

 private:
  void absorb_block(const std::byte* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  std::size_t pending_size_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::string sha256(std::string_view bytes);
/// The digest of a file's bytes. Throws Error(input) when it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace qattn::io
